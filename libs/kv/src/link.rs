//! One connection to one database of one server, replaced when it breaks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::FutureExt as _;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};

use crate::error::{Error, Result};
use crate::server::Server;
use crate::value::Value;

pub(crate) struct Link {
    pub(crate) server: Arc<Server>,
    pub(crate) database: u32,
    state: Mutex<State>,
    /// Held while connecting, so that many callers make one connection.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Counts attempts to connect, so that a stale loss cannot drop a newer connection and callers that
    /// queued behind a failed attempt share its failure.
    attempt: u64,
    open: Option<MultiplexedConnection>,
    failure: Option<Error>,
}

impl Link {
    /// Nothing is connected before it is used.
    pub(crate) fn new(server: Arc<Server>, database: u32) -> Arc<Self> {
        let state = Mutex::new(State::default());
        Arc::new(Self { server, database, state, connecting: tokio::sync::Mutex::new(()) })
    }

    pub(crate) async fn send(self: &Arc<Self>, cmd: &redis::Cmd) -> Result<Value> {
        let (attempt, mut open) = self.open().await?;
        match open.send_packed_command(cmd).await {
            Ok(value) => Value::from_redis(&self.server.shown, value),
            Err(error) => Err(self.failed(attempt, &error)),
        }
    }

    /// The answers but for the first `skipped`. Errors that the server answers are among them.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        commands: &redis::Pipeline,
        skipped: usize,
        count: usize,
    ) -> Result<Vec<redis::Value>> {
        let (attempt, mut open) = self.open().await?;
        let answers = match open.send_packed_commands(commands, skipped, count).await {
            Ok(answers) => answers,
            Err(error) => return Err(self.failed(attempt, &error)),
        };
        if answers.len() != count {
            return Err(Error::Protocol(format!("{} answers to {count} commands", answers.len())));
        }
        Ok(answers)
    }

    /// The next command connects anew.
    pub(crate) fn renew(&self) {
        lock(&self.state).open = None;
    }

    /// Classifies, and gives the connection up when it cannot be trusted any more. A timed-out one
    /// cannot: it may be a line that swallows everything.
    fn failed(&self, attempt: u64, error: &redis::RedisError) -> Error {
        if error.is_io_error() || error.is_unrecoverable_error() {
            self.drop_open(attempt);
        }
        Error::of_command(&self.server.shown, error)
    }

    async fn open(self: &Arc<Self>) -> Result<(u64, MultiplexedConnection)> {
        let seen = {
            let state = lock(&self.state);
            if let Some(open) = &state.open {
                return Ok((state.attempt, open.clone()));
            }
            state.attempt
        };
        // Boxed, like all that is rare here: every future that awaits a command would hold it otherwise.
        self.connect(seen).boxed().await
    }

    /// Connects, unless somebody has since attempt `seen`.
    async fn connect(self: &Arc<Self>, seen: u64) -> Result<(u64, MultiplexedConnection)> {
        let _alone = self.connecting.lock().await;
        let attempt = {
            let mut state = lock(&self.state);
            if let Some(open) = &state.open {
                return Ok((state.attempt, open.clone()));
            }
            if let (true, Some(failure)) = (state.attempt > seen, &state.failure) {
                return Err(failure.clone());
            }
            state.attempt += 1;
            state.failure = None;
            state.attempt
        };
        let watcher = Arc::downgrade(self);
        let config = self.server.config().set_push_sender(move |push: PushInfo| {
            notice_loss(&watcher, attempt, &push);
            Ok::<(), redis::aio::SendError>(())
        });
        let outcome = self.server.connect(self.database, &config).await;
        let mut state = lock(&self.state);
        match outcome {
            Ok(open) => {
                state.open = Some(open.clone());
                Ok((attempt, open))
            }
            Err(error) => {
                state.failure = Some(error.clone());
                Err(error)
            }
        }
    }

    fn drop_open(&self, attempt: u64) {
        let mut state = lock(&self.state);
        if state.attempt == attempt {
            state.open = None;
        }
    }
}

fn notice_loss(link: &Weak<Link>, attempt: u64, push: &PushInfo) {
    if push.kind == PushKind::Disconnection
        && let Some(link) = link.upgrade()
    {
        tracing::debug!(endpoint = %link.server.shown, database = link.database, "connection lost");
        link.drop_open(attempt);
    }
}

/// Nothing here can panic while a lock is held, so a poisoned one is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
