//! Commands that wait on the server: `BLMPOP`, `XREADGROUP … BLOCK`.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::command::Cmd;
use crate::connection::{Connection, Server};
use crate::error::{Error, Result};
use crate::value::Value;

/// A connection of its own for commands that wait on the server, one at a time.
///
/// What a pop took from the server is lost when its answer is: whoever pops has to be able to find such
/// work again.
pub struct Blocking {
    server: Arc<Server>,
    database: u32,
    control: Connection,
    open: Option<Open>,
}

struct Open {
    link: MultiplexedConnection,
    client_id: i64,
}

impl std::fmt::Debug for Blocking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.open.as_ref().map(|open| open.client_id);
        write!(f, "Blocking({}, database {}, client {id:?})", self.server.shown, self.database)
    }
}

impl Blocking {
    pub(crate) fn new(server: Arc<Server>, database: u32, control: Connection) -> Self {
        Self { server, database, control, open: None }
    }

    /// The server's number for this connection, for `CLIENT UNBLOCK`; connects if need be.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when there is no connection to be had.
    pub async fn client_id(&mut self) -> Result<i64> {
        let open = self.connect().await?;
        let id = open.client_id;
        self.open = Some(open);
        Ok(id)
    }

    /// Sends a command that makes the server wait for at most `block`, and wakes it when `cancel` is
    /// ready. Gives [`Value::Nil`] when there was nothing in time, or it was woken.
    ///
    /// A wake-up never loses what the command took: the answer is awaited in any case. Dropping
    /// the future does lose it, and closes the connection.
    ///
    /// # Errors
    /// Any [`Error`]. After [`Error::UnknownOutcome`] something may have been taken.
    pub async fn run(
        &mut self,
        cmd: &Cmd,
        block: Duration,
        cancel: impl Future<Output = ()>,
    ) -> Result<Value> {
        // Out of its place while in use, so that a call that was dropped leaves nothing behind whose
        // answer could be taken for that of the next.
        let mut open = self.connect().await?;
        open.link.set_response_timeout(block + self.server.options.response_timeout);
        let client_id = open.client_id;
        let answer = {
            let mut answer = pin!(open.link.send_packed_command(&cmd.0));
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                () = cancel => {
                    let mut wake = pin!(self.wake(client_id));
                    tokio::select! {
                        biased;
                        answer = &mut answer => answer,
                        () = &mut wake => answer.await,
                    }
                }
            }
        };
        match answer {
            Ok(value) => {
                self.open = Some(open);
                Value::from_redis(&self.server.shown, value)
            }
            Err(error) => {
                if !error.is_io_error() && !error.is_unrecoverable_error() {
                    self.open = Some(open);
                }
                Err(Error::of_command(&self.server.shown, &error))
            }
        }
    }

    /// Wakes the connection until it was found waiting. The command may still be on its way to the
    /// server while the wake-up, on another connection, has arrived already; hence again and again,
    /// a round trip each, until one meets it (or its answer ends the attempts).
    async fn wake(&self, client_id: i64) {
        loop {
            let unblock = Cmd::new("CLIENT").arg("UNBLOCK").arg(client_id);
            match self.control.cmd(unblock).await.and_then(|answer| answer.int()) {
                Ok(0) => tokio::task::yield_now().await,
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(error = %error, "a waiting connection could not be woken");
                    return;
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<Open> {
        if let Some(open) = self.open.take() {
            return Ok(open);
        }
        let mut link = self.server.connect(self.database, &self.server.config()).await?;
        let mut ask = redis::cmd("CLIENT");
        ask.arg("ID");
        let id = link
            .send_packed_command(&ask)
            .await
            .map_err(|error| Error::of_connecting(&self.server.shown, &error))?;
        let client_id = Value::from_redis(&self.server.shown, id)?.int()?;
        Ok(Open { link, client_id })
    }
}
