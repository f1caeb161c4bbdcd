//! One server, and how it is connected to.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::sync::watch;

use crate::confirm::ConfirmationRounds;
use crate::endpoint::{KvEndpoint, RedisAddress, RedisLocation};
use crate::error::{Error, Result};
use crate::value::Value;

/// How patient connections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvOptions {
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long an answer may take before the outcome counts as unknown.
    pub response_timeout: Duration,
    /// How many commands may wait to be written before callers are held back.
    pub queue_len: usize,
}

impl Default for KvOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(10),
            queue_len: 1024,
        }
    }
}

/// One server: that of a URL, a node of a cluster, or the one that Sentinels name as the master.
pub(crate) struct KvServer {
    endpoint: KvEndpoint,
    pub(crate) shown: String,
    pub(crate) options: KvOptions,
    /// Where it was last, when Sentinels say it.
    place: watch::Sender<Option<RedisAddress>>,
    /// The Sentinel that answered last.
    sentinel: AtomicUsize,
    rounds: OnceLock<Arc<ConfirmationRounds>>,
}

impl KvServer {
    pub(crate) fn new(endpoint: KvEndpoint, options: KvOptions) -> Arc<Self> {
        let shown = endpoint.to_string();
        let (place, sentinel) = (watch::Sender::new(None), AtomicUsize::new(0));
        Arc::new(Self { endpoint, shown, options, place, sentinel, rounds: OnceLock::new() })
    }

    /// The rounds that confirm changes on it.
    pub(crate) fn rounds(&self) -> &Arc<ConfirmationRounds> {
        // Of the same place, and not of this: their connections would keep alive what keeps them alive.
        self.rounds.get_or_init(|| ConfirmationRounds::new(Self::new(self.endpoint.clone(), self.options)))
    }

    /// Returns true for a server that Sentinels name, which is another one after a failover.
    pub(crate) const fn is_of_sentinels(&self) -> bool {
        matches!(self.endpoint.location(), RedisLocation::Sentinel { .. })
    }

    /// Changes when it is found to be elsewhere.
    pub(crate) fn address_changes(&self) -> watch::Receiver<Option<RedisAddress>> {
        self.place.subscribe()
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
        let endpoint = self.find().await?;
        let mut open = self
            .open(&endpoint, database)?
            .get_multiplexed_async_connection_with_config(config)
            .await
            .map_err(|error| Error::of_connecting(&self.shown, &error))?;
        if let (true, RedisLocation::Tcp(address)) = (self.is_of_sentinels(), endpoint.location()) {
            self.check_role(&mut open).await?;
            self.is_at(address);
        }
        Ok(open)
    }

    /// Makes a client for connections of another kind than the shared ones.
    pub(crate) async fn client(&self, database: u32) -> Result<Client> {
        let endpoint = self.find().await?;
        if let (true, RedisLocation::Tcp(address)) = (self.is_of_sentinels(), endpoint.location()) {
            self.is_at(address);
        }
        self.open(&endpoint, database)
    }

    fn open(&self, endpoint: &KvEndpoint, database: u32) -> Result<Client> {
        let info = endpoint.connection_info(database);
        info.and_then(Client::open).map_err(|error| Error::of_connecting(&self.shown, &error))
    }

    fn is_at(&self, address: &RedisAddress) {
        self.place.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(address);
            if is_new {
                tracing::info!(endpoint = %self.shown, %address, "the master");
                *known = Some(address.clone());
            }
            is_new
        });
    }

    /// Where it is now.
    async fn find(&self) -> Result<Cow<'_, KvEndpoint>> {
        let RedisLocation::Sentinel { sentinels, master, credentials } = self.endpoint.location() else {
            return Ok(Cow::Borrowed(&self.endpoint));
        };
        let first = self.sentinel.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        for place in (first..first + sentinels.len()).map(|place| place % sentinels.len()) {
            let sentinel = KvEndpoint::sentinel(sentinels[place].clone(), credentials.clone());
            match tokio::time::timeout(self.options.connect_timeout, self.ask(&sentinel, master)).await {
                Ok(Ok(Some(address))) => {
                    self.sentinel.store(place, Ordering::Relaxed);
                    return Ok(Cow::Owned(self.endpoint.at(address)));
                }
                Ok(Ok(None)) => reasons.push(format!("{} knows no master `{master}`", sentinels[place])),
                Ok(Err(error)) => reasons.push(error.to_string()),
                Err(_) => reasons.push(format!("{} does not answer", sentinels[place])),
            }
        }
        Err(Error::Unreachable { endpoint: self.shown.clone(), reason: reasons.join("; ") })
    }

    /// Asks one Sentinel where a master is; nothing when it knows none of that name.
    async fn ask(&self, sentinel: &KvEndpoint, master: &str) -> Result<Option<RedisAddress>> {
        let client = self.open(sentinel, 0)?;
        let failed = |error: &redis::RedisError| Error::of_connecting(&self.shown, error);
        let mut open = client.get_multiplexed_async_connection().await.map_err(|error| failed(&error))?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let answer = open.send_packed_command(&ask).await.map_err(|error| failed(&error))?;
        let answer = Value::from_redis(&self.shown, answer)?;
        if answer.is_nil() {
            return Ok(None);
        }
        let [host, port] = answer.tuple()?;
        let port = port.uint()?;
        let port = u16::try_from(port).map_err(|_| Error::Protocol(format!("a port {port}")))?;
        Ok(Some(RedisAddress { host: host.text()?, port }))
    }

    /// A Sentinel may not know yet that its master has become a replica.
    async fn check_role(&self, open: &mut MultiplexedConnection) -> Result<()> {
        let answer = open.send_packed_command(&redis::cmd("ROLE")).await;
        let answer = answer.map_err(|error| Error::of_connecting(&self.shown, &error))?;
        let role = Value::from_redis(&self.shown, answer)?.array()?.into_iter().next();
        match role.map(Value::text).transpose()?.as_deref() {
            Some("master") => Ok(()),
            other => Err(Error::Unreachable {
                endpoint: self.shown.clone(),
                reason: format!(
                    "what Sentinels say is the master is a {}",
                    other.unwrap_or("server of no role")
                ),
            }),
        }
    }
}
