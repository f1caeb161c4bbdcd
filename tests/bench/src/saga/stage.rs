//! The saga service within this process, over servers of its own.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use broker::{Headers, JetStream, JetStreamOptions, MessageBroker, Publication, StreamSpec};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use kv::{Durability, Kv};
use saga::lane::gateway::{AggregateCommand, Gateway, GatewayAnswer};
use saga::lane::{AGGREGATE_EVENTS, UNSCANNED};
use saga::placement::{LANES_MAX, SagaReplicaIdentity, SagaReplicaRole};
use saga::tenants::TenantRegistry;
use saga::visibility::SagaVisibility;
use saga::{App, Config, Deps};
use store::{EmbeddedStore, KvStore, SharedStore, WallClock};
use tempfile::TempDir;
use testkit::{NatsServer, RedisServer, wait_until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::processes::resident_bytes;

/// Room of the embedded store.
const STORE_BYTES: usize = 8 * 1024 * 1024 * 1024;
/// Messages that are under way at a time, as in a relay.
const UNDER_WAY: usize = 256;
/// Time that inputs may take altogether.
const TRANSITIONS_TIMEOUT: Duration = Duration::from_secs(600);
/// Calls under way end in such a time, or are cut.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Place where rows are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    /// A directory of this process.
    Embedded,
    /// A Redis that syncs each write.
    Redis,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "embedded store, each commit synced",
            Self::Redis => "Redis, appendfsync always",
        })
    }
}

/// A store, with the server or directory that it stands on.
pub(super) struct Ground {
    pub(super) store: Arc<dyn KvStore>,
    dir: TempDir,
    redis: Option<RedisServer>,
}

impl Ground {
    pub(super) async fn new(backend: Backend) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
        let (store, redis): (Arc<dyn KvStore>, _) = match backend {
            Backend::Embedded => (Arc::new(EmbeddedStore::open(dir.path(), STORE_BYTES, WallClock)?), None),
            Backend::Redis => {
                let redis = RedisServer::builder().persistent().start();
                let kv = Kv::new(redis.url().parse()?);
                (Arc::new(SharedStore::open(kv, Durability::Synced, &UNSCANNED).await?), Some(redis))
            }
        };
        Ok(Self { store, dir, redis })
    }
}

/// An event of an aggregate.
pub(super) struct Event {
    pub(super) tenant: String,
    pub(super) correlation: String,
    pub(super) kind: String,
    pub(super) id: String,
    pub(super) data: String,
}

impl Event {
    fn message(self) -> Publication {
        let Self { tenant, correlation, kind, id, data } = self;
        let aggregate = if matches!(kind.as_str(), "OrderPlaced" | "Paid") { "Order" } else { "Clock" };
        let body = format!(
            r#"{{"event_id":"{id}","type":"{kind}","data":{data},"metadata":{{"correlation_id":"{correlation}"}}}}"#
        );
        Publication {
            subject: format!("tenant.{tenant}.aggregate.{aggregate}.{correlation}"),
            message_id: id,
            headers: Headers::new(),
            payload: Bytes::from(body),
        }
    }
}

/// Takes every command of an aggregate.
struct Taker;

#[async_trait]
impl Gateway for Taker {
    async fn submit(&self, _: &AggregateCommand) -> GatewayAnswer {
        GatewayAnswer::Done(workflow::Json::Null)
    }
}

/// The service with everything around it. A manifest is in force, and nothing runs yet.
pub(super) struct Stage {
    pub(super) store: Arc<dyn KvStore>,
    pub(super) broker: Arc<dyn MessageBroker>,
    app: Arc<App>,
    metrics: prometheus::Registry,
    ground: Ground,
    _manifests: TempDir,
    // Its directory goes last.
    _nats: NatsServer,
}

/// The service at work.
pub(super) struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// Ends it as a drain does.
    pub(super) async fn stop(self) -> Result<(), Error> {
        self.stop.cancel();
        Ok(self.task.await?)
    }
}

impl Stage {
    /// Puts a manifest in force for as many tenants as there are to be lanes of it.
    pub(super) async fn new(backend: Backend, lanes: usize, manifest: &str) -> Result<Self, Error> {
        let (ground, nats) = (Ground::new(backend).await?, NatsServer::start());
        let manifests = tempfile::Builder::new().prefix("mycora-bench-").tempdir()?;
        std::fs::write(manifests.path().join("bench.yaml"), manifest)?;
        let broker = JetStream::start(JetStreamOptions::new(&nats.url()))?;
        broker.connection().wait_for(|connection| connection.connected).await?;
        let broker: Arc<dyn MessageBroker> = Arc::new(broker);
        let day = Duration::from_secs(24 * 3600);
        broker
            .ensure_stream(&StreamSpec::managed(AGGREGATE_EVENTS, &["tenant.*.aggregate.*.*"], day))
            .await?;
        let tenants: String = (0..lanes).map(|tenant| format!("t{tenant}: {{ context: 1 }}\n")).collect();
        let config = Config {
            role: SagaReplicaRole { sagas: true, effects: true },
            manifests: Some(manifests.path().to_owned()),
            tenants: TenantRegistry::read("tenants", &tenants)?,
            secrets: None,
            replica: SagaReplicaIdentity::of_process(1)?,
            grace: DRAIN_TIMEOUT,
            seeing: SagaVisibility::default(),
            lanes_max: LANES_MAX,
        };
        let metrics = prometheus::Registry::new();
        let deps = Deps {
            store: Arc::clone(&ground.store),
            broker: Arc::clone(&broker),
            gateway: Arc::new(Taker),
            flows: None,
            storage: None,
            metrics: &metrics,
        };
        let app = Arc::new(App::new(config, deps)?);
        app.reload().await?;
        let store = Arc::clone(&ground.store);
        Ok(Self { store, broker, app, metrics, ground, _manifests: manifests, _nats: nats })
    }

    /// Begins to work.
    pub(super) fn run(&self) -> Running {
        let (app, stop) = (Arc::clone(&self.app), CancellationToken::new());
        let token = stop.clone();
        Running { stop, task: tokio::spawn(async move { app.run(token).await }) }
    }

    /// Publishes events, which are stored in their order.
    pub(super) async fn publish(&self, events: impl IntoIterator<Item = Event>) -> Result<(), Error> {
        publish(&*self.broker, events.into_iter().map(Event::message)).await
    }

    /// Waits until so many inputs were given to instances.
    pub(super) async fn until_transitions(&self, wanted: u64) {
        self.until("mycora_saga_transitions_total", wanted).await;
    }

    /// Waits until a metric has come to a value.
    pub(super) async fn until(&self, metric: &str, wanted: u64) {
        let is_there = || async { (self.metric(metric) >= wanted).then_some(()) };
        wait_until(is_there, TRANSITIONS_TIMEOUT, metric).await;
    }

    /// The value of a metric, over all its labels.
    fn metric(&self, name: &str) -> u64 {
        let families = self.metrics.gather();
        let found = families.iter().find(|family| family.name() == name);
        let metrics = found.map(|family| family.get_metric()).unwrap_or_default();
        let value = |metric: &prometheus::proto::Metric| {
            metric.get_counter().get_value() + metric.get_gauge().get_value()
        };
        let sum: f64 = metrics.iter().map(value).sum();
        // Counts of whole things.
        format!("{sum:.0}").parse().unwrap_or_default()
    }

    /// How many observations a histogram has at or below each of its bounds, in seconds, and altogether.
    pub(super) fn histogram(&self, name: &str) -> (Vec<(f64, u64)>, u64) {
        let families = self.metrics.gather();
        let found = families.iter().find(|family| family.name() == name);
        let Some(metric) = found.and_then(|family| family.get_metric().first()) else {
            return (Vec::new(), 0);
        };
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter();
        let counts = buckets.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count())).collect();
        (counts, histogram.get_sample_count())
    }

    /// Bytes that the store has: blocks of its directory, or memory of Redis.
    pub(super) fn stored_bytes(&self) -> Result<u64, Error> {
        match &self.ground.redis {
            Some(redis) => resident_bytes(redis.pid()),
            None => blocks(self.ground.dir.path()),
        }
    }
}

/// Publishes messages, which are stored in their order, without waiting for each.
pub(super) async fn publish(
    broker: &dyn MessageBroker,
    messages: impl IntoIterator<Item = Publication>,
) -> Result<(), Error> {
    let mut under_way = FuturesOrdered::new();
    for message in messages {
        under_way.push_back(broker.publish(message).await?);
        if under_way.len() >= UNDER_WAY
            && let Some(published) = under_way.next().await
        {
            published?;
        }
    }
    while let Some(published) = under_way.next().await {
        published?;
    }
    Ok(())
}

/// Bytes of the blocks that the files of a directory have on disk.
fn blocks(dir: &Path) -> Result<u64, Error> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}
