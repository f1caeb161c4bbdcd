//! Several processes over one Redis: each lane has one owner, whichever replicas come, go, die or sleep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::MessageBroker;
use kv::{Durability, Kv};
use model::{TenantId, Timestamp};
use saga::lane::UNSCANNED;
use saga::lane::rows::OwnerRow;
use saga::placement::decisions;
use store::{KvStore, LaneKey, RowKey, SharedStore};
use tempfile::TempDir;
use testkit::{FaultProxy, NatsServer, PATIENCE, ProxyFault, ProxyTarget, RedisServer, wait_until};
use workflow::instance::decode;
use workflow::message::FactMessage;
use workflow::{LaneRowKey, WorkflowLane};

use crate::process::{ReplicaProcess, Upstream, prepare};
use crate::streams::{Projection, connect, publish_event};
use crate::world::TENANT;

/// Scales the number of sagas that go through a death.
pub(crate) const SAGAS: &str = "MYCORA_TEST_SAGAS";
/// Time within which the work of a replica that dies goes on elsewhere.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(8);
/// Lanes of the saga, of which there are as many as shards, and of its effects.
pub(crate) const LANES: usize = 8 + 3;
/// Calls may take long: a test holds their answers until a busy machine has come to what it waits for.
pub(crate) const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
shards: 8
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: reserve }
steps:
  reserve: { effect: reserve, input: { order: "${{ state.id }}" }, on_success: { goto: ship } }
  ship: { effect: ship, input: { order: "${{ state.id }}" }, on_success: { goto: tell } }
  tell: { effect: tell, input: { order: "${{ state.id }}" }, on_done: { end: completed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  reserve: { request: { method: POST, path: /reserve, body: "${{ input }}" }, timeouts: { start_to_close: 10m }, retry: { initial: 1ms } }
  ship: { request: { method: POST, path: /ship, body: "${{ input }}" }, timeouts: { start_to_close: 10m }, retry: { initial: 1ms } }
  tell: { request: { method: POST, path: /tell, body: "${{ input }}" }, timeouts: { start_to_close: 10m }, retry: { initial: 1ms } }
"#;

/// A step of the manifest, and one more that comes before it.
pub(crate) const WAIT: (&str, &str) =
    ("  ship: { effect", "  wait: { on: { Paid: { goto: ship } } }\n  ship: { effect");

/// Servers and files that replicas use, and what the replicas show to the outside.
pub(crate) struct Stage {
    pub(crate) nats: NatsServer,
    pub(crate) redis: RedisServer,
    pub(crate) dir: TempDir,
    pub(crate) upstream: Upstream,
    pub(crate) broker: Arc<dyn MessageBroker>,
    projection: Projection,
    /// Each with when it was stored, in milliseconds since 1970.
    facts: Vec<(u64, FactMessage)>,
    pub(crate) orders: Vec<String>,
    /// Orders by what has become of them, and by where they were.
    reached: BTreeMap<String, BTreeSet<String>>,
}

impl Stage {
    async fn new() -> Self {
        Self::with(MANIFEST).await
    }

    pub(crate) async fn with(manifest: &str) -> Self {
        let (nats, redis) = (NatsServer::start(), RedisServer::builder().tcp().persistent().start());
        let (dir, upstream) = (tempfile::tempdir().expect("a directory"), Upstream::start());
        prepare(dir.path(), manifest, &upstream);
        let broker = connect(&nats).await;
        let projection = Projection::open_of(&broker, "*").await;
        let (facts, orders, reached) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { nats, redis, dir, upstream, broker, projection, facts, orders, reached }
    }

    pub(crate) fn replica(&self, name: &str) -> ReplicaProcess {
        self.replica_at(&self.redis.tcp_url(), name, 20)
    }

    fn replica_at(&self, redis: &str, name: &str, drain_secs: u32) -> ReplicaProcess {
        ReplicaProcess::start(self.dir.path(), &self.nats, redis, name, drain_secs)
    }

    /// Two replicas, between which all lanes are divided.
    async fn two(&self) -> (ReplicaProcess, ReplicaProcess) {
        let (a, b) = (self.replica("a"), self.replica("b"));
        divided(&[&a, &b]).await;
        (a, b)
    }

    pub(crate) async fn store(&self) -> Arc<dyn KvStore> {
        let kv = Kv::new(self.redis.tcp_url().parse().expect("a URL"));
        Arc::new(SharedStore::open(kv, Durability::Fast, &UNSCANNED).await.expect("a store"))
    }

    pub(crate) async fn order(&mut self, id: &str) {
        let data = format!("{{\"id\":\"{id}\"}}");
        publish_event(&*self.broker, "Order", &format!("p-{id}"), "OrderPlaced", id, &data).await;
        self.orders.push(id.to_owned());
    }

    pub(crate) async fn orders(&mut self, name: &str, count: usize) {
        for number in 0..count {
            self.order(&format!("{name}-{number}")).await;
        }
    }

    /// When the first transition of an order of this shard after a moment was published; both in milliseconds since 1970.
    fn first_of(&self, shard: u8, after: u64) -> Option<u64> {
        let is_it = |fact: &FactMessage| {
            fact.timestamp > after && workflow::lane::shard(&tenant(), &fact.correlation, 8) == shard
        };
        self.facts.iter().find(|(_, fact)| is_it(fact)).map(|(stored, _)| *stored)
    }

    /// Number of orders that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.at("completed")
    }

    /// Number of orders that were at this step, or of which this has become.
    fn at(&self, what: &str) -> usize {
        self.reached.get(what).map_or(0, BTreeSet::len)
    }

    /// Takes note of the next thing that becomes of an order, if it comes within a moment.
    pub(crate) async fn look(&mut self) {
        let Some((stored, fact)) = self.projection.next_stored_soon().await else { return };
        for what in [fact.kind.clone(), fact.step.to_string()] {
            self.reached.entry(what).or_default().insert(fact.correlation.to_string());
        }
        self.facts.push((stored, fact));
    }

    /// How long all that is to happen may take: many orders take longer.
    pub(crate) fn patience(&self) -> Duration {
        2 * PATIENCE + Duration::from_millis(200) * u32::try_from(self.orders.len()).expect("not so many")
    }

    /// Waits until all orders are at this step.
    pub(crate) async fn until_all_at(&mut self, step: &str) {
        let begin = Instant::now();
        while self.at(step) < self.orders.len() {
            assert!(begin.elapsed() < self.patience(), "{} are at `{step}`", self.at(step));
            self.look().await;
        }
    }

    /// Waits until these orders are at this step, or have become this.
    pub(crate) async fn until_these_at(&mut self, orders: &[String], what: &str) {
        let begin = Instant::now();
        let patience = self.patience();
        let is_at = |reached: &BTreeMap<String, BTreeSet<String>>, order| {
            reached.get(what).is_some_and(|all| all.contains(order))
        };
        while let Some(order) = orders.iter().find(|order| !is_at(&self.reached, *order)) {
            assert!(begin.elapsed() < patience, "{order} does not come to `{what}`");
            self.look().await;
        }
    }

    /// Publishes that all orders were paid.
    pub(crate) async fn pay(&self) {
        for order in &self.orders {
            publish_event(&*self.broker, "Order", &format!("q-{order}"), "Paid", order, "{}").await;
        }
    }

    /// Waits until so many orders have ended.
    pub(crate) async fn until_ended(&mut self, count: usize) {
        let begin = Instant::now();
        while self.ended() < count {
            assert!(begin.elapsed() < self.patience(), "{} of {count} have ended", self.ended());
            self.look().await;
        }
    }

    /// Waits for the end of all orders, and checks that nothing was done twice.
    pub(crate) async fn until_all_ended_once(&mut self) {
        self.until_ended(self.orders.len()).await;
        let mut seen = BTreeMap::new();
        for (_, fact) in &self.facts {
            // No input here is held, which would give a fact at an existing revision. A fact that was sent while the store could note
            // nothing may be sent once more, after the broker has forgotten it.
            let transition = (fact.tenant_id.clone(), fact.correlation.to_string(), fact.run, fact.revision);
            let reported = (fact.kind.clone(), fact.step.to_string(), fact.timestamp);
            let first = seen.entry(transition).or_insert_with(|| reported.clone());
            assert_eq!(*first, reported, "two transitions of one revision: {fact:?}");
        }
        self.has_one_call_for_each_step();
    }

    fn has_one_call_for_each_step(&self) {
        let mut calls: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (path, body, _) in self.upstream.by_key().into_values() {
            calls.entry(body).or_default().push(path);
        }
        assert_eq!(calls.len(), self.orders.len());
        for (order, mut paths) in calls {
            paths.sort();
            assert_eq!(paths, ["/reserve", "/ship", "/tell"], "{order}: each has one key");
        }
    }

    /// Number of times that an order came to where it waits, or to its end.
    pub(crate) fn moved(&self) -> usize {
        self.at("wait") + self.at("completed")
    }

    /// Waits for the end of all orders, and checks that each was worked on as without any disturbance. A fact about it may come twice, with
    /// the same content each time.
    pub(crate) async fn until_all_ended_alike(&mut self) {
        let (mut quiet, mut seen) = (Instant::now(), self.facts.len());
        let begin = Instant::now();
        while self.ended() < self.orders.len() {
            assert!(
                begin.elapsed() < self.patience(),
                "{} of {} have ended",
                self.ended(),
                self.orders.len()
            );
            self.look().await;
            if self.facts.len() > seen {
                (quiet, seen) = (Instant::now(), self.facts.len());
            } else if quiet.elapsed() > PATIENCE / 3 {
                // A broker that dies may forget what it has acknowledged: aggregates publish that again.
                println!("{} of {} have ended, and nothing goes on", self.ended(), self.orders.len());
                self.publish_again().await;
                quiet = Instant::now();
            }
        }
        let mut reported: BTreeMap<(String, u64), BTreeSet<(String, String)>> = BTreeMap::new();
        for (_, fact) in &self.facts {
            let transition = (fact.correlation.to_string(), fact.revision);
            reported.entry(transition).or_default().insert((fact.kind.clone(), fact.step.to_string()));
        }
        assert!(
            reported.values().all(|came| came.len() == 1),
            "one transition for each revision: {reported:?}"
        );
        self.has_one_call_for_each_step();
    }

    async fn publish_again(&self) {
        let has_ended = |order: &String| self.reached.get("completed").is_some_and(|all| all.contains(order));
        for order in self.orders.iter().filter(|order| !has_ended(order)) {
            let data = format!("{{\"id\":\"{order}\"}}");
            publish_event(&*self.broker, "Order", &format!("p-{order}"), "OrderPlaced", order, &data).await;
            publish_event(&*self.broker, "Order", &format!("q-{order}"), "Paid", order, "{}").await;
        }
    }

    /// Checks that an instance has one journal row for each of its revisions.
    async fn has_whole_journals(&self, revisions: u64) {
        self.are_whole_in(&*self.store().await, Some(revisions)).await;
    }

    /// Checks the same in a store, for as many revisions as there are where nothing is said, and that no order has a dead letter.
    pub(crate) async fn are_whole_in(&self, store: &dyn KvStore, revisions: Option<u64>) {
        let tenant = tenant();
        for order in &self.orders {
            let correlation = order.parse().expect("a correlation");
            let shard = workflow::lane::shard(&tenant, &correlation, 8);
            let lane = LaneKey::new(&format!("s:{TENANT}:order:{shard}"));
            let range = LaneRowKey::journal_of(&correlation);
            let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
            let rows = store.scan(&lane, range, 100).await.expect("read").rows;
            let keys: Vec<_> = rows.iter().map(|(key, _)| key.as_str().to_owned()).collect();
            let revisions = revisions.unwrap_or(keys.len() as u64);
            let wanted: Vec<_> =
                (1..=revisions).map(|n| LaneRowKey::journal(&correlation, n).as_str().to_owned()).collect();
            assert_eq!(keys, wanted);
        }
        for lane in (0..8).map(|shard| format!("s:{TENANT}:order:{shard}")) {
            let range = workflow::key::StoreTable::Dead.range();
            let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
            assert_eq!(store.scan(&LaneKey::new(&lane), range, 1).await.expect("read").rows, []);
        }
    }
}

pub(crate) fn tenant() -> TenantId {
    TENANT.parse().expect("a tenant")
}

pub(crate) fn shard(shard: u8) -> WorkflowLane {
    WorkflowLane::Saga { tenant: tenant(), saga: "order".parse().expect("a name"), shard }
}

/// Waits until all lanes are owned, and each of these owns some.
pub(crate) async fn divided(replicas: &[&ReplicaProcess]) {
    let owned = async || {
        let lanes: Vec<_> = replicas.iter().map(|replica| replica.lanes()).collect();
        (lanes.iter().sum::<usize>() == LANES && lanes.iter().all(|owned| *owned > 0)).then_some(())
    };
    wait_until(owned, PATIENCE, "all lanes are divided").await;
}

/// Returns the owner that a lane names.
pub(crate) async fn owner(store: &Arc<dyn KvStore>, lane: &WorkflowLane) -> Option<OwnerRow> {
    let key = LaneKey::new(&lane.to_string());
    let rows = store.read(&key, &[RowKey::new(LaneRowKey::owner().as_str())]).await.expect("read");
    rows[0].as_ref().map(|row| decode(&row.value).expect("an owner"))
}

pub(crate) async fn until_owner(store: &Arc<dyn KvStore>, lane: &WorkflowLane, name: &str) {
    let owned = async || owner(store, lane).await.filter(|owner| owner.replica == name);
    wait_until(owned, PATIENCE, format!("{lane} is owned by {name}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lanes_of_a_replica_that_is_killed_go_on_elsewhere() {
    let sagas = std::env::var(SAGAS).ok().and_then(|count| count.parse().ok()).unwrap_or(300);
    let mut stage = Stage::new().await;
    let (mut a, b) = stage.two().await;
    let store = stage.store().await;
    let mut shards = Vec::new();
    for number in 0..8 {
        if owner(&store, &shard(number)).await.is_some_and(|owner| owner.replica == "a") {
            shards.push(number);
        }
    }
    assert!(!shards.is_empty(), "lanes of the saga are divided");
    stage.orders("before", sagas / 2).await;
    stage.until_ended(sagas / 10).await;
    let (killed, begin) = (Timestamp::now().as_millis(), Instant::now());
    a.process.kill9();
    let mut taken = None;
    for number in 0..sagas / 2 {
        stage.order(&format!("after-{number}")).await;
        if b.lanes() == LANES {
            taken.get_or_insert(begin.elapsed());
        }
    }
    b.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    let taken = taken.unwrap_or_else(|| begin.elapsed());
    stage.until_all_ended_once().await;
    stage.has_whole_journals(4).await;
    // By the clock of the broker, which is that of this machine.
    let resumed = shards.iter().map(|shard| stage.first_of(*shard, killed).expect("orders went on") - killed);
    let last = Duration::from_millis(resumed.max().expect("some"));
    println!(
        "of {sagas} sagas {shards:?} went on {last:?} after a death at the latest; all lanes: {taken:?}"
    );
    assert!(last < TAKEN_OVER_WITHIN && taken < TAKEN_OVER_WITHIN, "{last:?}, {taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_slept_longer_than_its_lease_commits_nothing_of_what_it_had() {
    // Cached records are committed without another read.
    let mut stage =
        Stage::with(&MANIFEST.replace("{ goto: ship }", "{ goto: wait }").replace(WAIT.0, WAIT.1)).await;
    let target = ProxyTarget::Tcp(([127, 0, 0, 1], stage.redis.port()).into());
    let proxy = FaultProxy::start(target).await;
    let a = stage.replica_at(&format!("redis://{}", proxy.address()), "a", 20);
    a.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    stage.orders("first", 20).await;
    stage.until_all_at("wait").await;
    let settled = async || (a.metric("source_pending")? == 0.0).then_some(());
    wait_until(settled, PATIENCE, "everything is settled").await;
    // Everything that it sends from now on is on its way to Redis, until it wakes.
    let before = proxy.held();
    proxy.set(ProxyFault::Hold);
    stage.pay().await;
    let taken = async || (a.metric("source_age_seconds")? > 0.0 && proxy.held() > before).then_some(());
    wait_until(taken, PATIENCE, "it has taken in a payment, and what it sends is held").await;
    // It does one thing after the other: what it was doing is done once it answers.
    assert!(a.ask("/livez").is_some());
    a.process.suspend();
    let b = stage.replica("b");
    b.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    stage.until_ended(20).await;
    a.process.resume();
    proxy.restore();
    let fenced = async || (a.metric("fenced_commits_total")? >= 1.0).then_some(());
    wait_until(fenced, PATIENCE, "a commit was refused").await;
    // It is one of two again.
    divided(&[&a, &b]).await;
    stage.until_all_ended_once().await;
    stage.has_whole_journals(5).await;
    stage.orders("second", 20).await;
    stage.until_all_at("wait").await;
    stage.pay().await;
    stage.until_all_ended_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_drained_hands_over_what_it_has() {
    let mut stage = Stage::new().await;
    let (mut a, b) = stage.two().await;
    let store = stage.store().await;
    for effect in ["reserve", "ship", "tell"] {
        let effect = effect.parse().expect("a name");
        let lane = WorkflowLane::Effect { tenant: tenant(), effect };
        decisions::move_lane(&store, &lane, Some("a"), None).await.expect("moved");
        until_owner(&store, &lane, "a").await;
    }
    stage.upstream.hold("/ship");
    stage.orders("slow", 5).await;
    wait_until(async || (stage.upstream.count("/ship") == 5).then_some(()), PATIENCE, "calls are under way")
        .await;
    a.process.terminate();
    // It is not ready while it still has the lane whose calls are under way, and the others go at once.
    let is_draining = async || (a.ask("/ready")?.0 == 503 && a.lanes() == 1).then_some(());
    wait_until(is_draining, PATIENCE, "it keeps the lane of the calls alone").await;
    b.until_lanes(|lanes| lanes == LANES - 1, "it has all other lanes").await;
    let lane = WorkflowLane::Effect { tenant: tenant(), effect: "ship".parse().expect("a name") };
    assert_eq!(owner(&store, &lane).await.map(|owner| owner.replica).as_deref(), Some("a"));
    assert!(a.process.is_running());
    stage.upstream.release();
    assert!(a.process.wait(PATIENCE).success(), "{}", a.process.output());
    let begin = Instant::now();
    b.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    println!("the last lane of a replica that was drained was taken after {:?}", begin.elapsed());
    stage.until_all_ended_once().await;
    for (metric, wanted) in
        [("taken_total", LANES as f64), ("outbox_rows", 0.0), ("outbox_oldest_seconds", 0.0)]
    {
        let shown = async || (b.metric(metric)? >= wanted).then_some(());
        wait_until(shown, PATIENCE, metric).await;
    }
    let (_, metrics) = b.ask("/metrics").expect("metrics");
    for line in [
        "mycora_saga_cursor_resets_total{why=\"taken\"} ",
        "mycora_saga_source_pending{saga=\"order\",source=\"aggregate.Order\"} ",
        "mycora_saga_source_age_seconds{saga=\"\",source=\"commands.ship\"} ",
        "mycora_saga_stream_went_back_total{stream=\"AGGREGATE_EVENTS\",why=\"made_anew\"} 0",
        "mycora_saga_events_expired_total 0",
        "mycora_saga_foreign_messages_total 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // What was under way came to its end where it began.
    assert_eq!(stage.upstream.count("/ship"), 5);
    assert_eq!(b.metric("fenced_commits_total"), Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_outlive_a_drain_are_made_again_by_the_next_owner() {
    let mut stage = Stage::new().await;
    let mut a = stage.replica_at(&stage.redis.tcp_url(), "a", 4);
    a.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    stage.upstream.hold("/ship");
    stage.orders("slow", 3).await;
    wait_until(async || (stage.upstream.count("/ship") == 3).then_some(()), PATIENCE, "calls are under way")
        .await;
    a.process.terminate();
    assert!(a.process.wait(PATIENCE).success(), "{}", a.process.output());
    // What came of them was committed: the lane has no owner, and nothing was left to a crash.
    let store = stage.store().await;
    let lane = WorkflowLane::Effect { tenant: tenant(), effect: "ship".parse().expect("a name") };
    assert_eq!(owner(&store, &lane).await, None);
    stage.upstream.release();
    let b = stage.replica("b");
    b.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    stage.until_all_ended_once().await;
    assert_eq!(stage.upstream.count("/ship"), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_drain_at_once() {
    let mut stage = Stage::new().await;
    let mut a = stage.replica("a");
    a.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    stage.upstream.hold("/reserve");
    stage.orders("slow", 1).await;
    let called = async || (stage.upstream.calls().len() == 1).then_some(());
    wait_until(called, PATIENCE, "a call is under way").await;
    a.process.terminate();
    wait_until(async || (a.ask("/ready")?.0 == 503).then_some(()), PATIENCE, "it is draining").await;
    a.process.terminate();
    assert_eq!(a.process.wait(PATIENCE).code(), Some(130));
    stage.upstream.release();
    // Its name is free for the process that comes after it, without waiting for the end of its lease.
    let a = stage.replica("a");
    a.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    stage.until_all_ended_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_tenant_has_no_lanes_and_goes_on_where_it_was() {
    let mut stage = Stage::new().await;
    let (a, b) = stage.two().await;
    let store = stage.store().await;
    stage.orders("before", 10).await;
    stage.until_ended(10).await;
    let since = decisions::pause(&store, &tenant(), true).await.expect("paused");
    assert!(since.is_some());
    for replica in [&a, &b] {
        replica.until_lanes(|lanes| lanes == 0, "it has no lanes").await;
    }
    stage.orders("paused", 10).await;
    assert_eq!(stage.upstream.calls().len(), 30);
    assert_eq!(decisions::pause(&store, &tenant(), true).await, Ok(since));
    decisions::pause(&store, &tenant(), false).await.expect("resumed");
    divided(&[&a, &b]).await;
    stage.until_all_ended_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_join_and_leave_and_lanes_are_moved() {
    let mut stage = Stage::new().await;
    let (a, b) = stage.two().await;
    let store = stage.store().await;
    stage.orders("two", 30).await;
    let mut c = stage.replica("c");
    divided(&[&a, &b, &c]).await;
    stage.orders("three", 30).await;
    // Where it is now, so that it has to go somewhere else.
    let lane = shard(3);
    let before = owner(&store, &lane).await.expect("an owner");
    let other = if before.replica == "c" { "a" } else { "c" };
    decisions::move_lane(&store, &lane, Some(other), None).await.expect("moved");
    until_owner(&store, &lane, other).await;
    assert!(owner(&store, &lane).await.is_some_and(|owner| owner.epoch > before.epoch));
    decisions::move_lane(&store, &lane, None, None).await.expect("moved");
    until_owner(&store, &lane, &before.replica).await;
    decisions::move_lane(&store, &lane, Some("c"), None).await.expect("moved");
    until_owner(&store, &lane, "c").await;
    stage.orders("moved", 30).await;
    c.process.terminate();
    assert!(c.process.wait(PATIENCE).success(), "{}", c.process.output());
    divided(&[&a, &b]).await;
    assert_ne!(owner(&store, &lane).await.map(|owner| owner.replica).as_deref(), Some("c"));
    stage.orders("after", 30).await;
    stage.until_all_ended_once().await;
    // No replica was fenced by another owner.
    for replica in [&a, &b] {
        assert_eq!(replica.metric("fenced_commits_total"), Some(0.0), "{}", replica.process.output());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_of_one_name_the_later_one_owns_lanes() {
    let mut stage = Stage::new().await;
    let a = stage.replica("a");
    a.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    let ops = stage.dir.path().join("later");
    std::fs::create_dir(&ops).expect("made");
    for file in ["manifests", "tenants.yaml", "pki"] {
        std::os::unix::fs::symlink(stage.dir.path().join(file), ops.join(file)).expect("linked");
    }
    let later = ReplicaProcess::start(&ops, &stage.nats, &stage.redis.tcp_url(), "a", 20);
    later.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    a.until_lanes(|lanes| lanes == 0, "it has no lanes").await;
    let displaced = async || a.ask("/ready").filter(|(status, _)| *status == 503);
    let (_, body) = wait_until(displaced, PATIENCE, "it hears of the other one").await;
    assert!(body.contains("another process is the replica `a` now"), "{body}");
    stage.orders("later", 10).await;
    stage.until_all_ended_once().await;
}
