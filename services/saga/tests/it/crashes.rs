//! The process dies at each of its crash points, and everything ends as if it had not.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use broker::{Headers, MessageBroker, Publication};
use futures_util::StreamExt as _;
use model::{BlobHash, CommandId, CorrelationId, EffectName, EffectState, TenantId};
use store::{EmbeddedStore, KvStore, LaneKey, RowKey, SharedStore, WallClock};
use testkit::{NatsServer, PATIENCE, RedisServer, TestProcess, wait_until};
use workflow::instance::{CorrelationEntry, CorrelationRecord, decode};
use workflow::key::StoreTable;
use workflow::lane_request::{
    CallCompletion, EffectCallRequest, EffectLaneRequest, LaneRequestMessage, SagaLaneRequest,
};
use workflow::ledger::CallRow;
use workflow::message::FactMessage;
use workflow::{Json, LaneRowKey, MessageSubject, WorkflowLane, message};

use crate::process::{self, Commands, Request, Upstream};
use crate::served::Rows;
use crate::streams::{Projection, connect, publish, publish_event};
use crate::world::TENANT;

/// Number of points that the design names: those of the life of an event and of the life of an effect.
const POINTS: usize = 26;
/// Points that the test's sagas do not come by, and why.
const ELSEWHERE: [(&str, &str); 1] = [(
    "verb.published",
    "callers need storage: `verbs::a_process_that_dies_behind_the_publish_has_done_it_once`",
)];
/// Where the operator's files are read: once at the start, and at each hangup.
const RELOAD: &str = "reload.stored";
/// Visits of a point at which a process dies.
const VISITS: std::ops::RangeInclusive<u32> = 1..=3;
/// Number of visits for each point on Redis. Of one alone it is another one from point to point.
const VISITS_ON_REDIS: &str = "MYCORA_TEST_VISITS";
/// Orders that are poison themselves. As many as visits: each is parked by an input of its own.
const BAD: [&str; 3] = ["bad", "worse", "worst"];
/// Orders whose payment is poison. As many as visits: each is redriven.
const POISON: [&str; 3] = ["poison", "bitter", "sour"];
/// Orders that are not paid, each placed when the one before it has ended: as many timers are fired, one after the other.
const LATE: [&str; 3] = ["late-1", "late-2", "late-3"];
/// Placed and paid.
const PAID: &str = "paid";
/// Order that is placed and paid when all others have ended: their last messages are sent by then.
const LAST: &str = "last";
/// Lanes of effects.
const EFFECTS: [&str; 5] = ["reserve", "release", "ship", "sign", "tell"];
/// Number of runs at a time.
const AT_ONCE: usize = 6;
/// Room of a store in a directory.
const STORE_MIB: usize = 256;

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text, patience: int, payment: optional text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
on_missing: { Paid: { park: 10m } }
start:
  on: OrderPlaced
  set: { id: "${{ event.data.id }}", patience: "${{ event.data.patience }}" }
  goto: reserve
steps:
  reserve:
    effect: reserve
    input: { order: "${{ state.id }}" }
    on_success: { set: { payment: "${{ result.id }}" }, goto: wait }
    compensate: { effect: release, input: { order: "${{ state.id }}" } }
  wait:
    timers: { pay-by: { due: "now + state.patience", raise: NotPaid } }
    on:
      Paid: [{ when: event.data.ok, goto: ship }, { dead_letter: not ok }]
      NotPaid: { compensate: not paid }
  ship: { pivot: true, effect: ship, input: { order: "${{ state.id }}" }, on_success: { goto: sign } }
  sign: { effect: sign, input: { order: "${{ state.id }}" }, on_success: { goto: tell } }
  tell:
    effect: tell
    input: { order: "${{ state.id }}" }
    on_success: { goto: close }
    on_failure: { goto: doubt }
  close: { command: { aggregate: Order, id: "${{ state.id }}", type: Close }, on_success: { end: completed } }
  doubt: { command: { aggregate: Order, id: "${{ state.id }}", type: Doubt }, on_success: { end: completed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  reserve: { request: { method: POST, path: /reserve, body: "${{ input }}" }, retry: { initial: 1ms } }
  release: { request: { method: POST, path: /release, body: "${{ input }}" }, retry: { initial: 1ms } }
  ship: { request: { method: POST, path: /ship, body: "${{ input }}" }, retry: { initial: 1ms } }
  sign:
    callback: true
    request: { method: POST, path: /sign, headers: { x-token: "${{ callback_token }}" }, body: "${{ input }}" }
    retry: { initial: 1ms }
  tell: { request: { method: POST, path: /tell, body: "${{ input }}" }, unknown_outcome: fail }
"#;

/// Points that the code has.
fn points() -> BTreeSet<String> {
    let mut points = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("sources").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).expect("a text");
            let mut rest = text.as_str();
            while let Some((_, behind)) = rest.split_once("crash_point(") {
                let end = behind.find(");").expect("it ends");
                points.extend(behind[..end].split('"').skip(1).step_by(2).map(str::to_owned));
                rest = behind;
            }
        }
    }
    points
}

/// Where a process keeps its rows, which others look at when it is gone.
#[derive(Debug)]
pub(crate) enum Kept {
    Directory(PathBuf),
    Redis(RedisServer),
}

impl Kept {
    pub(crate) fn new(dir: &Path, rows: Rows) -> Self {
        match rows {
            Rows::Directory => Self::Directory(dir.join("store")),
            Rows::Redis => Self::Redis(RedisServer::builder().persistent().start()),
        }
    }

    /// Returns the arguments by which a process finds it.
    pub(crate) fn arguments(&self) -> Vec<String> {
        match self {
            Self::Directory(dir) => {
                let dir = dir.display().to_string();
                ["--store-dir", &dir, "--store-max-mib", &STORE_MIB.to_string()].map(str::to_owned).to_vec()
            }
            Self::Redis(redis) => {
                ["--redis-url", &redis.url(), "--replica", "mortal"].map(str::to_owned).to_vec()
            }
        }
    }

    /// Opens it once the process is gone that had it.
    pub(crate) async fn open(&self) -> Box<dyn KvStore> {
        match self {
            Self::Directory(dir) => {
                Box::new(EmbeddedStore::open(dir, STORE_MIB << 20, WallClock).expect("the store"))
            }
            Self::Redis(redis) => {
                // All its commands are done once its connections are gone, and only this one is left.
                let is_alone = || async {
                    let clients = redis.raw(0, &["CLIENT", "LIST"]);
                    (clients.lines().filter(|line| line.starts_with("id=")).count() == 1).then_some(())
                };
                wait_until(is_alone, PATIENCE, "its connections are gone").await;
                let kv = kv::Kv::new(redis.url().parse().expect("a URL"));
                let store = SharedStore::open(kv, kv::Durability::Synced, &saga::lane::UNSCANNED).await;
                Box::new(store.expect("a store"))
            }
        }
    }
}

/// A process that is killed once, and is started again.
pub(crate) struct Mortal<'a> {
    dir: &'a Path,
    nats: &'a NatsServer,
    gateway: &'a str,
    pub(crate) kept: Kept,
    pub(crate) process: TestProcess,
    deaths: u32,
}

impl<'a> Mortal<'a> {
    /// Starts it where definitions are in force; it dies at a point where one is named.
    pub(crate) fn start(
        (dir, nats, gateway): (&'a Path, &'a NatsServer, &'a str),
        rows: Rows,
        point: Option<String>,
    ) -> Self {
        let kept = Kept::new(dir, rows);
        let first = spawn((dir, nats, gateway), &kept, None);
        let mut mortal = Self { dir, nats, gateway, kept, process: first, deaths: 0 };
        // Events are those of sagas that were in force before them.
        mortal.end();
        mortal.process = spawn((dir, nats, gateway), &mortal.kept, point);
        mortal
    }

    /// Returns whether it was killed, and not started again.
    pub(crate) fn is_dead(&mut self) -> bool {
        if self.process.is_running() {
            return false;
        }
        let status = self.process.wait(PATIENCE);
        assert_eq!((status.signal(), self.deaths), (Some(9), 0), "{status}: {}", self.process.output());
        true
    }

    pub(crate) fn start_again(&mut self) {
        self.deaths += 1;
        self.process = spawn((self.dir, self.nats, self.gateway), &self.kept, None);
    }

    /// Ends it as an operator does.
    pub(crate) fn end(&mut self) {
        self.process.wait_for_line("saga started", PATIENCE);
        self.process.terminate();
        assert!(self.process.wait(PATIENCE).success(), "{}", self.process.output());
    }
}

fn spawn(
    (dir, nats, gateway): (&Path, &NatsServer, &str),
    kept: &Kept,
    crash_at: Option<String>,
) -> TestProcess {
    let mut command = process::command(dir, nats);
    command
        .args(["--ops-listen", "127.0.0.1:0", "--drain-secs", "5", "--gateway", gateway])
        .args(kept.arguments());
    if let Some(place) = crash_at {
        command.env("MYCORA_CRASH_AT", place);
    }
    TestProcess::spawn("mycora-saga", &mut command)
}

/// Rows of a table of a lane.
async fn rows_of(
    store: &dyn KvStore,
    lane: &str,
    range: std::ops::Range<LaneRowKey>,
) -> Vec<(RowKey, store::VersionedValue)> {
    let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
    let page = store.scan(&LaneKey::new(lane), range, 1000).await.expect("it can be read");
    assert!(!page.has_more, "{lane}");
    page.rows
}

/// Calls of an effect that were about to be made, and whose outcome is unknown.
pub(crate) async fn in_doubt(store: &dyn KvStore, effect: &str) -> Vec<CallRow> {
    let lane = format!("e:{TENANT}:{effect}:0");
    let open = rows_of(store, &lane, StoreTable::EffectDue.range()).await;
    let key =
        |row: &store::VersionedValue| LaneRowKey::effect(decode::<CommandId>(&row.value).expect("a command"));
    let keys: Vec<_> = open.iter().map(|(_, row)| RowKey::new(key(row).as_str())).collect();
    let rows = store.read(&LaneKey::new(&lane), &keys).await.expect("it can be read");
    let calls = rows.into_iter().flatten().map(|row| decode::<CallRow>(&row.value).expect("a call"));
    calls.filter(|call| call.state == EffectState::Calling).collect()
}

/// States of orders. Checks that their rows are complete: one journal row for each revision, and no message left to send.
pub(crate) async fn order_states(
    store: &dyn KvStore,
    saga: &str,
    orders: &[&str],
    effects: &[&str],
) -> BTreeMap<String, String> {
    let lane = format!("s:{TENANT}:{saga}:0");
    let of_effects = effects.iter().map(|effect| format!("e:{TENANT}:{effect}:0"));
    for lane in std::iter::once(lane.clone()).chain(of_effects) {
        assert_eq!(rows_of(store, &lane, StoreTable::Outbox.range()).await, [], "{lane}");
    }
    let mut states = BTreeMap::new();
    for order in orders {
        let correlation: CorrelationId = order.parse().expect("a correlation");
        let key = RowKey::new(LaneRowKey::saga(&correlation).as_str());
        let rows = store.read(&LaneKey::new(&lane), &[key]).await.expect("it can be read");
        let row = rows[0].as_ref().unwrap_or_else(|| panic!("there is no {order}"));
        let record: CorrelationRecord = decode(&row.value).expect("a record");
        let (status, revision) = match &record.entry {
            CorrelationEntry::Live(instance) => (instance.status.to_string(), instance.revision),
            CorrelationEntry::Ended(tombstone) => (tombstone.status.to_string(), tombstone.revision),
            CorrelationEntry::Awaited(_) => ("awaited".to_owned(), 0),
        };
        let journal = rows_of(store, &lane, LaneRowKey::journal_of(&correlation)).await;
        let keys: Vec<_> = journal.iter().map(|(key, _)| key.as_str().to_owned()).collect();
        let wanted = (1..=revision).map(|n| LaneRowKey::journal(&correlation, n).as_str().to_owned());
        assert_eq!(keys, wanted.collect::<Vec<_>>(), "{order}");
        let CorrelationRecord { parked_by, letters, .. } = record;
        states.insert((*order).to_owned(), format!("{status}, {letters} letters, parked by {parked_by:?}"));
    }
    states
}

/// Sends a request to a lane, under the subject of what it is about.
pub(crate) async fn send_request<W: serde::Serialize>(
    broker: &dyn MessageBroker,
    (subject, lane): (MessageSubject, WorkflowLane),
    request: &str,
    lane_request: W,
) {
    let outgoing = LaneRequestMessage {
        tenant_id: TENANT.to_owned(),
        request_id: request.to_owned(),
        lane: lane.to_string(),
        word: lane_request,
        request_hash: String::new(),
        reply_to: None,
    };
    let (subject, payload) = (subject.of(lane.tenant()), message::write(&outgoing).into());
    let outgoing =
        Publication { subject, message_id: format!("word-{request}"), headers: Headers::new(), payload };
    publish(broker, outgoing).await;
}

/// Has the letter of an order applied, with a payment that is good.
async fn redrive(broker: &dyn MessageBroker, order: &str) {
    let correlation: CorrelationId = order.parse().expect("a correlation");
    let (tenant, saga) = (TENANT.parse().expect("a tenant"), "order".parse().expect("a name"));
    let subject = MessageSubject::workflow(&saga, &correlation);
    let data = Some(Json::object([("ok", Json::Bool(true))]));
    let lane_request = SagaLaneRequest::Redrive { correlation, letter: 0, skip: false, data };
    send_request(
        broker,
        (subject, WorkflowLane::Saga { tenant, saga, shard: 0 }),
        &format!("redrive-{order}"),
        lane_request,
    )
    .await;
}

/// Answers a call by the token that came with it. One that comes before the call waits is refused, so it is said again.
async fn sign(broker: &dyn MessageBroker, call: &Request, request: &str) {
    let (tenant, effect): (TenantId, EffectName) =
        (TENANT.parse().expect("a tenant"), "sign".parse().expect("a name"));
    let command: CommandId = call.key.parse().expect("a command");
    let token = BlobHash::of(call.token.as_bytes());
    let end = CallCompletion::Succeeded { result: Json::Null };
    let lane_request = EffectLaneRequest::Call { command, asked: EffectCallRequest::Complete { token, end } };
    let subject = MessageSubject::Effect { effect: effect.clone(), command };
    send_request(broker, (subject, WorkflowLane::Effect { tenant, effect }), request, lane_request).await;
}

async fn pay(broker: &dyn MessageBroker, order: &str) {
    let data = if POISON.contains(&order) { "{\"ok\":false}" } else { "{\"ok\":true}" };
    publish_event(broker, "Payment", &format!("q-{order}"), "Paid", order, data).await;
}

async fn place(broker: &dyn MessageBroker, order: &str) {
    let patience = if LATE.contains(&order) { 400 } else { 600_000 };
    let data = format!("{{\"id\":\"{order}\",\"patience\":{patience}}}");
    publish_event(broker, "Order", &format!("p-{order}"), "OrderPlaced", order, &data).await;
}

/// Places orders that are poison, one that is paid, some whose payment is poison, and the first that is not paid.
async fn place_all(broker: &dyn MessageBroker) {
    for order in BAD {
        publish_event(
            broker,
            "Order",
            &format!("p-{order}"),
            "OrderPlaced",
            order,
            "{\"id\":7,\"patience\":400}",
        )
        .await;
    }
    place(broker, LATE[0]).await;
    for order in [PAID].into_iter().chain(POISON) {
        place(broker, order).await;
        pay(broker, order).await;
    }
}

/// Ends of all orders, without ids and times: the same however often the process died.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ends {
    /// State of each order.
    states: BTreeMap<String, String>,
    /// Number of keys under which calls were made, by path and payload.
    calls: BTreeMap<(String, String), usize>,
    /// Number of ids under which commands were submitted.
    commands: BTreeMap<process::Submitted, usize>,
}

impl Ends {
    /// Returns the ends for a run in which it is unknown whether the `tell` calls of these orders, made at most once each, were made.
    fn in_doubt(mut self, orders: &BTreeSet<String>) -> Self {
        for order in orders {
            self.calls.remove(&("/tell".to_owned(), format!("{{\"order\":\"{order}\"}}")));
            let is_close = |submitted: &process::Submitted| {
                submitted.correlation == *order && ["Close", "Doubt"].contains(&submitted.kind.as_str())
            };
            let close =
                self.commands.keys().find(|submitted| is_close(submitted)).expect("a command").clone();
            let times = self.commands.remove(&close).expect("it is there");
            self.commands.insert(process::Submitted { kind: "Doubt".to_owned(), ..close }, times);
        }
        self
    }
}

/// A run of all orders, which dies at a point where one is named.
struct OrdersRun<'a> {
    broker: &'a dyn MessageBroker,
    upstream: &'a Upstream,
    mortal: Mortal<'a>,
    point: &'a str,
    /// Orders whose call had an unknown outcome when the process died.
    doubted: BTreeSet<String>,
    /// Facts by their orders and kinds.
    seen: BTreeSet<(String, String)>,
    /// Requests with signatures that were sent.
    signed: u32,
}

impl OrdersRun<'_> {
    fn has(&self, order: &str, kind: &str) -> bool {
        self.seen.contains(&(order.to_owned(), kind.to_owned()))
    }

    async fn is_over(&self) -> bool {
        let are_paid = POISON.iter().chain([&PAID]).all(|order| self.has(order, "completed"));
        if are_paid && LATE.iter().all(|order| self.has(order, "compensated")) && !self.has(LAST, "started") {
            // Under the same ids, until it is seen.
            place(self.broker, LAST).await;
            pay(self.broker, LAST).await;
        }
        self.has(LAST, "completed")
    }

    async fn look_after_the_process(&mut self) {
        if self.mortal.is_dead() {
            let doubted = in_doubt(&*self.mortal.kept.open().await, "tell").await.into_iter();
            self.doubted = doubted.map(|call| call.reply_to.correlation.to_string()).collect();
            self.mortal.start_again();
        }
        if self.point == RELOAD && self.mortal.deaths == 0 {
            // The signal is handled from the moment of the message that the process has started.
            if self.mortal.process.output().contains("saga started") {
                self.mortal.process.hang_up();
            }
        }
    }

    async fn take_fact(&mut self, fact: FactMessage) {
        let (order, kind) = (fact.correlation.to_string(), fact.kind);
        if !self.seen.insert((order.clone(), kind.clone())) {
            return;
        }
        if POISON.contains(&order.as_str()) && kind == "parked" {
            redrive(self.broker, &order).await;
        }
        let next = LATE.iter().position(|late| *late == order).and_then(|at| LATE.get(at + 1));
        if let (Some(next), "compensated") = (next, kind.as_str()) {
            place(self.broker, next).await;
        }
    }

    async fn sign_all(&mut self) {
        // Of one that was made once more the last token is good.
        let calls = self.upstream.calls().into_iter().filter(|call| call.path == "/sign");
        let calls: BTreeMap<_, _> = calls.map(|call| (call.key.clone(), call)).collect();
        for call in calls.values() {
            self.signed += 1;
            sign(self.broker, call, &format!("sign-{}", self.signed)).await;
        }
    }
}

/// Has orders worked on until they have ended, letters applied and calls answered. Returns their ends, and the orders whose call had an
/// unknown outcome.
async fn run(rows: Rows, death: Option<(&str, u32)>) -> (Ends, BTreeSet<String>) {
    let (dir, upstream, nats) =
        (tempfile::tempdir().expect("a directory"), Upstream::start(), NatsServer::start());
    process::prepare(dir.path(), MANIFEST, &upstream);
    let broker = connect(&nats).await;
    let mut projection = Projection::open(&broker).await;
    let commands = Commands::default();
    let gateway = commands.serve(dir.path()).await;
    let (name, point) =
        death.map_or(("nowhere".to_owned(), ""), |(point, nth)| (format!("{point}:{nth}"), point));
    let mortal = Mortal::start((dir.path(), &nats, &gateway), rows, death.map(|_| name.clone()));
    place_all(&*broker).await;
    let (doubted, seen) = (BTreeSet::new(), BTreeSet::new());
    let mut run =
        OrdersRun { broker: &*broker, upstream: &upstream, mortal, point, doubted, seen, signed: 0 };
    let begin = std::time::Instant::now();
    while !run.is_over().await {
        assert!(begin.elapsed() < 2 * PATIENCE, "{name}: {:?}\n{}", run.seen, run.mortal.process.output());
        run.look_after_the_process().await;
        match projection.next_soon().await {
            Some(fact) => run.take_fact(fact).await,
            None => run.sign_all().await,
        }
    }
    run.look_after_the_process().await;
    let OrdersRun { mut mortal, doubted, .. } = run;
    mortal.end();
    assert_eq!(mortal.deaths, u32::from(death.is_some()), "{name}\n{}", mortal.process.output());
    let orders: Vec<_> = POISON.into_iter().chain(LATE).chain(BAD).chain([PAID, LAST]).collect();
    let states = order_states(&*mortal.kept.open().await, "order", &orders, &EFFECTS).await;
    let mut calls = BTreeMap::new();
    for (path, payload, times) in upstream.by_key().into_values() {
        assert!(path != "/tell" || times == 1, "{name}: it may be called once at most: {payload}");
        *calls.entry((path, payload)).or_default() += 1;
    }
    let mut submitted = BTreeMap::new();
    commands.by_id().into_values().for_each(|command| *submitted.entry(command).or_default() += 1);
    (Ends { states, calls, commands: submitted }, doubted)
}

/// How everything ends where nothing dies.
async fn uninterrupted(rows: Rows) -> Ends {
    let (ends, doubted) = run(rows, None).await;
    assert_eq!(doubted, BTreeSet::new());
    let state = |order: &str| ends.states[order].as_str();
    assert_eq!(state(PAID), "completed, 0 letters, parked by None");
    assert_eq!(state(BAD[2]), "awaited, 1 letters, parked by Some(0)");
    assert_eq!(state(LATE[2]), "compensated, 0 letters, parked by None");
    assert_eq!(state(POISON[2]), "completed, 1 letters, parked by None");
    // Four steps of each order that was paid in the end, and two of each of the others.
    assert_eq!(ends.calls.len(), 4 * 5 + 2 * LATE.len());
    assert!(ends.calls.values().chain(ends.commands.values()).all(|keys| *keys == 1), "{ends:?}");
    let kinds: Vec<_> = ends.commands.keys().map(|command| command.kind.as_str()).collect();
    assert_eq!(kinds, ["Close"; 5]);
    ends
}

/// Dies at each point and each visit of these, and ends as it does without.
async fn die_everywhere(rows: Rows, visits: impl Fn(usize) -> Vec<u32>) {
    let points = points();
    let elsewhere: BTreeSet<_> = ELSEWHERE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(elsewhere.is_subset(&points) && points.len() == POINTS, "{points:?}");
    let wanted = uninterrupted(rows).await;
    let deaths = points.difference(&elsewhere).enumerate();
    let deaths = deaths.flat_map(|(at, point)| visits(at).into_iter().map(move |nth| (point.as_str(), nth)));
    // Several at a time, each on its own: most of their time they wait.
    let die = |(point, nth): (&str, u32)| {
        let (point, wanted) = (point.to_owned(), wanted.clone());
        let died = tokio::spawn(async move {
            let (ends, doubted) = run(rows, Some((&point, nth))).await;
            assert_eq!(ends.in_doubt(&doubted), wanted.in_doubt(&doubted), "{point}:{nth} {doubted:?}");
            println!("{point}:{nth}: nobody knew of {doubted:?}");
        });
        async { died.await.expect("it ends as it does without") }
    };
    futures_util::stream::iter(deaths).for_each_concurrent(AT_ONCE, die).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_process_that_dies_at_any_point_goes_on_as_if_it_had_not() {
    die_everywhere(Rows::Directory, |_| VISITS.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_process_over_redis_that_dies_at_any_point_goes_on_as_if_it_had_not() {
    let number = std::env::var(VISITS_ON_REDIS).ok().and_then(|number| number.parse().ok()).unwrap_or(1);
    let visits = |at: usize| {
        let all = VISITS.cycle().skip(at % VISITS.count()).take(number.min(VISITS.count()));
        all.collect()
    };
    die_everywhere(Rows::Redis, visits).await;
}
