//! The process dies when the bytes of a call have left: what becomes of the call goes by its policy.

use broker::Broker;
use model::CommandId;
use testkit::{NatsServer, PATIENCE, wait_until};
use workflow::input::Outcome;
use workflow::word::{CallWord, EffectWord};
use workflow::{Json, Lane, Subject};

use crate::crashes::{Mortal, say};
use crate::process::{self, Commands, Upstream};
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

/// What is expected of a policy.
struct Case {
    policy: &'static str,
    /// Whether the upstream says that it knows nothing of the call.
    is_forgotten: bool,
    /// How often the call is made, and how often the upstream is asked about it.
    calls: (usize, usize),
    outcome: Outcome,
    end: &'static str,
}

/// Says that the call happened, as a person does who looked.
async fn resolve(broker: &dyn Broker, command: CommandId, request: &str) {
    let (tenant, effect) = (TENANT.parse().expect("a tenant"), "pay".parse().expect("a name"));
    let asked = CallWord::Happened { result: Json::text("by hand") };
    let word = EffectWord::Call { command, asked };
    let subject = Subject::Effect { effect, command };
    let lane = Lane::Effect { tenant, effect: "pay".parse().expect("a name") };
    say(broker, (subject, lane), request, word).await;
}

async fn die_behind_the_bytes(case: Case) {
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
    let mut mortal = Mortal::start(dir.path(), &nats, &gateway, "effect.sent:1".to_owned());
    publish_event(&*broker, "Order", "p-1", "OrderPlaced", "o-1", r#"{"id":"o-1"}"#).await;
    assert!(!mortal.process.wait(PATIENCE).success(), "{policy}: {}", mortal.process.output());
    // The call is with the upstream, although nobody is left who could hear its answer.
    let called = || std::future::ready(upstream.calls().into_iter().next());
    let called = wait_until(called, PATIENCE, format!("{policy}: the call")).await;
    assert_eq!((called.path.as_str(), called.body.as_str()), ("/pay", r#"{"order":"o-1"}"#));

    mortal.start_again_if_dead();
    let (begin, mut said, mut seen) = (std::time::Instant::now(), 0, Vec::new());
    while !seen.iter().any(|kind| kind == end) {
        assert!(begin.elapsed() < PATIENCE, "{policy}: {seen:?}\n{}", mortal.process.output());
        match projection.next_soon().await {
            Some(fact) => seen.push(fact.kind),
            // One that comes before the call waits for a person is refused, so it is said again.
            None if policy == "manual" => {
                said += 1;
                resolve(&*broker, called.key.parse().expect("a command"), &format!("resolve-{said}")).await;
            }
            None => {}
        }
    }
    let result = Results::open(&broker).await.next().await;
    assert_eq!(
        (result.command_id.to_string(), result.result_type),
        (called.key.clone(), outcome),
        "{policy}"
    );
    if policy == "manual" {
        assert_eq!(result.payload, Json::text("by hand"));
    }
    assert_eq!((upstream.count("/pay"), upstream.count("/asked")), calls, "{policy}");
    let keys = upstream.calls().into_iter().filter(|call| call.path == "/pay").map(|call| call.key);
    assert!(keys.into_iter().all(|key| key == called.key), "{policy}: one key");
    mortal.process.terminate();
    assert!(mortal.process.wait(PATIENCE).success(), "{}", mortal.process.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_bytes_left_with_its_process_goes_by_its_policy() {
    let (succeeded, completed) = (Outcome::Succeeded, "completed");
    let all = [
        Case { policy: "retry", is_forgotten: false, calls: (2, 0), outcome: succeeded, end: completed },
        Case { policy: QUERY, is_forgotten: false, calls: (1, 1), outcome: succeeded, end: completed },
        Case { policy: QUERY, is_forgotten: true, calls: (2, 1), outcome: succeeded, end: completed },
        Case { policy: "fail", is_forgotten: false, calls: (1, 0), outcome: Outcome::Unknown, end: "failed" },
        Case { policy: "manual", is_forgotten: false, calls: (1, 0), outcome: succeeded, end: completed },
    ];
    futures_util::future::join_all(all.map(die_behind_the_bytes)).await;
}
