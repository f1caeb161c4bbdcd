//! Redacted parts of results: nowhere, as soon as they have come: in no row, no message, no line of the log, no answer.

use std::path::Path;
use std::sync::Arc;

use broker::MessageBroker;
use model::SagaStatus;
use proto::v1;
use saga::lane::{AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS};
use testkit::{NatsServer, PATIENCE, wait_until};

use crate::process::{self, ReplicaProcess, Upstream};
use crate::reads::{PAYS, own_effect, start};
use crate::served::{ACME, ADMIN, READER, Served, ServiceOptions};
use crate::streams::{aggregates, connect, publish_event};

/// Text that must not appear anywhere.
const CANARY: &str = "canary-7f3a91";
/// Text that comes with it, and is kept.
const WITNESS: &str = "witness-7f3a91";
const ANSWER: &str =
    r#"{"id":"witness-7f3a91","token":"canary-7f3a91","deep":[{"secret":"canary-7f3a91","open":1}]}"#;

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text, paid: any, refused: any }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: pay }
steps:
  pay:
    effect: pay
    input: { order: "${{ state.id }}" }
    on_success: { set: { paid: "${{ result }}" }, goto: refuse }
    compensate: { effect: pay, input: { order: "${{ result.id }}" } }
  refuse:
    effect: refuse
    input: { order: "${{ state.id }}" }
    on_success: { end: completed }
    on_failure: { set: { refused: "${{ result }}" }, goto: hold }
  hold: { on: { Done: { end: completed } } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  pay: { request: { method: POST, path: /pay, body: "${{ input }}" }, redact: [result.token, result.deep.secret] }
  refuse:
    request: { method: POST, path: /refuse, body: "${{ input }}" }
    success: status == 201
    terminal: status == 200
    redact: [result.token, result.deep.secret]
"#;

/// Returns true if these bytes are in a file of a directory, or of one below it.
pub(crate) fn is_in_files(dir: &Path, wanted: &str) -> bool {
    std::fs::read_dir(dir).expect("a directory").flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return is_in_files(&path, wanted);
        }
        if !path.is_file() {
            // A socket.
            return false;
        }
        let bytes = std::fs::read(&path).expect("a file");
        bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
    })
}

/// All messages of all streams.
pub(crate) async fn messages(broker: &Arc<dyn MessageBroker>) -> String {
    let mut all = String::new();
    for stream in [AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS] {
        // The service makes its own while it starts.
        let Some(state) = broker.stream(stream).await.expect("an answer") else { continue };
        for sequence in 1..=state.last_sequence {
            let message = broker.message(stream, sequence).await.expect("an answer").expect("a message");
            all.push_str(&format!("{message:?}"));
            all.push_str(&String::from_utf8_lossy(&message.payload));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_redacted_of_an_answer_is_found_nowhere() {
    let (dir, nats) = (tempfile::tempdir().expect("a directory"), NatsServer::start());
    let upstream = Upstream::answering(ANSWER);
    process::prepare(dir.path(), MANIFEST, &upstream);
    let broker = connect(&nats).await;
    broker.ensure_stream(&aggregates()).await.expect("a stream");
    let mut saga = ReplicaProcess::start_alone(dir.path(), &nats, "combined");
    saga.until_lanes(|lanes| lanes == 3, "it owns its lanes").await;
    publish_event(&*broker, "Order", "e-1", "OrderPlaced", "o-1", r#"{"id":"o-1"}"#).await;
    let held = async || messages(&broker).await.contains(r#""step":"hold""#).then_some(());
    wait_until(held, PATIENCE, "the instance holds").await;
    assert_eq!((upstream.count("/pay"), upstream.count("/refuse")), (1, 1));

    let pages =
        [saga.ask("/info"), saga.ask("/health"), saga.ask("/metrics")].map(|page| page.expect("told").1);
    let messages = messages(&broker).await;
    saga.process.terminate();
    assert!(saga.process.wait(PATIENCE).success());
    let (store, log) = (dir.path().join("store"), saga.process.output());
    assert!(messages.contains(WITNESS) && is_in_files(&store, WITNESS), "what comes with it is kept");
    assert!(log.contains("saga started"), "{log}");
    assert!(!messages.contains(CANARY), "{messages}");
    assert!(!log.contains(CANARY), "{log}");
    assert!(pages.iter().all(|page| !page.contains(CANARY)), "{pages:?}");
    assert!(!is_in_files(&store, CANARY));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_redacted_of_a_persons_answer_is_found_nowhere() {
    let served = Served::with(ServiceOptions { manifest: PAYS, ..ServiceOptions::default() }).await;
    let stop = own_effect(&served);
    start(&served, "doubt").await;
    served.send("doubt", "Go").await.expect("applied");
    let manual = v1::ListEffectsRequest {
        tenant_id: ACME.to_owned(),
        states: vec![v1::EffectState::Manual.into()],
        ..Default::default()
    };
    let manual = async || {
        let page = served.actor(READER).list_effects(manual.clone()).await.expect("a page").into_inner();
        page.calls.into_iter().next()
    };
    let call = wait_until(manual, PATIENCE, "nobody knows of the call").await;
    let result_json = format!(r#"{{"paid":"{WITNESS}","token":"{CANARY}"}}"#);
    let resolve = v1::ResolveEffectRequest {
        tenant_id: ACME.to_owned(),
        command_id: call.command_id.clone(),
        outcome: Some(v1::resolve_effect_request::Outcome::Succeeded(v1::EffectSuccess { result_json })),
        ..Default::default()
    };
    served.actor(ADMIN).resolve_effect(resolve).await.expect("resolved");
    served.wait_at("doubt", "hold", SagaStatus::Running).await;
    let read = v1::GetEffectRequest {
        tenant_id: ACME.to_owned(),
        command_id: call.command_id,
        ..Default::default()
    };
    let read = served.actor(READER).get_effect(read).await.expect("there").into_inner().call;
    assert_eq!(read.expect("always given").result_json, format!(r#"{{"paid":"{WITNESS}"}}"#));
    let messages = messages(&served.broker).await;
    assert!(messages.contains(WITNESS) && !messages.contains(CANARY), "{messages}");
    let store = served.suite.dir().join("store");
    assert!(is_in_files(&store, WITNESS) && !is_in_files(&store, CANARY));
    stop.cancel();
}
