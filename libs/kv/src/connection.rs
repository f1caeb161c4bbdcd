//! One connection per database, replaced when it breaks.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind};

use crate::blocking::Blocking;
use crate::command::{Cmd, Pipeline, Step};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::script::Call;
use crate::subscription::{Subscription, Topic};
use crate::value::Value;

/// How patient connections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long an answer may take before the outcome counts as unknown.
    pub response_timeout: Duration,
    /// How many commands may wait to be written before callers are held back.
    pub queue_len: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(10),
            queue_len: 1024,
        }
    }
}

/// A Redis server. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Kv(Arc<Server>);

pub(crate) struct Server {
    endpoint: Endpoint,
    pub(crate) shown: String,
    pub(crate) options: Options,
    connections: Mutex<HashMap<u32, Connection>>,
}

impl fmt::Debug for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kv({})", self.0.shown)
    }
}

impl Kv {
    /// A handle; nothing is connected before it is used.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self::with_options(endpoint, Options::default())
    }

    /// The same with another patience.
    #[must_use]
    pub fn with_options(endpoint: Endpoint, options: Options) -> Self {
        let shown = endpoint.to_string();
        Self(Arc::new(Server { endpoint, shown, options, connections: Mutex::default() }))
    }

    /// Where the server is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// The shared connection to a database. Nothing on it may ever `SELECT` or block.
    #[must_use]
    pub fn database(&self, database: u32) -> Connection {
        lock(&self.0.connections)
            .entry(database)
            .or_insert_with(|| Connection::new(Arc::clone(&self.0), database))
            .clone()
    }

    /// The shared connection to the database that the URL names.
    #[must_use]
    pub fn default_database(&self) -> Connection {
        self.database(self.0.endpoint.database())
    }

    /// A connection of its own for commands that wait on the server.
    #[must_use]
    pub fn blocking(&self, database: u32) -> Blocking {
        Blocking::new(Arc::clone(&self.0), database, self.database(database))
    }

    /// A subscription with a connection of its own. It begins, and goes on after every loss, with
    /// [`crate::Notice::Subscribed`].
    #[must_use]
    pub fn subscribe(&self, topics: Vec<Topic>) -> Subscription {
        Subscription::new(Arc::clone(&self.0), topics)
    }
}

impl Server {
    pub(crate) fn client(&self, database: u32) -> Result<Client> {
        self.endpoint
            .connection_info(database)
            .and_then(Client::open)
            .map_err(|error| Error::of_connecting(&self.shown, &error))
    }

    pub(crate) fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.response_timeout))
            .set_pipeline_buffer_size(self.options.queue_len)
    }

    pub(crate) async fn connect(
        &self,
        database: u32,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection> {
        self.client(database)?
            .get_multiplexed_async_connection_with_config(config)
            .await
            .map_err(|error| Error::of_connecting(&self.shown, &error))
    }
}

/// The shared connection to one database: cheap to clone, any number of commands in flight.
///
/// Every method may be dropped at any time; what was sent may still happen.
#[derive(Clone)]
pub struct Connection(Arc<Shared>);

struct Shared {
    server: Arc<Server>,
    database: u32,
    link: Mutex<Link>,
    /// Held while connecting, so that many callers make one connection.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Link {
    /// Counts attempts to connect, so that a stale loss cannot drop a newer connection and callers that
    /// queued behind a failed attempt share its failure.
    attempt: u64,
    open: Option<MultiplexedConnection>,
    failure: Option<Error>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({}, database {})", self.0.server.shown, self.0.database)
    }
}

impl Connection {
    fn new(server: Arc<Server>, database: u32) -> Self {
        let link = Mutex::new(Link::default());
        Self(Arc::new(Shared { server, database, link, connecting: tokio::sync::Mutex::new(()) }))
    }

    /// The database this connection is to.
    #[must_use]
    pub fn database(&self) -> u32 {
        self.0.database
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn cmd(&self, cmd: Cmd) -> Result<Value> {
        self.send(&cmd.0).await
    }

    /// Calls a script, by hash if the server has it, else in full.
    ///
    /// # Errors
    /// Any [`Error`]; what the script refuses is [`Error::Refused`] with its code.
    pub async fn call(&self, call: Call) -> Result<Value> {
        match self.send(&call.by_hash).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.send(&call.in_full()).await,
            other => other,
        }
    }

    /// Calls a script and sends a command after it over the same connection, which matters for commands
    /// about what this connection wrote, such as `WAIT`. Gives the script's answer and the command's.
    ///
    /// # Errors
    /// [`Error::Unreachable`] or [`Error::UnknownOutcome`] of both.
    pub async fn call_then(&self, call: Call, then: Cmd) -> Result<(Result<Value>, Result<Value>)> {
        let mut full = None;
        loop {
            let mut packed = redis::Pipeline::with_capacity(2);
            packed.ignore_errors();
            packed.add_command(full.clone().unwrap_or_else(|| call.by_hash.clone()));
            packed.add_command(then.0.clone());
            let (attempt, mut open) = self.open().await?;
            let answers = match open.send_packed_commands(&packed, 0, 2).await {
                Ok(answers) => answers,
                Err(error) => return Err(self.failed(attempt, &error)),
            };
            let read = |answer| Value::from_redis(&self.0.server.shown, answer);
            let mut answers = answers.into_iter().map(read);
            let (Some(called), Some(then)) = (answers.next(), answers.next()) else {
                return Err(Error::Protocol("fewer answers than commands".to_owned()));
            };
            let is_unknown = called.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT"));
            if !is_unknown || full.is_some() {
                return Ok((called, then));
            }
            full = Some(call.in_full());
        }
    }

    /// Sends several commands and calls at once. Each has its own result.
    ///
    /// # Errors
    /// [`Error::Unreachable`] or [`Error::UnknownOutcome`] of all of them.
    pub async fn pipeline(&self, pipeline: &Pipeline) -> Result<Vec<Result<Value>>> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let mut packed = redis::Pipeline::with_capacity(pipeline.len());
        packed.ignore_errors();
        for step in &pipeline.steps {
            packed.add_command(match step {
                Step::Cmd(cmd) => cmd.0.clone(),
                Step::Call(call) => call.by_hash.clone(),
            });
        }
        let (attempt, mut open) = self.open().await?;
        let answers = match open.send_packed_commands(&packed, 0, pipeline.len()).await {
            Ok(answers) => answers,
            Err(error) => return Err(self.failed(attempt, &error)),
        };
        if answers.len() != pipeline.len() {
            let got = answers.len();
            return Err(Error::Protocol(format!("{got} answers to {} commands", pipeline.len())));
        }
        let mut results = Vec::with_capacity(answers.len());
        for (step, answer) in pipeline.steps.iter().zip(answers) {
            let result = Value::from_redis(&self.0.server.shown, answer);
            results.push(match (step, result) {
                (Step::Call(call), Err(error)) if error.code() == Some("NOSCRIPT") => {
                    self.send(&call.in_full()).await
                }
                (_, result) => result,
            });
        }
        Ok(results)
    }

    /// Asks whether the server answers.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn ping(&self) -> Result<()> {
        self.cmd(Cmd::new("PING")).await.map(|_| ())
    }

    async fn send(&self, cmd: &redis::Cmd) -> Result<Value> {
        let (attempt, mut open) = self.open().await?;
        match open.send_packed_command(cmd).await {
            Ok(value) => Value::from_redis(&self.0.server.shown, value),
            Err(error) => Err(self.failed(attempt, &error)),
        }
    }

    /// Classifies, and gives the connection up when it cannot be trusted any more. A timed-out one
    /// cannot: it may be a line that swallows everything.
    fn failed(&self, attempt: u64, error: &redis::RedisError) -> Error {
        if error.is_io_error() || error.is_unrecoverable_error() {
            self.0.drop_link(attempt);
        }
        Error::of_command(&self.0.server.shown, error)
    }

    async fn open(&self) -> Result<(u64, MultiplexedConnection)> {
        let seen = {
            let link = lock(&self.0.link);
            if let Some(open) = &link.open {
                return Ok((link.attempt, open.clone()));
            }
            link.attempt
        };
        let _alone = self.0.connecting.lock().await;
        let attempt = {
            let mut link = lock(&self.0.link);
            if let Some(open) = &link.open {
                return Ok((link.attempt, open.clone()));
            }
            if let (true, Some(failure)) = (link.attempt > seen, &link.failure) {
                return Err(failure.clone());
            }
            link.attempt += 1;
            link.failure = None;
            link.attempt
        };
        let watcher = Arc::downgrade(&self.0);
        let config = self.0.server.config().set_push_sender(move |push: PushInfo| {
            notice_loss(&watcher, attempt, &push);
            Ok::<(), redis::aio::SendError>(())
        });
        let outcome = self.0.server.connect(self.0.database, &config).await;
        let mut link = lock(&self.0.link);
        match outcome {
            Ok(open) => {
                link.open = Some(open.clone());
                Ok((attempt, open))
            }
            Err(error) => {
                link.failure = Some(error.clone());
                Err(error)
            }
        }
    }
}

impl Shared {
    fn drop_link(&self, attempt: u64) {
        let mut link = lock(&self.link);
        if link.attempt == attempt {
            link.open = None;
        }
    }
}

fn notice_loss(shared: &Weak<Shared>, attempt: u64, push: &PushInfo) {
    if push.kind == PushKind::Disconnection
        && let Some(shared) = shared.upgrade()
    {
        tracing::debug!(endpoint = %shared.server.shown, database = shared.database, "connection lost");
        shared.drop_link(attempt);
    }
}

/// Nothing here can panic while a lock is held, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
