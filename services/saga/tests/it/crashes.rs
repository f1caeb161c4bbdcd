//! The process dies at each of its crash points, and everything ends as if it had not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use broker::{Broker, Headers, Outgoing};
use futures_util::StreamExt as _;
use model::{BlobHash, CommandId, CorrelationId, EffectName, TenantId};
use testkit::{NatsServer, PATIENCE, Process};
use workflow::word::{CallWord, Completion, EffectWord, SagaWord, WordMessage};
use workflow::{Json, Lane, Subject, message};

use crate::process::{self, Commands, Request, Upstream};
use crate::streams::{Projection, connect, publish, publish_event};
use crate::world::TENANT;

/// Number of points that the design names: those of the life of an event and of the life of an effect.
const POINTS: usize = 26;
/// Points that the test's sagas do not come by, and why.
const ELSEWHERE: [(&str, &str); 1] = [(
    "verb.published",
    "callers need storage: `verbs::a_process_that_dies_behind_the_publish_has_done_it_once`",
)];
/// Calls by their keys: the path and the payload, and how often.
type Calls = BTreeMap<String, (String, String, usize)>;
/// Orders whose payment is poison.
const POISON: [&str; 2] = ["poison", "bitter"];

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text, payment: optional text }
sources: [{ aggregate: Order }, { aggregate: Payment }]
on_missing: { Paid: { park: 10m } }
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: reserve }
steps:
  reserve:
    effect: reserve
    input: { order: "${{ state.id }}" }
    on_success: { set: { payment: "${{ result.id }}" }, goto: wait }
    compensate: { effect: release, input: { order: "${{ state.id }}" } }
  wait:
    timers: { pay-by: { due: "now + 400", raise: NotPaid } }
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
            while let Some((_, behind)) = rest.split_once("service::crash_point(") {
                let end = behind.find(");").expect("it ends");
                points.extend(behind[..end].split('"').skip(1).step_by(2).map(str::to_owned));
                rest = behind;
            }
        }
    }
    points
}

fn start(dir: &Path, nats: &NatsServer, gateway: &str, crash_at: Option<String>) -> Process {
    let mut command = process::command(dir, nats);
    command
        .args(["--ops-listen", "127.0.0.1:0", "--drain-secs", "5", "--gateway", gateway])
        .arg("--store-dir")
        .arg(dir.join("store"));
    if let Some(place) = crash_at {
        command.env("MYCORA_CRASH_AT", place);
    }
    Process::spawn("mycora-saga", &mut command)
}

/// A process that dies once, and is started again.
pub(crate) struct Mortal<'a> {
    dir: &'a Path,
    nats: &'a NatsServer,
    gateway: &'a str,
    pub(crate) process: Process,
    deaths: u32,
}

impl<'a> Mortal<'a> {
    /// Starts it where definitions are in force.
    pub(crate) fn start(dir: &'a Path, nats: &'a NatsServer, gateway: &'a str, point: String) -> Self {
        let mut first = start(dir, nats, gateway, None);
        // Events are those of sagas that were in force before them.
        first.wait_for_line("definitions are in force", PATIENCE);
        first.terminate();
        assert!(first.wait(PATIENCE).success(), "{}", first.output());
        let process = start(dir, nats, gateway, Some(point));
        Self { dir, nats, gateway, process, deaths: 0 }
    }

    pub(crate) fn start_again_if_dead(&mut self) {
        if !self.process.is_running() {
            assert!(self.deaths == 0, "{}", self.process.output());
            self.deaths += 1;
            self.process = start(self.dir, self.nats, self.gateway, None);
        }
    }
}

/// Says a word to a lane, under the subject of what it is about.
pub(crate) async fn say<W: serde::Serialize>(
    broker: &dyn Broker,
    (subject, lane): (Subject, Lane),
    request: &str,
    word: W,
) {
    let word = WordMessage {
        tenant_id: TENANT.to_owned(),
        request_id: request.to_owned(),
        lane: lane.to_string(),
        word,
        request_hash: String::new(),
        reply_to: None,
    };
    let (subject, payload) = (subject.of(lane.tenant()), message::write(&word).into());
    let outgoing =
        Outgoing { subject, message_id: format!("word-{request}"), headers: Headers::new(), payload };
    publish(broker, outgoing).await;
}

/// Has the letter of an order applied, with a payment that is good.
async fn redrive(broker: &dyn Broker, order: &str) {
    let correlation: CorrelationId = order.parse().expect("a correlation");
    let (tenant, saga) = (TENANT.parse().expect("a tenant"), "order".parse().expect("a name"));
    let subject = Subject::workflow(&saga, &correlation);
    let data = Some(Json::object([("ok", Json::Bool(true))]));
    let word = SagaWord::Redrive { correlation, letter: 0, skip: false, data };
    say(broker, (subject, Lane::Saga { tenant, saga, shard: 0 }), &format!("redrive-{order}"), word).await;
}

/// Answers a call by the token that came with it. One that comes before the call waits is refused, so it is said again.
async fn sign(broker: &dyn Broker, call: &Request, request: &str) {
    let (tenant, effect): (TenantId, EffectName) =
        (TENANT.parse().expect("a tenant"), "sign".parse().expect("a name"));
    let command: CommandId = call.key.parse().expect("a command");
    let token = BlobHash::of(call.token.as_bytes());
    let end = Completion::Succeeded { result: Json::Null };
    let word = EffectWord::Call { command, asked: CallWord::Complete { token, end } };
    let subject = Subject::Effect { effect: effect.clone(), command };
    say(broker, (subject, Lane::Effect { tenant, effect }), request, word).await;
}

/// Publishes five orders: paid, not paid, two whose payment is poison, and one that is poison itself.
async fn order(broker: &dyn Broker) {
    for order in ["paid", "late"].into_iter().chain(POISON) {
        let data = format!("{{\"id\":\"{order}\"}}");
        publish_event(broker, "Order", &format!("p-{order}"), "OrderPlaced", order, &data).await;
        // Behind its order at once: it is stored before the timer is over, however long it takes until it is read.
        if order != "late" {
            let data = if POISON.contains(&order) { "{\"ok\":false}" } else { "{\"ok\":true}" };
            publish_event(broker, "Payment", &format!("q-{order}"), "Paid", order, data).await;
        }
    }
    publish_event(broker, "Order", "p-bad", "OrderPlaced", "bad", "{\"id\":7}").await;
}

/// Has orders worked on until they have ended, letters applied and calls answered; gives what was called, and the commands that were
/// sent.
async fn run(nats: &NatsServer, point: &str, nth: u32) -> (Calls, BTreeMap<String, (String, String)>) {
    let (dir, upstream) = (tempfile::tempdir().expect("a directory"), Upstream::start());
    process::prepare(dir.path(), MANIFEST, &upstream);
    let broker = connect(nats).await;
    let mut projection = Projection::open(&broker).await;
    let commands = Commands::default();
    let gateway = commands.serve(dir.path()).await;
    let mut mortal = Mortal::start(dir.path(), nats, &gateway, format!("{point}:{nth}"));
    order(&*broker).await;
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    let mut wanted: BTreeSet<_> = [("paid", "completed"), ("late", "compensated")].into();
    wanted.extend(POISON.map(|order| (order, "completed")));
    let begin = std::time::Instant::now();
    let mut said = 0;
    while !wanted.iter().all(|(order, end)| seen.contains(&((*order).to_owned(), (*end).to_owned()))) {
        assert!(begin.elapsed() < 2 * PATIENCE, "{point}:{nth}: {seen:?}\n{}", mortal.process.output());
        mortal.start_again_if_dead();
        if let Some(fact) = projection.next_soon().await {
            let order = fact.correlation.to_string();
            let is_poison = POISON.contains(&order.as_str());
            if seen.insert((order.clone(), fact.kind.clone())) && is_poison && fact.kind == "parked" {
                redrive(&*broker, &order).await;
            }
            continue;
        }
        // Of one that was made once more the last token is good.
        let calls = upstream.calls().into_iter().filter(|call| call.path == "/sign");
        let calls: BTreeMap<_, _> = calls.map(|call| (call.key.clone(), call)).collect();
        for call in calls.values() {
            said += 1;
            sign(&*broker, call, &format!("sign-{said}")).await;
        }
    }
    mortal.start_again_if_dead();
    mortal.process.terminate();
    println!("{point}:{nth} died {}", mortal.deaths);
    assert!(nth > 1 || mortal.deaths == 1, "{point} was not reached\n{}", mortal.process.output());
    (upstream.by_key(), commands.by_id())
}

/// What was done for an order: paths, each key once.
fn deeds(calls: &Calls, order: &str) -> Vec<String> {
    let of = calls.values().filter(|(_, body, _)| body.contains(order));
    let mut deeds: Vec<_> = of.map(|(path, ..)| path.clone()).collect();
    deeds.sort();
    deeds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_at_any_point_goes_on_as_if_it_had_not() {
    let points = points();
    let elsewhere: BTreeSet<_> = ELSEWHERE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(elsewhere.is_subset(&points) && points.len() == POINTS, "{points:?}");
    let visits = points.difference(&elsewhere).flat_map(|point| (1..=3).map(move |nth| (point.clone(), nth)));
    // Several at a time: most of their time they wait.
    futures_util::stream::iter(visits).for_each_concurrent(4, |(point, nth)| die_at(point, nth)).await;
}

async fn die_at(point: String, nth: u32) {
    let nats = NatsServer::start();
    let (calls, commands) = run(&nats, &point, nth).await;
    assert_eq!(deeds(&calls, "late"), ["/release", "/reserve"], "{point}:{nth}");
    assert_eq!(commands.len(), 3, "{point}:{nth}: one command for each order, however often it was sent");
    for order in ["paid"].into_iter().chain(POISON) {
        let deeds = deeds(&calls, order);
        let command = commands.values().find(|(whose, _)| whose == order).map(|(_, kind)| kind.as_str());
        assert!(matches!(command, Some("Close" | "Doubt")), "{point}:{nth} {order} {commands:?}");
        // Of one that may be called once at most nobody knows when its process died with it, at whichever point that was.
        assert!(
            deeds == ["/reserve", "/ship", "/sign", "/tell"]
                || (command == Some("Doubt") && deeds == ["/reserve", "/ship", "/sign"]),
            "{point}:{nth} {order} {deeds:?} {command:?}"
        );
    }
    let told = calls.values().filter(|(path, ..)| path == "/tell").map(|(.., times)| *times);
    assert!(told.max().unwrap_or(0) <= 1, "{point}:{nth}: it may be called once at most");
}
