//! Drains under load, of a process and of one tenant: asked for in each way, and who may ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::v1;
use saga::lane::rows::OwnerRow;
use saga::placement::decisions;
use saga::placement::heartbeats::LEASE;
use store::KvStore;
use testkit::{NatsServer, PATIENCE, wait_until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use workflow::WorkflowLane;

use crate::process::{ReplicaProcess, SECRET, Upstream, admin_secret, gateway, prepare};
use crate::replicas::{LANES, MANIFEST, Stage, owner, tenant, until_owner};
use crate::streams::publish_event_of;
use crate::world::TENANT;

/// Another tenant.
const OTHER: &str = "other";
/// Time that a drain may take: more than all that a test waits for meanwhile, on a machine that has other things to do.
const DRAIN_SECS: u32 = 900;
/// How long a test waits while orders come all the time, which a machine with other things to do works on slowly.
const PATIENCE_UNDER_LOAD: Duration = Duration::from_secs(120);
/// Answers, one after the other, that a replica waits for until it owns a lane.
const ANSWERS: u32 = 20;
/// Event that starts an order.
const PLACED: &str = "OrderPlaced";
/// Time from one order to the next.
const PACE: Duration = Duration::from_millis(25);
/// Orders that may be ahead of their calls: a machine that has other things to do gets no more load than it can bear.
const AHEAD_MAX: usize = 100;

/// How a process is told to drain.
#[derive(Debug, Clone, Copy)]
enum DrainTrigger {
    Signal,
    Rpc,
    Route,
}

impl DrainTrigger {
    /// Begins a drain of a whole process.
    async fn drain(self, replica: &ReplicaProcess, stage: &Stage) {
        match self {
            Self::Signal => replica.process.terminate(),
            Self::Rpc => {
                let deadline_secs = Some(DRAIN_SECS);
                let request = v1::SagaServiceDrainRequest { deadline_secs, ..Default::default() };
                let mut operator = replica.operator(stage.dir.path());
                let answer = operator.drain(request).await.expect("begun").into_inner();
                assert!(answer.drain_deadline_time.is_some() && answer.lane_count > 0, "{answer:?}");
            }
            Self::Route => {
                let lanes = replica.lanes();
                let (status, body) = replica.send("POST", "/admin/drain", &gateway("")).expect("answered");
                assert!(status == 202 && body.contains(&format!("\"lanes\": {lanes}")), "{status} {body}");
            }
        }
    }
}

/// Orders that come all the time.
pub(crate) struct Load {
    stop: CancellationToken,
    orders: JoinHandle<Vec<String>>,
}

impl Load {
    /// Publishes orders of a tenant until the end, with these events of each, no further than [`AHEAD_MAX`] ahead of the calls of
    /// this path.
    pub(crate) fn begin(
        stage: &Stage,
        tenant: &'static str,
        events: &'static [&'static str],
        path: &'static str,
    ) -> Self {
        let (broker, stop) = (Arc::clone(&stage.broker), CancellationToken::new());
        let (upstream, stopped) = (stage.upstream.clone(), stop.clone());
        let orders = tokio::spawn(async move {
            let (mut pace, mut orders) = (tokio::time::interval(PACE), Vec::new());
            while !stopped.is_cancelled() {
                pace.tick().await;
                if orders.len() >= upstream.count_of(path, &format!("\"{tenant}-")) + AHEAD_MAX {
                    continue;
                }
                let id = format!("{tenant}-{}", orders.len());
                let data = format!("{{\"id\":\"{id}\"}}");
                for kind in events {
                    let event = format!("{kind}-{id}");
                    publish_event_of(&*broker, tenant, "Order", &event, kind, (&id, &data)).await;
                }
                orders.push(id);
            }
            orders
        });
        Self { stop, orders }
    }

    /// Ends it; its orders, which this gives, are among those of the stage.
    pub(crate) async fn end(self, stage: &mut Stage) -> Vec<String> {
        self.stop.cancel();
        let orders = self.orders.await.expect("published");
        stage.orders.extend(orders.clone());
        orders
    }
}

fn lanes(tenant: &str) -> Vec<WorkflowLane> {
    let tenant: model::TenantId = tenant.parse().expect("a tenant");
    let saga =
        |shard| WorkflowLane::Saga { tenant: tenant.clone(), saga: "order".parse().expect("a name"), shard };
    let effect =
        |name: &str| WorkflowLane::Effect { tenant: tenant.clone(), effect: name.parse().expect("a name") };
    (0..8).map(saga).chain(["reserve", "ship", "tell"].map(effect)).collect()
}

/// Returns the current owners of these lanes.
async fn owners(store: &Arc<dyn KvStore>, lanes: &[WorkflowLane]) -> BTreeMap<WorkflowLane, OwnerRow> {
    let mut owners = BTreeMap::new();
    for lane in lanes {
        if let Some(owner) = owner(store, lane).await {
            owners.insert(lane.clone(), owner);
        }
    }
    owners
}

/// Names of the owners of these lanes; an empty name for a lane without an owner.
async fn names(store: &Arc<dyn KvStore>, lanes: &[WorkflowLane]) -> BTreeSet<String> {
    let owners = owners(store, lanes).await;
    lanes.iter().map(|lane| owners.get(lane).map_or(String::new(), |owner| owner.replica.clone())).collect()
}

/// Follows lanes from one replica to another; returns how long each had no owner, and the longest time that the store took for an
/// answer meanwhile: seconds, on a busy machine.
async fn handed_over(
    store: Arc<dyn KvStore>,
    lanes: Vec<WorkflowLane>,
    from: &str,
    to: &str,
) -> (BTreeMap<WorkflowLane, Duration>, Duration) {
    let (mut given_up, mut taken) = (BTreeMap::new(), BTreeMap::new());
    let mut slowest = Duration::ZERO;
    while taken.len() < lanes.len() {
        for lane in lanes.iter().filter(|lane| !taken.contains_key(*lane)).cloned().collect::<Vec<_>>() {
            let sent = Instant::now();
            let owner = owner(&store, &lane).await.map(|owner| owner.replica);
            slowest = slowest.max(sent.elapsed());
            if owner.as_deref() != Some(from) {
                let since: &mut Instant = given_up.entry(lane.clone()).or_insert_with(Instant::now);
                if owner.as_deref() == Some(to) {
                    taken.insert(lane, since.elapsed());
                }
            }
        }
        tokio::task::yield_now().await;
    }
    (taken, slowest)
}

fn replica(stage: &Stage, name: &str) -> ReplicaProcess {
    let (redis, secret) = (stage.redis.tcp_url(), admin_secret(stage.dir.path()));
    let rows = ["--redis-url", &redis, "--replica", name, &secret];
    ReplicaProcess::over(stage.dir.path(), &stage.nats, &rows, name, DRAIN_SECS)
}

/// Two replicas, between which the lanes of each of these tenants are divided.
async fn pair(stage: &Stage, store: &Arc<dyn KvStore>, tenants: &[&str]) -> (ReplicaProcess, ReplicaProcess) {
    let (a, b) = (replica(stage, "a"), replica(stage, "b"));
    let both = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    for tenant in tenants {
        let divided = async || (names(store, &lanes(tenant)).await == both).then_some(());
        wait_until(divided, PATIENCE_UNDER_LOAD, format!("the lanes of {tenant} are divided")).await;
    }
    (a, b)
}

/// Drains one of two replicas under load, while calls of its last lane are under way.
async fn drained_under_load(way: DrainTrigger) {
    let mut stage = Stage::with(MANIFEST).await;
    let store = stage.store().await;
    let (mut a, b) = pair(&stage, &store, &[TENANT]).await;
    let last = WorkflowLane::Effect { tenant: tenant(), effect: "ship".parse().expect("a name") };
    decisions::move_lane(&store, &last, Some("a"), None).await.expect("moved");
    until_owner(&store, &last, "a").await;
    let load = Load::begin(&stage, TENANT, &[PLACED], "/reserve");
    stage.upstream.hold("/ship");
    let is_called = async || (stage.upstream.count("/ship") > 0).then_some(());
    wait_until(is_called, PATIENCE_UNDER_LOAD, "calls are under way").await;
    let had: Vec<_> = owners(&store, &lanes(TENANT)).await.into_iter().collect();
    let had: Vec<_> =
        had.into_iter().filter(|(_, owner)| owner.replica == "a").map(|(lane, _)| lane).collect();
    assert_eq!(had.len(), a.lanes());
    let follow = tokio::spawn(handed_over(Arc::clone(&store), had.clone(), "a", "b"));
    let begin = Instant::now();
    way.drain(&a, &stage).await;
    // It says so before it gives up anything.
    let is_draining = async || {
        let (lanes, status) = (a.lanes(), a.ask("/ready")?.0);
        assert!(status == 503 || lanes == had.len(), "{lanes} of {} lanes, and {status}", had.len());
        (status == 503 && lanes == 1).then_some(())
    };
    wait_until(is_draining, PATIENCE_UNDER_LOAD, "it keeps the lane of the calls alone").await;
    let has_others = async || (b.lanes() == LANES - 1).then_some(());
    wait_until(has_others, PATIENCE_UNDER_LOAD, "the other one has all other lanes").await;
    assert!(a.process.is_running() && a.ask("/ready").is_some_and(|(status, _)| status == 503));
    let before = stage.upstream.count("/reserve");
    let goes_on = async || (stage.upstream.count("/reserve") > before + 10).then_some(());
    wait_until(goes_on, PATIENCE_UNDER_LOAD, "the other one goes on").await;
    stage.upstream.release();
    let (gone, slowest) =
        tokio::time::timeout(PATIENCE_UNDER_LOAD, follow).await.expect("in time").expect("followed");
    assert!(a.process.wait(PATIENCE_UNDER_LOAD).success(), "{}", a.process.output());
    let took = begin.elapsed();
    println!(
        "{way:?}: it ended {took:?} after; an answer took {slowest:?}; nobody had its lanes for {gone:?}"
    );
    assert!(took < Duration::from_secs(DRAIN_SECS.into()), "{took:?}");
    // Its next owner takes a lane after a heartbeat of its own, which a busy machine may delay, and not only after a lease.
    let within = LEASE + ANSWERS * slowest;
    assert!(gone.values().all(|gap| *gap < within), "{within:?}: {gone:?}");
    load.end(&mut stage).await;
    stage.until_all_ended_once().await;
    stage.are_whole_in(&*store, Some(4)).await;
    assert!(stage.upstream.by_key().values().all(|(.., times)| *times == 1), "{:?}", stage.upstream.by_key());
    assert_eq!(b.metric("fenced_commits_total"), Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_drains_a_replica_under_load() {
    drained_under_load(DrainTrigger::Signal).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_drains_a_replica_under_load() {
    drained_under_load(DrainTrigger::Rpc).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_drains_a_replica_under_load() {
    drained_under_load(DrainTrigger::Route).await;
}

/// Waits until calls of this tenant's orders go on.
async fn until_goes_on(stage: &Stage, tenant: &str) {
    let tell_calls = || stage.upstream.count_of("/tell", tenant);
    let before = tell_calls();
    let goes_on = async || (tell_calls() > before + 20).then_some(());
    wait_until(goes_on, PATIENCE_UNDER_LOAD, format!("orders of {tenant} end")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_of_one_tenant_under_load_leaves_the_others() {
    let mut stage = Stage::with(MANIFEST).await;
    let tenants = format!("{TENANT}: {{ context: 1 }}\n{OTHER}: {{ context: 2 }}\n");
    std::fs::write(stage.dir.path().join("tenants.yaml"), tenants).expect("written");
    let store = stage.store().await;
    let (mut a, mut b) = pair(&stage, &store, &[TENANT, OTHER]).await;
    let load = [TENANT, OTHER].map(|tenant| Load::begin(&stage, tenant, &[PLACED], "/tell"));
    until_goes_on(&stage, TENANT).await;
    until_goes_on(&stage, OTHER).await;
    let others = owners(&store, &lanes(OTHER)).await;
    // By route: the lanes of one go from here to there, and the other's stay where they are.
    let (status, body) = a.send("POST", "/admin/drain", &gateway(TENANT)).expect("answered");
    assert!(
        status == 202 && body.contains("\"tenant\": \"acme\"") && !body.contains(OTHER),
        "{status} {body}"
    );
    let only = |name: &str| BTreeSet::from([name.to_owned()]);
    let is_gone = async || (names(&store, &lanes(TENANT)).await == only("b")).then_some(());
    wait_until(is_gone, PATIENCE_UNDER_LOAD, "the other one has the tenant's lanes").await;
    assert_eq!(owners(&store, &lanes(OTHER)).await, others);
    until_goes_on(&stage, TENANT).await;
    until_goes_on(&stage, OTHER).await;
    // By request: and the other way round.
    let mine = owners(&store, &lanes(TENANT)).await;
    let request = v1::SagaServiceDrainRequest { tenant_id: OTHER.to_owned(), ..Default::default() };
    b.operator(stage.dir.path()).drain(request).await.expect("begun");
    let is_gone = async || (names(&store, &lanes(OTHER)).await == only("a")).then_some(());
    wait_until(is_gone, PATIENCE_UNDER_LOAD, "the first one has the other tenant's lanes").await;
    assert_eq!(owners(&store, &lanes(TENANT)).await, mine);
    until_goes_on(&stage, TENANT).await;
    until_goes_on(&stage, OTHER).await;
    for replica in [&mut a, &mut b] {
        assert!(replica.process.is_running() && replica.lanes() == LANES);
        assert_eq!(replica.ask("/ready").map(|(status, _)| status), Some(200));
        assert_eq!(replica.metric("fenced_commits_total"), Some(0.0));
    }
    for load in load {
        load.end(&mut stage).await;
    }
    stage.until_all_ended_once().await;
    assert!(stage.upstream.by_key().values().all(|(.., times)| *times == 1));
}

/// Asks the admin routes what only the gateway may, in each way that is not its own.
fn is_closed(process: &ReplicaProcess, shows: &str) {
    for (route, method) in [("/admin/drain", "Drain"), ("/admin/reload", "Reload")] {
        for headers in ["", "authorization: Bearer another secret, as long\r\n", shows] {
            let (status, body) = process.send("POST", route, headers).expect("answered");
            let way_out = format!("mycora.v1.SagaService/{method}");
            assert!(
                status == 403 && body.contains("--admin-secret-file") && body.contains(&way_out),
                "{route}, {headers}: {status} {body}"
            );
        }
        for headers in ["", &gateway(""), &gateway(TENANT)] {
            assert_eq!(process.send("GET", route, headers).expect("answered").0, 405, "{route}, {headers}");
        }
        let alone = format!("x-tenant-id: {TENANT}\r\n");
        let wrong = format!("authorization: Bearer another secret, as long\r\n{alone}");
        for headers in [alone, wrong] {
            let (status, body) = process.send("POST", route, &headers).expect("answered");
            assert!(status == 400 && body.contains("x-tenant-id is believed only beside"), "{status} {body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_routes_are_the_gateways_alone() {
    let (dir, nats) = (tempfile::tempdir().expect("a directory"), NatsServer::start());
    prepare(dir.path(), MANIFEST, &Upstream::start());
    let mut process = ReplicaProcess::start_alone(dir.path(), &nats, "combined");
    process.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    let is_ready = async || process.ask("/ready").filter(|(status, _)| *status == 200);
    wait_until(is_ready, PATIENCE, "it is ready").await;
    is_closed(&process, &format!("authorization: Basic {SECRET}\r\n"));
    for route in ["/admin/drain", "/admin/reload"] {
        assert_eq!(
            process.send("POST", route, &gateway("nobody")).map(|(status, _)| status),
            Some(404),
            "{route}"
        );
        let (status, body) = process.send("POST", route, &gateway("a b")).expect("answered");
        assert!(status == 400 && body.starts_with("x-tenant-id: "), "{status} {body}");
    }
    // Nothing of that has done anything.
    assert!(process.lanes() == LANES && process.ask("/ready").is_some_and(|(status, _)| status == 200));
    let reload = |tenant: &str| process.send("POST", "/admin/reload", &gateway(tenant)).expect("answered");
    let (status, body) = reload("");
    assert!(
        status == 200 && body.contains("\"changes\": []") && body.contains("\"order\": 1"),
        "{status} {body}"
    );
    let order = dir.path().join("manifests/order.yaml");
    let first = std::fs::read_to_string(&order).expect("it is there");
    std::fs::write(&order, first.replace("goto: tell", "goto: tells")).expect("written");
    std::fs::write(dir.path().join("manifests/other.yaml"), "kind: Sagga\n").expect("written");
    let (status, body) = reload("");
    assert!(status == 409 && body.contains("order.yaml:11:"), "{status} {body}");
    assert!(body.contains("other.yaml:1:7: "), "{body}");
    // That part is good.
    assert_eq!(reload(TENANT).0, 200);
    std::fs::remove_file(dir.path().join("manifests/other.yaml")).expect("it is there");
    std::fs::write(&order, first.replace("\nversion: 1", "\nversion: 2")).expect("written");
    let (status, body) = reload("");
    assert!(
        status == 200 && body.contains("\"order\": 2") && body.contains("\"old_version\": 1"),
        "{status} {body}"
    );
    let (status, body) = process.send("POST", "/admin/drain", &gateway("")).expect("answered");
    assert!(status == 202 && body.contains("\"lanes\": "), "{status} {body}");
    assert!(process.process.wait(PATIENCE).success(), "{}", process.process.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_routes_without_a_secret_are_closed_to_all() {
    let (dir, nats) = (tempfile::tempdir().expect("a directory"), NatsServer::start());
    prepare(dir.path(), MANIFEST, &Upstream::start());
    let store = dir.path().join("store").display().to_string();
    let mut process = ReplicaProcess::over(dir.path(), &nats, &["--store-dir", &store], "closed", 5);
    is_closed(&process, &gateway(""));
    assert!(process.process.is_running() && process.ask("/livez").is_some());
}
