//! Single cases: time limits, cancels, `fail_fast`, results and what travels.

use std::time::Duration;

use flow::{Engine, FlowEngineInput, template};
use model::execution::Outcome;
use model::job::BlobRef;
use model::limits::{CLEAN_UP_SECS, FLOW_RESULT_BYTES_MAX, RESULT_BYTES_MAX};
use model::{
    Attempt, BlobHash, EndedProcess, FlowStatus, NodeSpec, NodeState, ReasonCode, ReportKind, RunIf,
    Timestamp,
};

use crate::case::BEGIN;
use crate::world::{
    CONTEXT, RUNNER, World, ended, failed, flow, rejected, spec, started, stopped, succeeded,
};

const CANCEL: FlowEngineInput = FlowEngineInput::CancelFlow { grace_secs: 5 };

#[test]
fn cancel_reaches_every_state() {
    let mut world = World::new(
        flow(4),
        &[spec("running", &[]), spec("sent", &[]), spec("pending", &["running"]), spec("done", &[])],
    );
    world.feed([FlowEngineInput::Start]);
    world.start("running");
    world.succeed("done");
    world.feed([CANCEL]);
    assert_eq!(world.state("pending"), NodeState::Cancelled);
    assert_eq!((world.state("running"), world.stops.len()), (NodeState::Running, 2));
    assert_eq!(world.due, Some(world.now + Duration::from_secs(30)));
    world.crash();
    world.feed([]);
    assert_eq!(world.stops.len(), 4, "the next owner asks again");
    world.succeed("running");
    assert_eq!(world.state("running"), NodeState::Cancelled, "any end after the request");
    world.pass(29.9);
    assert_eq!(world.state("sent"), NodeState::Dispatched);
    world.pass(0.1);
    assert_eq!((world.state("sent"), world.node("sent").unconfirmed), (NodeState::Cancelled, true));
    let reason = world.node("sent").reason.as_ref().expect("there is one").to_string();
    assert_eq!(reason, "FLOW_CANCELLED: not confirmed to have stopped");
    assert_eq!((world.state("done"), world.status()), (NodeState::Completed, FlowStatus::Cancelled));
}

#[test]
fn an_end_reported_by_another_source_stops_the_attempt() {
    let mut world = World::started(&[spec("a", &[])]);
    world.start("a");
    let FlowEngineInput::Report(mut report) = world.report("a", failed(1)) else { unreachable!() };
    report.source = None;
    world.feed([FlowEngineInput::Report(report)]);
    assert_eq!((world.state("a"), world.stops.len()), (NodeState::Failed, 1));
    assert_eq!(world.stops[0].runner, Some(RUNNER));
}

#[test]
fn what_is_ready_is_cancelled_at_once() {
    let mut world = World::new(flow(1), &[spec("a", &[])]);
    world.place.live = false;
    world.feed([FlowEngineInput::Start]);
    assert_eq!(world.state("a"), NodeState::Ready);
    world.feed([CANCEL]);
    assert_eq!((world.state("a"), world.status()), (NodeState::Cancelled, FlowStatus::Cancelled));
}

#[test]
fn nothing_goes_back_to_ready_once_cancelled() {
    for kind in [failed(1), ReportKind::Returned, rejected(false, true), stopped()] {
        let mut a = spec("a", &[]);
        a.policy.retries = 5;
        let mut world = World::started(&[a]);
        world.feed([FlowEngineInput::CancelFlow { grace_secs: 1 }]);
        world.end("a", kind);
        assert_eq!((world.state("a"), world.status()), (NodeState::Cancelled, FlowStatus::Cancelled));
        assert!(!world.node("a").unconfirmed);
    }
}

#[test]
fn a_cancel_that_has_not_reached_a_node_counts_already() {
    let mut a = spec("a", &[]);
    a.policy.retries = 5;
    let mut world = World::started(&[spec("first", &[]), a]);
    world.budget = 1;
    let mut inputs = [CANCEL].into();
    assert!(world.step(&mut inputs).more);
    assert_eq!(world.node("a").cancel_requested_time, None);
    world.end("a", failed(1));
    assert_eq!(world.state("a"), NodeState::Cancelled);
    assert_eq!(world.node("a").attempt, Attempt(1), "it was not tried again in between");
}

#[test]
fn a_cancel_goes_on_with_the_next_owner() {
    let mut world = World::started(&[spec("a", &[]), spec("b", &["a"]), spec("c", &["a"])]);
    world.budget = 1;
    assert!(world.step(&mut [CANCEL].into()).more);
    world.crash();
    world.feed([]);
    assert_eq!((world.state("b"), world.state("c")), (NodeState::Cancelled, NodeState::Cancelled));
}

#[test]
fn times_to_act_at_are_found_by_the_next_owner() {
    let mut a = spec("a", &[]);
    a.policy.timeout_result = 7;
    let mut b = spec("b", &[]);
    b.policy.retries = 1;
    let mut world = World::started(&[a, b]);
    world.end("b", failed(1));
    world.crash();
    world.feed([]);
    assert_eq!(world.due, world.node("b").not_before_time);
    world.pass(0.5);
    assert_eq!(world.state("b"), NodeState::Dispatched);
    world.pass(6.5);
    assert_eq!(world.code("a"), Some(ReasonCode::TimeoutResult));
}

#[test]
fn one_cancelled_node_counts_as_failed_for_what_follows() {
    let mut clean = spec("clean", &["a"]);
    clean.run_if = RunIf::AnyFailed;
    let mut world = World::started(&[spec("a", &[]), clean]);
    let a = world.node("a").job_id;
    world.feed([FlowEngineInput::CancelNode(a)]);
    assert_eq!(world.stops.len(), 1);
    world.end("a", stopped());
    assert_eq!(world.state("clean"), NodeState::Dispatched);
    world.succeed("clean");
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn fail_fast_spares_what_cleans_up() {
    let mut clean = spec("clean", &["bad"]);
    clean.run_if = RunIf::AnyFailed;
    let mut last = spec("last", &["running", "after"]);
    last.run_if = RunIf::AllDone;
    let specs = [spec("bad", &[]), spec("running", &[]), spec("after", &["running"]), clean, last];
    let mut failing = flow(5);
    failing.fail_fast = true;
    let mut world = World::new(failing, &specs);
    world.feed([FlowEngineInput::Start]);
    world.start("running");
    world.end("bad", failed(1));
    assert_eq!(
        (world.state("after"), world.code("after")),
        (NodeState::Cancelled, Some(ReasonCode::FailFast))
    );
    assert_eq!(world.stops.len(), 1);
    assert_eq!(world.state("clean"), NodeState::Dispatched);
    world.crash();
    world.end("running", stopped());
    assert_eq!(
        (world.state("running"), world.code("running")),
        (NodeState::Cancelled, Some(ReasonCode::FailFast))
    );
    world.succeed("clean");
    world.succeed("last");
    assert_eq!(world.status(), FlowStatus::Error);
}

#[test]
fn an_allowed_failure_is_no_cause_to_fail_fast() {
    let mut bad = spec("bad", &[]);
    bad.allow_failure = true;
    let mut failing = flow(2);
    failing.fail_fast = true;
    let mut world = World::new(failing, &[bad, spec("other", &[])]);
    world.feed([FlowEngineInput::Start]);
    world.end("bad", failed(1));
    assert_eq!(world.state("other"), NodeState::Dispatched);
    world.succeed("other");
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn a_run_time_limit_has_a_backstop() {
    let mut a = spec("a", &[]);
    a.policy.timeout = 10;
    a.policy.retries = 1;
    let mut world = World::started(&[a]);
    world.start("a");
    world.pass(69.9);
    assert_eq!(world.state("a"), NodeState::Running);
    world.pass(0.1);
    assert_eq!((world.state("a"), world.stops.len()), (NodeState::Running, 1));
    world.end("a", stopped());
    assert_eq!(world.state("a"), NodeState::Ready);
    assert!(world.node("a").reason.as_ref().unwrap().detail.starts_with("TIMEOUT"));
    world.pass(60.0);
    world.start("a");
    world.pass(70.0);
    world.end("a", stopped());
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::Timeout)));
}

#[test]
fn another_machines_clock_does_not_move_the_backstop() {
    for clock in [0, u64::from(u32::MAX) * 1000] {
        let mut a = spec("a", &[]);
        a.policy.timeout = 10;
        let mut world = World::started(&[a]);
        world.pass(5.0);
        let input = world.report("a", started(Timestamp::from_millis(clock)));
        world.feed([input]);
        assert_eq!(world.state("a"), NodeState::Running);
        let due = world.due.unwrap();
        assert!(due >= world.now + Duration::from_secs(60) && due <= world.now + Duration::from_secs(70));
    }
}

#[test]
fn results_and_queues_have_time_limits() {
    let mut a = spec("a", &[]);
    a.policy.timeout_result = 7;
    let mut b = spec("b", &[]);
    b.policy.timeout_queue = 5;
    let mut world = World::started(&[a, b]);
    world.start("a");
    world.pass(5.0);
    assert_eq!((world.state("b"), world.code("b")), (NodeState::Dispatched, Some(ReasonCode::TimeoutQueue)));
    world.end("b", rejected(true, true));
    assert_eq!((world.state("b"), world.code("b")), (NodeState::Failed, Some(ReasonCode::TimeoutQueue)));
    world.pass(2.0);
    world.end("a", stopped());
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::TimeoutResult)));
    assert_eq!((world.stops.len(), world.status()), (2, FlowStatus::Error));
}

#[test]
fn a_wait_for_a_place_has_a_time_limit() {
    let mut a = spec("a", &[]);
    a.policy.timeout_queue = 5;
    a.policy.retries = 3;
    let mut world = World::new(flow(1), &[a]);
    world.place.live = false;
    world.feed([FlowEngineInput::Start]);
    world.pass(5.0);
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::TimeoutQueue)));
    assert!(world.stops.is_empty());
}

/// A flow of these nodes with a deadline in ten seconds, started.
fn limited(specs: &[NodeSpec]) -> World {
    let mut flow = flow(specs.len());
    flow.deadline = Some(BEGIN + Duration::from_secs(10));
    let mut world = World::new(flow, specs);
    world.feed([FlowEngineInput::Start]);
    world
}

fn cleaning(text: &str, depends: &[&str]) -> NodeSpec {
    NodeSpec { run_if: RunIf::AllDone, allow_failure: true, ..spec(text, depends) }
}

#[test]
fn a_deadline_fails_whatever_is_left_but_what_cleans_up() {
    let mut excused = spec("a", &[]);
    excused.allow_failure = true;
    excused.policy.retries = 3;
    let mut handler = spec("handler", &["a"]);
    handler.run_if = RunIf::AnyFailed;
    let specs = [excused, cleaning("clean", &["a"]), handler, spec("after", &["a"]), cleaning("lone", &[])];
    let mut world = limited(&specs);
    assert_eq!(world.due, Some(BEGIN + Duration::from_secs(10)));
    world.pass(10.0);
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Dispatched, Some(ReasonCode::Deadline)));
    assert_eq!((world.state("after"), world.code("after")), (NodeState::Failed, Some(ReasonCode::Deadline)));
    assert_eq!(world.code("lone"), Some(ReasonCode::Deadline), "what comes after nothing cleans up nothing");
    assert_eq!((world.state("clean"), world.stops.len()), (NodeState::Pending, 2));
    world.end("lone", stopped());
    world.crash();
    world.end("a", stopped());
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::Deadline)));
    for name in ["clean", "handler"] {
        assert_eq!(world.state(name), NodeState::Dispatched, "{name} has its turn");
        world.succeed(name);
        assert_eq!(world.state(name), NodeState::Completed, "{name}");
    }
    assert_eq!(world.status(), FlowStatus::Error, "a deadline is the flow's own");
}

#[test]
fn what_cleans_up_and_is_under_way_outlives_the_deadline() {
    let mut world = limited(&[spec("a", &[]), cleaning("clean", &["a"])]);
    world.succeed("a");
    world.start("clean");
    world.pass(10.0);
    assert_eq!((world.state("clean"), world.stops.len()), (NodeState::Running, 0));
    world.succeed("clean");
    assert_eq!(world.status(), FlowStatus::Finished, "the work was done in time");
}

#[test]
fn the_time_for_cleaning_up_is_bounded() {
    let mut waits = cleaning("waits", &["a"]);
    waits.prerequisites = vec!["go".parse().unwrap()];
    let mut world = limited(&[spec("a", &[]), cleaning("clean", &["a"]), waits]);
    world.pass(10.0);
    world.end("a", stopped());
    world.start("clean");
    assert_eq!((world.state("clean"), world.state("waits")), (NodeState::Running, NodeState::Pending));
    let end = BEGIN + Duration::from_secs(10 + u64::from(CLEAN_UP_SECS));
    assert!(world.due.is_some_and(|due| due <= end));
    world.pass(f64::from(CLEAN_UP_SECS) - 1.0);
    assert_eq!((world.state("clean"), world.state("waits")), (NodeState::Running, NodeState::Pending));
    // The owner that takes over finds both times passed.
    world.crash();
    world.pass(1.0);
    assert_eq!((world.state("waits"), world.code("waits")), (NodeState::Failed, Some(ReasonCode::Deadline)));
    assert_eq!((world.state("clean"), world.code("clean")), (NodeState::Running, Some(ReasonCode::Deadline)));
    world.end("clean", stopped());
    assert_eq!((world.state("clean"), world.status()), (NodeState::Failed, FlowStatus::Error));
}

#[test]
fn a_missing_key_fails_the_node_by_name() {
    let mut b = spec("b", &["a"]);
    b.job.env_vars = [("X".to_owned(), "${{ results.a.rows }}".to_owned())].into();
    let specs = [spec("a", &[]), b];
    let mut world = World::started(&specs);
    world.end("a", succeeded(&[("lines", "3")]));
    assert_eq!((world.state("b"), world.code("b")), (NodeState::Failed, Some(ReasonCode::MissingResult)));
    assert_eq!(world.node("b").reason.as_ref().unwrap().detail, "`a` completed without giving `rows`");
    assert_eq!(world.sent.len(), 1);
}

#[test]
fn inputs_have_a_limit() {
    let names: Vec<String> = (0..17).map(|i| format!("n{i}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut specs: Vec<_> = all.iter().map(|name| spec(name, &[])).collect();
    specs.push(spec("join", &all));
    let mut world = World::started(&specs);
    let large = "x".repeat(RESULT_BYTES_MAX - 20);
    for name in &all {
        world.end(name, succeeded(&[("k", &large)]));
    }
    assert_eq!(
        (world.state("join"), world.code("join")),
        (NodeState::Failed, Some(ReasonCode::InputsTooLarge))
    );
}

#[test]
fn a_result_that_does_not_fit_is_cut() {
    let specs: Vec<_> = (0..6).map(|i| spec(&format!("n{i}"), &[])).collect();
    let mut world = World::started(&specs);
    let large = "x".repeat(RESULT_BYTES_MAX - 100);
    for i in 0..6 {
        world.end(&format!("n{i}"), succeeded(&[("k", &large), ("s", "1")]));
    }
    let flow = world.engine.flow();
    assert!(flow.result_truncated);
    assert_eq!(flow.result.len(), 4 + 6, "what is small fits all the same");
    assert!(serde_json::to_string(&flow.result).unwrap().len() <= FLOW_RESULT_BYTES_MAX);
}

#[test]
fn an_execution_carries_what_the_attempt_needs() {
    let blob = |text: &str| BlobRef { sha256: BlobHash::of(text.as_bytes()), size: 1 };
    let mut b = spec("b", &["a", "gone"]);
    b.run_if = RunIf::AllDone;
    let mut c = spec("c", &["b"]);
    c.job.env_vars = [
        ("OWN".to_owned(), "${{ results.a.rows }}|${{ results.gone.x }}|${{ results.b.k }}".to_owned()),
        ("BOTH".to_owned(), "job".to_owned()),
    ]
    .into();
    c.job.files = [("own.txt".to_owned(), blob("own"))].into();
    b.job.outputs = vec!["made.txt".into()];
    let mut with_env = flow(4);
    with_env.env_vars =
        [("BOTH".to_owned(), "flow".to_owned()), ("ID".to_owned(), "${{ flow.id }}".to_owned())].into();
    let mut world = World::new(with_env, &[spec("a", &[]), spec("gone", &[]), b, c]);
    world.feed([FlowEngineInput::Start]);
    world.end("a", succeeded(&[("rows", "3"), ("unasked", "x")]));
    world.end("gone", failed(1));
    let mut end = ended(model::execution::Outcome::Succeeded, Some(0));
    end.result = [("k".to_owned(), "v".to_owned()), ("l".to_owned(), "w".to_owned())].into();
    end.outputs = [("made.txt".to_owned(), blob("made"))].into();
    world.end("b", ReportKind::Ended(Box::new(end)));
    let execution = world.engine.execution(world.index("c"));
    let inputs: Vec<String> =
        execution.inputs.iter().map(|(node, result)| format!("{node}: {result:?}")).collect();
    assert_eq!(inputs, ["a: {\"rows\": \"3\"}", "b: {\"k\": \"v\", \"l\": \"w\"}"]);
    let files: Vec<_> = execution.files.iter().map(|(path, file)| (path.as_str(), file.blob)).collect();
    assert_eq!(files, [("made.txt", blob("made")), ("own.txt", blob("own"))]);
    let env = template::render(&execution).unwrap();
    assert_eq!((env["OWN"].as_str(), env["BOTH"].as_str(), env["ID"].as_str()), ("3||v", "job", "1"));
}

#[test]
fn a_flow_is_loaded_only_when_it_is_right() {
    let violations = Engine::new(CONTEXT, flow(1), &[spec("a", &["b"])]).expect_err("no such node");
    assert_eq!(violations.as_slice()[0].field, "nodes[0].depends[0]");
    let violations = Engine::new(CONTEXT, flow(2), &[spec("a", &[])]).expect_err("ids and nodes differ");
    assert_eq!(violations.as_slice()[0].field, "jobs");
}

#[test]
fn the_reason_of_an_end_lists_the_killed_processes() {
    for cancelled in [false, true] {
        let mut world = World::started(&[spec("a", &[])]);
        world.start("a");
        if cancelled {
            world.feed([CANCEL]);
        }
        let mut end = ended(Outcome::Stopped, None);
        let left = |pid, name: &str| EndedProcess { pid, name: name.to_owned() };
        end.ended = vec![left(7, "sleep"), left(8, "sh")];
        world.end("a", ReportKind::Ended(Box::new(end)));
        let reason = world.node("a").reason.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(reason.ends_with("also killed what it had left running: sleep (7), sh (8)"), "{reason}");
    }
}
