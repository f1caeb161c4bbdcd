//! The operator's files, read again while everything runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use broker::{MessageBroker, RuntimeClock, SimulatedBroker};
use model::{SagaName, TenantId};
use saga::placement::{LANES_MAX, SagaReplicaIdentity, SagaReplicaRole};
use saga::tenants::TenantRegistry;
use saga::visibility::SagaVisibility;
use saga::{App, Config, Deps, ReloadChange, ReloadKind};
use store::{Clock as _, CommitOutcome, KvStore, MemoryStore, RowBatch, StoreError};
use tempfile::TempDir;
use testkit::PATIENCE;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::hooked_store::{HookedStore, StoreHook};
use crate::process::Upstream;
use crate::streams::{Projection, aggregates, publish_event};
use crate::world::{TENANT, Witness};

const SAGA: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: wait }
steps:
  wait: { on: { Paid: { goto: ship } } }
  ship: { effect: ship, input: { order: "${{ state.id }}" }, on_done: { end: completed } }
"#;

const PROVIDER: &str = r#"
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  ship: { request: { method: POST, path: /ship, body: "${{ input }}" }, retry: { initial: 1ms } }
"#;

const TENANTS: &str = "acme: { context: 1 }\nother: { context: 2 }\n";

/// Refuses to write the row `active` for a while: as if the process had died before.
#[derive(Clone, Default)]
struct DiesBeforeActive(Arc<AtomicBool>);

#[async_trait]
impl StoreHook for DiesBeforeActive {
    async fn commit(&self, store: &dyn KvStore, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        let is_active = batch.ops.iter().any(|op| op.key().as_str() == "active");
        if is_active && self.0.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable { why: "it died".to_owned() });
        }
        store.commit(batch).await
    }
}

/// The operator's files, and what replicas stand on.
struct Site {
    dir: TempDir,
    store: Arc<dyn KvStore>,
    dies: DiesBeforeActive,
    broker: SimulatedBroker,
    upstream: Upstream,
    replicas: AtomicU32,
}

impl Site {
    async fn new() -> Self {
        let dies = DiesBeforeActive::default();
        let store = HookedStore::over(Arc::new(MemoryStore::new(store::WallClock)), dies.clone());
        let (dir, broker) =
            (tempfile::tempdir().expect("a directory"), SimulatedBroker::new(RuntimeClock::new()));
        broker.ensure_stream(&aggregates()).await.expect("a stream");
        std::fs::create_dir(dir.path().join("manifests")).expect("made");
        let site =
            Self { dir, store, dies, broker, upstream: Upstream::start(), replicas: AtomicU32::new(0) };
        site.write("manifests/order.yaml", SAGA);
        site.write("manifests/upstream.yaml", &site.provider(&site.upstream));
        site.write("tenants.yaml", TENANTS);
        site
    }

    fn provider(&self, upstream: &Upstream) -> String {
        PROVIDER.replace("ADDRESS", &upstream.address)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).expect("it was there");
    }

    /// A replica with these manifests.
    fn replica(&self, manifests: Option<&Path>) -> Arc<App> {
        let config = Config {
            role: SagaReplicaRole { sagas: true, effects: true },
            manifests: manifests.map(Path::to_path_buf),
            tenants: TenantRegistry::read("tenants.yaml", TENANTS).expect("good"),
            secrets: None,
            replica: SagaReplicaIdentity::new(
                &format!("r-{}", self.replicas.fetch_add(1, Ordering::Relaxed)),
                1,
            )
            .expect("a name"),
            grace: Duration::from_secs(5),
            seeing: SagaVisibility::default(),
            lanes_max: LANES_MAX,
        };
        let deps = Deps {
            store: Arc::clone(&self.store),
            broker: Arc::new(self.broker.clone()),
            gateway: Arc::new(Witness::default()),
            flows: None,
            storage: None,
            metrics: &prometheus::Registry::new(),
        };
        let app = App::new(config, deps).expect("new names");
        Arc::new(app.with_tenants_file(self.path("tenants.yaml")))
    }

    /// The replica that has the files.
    fn operators(&self) -> Arc<App> {
        self.replica(Some(&self.path("manifests")))
    }

    /// Publishes an event, once the saga was in force before it by the clocks of store and broker both.
    async fn event(&self, id: &str, kind: &str, correlation: &str) {
        let began = store::WallClock.now();
        while store::WallClock.now() < began + 5 {
            tokio::task::yield_now().await;
        }
        let data = format!("{{\"id\":\"{correlation}\"}}");
        publish_event(&self.broker, "Order", id, kind, correlation, &data).await;
    }
}

fn run(app: &Arc<App>) -> (JoinHandle<()>, CancellationToken) {
    let (app, stop) = (Arc::clone(app), CancellationToken::new());
    let token = stop.clone();
    (tokio::spawn(async move { app.run(token).await }), stop)
}

async fn until(projection: &mut Projection, correlation: &str, kind: &str) {
    let found = async {
        loop {
            if let Some(fact) = projection.next_soon().await
                && fact.correlation.as_str() == correlation
                && (fact.kind == kind || fact.step.as_str() == kind)
            {
                return;
            }
        }
    };
    let come = tokio::time::timeout(PATIENCE, found).await;
    assert!(come.is_ok(), "{correlation} does not come to {kind}");
}

fn shown(changes: &[ReloadChange]) -> Vec<(&'static str, &str, Option<u32>, Option<u32>)> {
    changes.iter().map(|c| (c.kind.as_str(), c.name.as_str(), c.before, c.after)).collect()
}

fn acme() -> TenantId {
    TENANT.parse().expect("a tenant")
}

fn order() -> SagaName {
    "order".parse().expect("a name")
}

#[tokio::test]
async fn files_come_in_force_together_and_everywhere() {
    let site = Site::new().await;
    let (app, other) = (site.operators(), site.replica(None));
    let changes = app.reload().await.expect("good");
    let all = [
        ("saga", "order", None, Some(1)),
        ("provider", "upstream", None, Some(0)),
        ("tenant", "acme", None, Some(0)),
        ("tenant", "other", None, Some(0)),
    ];
    assert_eq!(shown(&changes), all);
    assert_eq!(app.reload().await.expect("good"), [], "nothing is new");
    // One without manifests takes nothing away, and follows.
    assert_eq!(other.reload().await.expect("good"), []);
    assert!(other.definitions().saga(&acme(), &order()).is_some());
    let (running, stop) = run(&other);
    site.write("manifests/order.yaml", &SAGA.replace("version: 1", "version: 2"));
    site.write("tenants.yaml", "acme: { context: 1, weight: 3 }\nthird: { context: 3 }\n");
    let looked_at = app.check_reload(None).await.expect("good");
    let expected = [
        ("saga", "order", Some(1), Some(2)),
        ("tenant", "acme", Some(0), Some(0)),
        ("tenant", "other", Some(0), None),
        ("tenant", "third", None, Some(0)),
    ];
    assert_eq!(shown(&looked_at), expected);
    assert_eq!(
        app.definitions().saga(&acme(), &order()).map(|saga| saga.version),
        Some(1),
        "it was looked at only"
    );
    assert_eq!(shown(&app.reload().await.expect("good")), expected);
    let third: TenantId = "third".parse().expect("a tenant");
    assert!(app.has_tenant(&third) && !other.has_tenant(&third));
    let followed = other.definitions().refresh().await.expect("it can be read");
    assert_eq!(followed.saga(&acme(), &order()).map(|saga| saga.version), Some(2));
    let known = async {
        while !other.has_tenant(&third) || other.has_tenant(&"other".parse().expect("a tenant")) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("tenants are followed");
    stop.cancel();
    running.await.expect("it ends");
}

#[tokio::test]
async fn a_wrong_reload_lists_every_problem_and_changes_nothing() {
    let site = Site::new().await;
    let app = site.operators();
    app.reload().await.expect("good");
    let revision = app.definitions().in_force().revision;
    site.write("manifests/order.yaml", &SAGA.replace("OrderPlaced", "OrderMade"));
    site.write(
        "manifests/bad.yaml",
        &SAGA.replace("name: order", "name: bad").replace("effect: ship", "effect: shop"),
    );
    site.write("tenants.yaml", "acme: { context: 9 }\nother: { context: 2, weight: 0 }\n");
    for refused in [app.reload().await.expect_err("wrong"), app.check_reload(None).await.expect_err("wrong")]
    {
        let text = refused.to_string();
        for expected in [
            "order.yaml:2:1: version 1 of the saga `order` is in force with other content; write `version: 2`",
            "bad.yaml:10:19: no provider has the effect `shop`; did you mean `ship`?",
            "tenants.yaml:1:18: the tenant `acme` belongs to the context 1, and cannot move to another one",
            "tenants.yaml:2:30: `weight` has to be a whole number from 1 to 100, not `0`",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
    let now = app.definitions().refresh().await.expect("it can be read");
    assert_eq!(now.revision, revision);
    // Nor after a restart.
    let again = site.operators();
    assert!(again.reload().await.is_err());
}

#[tokio::test]
async fn a_tenant_is_reloaded_alone() {
    let site = Site::new().await;
    let app = site.operators();
    app.reload().await.expect("good");
    site.write("manifests/order.yaml", "kind: Sagga\n");
    site.write("tenants.yaml", "acme: { context: 1, weight: 3 }\nother: { context: 2, weight: 3 }\n");
    let changes = app.reload_tenant(&acme()).await.expect("its part is good");
    assert_eq!(shown(&changes), [("tenant", "acme", Some(0), Some(0))]);
    let now = app.definitions().in_force();
    let weight = |id: &str| {
        let tenants = now.tenants.as_ref().expect("they are kept");
        tenants.get(&id.parse().expect("a tenant")).map(|tenant| tenant.weight)
    };
    assert_eq!((weight("acme"), weight("other")), (Some(3), Some(1)));
}

#[tokio::test]
async fn a_saga_that_is_left_out_starts_no_more_and_its_instances_go_on() {
    let site = Site::new().await;
    let mut projection = Projection::open(&(Arc::new(site.broker.clone()) as Arc<dyn MessageBroker>)).await;
    let app = site.operators();
    app.reload().await.expect("good");
    let (running, stop) = run(&app);
    site.event("e-1", "OrderPlaced", "first").await;
    until(&mut projection, "first", "wait").await;
    // What it will call has to stay.
    site.remove("manifests/order.yaml");
    site.remove("manifests/upstream.yaml");
    let refused = app.reload().await.expect_err("an instance needs it").to_string();
    assert!(refused.contains("instances of `order`, version 1, need the effect `ship`"), "{refused}");
    site.write("manifests/upstream.yaml", &site.provider(&site.upstream));
    let changes = app.reload().await.expect("good");
    assert_eq!(shown(&changes), [("saga", "order", Some(1), None)]);
    site.event("e-2", "OrderPlaced", "second").await;
    site.event("e-3", "Paid", "first").await;
    until(&mut projection, "first", "completed").await;
    // It comes back, under another version; what came meanwhile started nothing.
    site.write("manifests/order.yaml", &SAGA.replace("version: 1", "version: 2"));
    app.reload().await.expect("good");
    site.event("e-4", "OrderPlaced", "third").await;
    until(&mut projection, "third", "wait").await;
    site.event("e-5", "Paid", "third").await;
    until(&mut projection, "third", "completed").await;
    let called = site.upstream.by_key();
    assert!(called.values().all(|(_, body, _)| !body.contains("second")), "{called:?}");
    // The old version is not needed any more, nor, once both sagas are retired, the provider.
    stop.cancel();
    running.await.expect("it ends");
    site.remove("manifests/order.yaml");
    site.remove("manifests/upstream.yaml");
    let changes = app.reload().await.expect("nothing runs");
    assert_eq!(
        changes.iter().map(|change| change.kind).collect::<Vec<_>>(),
        [ReloadKind::Saga, ReloadKind::Provider]
    );
}

#[tokio::test]
async fn a_provider_that_is_replaced_takes_the_next_call() {
    let site = Site::new().await;
    let mut projection = Projection::open(&(Arc::new(site.broker.clone()) as Arc<dyn MessageBroker>)).await;
    let app = site.operators();
    app.reload().await.expect("good");
    let (running, stop) = run(&app);
    for (n, order) in ["first", "second"].into_iter().enumerate() {
        site.event(&format!("p-{n}"), "OrderPlaced", order).await;
        until(&mut projection, order, "wait").await;
    }
    site.event("q-1", "Paid", "first").await;
    until(&mut projection, "first", "completed").await;
    let other = Upstream::start();
    site.write("manifests/upstream.yaml", &site.provider(&other));
    let changes = app.reload().await.expect("good");
    assert_eq!(shown(&changes), [("provider", "upstream", Some(0), Some(0))]);
    site.event("q-2", "Paid", "second").await;
    until(&mut projection, "second", "completed").await;
    let orders =
        |upstream: &Upstream| upstream.by_key().into_values().map(|(_, body, _)| body).collect::<Vec<_>>();
    assert_eq!(orders(&site.upstream), [r#"{"order":"first"}"#]);
    assert_eq!(orders(&other), [r#"{"order":"second"}"#]);
    stop.cancel();
    running.await.expect("it ends");
}

#[tokio::test]
async fn a_reload_that_is_cut_off_has_changed_nothing() {
    let site = Site::new().await;
    let app = site.operators();
    app.reload().await.expect("good");
    site.write("manifests/order.yaml", &SAGA.replace("version: 1", "version: 2"));
    site.write("tenants.yaml", "acme: { context: 1, weight: 9 }\n");
    site.dies.0.store(true, Ordering::Relaxed);
    // Documents are kept by then, and nothing names them.
    assert!(matches!(app.reload().await, Err(saga::Error::Definitions(_))));
    let next = site.replica(None);
    assert!(next.reload().await.is_err() || next.definitions().saga(&acme(), &order()).is_some());
    let seen = next.definitions().refresh().await.expect("it can be read");
    let weight = |tenants: &TenantRegistry| tenants.get(&acme()).map(|tenant| tenant.weight);
    assert_eq!(seen.saga(&acme(), &order()).map(|saga| saga.version), Some(1));
    assert_eq!(seen.tenants.as_deref().and_then(weight), Some(1));
    site.dies.0.store(false, Ordering::Relaxed);
    let again = site.operators();
    assert_eq!(again.reload().await.expect("good").len(), 3);
    let seen = next.definitions().refresh().await.expect("it can be read");
    assert_eq!(seen.saga(&acme(), &order()).map(|saga| saga.version), Some(2));
    assert_eq!(seen.tenants.as_deref().and_then(weight), Some(9));
}
