//! One connection to one database of one server, replaced when it breaks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};

use crate::confirm::{ConfirmationError, UnconfirmedWrite};
use crate::error::{Error, Result};
use crate::process::RedisProcess;
use crate::server::KvServer;
use crate::value::Value;

pub(crate) struct KvLink {
    pub(crate) server: Arc<KvServer>,
    pub(crate) database: u32,
    state: Mutex<KvLinkState>,
    /// Held while connecting, so that many callers make one connection.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KvLinkState {
    /// Counts attempts to connect, so that a stale loss cannot drop a newer connection and callers that
    /// queued behind a failed attempt share its failure.
    attempt: u64,
    open: Option<MultiplexedConnection>,
    /// Process at the other end, once it was asked.
    process: Option<Arc<RedisProcess>>,
    failure: Option<Error>,
}

/// An open connection, and the process at its other end.
pub(crate) struct IdentifiedLink {
    attempt: u64,
    open: MultiplexedConnection,
    pub(crate) process: Arc<RedisProcess>,
}

impl KvLink {
    /// Nothing is connected before it is used.
    pub(crate) fn new(server: Arc<KvServer>, database: u32) -> Arc<Self> {
        let state = Mutex::new(KvLinkState::default());
        Arc::new(Self { server, database, state, connecting: tokio::sync::Mutex::new(()) })
    }

    pub(crate) async fn send(self: &Arc<Self>, cmd: &redis::Cmd) -> Result<Value> {
        let (attempt, open) = self.open().await?;
        self.send_over(attempt, open, cmd).await
    }

    /// Sends to a process that is known, and to no other.
    pub(crate) async fn send_to(&self, known: &IdentifiedLink, cmd: &redis::Cmd) -> Result<Value> {
        self.send_over(known.attempt, known.open.clone(), cmd).await
    }

    async fn send_over(
        &self,
        attempt: u64,
        mut open: MultiplexedConnection,
        cmd: &redis::Cmd,
    ) -> Result<Value> {
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
        let (attempt, open) = self.open().await?;
        self.send_all_over(attempt, open, commands, skipped, count).await
    }

    /// Sends commands to a process that is known, and to no other; answers as [`KvLink::send_all`] does.
    pub(crate) async fn send_all_to(
        &self,
        known: &IdentifiedLink,
        commands: &redis::Pipeline,
        skipped: usize,
        count: usize,
    ) -> Result<Vec<redis::Value>> {
        self.send_all_over(known.attempt, known.open.clone(), commands, skipped, count).await
    }

    async fn send_all_over(
        &self,
        attempt: u64,
        mut open: MultiplexedConnection,
        commands: &redis::Pipeline,
        skipped: usize,
        count: usize,
    ) -> Result<Vec<redis::Value>> {
        let answers = match open.send_packed_commands(commands, skipped, count).await {
            Ok(answers) => answers,
            Err(error) => return Err(self.failed(attempt, &error)),
        };
        if answers.len() != count {
            return Err(Error::Protocol(format!("{} answers to {count} commands", answers.len())));
        }
        Ok(answers)
    }

    /// Returns the connection with the process at its other end, which is asked once for each connection.
    ///
    /// # Errors
    /// Says that nothing was executed; [`Error::Readonly`] when it takes no writes.
    pub(crate) async fn identify(self: &Arc<Self>) -> Result<IdentifiedLink> {
        let (attempt, open) = self.open().await?;
        let process = {
            let state = lock(&self.state);
            state.process.clone().filter(|_| state.attempt == attempt)
        };
        match process {
            Some(process) => Ok(IdentifiedLink { attempt, open, process }),
            None => self.ask(attempt, open).boxed().await,
        }
    }

    /// Returns the connection with the process at its other end, which is asked again now.
    pub(crate) async fn identify_anew(self: &Arc<Self>) -> Result<IdentifiedLink> {
        let (attempt, open) = self.open().await?;
        self.ask(attempt, open).boxed().await
    }

    async fn ask(&self, attempt: u64, mut open: MultiplexedConnection) -> Result<IdentifiedLink> {
        let process = match RedisProcess::ask(&self.server.shown, &mut open).await {
            Ok(process) => Arc::new(process?),
            Err(error) => {
                let _ = self.failed(attempt, &error);
                return Err(Error::of_connecting(&self.server.shown, &error));
            }
        };
        let mut state = lock(&self.state);
        if state.attempt == attempt {
            state.process = Some(Arc::clone(&process));
        }
        Ok(IdentifiedLink { attempt, open, process })
    }

    /// Waits until a change is kept that `known` has answered.
    pub(crate) async fn confirm(&self, known: &IdentifiedLink, change: UnconfirmedWrite) -> Result<()> {
        let reason = match self.server.rounds().confirm(change).await {
            Ok(()) => return Ok(()),
            Err(ConfirmationError::Late(patience)) => {
                // The server's setup may have changed since it was read.
                self.ask_again(known.attempt);
                format!("the change was not confirmed as durable within {patience:?}")
            }
            Err(ConfirmationError::Broken(reason)) => {
                self.drop_open(known.attempt);
                format!("the change could not be confirmed as durable: {reason}")
            }
        };
        Err(Error::UnknownOutcome { endpoint: self.server.shown.clone(), reason })
    }

    fn ask_again(&self, attempt: u64) {
        let mut state = lock(&self.state);
        if state.attempt == attempt {
            state.process = None;
        }
    }

    /// Makes the next command connect again.
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
        let link = Arc::clone(self);
        in_a_task(&self.server.shown, async move { link.connect(seen).await }.boxed()).await
    }

    /// Connects, unless another caller has since attempt `seen`.
    async fn connect(self: Arc<Self>, seen: u64) -> Result<(u64, MultiplexedConnection)> {
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
            state.process = None;
            state.failure = None;
            state.attempt
        };
        let watcher = Arc::downgrade(&self);
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

/// Runs work that several callers wait for one after the other in a task of its own: it goes on though the others
/// keep its caller from being polled, as two futures of one task may. Boxed because it is rare: otherwise every future that awaits a
/// command would hold it.
pub(crate) async fn in_a_task<T: Send + 'static>(
    shown: &str,
    work: BoxFuture<'static, Result<T>>,
) -> Result<T> {
    let unreachable = |error: tokio::task::JoinError| Error::Unreachable {
        endpoint: shown.to_owned(),
        reason: error.to_string(),
    };
    tokio::spawn(work).await.map_err(unreachable)?
}

fn notice_loss(link: &Weak<KvLink>, attempt: u64, push: &PushInfo) {
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
