//! Commands that wait on the server: `BLMPOP`, `XREADGROUP … BLOCK`.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FusedFuture as _, FutureExt as _};
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::command::Cmd;
use crate::connection::KvConnection;
use crate::endpoint::RedisAddress;
use crate::error::{Error, Result};
use crate::link::KvLink;
use crate::route::{KvRoute, RouteAttempts};
use crate::value::Value;

/// A connection of its own for commands that wait on the server, one at a time.
///
/// A lost answer loses the work that its pop took from the server: the caller has to be able to find such
/// work again.
pub struct BlockingConnection {
    route: KvRoute,
    open: Option<BlockingSession>,
}

struct BlockingSession {
    connection: MultiplexedConnection,
    client_id: i64,
    /// To the same server, for waking.
    link: Arc<KvLink>,
    leaving: ServerChangeWatcher,
}

/// Watcher that fires when the server is not the one to wait on any more.
enum ServerChangeWatcher {
    Server(watch::Receiver<Option<RedisAddress>>),
    Slot(Arc<Cluster>, u16, watch::Receiver<u64>),
}

impl std::fmt::Debug for BlockingConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.open.as_ref().map(|open| open.client_id);
        write!(f, "BlockingConnection({:?}, client {id:?})", self.route)
    }
}

impl BlockingConnection {
    pub(crate) const fn new(route: KvRoute) -> Self {
        Self { route, open: None }
    }

    /// The server's number for this connection, for `CLIENT UNBLOCK`; connects if need be.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when there is no connection to be had.
    pub async fn client_id(&mut self) -> Result<i64> {
        let open = match self.open.take() {
            Some(open) => open,
            None => BlockingSession::new(&self.route, self.link().await?).await?,
        };
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
        let [answer] = self.run_all([cmd.clone()], block, cancel).await?;
        Ok(answer)
    }

    /// Sends a command that makes the server wait, as [`BlockingConnection::run`] does, with others that the server runs right
    /// after it.
    ///
    /// # Errors
    /// Any [`Error`] of any of the commands, as [`BlockingConnection::run`].
    pub async fn run_all<const N: usize>(
        &mut self,
        cmds: [Cmd; N],
        block: Duration,
        cancel: impl Future<Output = ()>,
    ) -> Result<[Value; N]> {
        let mut all = redis::Pipeline::with_capacity(N);
        all.ignore_errors();
        for cmd in cmds {
            all.add_command(cmd.0);
        }
        // Out of its place while in use, so that a call that was dropped leaves nothing behind whose
        // answer could be taken for that of the next.
        let mut open = self.open.take();
        let route = self.route.clone();
        let mut attempts = RouteAttempts::new(&route);
        let mut cancel = pin!(cancel.fuse());
        loop {
            let connected = match open.take() {
                Some(open) => Ok(open),
                None => BlockingSession::new(&route, attempts.link().await?).await,
            };
            let answer = match connected {
                Ok(open) => {
                    let (answer, kept) = open.wait(&all, block, cancel.as_mut()).await;
                    self.open =
                        kept.filter(|_| !answer.as_ref().is_err_and(|error| route.leads_elsewhere(error)));
                    answer
                }
                Err(error) => Err(error),
            };
            match answer {
                // It was woken after all.
                Err(error) if route.leads_elsewhere(&error) && cancel.is_terminated() => {
                    return Ok(std::array::from_fn(|_| Value::Nil));
                }
                Err(error) if attempts.should_retry(&error).await => {}
                answer => return answer.map_err(|error| route.final_error(error)),
            }
        }
    }

    async fn link(&self) -> Result<Arc<KvLink>> {
        RouteAttempts::new(&self.route).link().await
    }
}

impl BlockingSession {
    async fn new(route: &KvRoute, link: Arc<KvLink>) -> Result<Self> {
        let leaving = match route {
            KvRoute::Link(link) => ServerChangeWatcher::Server(link.server.address_changes()),
            KvRoute::Slot(cluster, slot) => {
                ServerChangeWatcher::Slot(Arc::clone(cluster), *slot, cluster.changes())
            }
        };
        let server = &link.server;
        let mut connection = server.connect(link.database, &server.config()).await?;
        let mut ask = redis::cmd("CLIENT");
        ask.arg("ID");
        let id = connection.send_packed_command(&ask).await;
        let id = id.map_err(|error| Error::of_connecting(&server.shown, &error))?;
        let client_id = Value::from_redis(&server.shown, id)?.int()?;
        Ok(Self { connection, client_id, link, leaving: leaving.begun() })
    }

    /// The answers, and the connection if it can be used again.
    async fn wait<const N: usize>(
        mut self,
        cmds: &redis::Pipeline,
        block: Duration,
        cancel: impl Future<Output = ()>,
    ) -> (Result<[Value; N]>, Option<Self>) {
        let server = Arc::clone(&self.link.server);
        self.connection.set_response_timeout(block + server.options.response_timeout);
        let (client_id, control) = (self.client_id, KvConnection(KvRoute::Link(Arc::clone(&self.link))));
        let answers = {
            let mut answer = pin!(self.connection.send_packed_commands(cmds, 0, N));
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                () = self.leaving.wait(&self.link) => {
                    let reason = "another server took its place while it waited".to_owned();
                    return (Err(Error::UnknownOutcome { endpoint: server.shown.clone(), reason }), None);
                }
                () = cancel => woken(answer.as_mut(), &control, client_id).await,
            }
        };
        match answers {
            Ok(answers) => (read(&server.shown, answers), Some(self)),
            Err(error) => {
                let is_usable = !error.is_io_error() && !error.is_unrecoverable_error();
                (Err(Error::of_command(&server.shown, &error)), is_usable.then_some(self))
            }
        }
    }
}

fn read<const N: usize>(shown: &str, answers: Vec<redis::Value>) -> Result<[Value; N]> {
    let answers: Vec<Value> =
        answers.into_iter().map(|answer| Value::from_redis(shown, answer)).collect::<Result<_>>()?;
    answers
        .try_into()
        .map_err(|answers: Vec<Value>| Error::Protocol(format!("{} answers to {N} commands", answers.len())))
}

impl ServerChangeWatcher {
    /// Treats the changes up to now as known.
    fn begun(mut self) -> Self {
        match &mut self {
            Self::Server(moves) => moves.mark_unchanged(),
            // A change while it was being connected to is looked at.
            Self::Slot(..) => {}
        }
        self
    }

    /// Until another server than that of `link` is the one to wait on. May be dropped and called again.
    async fn wait(&mut self, link: &Arc<KvLink>) {
        match self {
            Self::Server(moves) => {
                if moves.changed().await.is_ok() {
                    return;
                }
            }
            Self::Slot(cluster, slot, changes) => {
                while changes.changed().await.is_ok() {
                    if cluster.cached_map().owner(*slot).is_none_or(|(_, owner)| !Arc::ptr_eq(owner, link)) {
                        return;
                    }
                }
            }
        }
        // The other end lives as long as the route.
        std::future::pending().await
    }
}

/// The answer of a connection that is woken. The command may still be on its way to the server while the wake-up, on
/// another connection, has arrived already; hence again and again, a round trip each, until one meets it or the answer
/// is here. Nothing is left on its way then that could meet the next command.
async fn woken<T>(
    mut answer: Pin<&mut impl Future<Output = T>>,
    control: &KvConnection,
    client_id: i64,
) -> T {
    loop {
        let mut wake = pin!(control.cmd(Cmd::new("CLIENT").arg("UNBLOCK").arg(client_id)));
        let woken = tokio::select! {
            biased;
            answer = &mut answer => {
                // Whatever it met, it is over.
                let _ = wake.await;
                return answer;
            }
            woken = &mut wake => woken,
        };
        match woken.and_then(|woken| woken.int()) {
            Ok(0) => tokio::task::yield_now().await,
            Ok(_) => return answer.await,
            Err(error) => {
                tracing::debug!(%error, "a waiting connection could not be woken");
                return answer.await;
            }
        }
    }
}
