//! Traces of a saga, as a collector gets them: spans that are joined, and nothing of what they carry.

use std::path::Path;
use std::sync::Arc;

use broker::MessageBroker;
use saga::metrics::Metrics;
use saga::visibility::SagaVisibility;
use testkit::{CollectedSpan, NatsServer, PATIENCE, TestCollector, TestLog, wait_until};
use workflow::message::FactMessage;
use workflow::step::HELD_MAX;

use crate::process::{Commands, ReplicaProcess, Upstream, command, prepare};
use crate::streams::{Projection, aggregates, connect, publish};
use crate::world::World;

/// Text in the payload of everything.
const PAYLOAD: &str = "payload-7d1f20";
/// A correlation that is like nothing else.
const CORRELATION: &str = "ann-3c5b@home.test";
/// The first digits of its SHA-256.
const HASHED: &str = "2ebef72a88c95528";
/// Where the event is that orders it.
const PLACED: &str = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

const SAGA: &str = r#"
kind: Saga
name: order
version: 1
state: { note: text, seen: any }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { note: "${{ event.data.note }}" }, goto: pay }
steps:
  pay: { effect: pay, input: { note: "${{ state.note }}" }, on_done: { set: { seen: "${{ result }}" }, goto: tell } }
  tell: { command: { aggregate: Order, id: o-1, type: Paid, payload: { note: "${{ state.note }}" } }, on_success: { goto: hold } }
  hold: { on: { OrderShipped: { end: completed } } }
---
kind: EffectProvider
name: bank
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  pay: { request: { method: POST, path: /pay, body: "${{ input }}" }, retry: { initial: 1ms, max: 5ms, attempts: 2 } }
"#;

/// Publishes an event that says where it is in a trace.
async fn traced(broker: &dyn MessageBroker, id: &str, kind: &str, place: &str) {
    let body = format!(
        r#"{{"event_id":"{id}","type":"{kind}","data":{{"note":"{PAYLOAD}"}},"metadata":{{"correlation_id":"{CORRELATION}","traceparent":"00-{place}"}}}}"#
    );
    let outgoing = broker::Publication {
        subject: format!("tenant.{}.aggregate.Order.o-1", crate::world::TENANT),
        message_id: id.to_owned(),
        headers: broker::Headers::new(),
        payload: body.into(),
    };
    publish(broker, outgoing).await;
}

/// Telemetry of one order: its spans, the log, and the metrics.
struct OrderTelemetry {
    spans: Vec<CollectedSpan>,
    bytes: Vec<u8>,
    log: String,
    metrics: String,
}

/// Runs one order in a process with these arguments.
async fn one_order(dir: &Path, arguments: &[&str]) -> OrderTelemetry {
    let (nats, upstream, collector) =
        (NatsServer::start(), Upstream::answering(r#"{"id":"payload-7d1f20"}"#), TestCollector::default());
    prepare(dir, SAGA, &upstream);
    let broker: Arc<dyn MessageBroker> = connect(&nats).await;
    broker.ensure_stream(&aggregates()).await.expect("a stream");
    let mut starts = command(dir, &nats);
    starts.arg("--store-dir").arg(dir.join("store")).args(arguments).args(["--drain-secs", "5"]);
    starts.args(["--gateway", &Commands::default().serve(dir).await]);
    starts.args(["--otlp-endpoint", &collector.serve().await]);
    let mut saga = ReplicaProcess::spawn(dir, &mut starts, "alone");
    saga.until_lanes(|lanes| lanes == 2, "it owns its lanes").await;
    let mut facts = Projection::open(&broker).await;
    traced(&*broker, "e-1", "OrderPlaced", &format!("{PLACED}-01")).await;
    until(&mut facts, |fact| fact.step.as_str() == "hold").await;
    // A trace that is not sampled.
    traced(&*broker, "e-2", "OrderShipped", "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").await;
    until(&mut facts, |fact| fact.kind == "completed").await;
    let relayed = async || (saga.metric("outbox_rows") == Some(0.0)).then_some(());
    wait_until(relayed, PATIENCE, "everything is sent").await;
    let (_, metrics) = saga.ask("/metrics").expect("told");
    saga.process.terminate();
    assert!(saga.process.wait(PATIENCE).success());
    OrderTelemetry { spans: collector.spans(), bytes: collector.bytes(), log: saga.process.output(), metrics }
}

async fn until(facts: &mut Projection, wanted: impl Fn(&FactMessage) -> bool) {
    let come = async {
        loop {
            if facts.next_soon().await.is_some_and(|fact| wanted(&fact)) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, come).await.expect("it comes to that");
}

fn has(bytes: &[u8], wanted: &str) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

/// The only span of this name that says this of something.
fn only<'a>(spans: &'a [CollectedSpan], name: &str, what: &str, value: &str) -> &'a CollectedSpan {
    let found: Vec<_> =
        spans.iter().filter(|span| span.name == name && span.attribute(what) == value).collect();
    let [span] = found.as_slice() else { panic!("{name} {what} {value}: {spans:?}") };
    span
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_spans_that_are_joined_without_what_they_carry() {
    let dir = tempfile::tempdir().expect("a directory");
    let OrderTelemetry { spans, bytes, log, metrics } =
        one_order(dir.path(), &["--verify-share", "100%"]).await;
    // From the event to the transition, its work, the call and the result.
    let placed = only(&spans, "transition", "input", "event");
    let [work, call] = ["work", "effect"].map(|name| only(&spans, name, "effect", "pay"));
    let command = work.attribute("command");
    assert_eq!(command.len(), 36, "{work:?}");
    let [result, paid] = ["result", "transition"].map(|name| only(&spans, name, "command", &command));
    assert_eq!((placed.above(), work.above()), (PLACED.to_owned(), placed.place()));
    assert_eq!((call.above(), result.above()), (work.place(), work.place()));
    // What follows is in a trace of its own, linked to the command; and so is what follows from that.
    let commanded = only(&spans, "work", "effect", "");
    let answered = only(&spans, "transition", "revision", "3");
    assert_eq!((paid.links(), commanded.above()), (vec![work.place()], paid.place()));
    assert_eq!(
        (answered.links(), answered.attribute("command")),
        (vec![commanded.place()], commanded.attribute("command"))
    );
    for (span, before) in [(paid, placed), (answered, paid)] {
        assert!(span.place()[..32] != before.place()[..32] && span.above().ends_with('-'), "{span:?}");
    }
    for span in [placed, work, call, result, paid, commanded, answered] {
        let of = ["tenant", "saga", "correlation"].map(|what| span.attribute(what));
        assert_eq!(of, [crate::world::TENANT, "order", CORRELATION], "{span:?}");
    }
    let definition = placed.attribute("definition");
    assert!(definition.len() == 12 && definition.bytes().all(|byte| byte.is_ascii_hexdigit()), "{placed:?}");
    assert!([work, paid, commanded, answered].iter().all(|span| span.attribute("definition") == definition));
    assert_eq!((placed.attribute("revision"), paid.attribute("revision")), ("1".to_owned(), "2".to_owned()));
    assert_eq!(
        (call.attribute("attempt"), call.attribute("outcome")),
        ("1".to_owned(), "succeeded".to_owned())
    );
    let outcomes = (placed.attribute("outcome"), result.attribute("outcome"));
    assert_eq!(outcomes, ("applied".to_owned(), "Succeeded".to_owned()));
    // The last event is of a trace that is not recorded, and payloads are in no span. Nothing of it all is a line of the log.
    let ours = ["transition", "work", "effect", "result"];
    let found = spans.iter().filter(|span| ours.contains(&&*span.name));
    assert_eq!(found.count(), 8, "{spans:?}");
    assert!(!has(&bytes, PAYLOAD) && !log.contains(PAYLOAD) && !log.contains(CORRELATION), "{log}");
    // Each transition was made twice, and came to the same.
    let counts = |line: &str| metrics.lines().any(|found| found == line);
    assert!(counts("mycora_saga_transitions_verified_total 4"), "{metrics}");
    assert!(counts("mycora_saga_replay_differences_total 0"), "{metrics}");
    assert!(counts(r#"mycora_saga_transitions_total{outcome="applied",saga="order"} 4"#), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn correlations_are_hashes_where_the_operator_wants_that() {
    let dir = tempfile::tempdir().expect("a directory");
    let arguments = ["--redact-correlation", "--metrics-by-tenant"];
    let OrderTelemetry { spans, bytes, metrics, .. } = one_order(dir.path(), &arguments).await;
    let ours = ["transition", "work", "effect", "result"];
    let shown: Vec<_> = spans
        .iter()
        .filter(|span| ours.contains(&&*span.name))
        .map(|span| span.attribute("correlation"))
        .collect();
    assert!(shown.len() == 8 && shown.iter().all(|shown| shown == HASHED), "{shown:?}");
    assert!(!has(&bytes, CORRELATION), "{}", String::from_utf8_lossy(&bytes));
    for line in [
        r#"mycora_saga_transitions_total{outcome="applied",saga="order",tenant="acme"} 4"#,
        r#"mycora_saga_effects_total{effect="pay",result="Succeeded",tenant="acme"} 1"#,
        r#"mycora_saga_instances{status="ended",tenant="acme"} 1"#,
        r#"mycora_saga_letters{tenant="acme"} 0"#,
        r#"mycora_saga_stuck{tenant="acme"} 0"#,
        r#"mycora_saga_quota_used_ratio{quota="open_effects",tenant="acme"} 0"#,
        "mycora_saga_transitions_verified_total 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line}: {metrics}");
    }
}

#[tokio::test]
async fn lines_of_the_log_have_the_hash_of_a_correlation() {
    for redacts_correlations in [true, false] {
        let log = TestLog::of_this_thread();
        let mut world = World::simulated().await;
        let seeing = SagaVisibility { redacts_correlations, ..SagaVisibility::default() };
        world.registry = prometheus::Registry::new();
        world.metrics = Arc::new(Metrics::new(&world.registry, seeing).expect("new names"));
        world.apply(&SAGA.replace("ADDRESS", "127.0.0.1:1")).await;
        world.own();
        // No note is a number: it parks its correlation, and there is no room for so many more.
        for number in 0..HELD_MAX + 2 {
            world.event("Order", &format!("e-{number}"), "OrderPlaced", CORRELATION, r#"{"note":7}"#).await;
        }
        let refused = async || log.lines(&["no room to hold another input of"]).pop();
        let line = wait_until(refused, PATIENCE, "there is no room").await;
        assert_eq!(
            (line.contains(HASHED), line.contains(CORRELATION)),
            (redacts_correlations, !redacts_correlations)
        );
        assert_eq!(log.lines(&[CORRELATION]).is_empty(), redacts_correlations);
    }
}
