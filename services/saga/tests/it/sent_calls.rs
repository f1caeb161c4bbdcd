//! The process dies between the intent of a call and its outcome: what becomes of the call goes by its policy.

use broker::MessageBroker;
use model::CommandId;
use testkit::{NatsServer, PATIENCE, wait_until};
use workflow::input::CommandOutcome;
use workflow::lane_request::{EffectCallRequest, EffectLaneRequest};
use workflow::{Json, MessageSubject, WorkflowLane};

use crate::crashes::{Mortal, in_doubt, order_states, send_request};
use crate::process::{self, Commands, Upstream};
use crate::served::Rows;
use crate::streams::{Projection, Results, connect, publish_event};
use crate::world::TENANT;

const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: pay }
steps:
  pay:
    effect: pay
    input: { order: "${{ state.id }}" }
    on_success: { end: completed }
    on_failure: { end: failed, reason: "${{ result.code }}" }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  pay:
    request: { method: POST, path: /pay, body: "${{ input }}" }
    retry: { initial: 1ms }
    unknown_outcome: POLICY
"#;
const QUERY: &str = r#"{ query: { method: GET, path: /asked, absent: status == 404 } }"#;

const INTENT: &str = "effect.intent";

/// Expectation for a policy.
struct Case {
    policy: &'static str,
    /// True if the upstream says that it knows nothing of the call.
    is_forgotten: bool,
    /// How often the call is made, and how often the upstream is asked about it.
    calls: (usize, usize),
    outcome: CommandOutcome,
    end: &'static str,
}

/// Says that the call happened, as a person does who looked.
async fn resolve(broker: &dyn MessageBroker, command: CommandId, request: &str) {
    let (tenant, effect) = (TENANT.parse().expect("a tenant"), "pay".parse().expect("a name"));
    let call_request = EffectCallRequest::Happened { result: Json::text("by hand") };
    let lane_request = EffectLaneRequest::Call { command, asked: call_request };
    let subject = MessageSubject::Effect { effect, command };
    let lane = WorkflowLane::Effect { tenant, effect: "pay".parse().expect("a name") };
    send_request(broker, (subject, lane), request, lane_request).await;
}

async fn die_between(rows: Rows, point: &str, case: Case) {
    let Case { policy, is_forgotten, calls, outcome, end } = case;
    let (nats, dir, upstream) =
        (NatsServer::start(), tempfile::tempdir().expect("a directory"), Upstream::start());
    process::prepare(dir.path(), &MANIFEST.replace("POLICY", policy), &upstream);
    if is_forgotten {
        upstream.forget("/asked");
    }
    let broker = connect(&nats).await;
    let mut projection = Projection::open(&broker).await;
    let gateway = Commands::default().serve(dir.path()).await;
    let mut mortal = Mortal::start((dir.path(), &nats, &gateway), rows, Some(format!("{point}:1")));
    publish_event(&*broker, "Order", "p-1", "OrderPlaced", "o-1", r#"{"id":"o-1"}"#).await;
    mortal.process.wait(PATIENCE);
    assert!(mortal.is_dead());
    let doubted = in_doubt(&*mortal.kept.open().await, "pay").await;
    let [doubted] = doubted.as_slice() else { panic!("{policy}: one call: {doubted:?}") };
    let key = doubted.command.to_string();
    if point != INTENT {
        // The upstream has the call, although no process is left to receive its answer.
        let called = || std::future::ready(upstream.calls().into_iter().next());
        let called = wait_until(called, PATIENCE, format!("{policy}: the call")).await;
        assert_eq!((called.path.as_str(), called.body.as_str()), ("/pay", r#"{"order":"o-1"}"#));
    } else {
        assert_eq!(upstream.calls(), [], "{policy}: nothing has left");
    }

    mortal.start_again();
    let (begin, mut resolved, mut seen) = (std::time::Instant::now(), 0, Vec::new());
    while !seen.iter().any(|kind| kind == end) {
        assert!(begin.elapsed() < PATIENCE, "{policy}: {seen:?}\n{}", mortal.process.output());
        match projection.next_soon().await {
            Some(fact) => seen.push(fact.kind),
            // One that comes before the call waits for a person is refused, so it is said again.
            None if policy == "manual" => {
                resolved += 1;
                resolve(&*broker, doubted.command, &format!("resolve-{resolved}")).await;
            }
            None => {}
        }
    }
    let result = Results::open(&broker).await.next().await;
    assert_eq!((result.command_id.to_string(), result.result_type), (key.clone(), outcome), "{policy}");
    if policy == "manual" {
        assert_eq!(result.payload, Json::text("by hand"));
    }
    assert_eq!((upstream.count("/pay"), upstream.count("/asked")), calls, "{policy}");
    let keys = upstream.calls().into_iter().filter(|call| call.path == "/pay").map(|call| call.key);
    assert!(keys.into_iter().all(|called| called == key), "{policy}: one key");
    mortal.end();
    let states = order_states(&*mortal.kept.open().await, "order", &["o-1"], &["pay"]).await;
    assert_eq!(states["o-1"], format!("{end}, 0 letters, parked by None"));
}

/// Runs these cases on both stores.
async fn die_everywhere_at(point: &str, cases: impl Fn() -> Vec<Case>) {
    for rows in [Rows::Directory, Rows::Redis] {
        let died = cases().into_iter().map(|case| die_between(rows, point, case));
        futures_util::future::join_all(died).await;
    }
}

const SUCCEEDED: CommandOutcome = CommandOutcome::Succeeded;

/// The cases where the bytes of the call have left.
fn of_sent_calls() -> Vec<Case> {
    let end = "completed";
    vec![
        Case { policy: "retry", is_forgotten: false, calls: (2, 0), outcome: SUCCEEDED, end },
        Case { policy: QUERY, is_forgotten: false, calls: (1, 1), outcome: SUCCEEDED, end },
        Case { policy: QUERY, is_forgotten: true, calls: (2, 1), outcome: SUCCEEDED, end },
        Case {
            policy: "fail",
            is_forgotten: false,
            calls: (1, 0),
            outcome: CommandOutcome::Unknown,
            end: "failed",
        },
        Case { policy: "manual", is_forgotten: false, calls: (1, 0), outcome: SUCCEEDED, end },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_bytes_left_with_its_process_goes_by_its_policy() {
    die_everywhere_at("effect.sent", of_sent_calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_answer_died_with_its_process_goes_by_its_policy() {
    die_everywhere_at("effect.answered", of_sent_calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_only_intended_when_its_process_died_goes_by_its_policy() {
    // It cannot be distinguished from a call that was made: only the number of calls differs by one.
    let cases = || {
        let of_sent = of_sent_calls().into_iter().filter(|case| case.policy != QUERY || case.is_forgotten);
        of_sent.map(|case| Case { calls: (case.calls.0 - 1, case.calls.1), ..case }).collect()
    };
    die_everywhere_at(INTENT, cases).await;
}
