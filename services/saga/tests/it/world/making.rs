//! Worlds to begin with.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use broker::{MessageBroker, RuntimeClock, SimulatedBroker};
use saga::definitions::Definitions;
use saga::effects::OpenCalls;
use saga::lane::backlog::OUTBOX_ROWS_MAX;
use saga::lane::in_flight::InFlightLimits;
use saga::lane::source::ACK_WAIT;
use saga::lane::streams;
use saga::metrics::Metrics;
use saga::quotas::LANE_CALLS_MAX;
use saga::sagas::SAGA_DEAD_LETTERS_MAX;
use saga::visibility::SagaVisibility;
use service::Readiness;
use store::{EmbeddedStore, KvStore, MemoryStore, SharedStore};
use testkit::{FaultProxy, NatsServer, ProxyTarget, RedisServer};

use super::{Ground, World};
use crate::call_recorder::Witness;
use crate::clock::{ClockByHand, SetForward};
use crate::hooked_store::HookedStore;
use crate::streams::{aggregates, connect, connect_to};

/// Where a world on a real server keeps its rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keeps {
    Directory,
    Redis,
}

impl World {
    async fn new(
        store: Arc<dyn KvStore>,
        (broker, outside): (Arc<dyn MessageBroker>, Arc<dyn MessageBroker>),
        simulated: Option<SimulatedBroker>,
        clock: SetForward,
        ground: Ground,
    ) -> Self {
        let [commands, events] = streams(true);
        for stream in [commands, events, aggregates()] {
            let differences = outside.ensure_stream(&stream).await.expect("a stream");
            assert_eq!(differences, []);
        }
        let registry = prometheus::Registry::new();
        Self {
            definitions: Arc::new(Definitions::new(Arc::clone(&store))),
            store,
            broker,
            outside,
            simulated,
            clock,
            metrics: Arc::new(Metrics::new(&registry, SagaVisibility::default()).expect("new names")),
            registry,
            readiness: Readiness::new(),
            bounds: InFlightLimits::default(),
            outbox_rows_max: OUTBOX_ROWS_MAX,
            ack_wait: ACK_WAIT,
            witness: Witness::default(),
            saga: String::new(),
            letters_max: SAGA_DEAD_LETTERS_MAX,
            calls_max: LANE_CALLS_MAX,
            wake: Arc::default(),
            copies: AtomicU64::new(0),
            facts: None,
            seen: Vec::new(),
            results: None,
            calls: OpenCalls::default(),
            lane: None,
            ground,
        }
    }

    pub(crate) async fn simulated() -> Self {
        Self::simulated_over(|store| Arc::new(store)).await
    }

    /// A simulation whose store is made of one in memory.
    pub(crate) async fn simulated_over(
        store: impl FnOnce(MemoryStore<SetForward>) -> Arc<dyn KvStore>,
    ) -> Self {
        let clock = SetForward::default();
        let broker = SimulatedBroker::new(RuntimeClock::new());
        let store = store(MemoryStore::new(clock.clone()));
        let both: (Arc<dyn MessageBroker>, Arc<dyn MessageBroker>) =
            (Arc::new(broker.clone()), Arc::new(broker.clone()));
        Self::new(store, both, Some(broker), clock, Ground::default()).await
    }

    /// A world over a broker connection of the caller, with rows in memory.
    pub(crate) async fn over(broker: broker::JetStream) -> Self {
        let (clock, broker) = (SetForward::default(), Arc::new(broker));
        let both: (Arc<dyn MessageBroker>, Arc<dyn MessageBroker>) = (Arc::clone(&broker) as _, broker);
        Self::new(Arc::new(MemoryStore::new(clock.clone())), both, None, clock, Ground::default()).await
    }

    /// A real server, and rows in a directory.
    pub(crate) async fn in_a_directory() -> Self {
        Self::real(Keeps::Directory).await
    }

    /// A real server, and rows in Redis.
    pub(crate) async fn in_redis() -> Self {
        Self::real(Keeps::Redis).await
    }

    /// A real server.
    pub(crate) async fn real(keeps: Keeps) -> Self {
        let nats = NatsServer::start();
        let broker = connect(&nats).await;
        let ground = Ground { nats: Some(nats), ..Ground::default() };
        Self::keeping(keeps, (Arc::clone(&broker), broker), ground).await
    }

    /// A real server that the lane reaches through a proxy, and everybody else directly.
    pub(crate) async fn behind_a_proxy(keeps: Keeps) -> Self {
        let nats = NatsServer::start();
        let outside = connect(&nats).await;
        let proxy = FaultProxy::start(ProxyTarget::Tcp(nats.address())).await;
        let broker = connect_to(&format!("nats://{}", proxy.address())).await;
        let ground = Ground { nats: Some(nats), proxy: Some(proxy), ..Ground::default() };
        Self::keeping(keeps, (broker, outside), ground).await
    }

    async fn keeping(
        keeps: Keeps,
        brokers: (Arc<dyn MessageBroker>, Arc<dyn MessageBroker>),
        ground: Ground,
    ) -> Self {
        let clock = SetForward::default();
        let (store, ground): (Arc<dyn KvStore>, _) = match keeps {
            Keeps::Directory => {
                let dir = tempfile::tempdir().expect("a directory");
                let bytes = 2 * 1024 * 1024 * 1024;
                let store = EmbeddedStore::open(dir.path(), bytes, clock.clone()).expect("a new store");
                (Arc::new(store), Ground { _dir: Some(dir), ..ground })
            }
            Keeps::Redis => {
                let redis = RedisServer::start();
                let kv = kv::Kv::new(redis.url().parse().expect("a URL"));
                let unscanned = ["saga", "dedupe", "effect", "request", "checkpoint", "definition"];
                let store = SharedStore::open(kv, kv::Durability::Fast, &unscanned).await.expect("a store");
                let store = HookedStore::over(Arc::new(store), ClockByHand(clock.clone()));
                (store, Ground { _redis: Some(redis), ..ground })
            }
        };
        Self::new(store, brokers, None, clock, ground).await
    }
}
