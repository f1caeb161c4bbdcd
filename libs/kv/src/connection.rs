//! A handle to Redis, and the connections that it gives.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::blocking::BlockingConnection;
use crate::cluster::Cluster;
use crate::command::{Cmd, Pipeline, PipelineStep};
use crate::confirm::WriteConcern;
use crate::endpoint::{KvEndpoint, RedisLocation};
use crate::error::Result;
use crate::link::{KvLink, lock};
use crate::process::RedisSetup;
use crate::route::{KvRoute, RouteAttempts};
use crate::script::ScriptCall;
use crate::server::{KvOptions, KvServer};
use crate::slot;
use crate::subscription::{KvSubscription, Topic};
use crate::value::Value;

/// A Redis: one server, the master that Sentinels name, or a cluster. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Kv(Arc<KvInner>);

struct KvInner {
    endpoint: KvEndpoint,
    servers: KvTopology,
}

enum KvTopology {
    One { server: Arc<KvServer>, links: Mutex<HashMap<u32, Arc<KvLink>>> },
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kv({})", self.0.endpoint)
    }
}

impl Kv {
    /// A handle; nothing is connected before it is used.
    #[must_use]
    pub fn new(endpoint: KvEndpoint) -> Self {
        Self::with_options(endpoint, KvOptions::default())
    }

    /// Connects with another patience.
    #[must_use]
    pub fn with_options(endpoint: KvEndpoint, options: KvOptions) -> Self {
        let servers = match endpoint.location() {
            RedisLocation::Cluster(seeds) => {
                KvTopology::Cluster(Cluster::new(endpoint.clone(), seeds.clone(), options))
            }
            RedisLocation::Tcp(_) | RedisLocation::Unix(_) | RedisLocation::Sentinel { .. } => {
                KvTopology::One { server: KvServer::new(endpoint.clone(), options), links: Mutex::default() }
            }
        };
        Self(Arc::new(KvInner { endpoint, servers }))
    }

    /// Where the server is.
    #[must_use]
    pub fn endpoint(&self) -> &KvEndpoint {
        &self.0.endpoint
    }

    /// Returns the shared connection to the keys in `database` under `tag`, as in `{tag}:name`: in a cluster to the node that
    /// serves the tag's slot, else to the server, whatever the tag. A cluster has no other database than 0. No command on
    /// the connection may ever `SELECT` or block.
    #[must_use]
    pub fn at(&self, database: u32, tag: &str) -> KvConnection {
        KvConnection(self.route(database, tag))
    }

    /// The shared connection to a database of a server that is no cluster.
    #[must_use]
    pub fn database(&self, database: u32) -> KvConnection {
        self.at(database, "")
    }

    /// The shared connection to the database that the URL names.
    #[must_use]
    pub fn default_database(&self) -> KvConnection {
        self.database(self.0.endpoint.database())
    }

    /// A connection of its own for commands that wait on the server.
    #[must_use]
    pub fn blocking(&self, database: u32) -> BlockingConnection {
        self.blocking_at(database, "")
    }

    /// Opens a blocking connection for keys under `tag`, as in [`Kv::at`].
    #[must_use]
    pub fn blocking_at(&self, database: u32, tag: &str) -> BlockingConnection {
        BlockingConnection::new(self.route(database, tag))
    }

    /// A subscription with a connection of its own, or several. It begins, and goes on after every loss, with
    /// [`crate::KvSubscriptionEvent::Subscribed`].
    #[must_use]
    pub fn subscribe(&self, topics: Vec<Topic>) -> KvSubscription {
        match &self.0.servers {
            KvTopology::One { server, .. } => KvSubscription::to_one(Arc::clone(server), topics),
            KvTopology::Cluster(cluster) => KvSubscription::to_cluster(Arc::clone(cluster), topics),
        }
    }

    /// A connection to each server that takes writes, for asking what it is set up for.
    ///
    /// # Errors
    /// When it cannot be found out which these are.
    pub async fn primaries(&self) -> Result<Vec<KvConnection>> {
        match &self.0.servers {
            KvTopology::One { .. } => Ok(vec![self.at(0, "")]),
            KvTopology::Cluster(cluster) => {
                let map = cluster.map().await?;
                let links = map.primaries().iter().map(|(_, link)| Arc::clone(link));
                Ok(links.map(|link| KvConnection(KvRoute::Link(link))).collect())
            }
        }
    }

    fn route(&self, database: u32, tag: &str) -> KvRoute {
        match &self.0.servers {
            KvTopology::One { server, links } => {
                let mut links = lock(links);
                let link = links.entry(database).or_insert_with(|| KvLink::new(Arc::clone(server), database));
                KvRoute::Link(Arc::clone(link))
            }
            KvTopology::Cluster(cluster) => KvRoute::Slot(Arc::clone(cluster), slot::of_tag(tag)),
        }
    }
}

/// A shared connection: cheap to clone, any number of commands in flight.
///
/// A command that a server certainly did not execute because another server is responsible is sent to that one. Nothing else
/// is repeated.
///
/// Every method may be dropped at any time; a command that was sent may still be executed.
#[derive(Clone)]
pub struct KvConnection(pub(crate) KvRoute);

impl fmt::Debug for KvConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvConnection({:?})", self.0)
    }
}

impl KvConnection {
    /// The database this connection is to.
    #[must_use]
    pub fn database(&self) -> u32 {
        match &self.0 {
            KvRoute::Link(link) => link.database,
            KvRoute::Slot(..) => 0,
        }
    }

    /// Which server, or which cluster, this is to; without credentials.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        match &self.0 {
            KvRoute::Link(link) => &link.server.shown,
            KvRoute::Slot(cluster, _) => &cluster.shown,
        }
    }

    /// Sends a command.
    ///
    /// # Errors
    /// Any [`crate::Error`].
    pub async fn cmd(&self, cmd: Cmd) -> Result<Value> {
        self.send(&cmd.0).await
    }

    /// Calls a script, by hash if the server has it, else in full.
    ///
    /// # Errors
    /// Any [`crate::Error`]; what the script refuses is [`crate::Error::Refused`] with its code.
    pub async fn call(&self, call: ScriptCall) -> Result<Value> {
        match self.send(&call.by_hash).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.send(&call.in_full()).await,
            other => other,
        }
    }

    /// Calls a script that changes something, and gives its answer when that is kept as well as `terms` says for the
    /// server that it is made on: the answer itself says enough, or it has to be confirmed, or nothing is to be
    /// changed there, for the reason given. Others' commands do not wait for the confirmation.
    ///
    /// A script that refuses has changed nothing, so its refusal is given at once.
    ///
    /// # Errors
    /// Any [`crate::Error`]. [`crate::Error::Unfit`] with the reason of `terms`; [`crate::Error::UnknownOutcome`] also
    /// when the change was made, and it is not known whether it is kept.
    pub async fn change(
        &self,
        call: ScriptCall,
        terms: impl Fn(&RedisSetup) -> std::result::Result<Option<WriteConcern>, String> + Send + Sync,
    ) -> Result<Value> {
        let mut attempts = RouteAttempts::new(&self.0);
        let (key, mut full) = (call.key(), None);
        loop {
            let hop = attempts.hop().await?;
            let script = full.as_ref().unwrap_or(&call.by_hash);
            match hop.change(script, key, &terms).await {
                Err(error) if error.code() == Some("NOSCRIPT") && full.is_none() => {
                    full = Some(call.in_full());
                    attempts.stay(hop);
                }
                Err(error) if attempts.should_retry(&error).await => {}
                result => return result.map_err(|error| self.0.final_error(error)),
            }
        }
    }

    /// Asks the server what it is set up for.
    ///
    /// # Errors
    /// Any [`crate::Error`]; [`crate::Error::Readonly`] of a replica.
    pub async fn setup(&self) -> Result<RedisSetup> {
        let mut attempts = RouteAttempts::new(&self.0);
        loop {
            let known = match attempts.link().await {
                Ok(link) => link.identify_anew().await,
                Err(error) => Err(error),
            };
            match known {
                Err(error) if attempts.should_retry(&error).await => {}
                known => return known.map(|known| known.process.setup.clone()),
            }
        }
    }

    /// Sends several commands and calls at once. Each has its own result.
    ///
    /// # Errors
    /// [`crate::Error::Unreachable`] or [`crate::Error::UnknownOutcome`] of all of them.
    pub async fn pipeline(&self, pipeline: &Pipeline) -> Result<Vec<Result<Value>>> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let mut packed = redis::Pipeline::with_capacity(pipeline.len());
        packed.ignore_errors();
        for step in &pipeline.steps {
            packed.add_command(match step {
                PipelineStep::Cmd(cmd) => cmd.0.clone(),
                PipelineStep::Call(call) => call.by_hash.clone(),
            });
        }
        let mut attempts = RouteAttempts::new(&self.0);
        let mut results = loop {
            let link = attempts.link().await?;
            let answers = match link.send_all(&packed, 0, pipeline.len()).await {
                Err(error) if attempts.should_retry(&error).await => continue,
                answers => answers?,
            };
            let read = |answer| Value::from_redis(&link.server.shown, answer);
            let results: Vec<Result<Value>> = answers.into_iter().map(read).collect();
            match &results[0] {
                // All of them together, so that one round trip stays one.
                Err(first) if results.iter().all(|result| self.leads_elsewhere(result)) => {
                    if !attempts.should_retry(first).await {
                        let given_up =
                            |result: Result<Value>| result.map_err(|error| self.0.final_error(error));
                        return Ok(results.into_iter().map(given_up).collect());
                    }
                }
                _ => break results,
            }
        };
        for (step, result) in pipeline.steps.iter().zip(&mut results) {
            match (step, &*result) {
                (PipelineStep::Call(call), Err(error)) if error.code() == Some("NOSCRIPT") => {
                    *result = self.send(&call.in_full()).await;
                }
                (PipelineStep::Call(call), moved) if self.leads_elsewhere(moved) => {
                    *result = self.call(call.clone()).await;
                }
                (PipelineStep::Cmd(cmd), moved) if self.leads_elsewhere(moved) => {
                    *result = self.send(&cmd.0).await
                }
                _ => {}
            }
        }
        Ok(results)
    }

    fn leads_elsewhere(&self, result: &Result<Value>) -> bool {
        result.as_ref().is_err_and(|error| self.0.leads_elsewhere(error))
    }

    /// Asks whether the server answers.
    ///
    /// # Errors
    /// Any [`crate::Error`].
    pub async fn ping(&self) -> Result<()> {
        self.cmd(Cmd::new("PING")).await.map(|_| ())
    }

    async fn send(&self, cmd: &redis::Cmd) -> Result<Value> {
        let mut attempts = RouteAttempts::new(&self.0);
        loop {
            match attempts.hop().await?.send(cmd).await {
                Err(error) if attempts.should_retry(&error).await => {}
                result => return result.map_err(|error| self.0.final_error(error)),
            }
        }
    }
}
