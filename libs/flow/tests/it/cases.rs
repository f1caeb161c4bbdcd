//! Single cases: order, branches, tries, places and reports.

use flow::FlowEngineInput;
use model::execution::Outcome;
use model::limits::RESULT_BYTES_MAX;
use model::{Attempt, FlowStatus, NodeState, Reason, ReasonCode, ReportKind, RunIf};

use crate::world::{World, ended, failed, rejected, report, spec, started, stopped, succeeded};

#[test]
fn a_diamond_runs_in_order() {
    let mut world =
        World::started(&[spec("a", &[]), spec("b", &["a"]), spec("c", &["a"]), spec("d", &["b", "c"])]);
    assert_eq!(world.sent.len(), 1);
    world.start("a");
    assert_eq!(world.state("a"), NodeState::Running);
    world.succeed("a");
    assert_eq!((world.state("b"), world.state("c")), (NodeState::Dispatched, NodeState::Dispatched));
    world.succeed("c");
    assert_eq!(world.state("d"), NodeState::Pending);
    world.succeed("b");
    assert_eq!(world.state("d"), NodeState::Dispatched);
    world.end("d", succeeded(&[("k", "1")]));
    assert_eq!(world.status(), FlowStatus::Finished);
    assert_eq!(world.engine.flow().result, [("d.k".to_owned(), "1".to_owned())].into());
}

#[test]
fn start_and_end_may_arrive_together() {
    let mut world = World::started(&[spec("a", &[])]);
    let inputs = [world.report("a", started(world.now)), world.report("a", succeeded(&[]))];
    world.feed(inputs);
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn a_branch_joins_again() {
    let mut other = spec("other", &["a"]);
    other.run_if = RunIf::AnyFailed;
    let mut join = spec("join", &["b", "other"]);
    join.run_if = RunIf::NoneFailed;
    let mut world =
        World::started(&[spec("a", &[]), spec("b", &["a"]), other, spec("after", &["other"]), join]);
    world.succeed("a");
    assert_eq!(
        (world.state("other"), world.code("other")),
        (NodeState::Skipped, Some(ReasonCode::ConditionNotMet))
    );
    assert_eq!(world.code("after"), Some(ReasonCode::ConditionNotMet));
    world.succeed("b");
    world.succeed("join");
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn a_failure_travels_as_a_skip_and_wakes_the_clean_up() {
    let mut clean = spec("clean", &["c"]);
    clean.run_if = RunIf::AnyFailed;
    let mut world = World::started(&[spec("a", &[]), spec("b", &["a"]), spec("c", &["b"]), clean]);
    world.end("a", failed(3));
    assert_eq!(world.node("a").exit_code, Some(3));
    assert_eq!(world.code("b"), Some(ReasonCode::UpstreamFailed));
    assert_eq!(world.code("c"), Some(ReasonCode::UpstreamFailed));
    assert_eq!(world.state("clean"), NodeState::Dispatched);
    world.succeed("clean");
    assert_eq!(world.status(), FlowStatus::Error, "a clean-up does not excuse the failure");
}

#[test]
fn an_allowed_failure_does_not_fail_the_flow() {
    let mut a = spec("a", &[]);
    a.allow_failure = true;
    let mut world = World::started(&[a, spec("b", &["a"])]);
    world.end("a", failed(1));
    assert_eq!((world.state("b"), world.status()), (NodeState::Skipped, FlowStatus::Finished));
}

#[test]
fn tries_back_off_and_run_out() {
    let mut a = spec("a", &[]);
    a.policy.retries = 2;
    let mut world = World::started(&[a]);
    for (tries, wait) in [(1, 0.5), (2, 1.0)] {
        world.end("a", failed(1));
        assert_eq!((world.state("a"), world.code("a")), (NodeState::Ready, Some(ReasonCode::BackingOff)));
        assert_eq!((world.node("a").tries, world.node("a").attempt), (tries, Attempt(tries + 1)));
        assert_eq!(world.due, world.node("a").not_before_time);
        world.pass(wait - 0.001);
        assert_eq!(world.state("a"), NodeState::Ready);
        world.crash();
        world.pass(0.001);
        assert_eq!((world.state("a"), world.code("a")), (NodeState::Dispatched, None));
    }
    world.end("a", failed(1));
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::ExitCode)));
    assert_eq!(world.sent.len(), 3);
    assert_eq!(world.status(), FlowStatus::Error);
}

#[test]
fn some_exit_codes_are_not_tried_again() {
    let mut a = spec("a", &[]);
    a.policy.retries = 5;
    a.policy.no_retry_exit_codes = vec![2];
    let mut world = World::started(&[a]);
    world.end("a", failed(2));
    assert_eq!(world.state("a"), NodeState::Failed);
}

#[test]
fn what_comes_back_unstarted_is_no_try() {
    let mut world = World::started(&[spec("a", &[])]);
    world.end("a", ReportKind::Returned);
    assert_eq!((world.state("a"), world.node("a").attempt), (NodeState::Dispatched, Attempt(2)));
    world.end("a", rejected(false, false));
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Ready, Some(ReasonCode::BackingOff)));
    world.pass(60.0);
    assert_eq!((world.node("a").attempt, world.node("a").tries), (Attempt(3), 0));
    world.end("a", rejected(false, true));
    assert_eq!(world.state("a"), NodeState::Failed, "a delivery that failed is a try");
}

#[test]
fn what_a_full_disk_kept_from_running_is_no_try() {
    let full = |start_time| {
        let mut end = ended(Outcome::Failed, None);
        (end.reason, end.start_time) = (Some(Reason::new(ReasonCode::DiskFull, "no room")), start_time);
        ReportKind::Ended(Box::new(end))
    };
    let mut world = World::started(&[spec("a", &[])]);
    for attempt in 2..=4 {
        if attempt > 2 {
            world.start("a");
        }
        world.end("a", full(None));
        let node = world.node("a");
        assert_eq!((node.state, node.attempt, node.tries), (NodeState::Ready, Attempt(attempt), 0));
        let reason = node.reason.as_ref().map(ToString::to_string);
        assert_eq!(reason.as_deref(), Some("BACKING_OFF: DISK_FULL: no room"));
        world.crash();
        world.pass(60.0);
        assert_eq!(world.state("a"), NodeState::Dispatched);
    }
    world.start("a");
    world.end("a", full(Some(world.now)));
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::DiskFull)));
}

#[test]
fn a_lasting_refusal_fails_at_once() {
    let mut a = spec("a", &[]);
    a.policy.retries = 5;
    let mut world = World::started(&[a]);
    world.end("a", rejected(true, true));
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::Refused)));
}

#[test]
fn a_node_without_a_live_runner_waits_with_that_reason() {
    let mut world = World::new(crate::world::flow(2), &[spec("a", &[]), spec("b", &[])]);
    world.place.live = false;
    world.feed([FlowEngineInput::Start]);
    assert_eq!((world.state("a"), world.code("b")), (NodeState::Ready, Some(ReasonCode::NoLiveRunner)));
    assert_eq!(world.node("a").reason.as_ref().unwrap().detail, "nobody is there");
    let step = world.step(&mut [FlowEngineInput::Wake].into());
    assert!(step.is_unchanged() && !step.more, "the wait is noted once");
    world.crash();
    let step = world.step(&mut [].into());
    assert!(step.is_unchanged() && !step.more);
    world.place.live = true;
    world.feed([]);
    assert_eq!(world.state("a"), NodeState::Ready, "nobody said that a place turned up");
    world.feed([FlowEngineInput::Wake]);
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Dispatched, None));
    assert_eq!(world.state("b"), NodeState::Dispatched);
}

#[test]
fn a_place_found_for_one_serves_those_that_wait() {
    let mut world = World::started(&[spec("a", &[]), spec("b", &["a"]), spec("c", &[]), spec("d", &["c"])]);
    world.place.live = false;
    world.succeed("a");
    assert_eq!(world.state("b"), NodeState::Ready);
    world.place.live = true;
    world.succeed("c");
    assert_eq!((world.state("b"), world.state("d")), (NodeState::Dispatched, NodeState::Dispatched));
}

#[test]
fn what_has_waited_for_a_place_goes_before_what_is_ready_now() {
    let specs = [spec("a", &[]), spec("b", &[]), spec("late", &["a"]), spec("waits", &["b"])];
    let mut world = World::started(&specs);
    world.place.live = false;
    world.succeed("b");
    assert_eq!(world.code("waits"), Some(ReasonCode::NoLiveRunner));
    world.place.live = true;
    let ends = world.report("a", succeeded(&[]));
    world.feed([ends, FlowEngineInput::Wake]);
    let sent: Vec<_> = world.sent[2..].iter().map(|key| key.job).collect();
    assert_eq!(sent, [world.node("waits").job_id, world.node("late").job_id]);
}

#[test]
fn nodes_for_one_runner_travel_together() {
    let mut world = World::new(crate::world::flow(3), &[spec("a", &[]), spec("b", &[]), spec("c", &[])]);
    let step = world.step(&mut [FlowEngineInput::Start].into());
    assert_eq!(step.dispatches.len(), 1);
    assert_eq!(step.dispatches[0].nodes.len(), 3);
    assert_eq!(step.flow_transitions, [(FlowStatus::Created, FlowStatus::Started)]);
}

#[test]
fn reports_of_closed_attempts_are_stale() {
    let mut a = spec("a", &[]);
    a.policy.retries = 1;
    let mut world = World::started(&[a, spec("b", &["a"])]);
    let first = world.engine.job_key(world.index("a"));
    world.end("a", failed(1));
    let mut inputs = [
        FlowEngineInput::Report(report(first, succeeded(&[]))),
        FlowEngineInput::Report(report(first, started(world.now))),
    ]
    .into();
    let step = world.step(&mut inputs);
    assert!(step.is_unchanged());
    let alive: Vec<bool> = step.stale.iter().map(|stale| stale.alive).collect();
    assert_eq!(alive, [false, true], "what was closed but lives should be stopped");
    let mut elsewhere = first;
    elsewhere.flow = model::FlowUid(model::id::Uid::from_bits(77));
    let step = world.step(&mut [FlowEngineInput::Report(report(elsewhere, started(world.now)))].into());
    assert!(step.is_unchanged() && !step.stale[0].alive);
    world.pass(60.0);
    world.succeed("a");
    let mut again = [world.report("a", succeeded(&[]))].into();
    assert_eq!(world.step(&mut again).stale.len(), 1);
}

#[test]
fn a_second_start_and_a_refusal_of_what_runs_change_nothing() {
    let mut world = World::started(&[spec("a", &[])]);
    world.start("a");
    let mut inputs = [
        world.report("a", started(world.now)),
        world.report("a", rejected(true, true)),
        world.report("a", ReportKind::Returned),
    ]
    .into();
    let step = world.step(&mut inputs);
    assert!(step.is_unchanged());
    assert_eq!(step.stale.len(), 3);
}

#[test]
fn what_is_not_legal_is_refused_and_changes_nothing() {
    let mut world = World::new(crate::world::flow(1), &[spec("a", &[])]);
    let step = world.step(&mut [FlowEngineInput::CancelFlow { grace_secs: 5 }].into());
    assert_eq!((step.refused.len(), step.is_unchanged()), (1, true), "it has not begun");
    world.feed([FlowEngineInput::Start]);
    let step = world.step(&mut [FlowEngineInput::Start].into());
    assert_eq!((step.refused.len(), step.is_unchanged()), (1, true));
    world.succeed("a");
    // That it has ended meanwhile nobody could know.
    let node = world.node("a").job_id;
    let step = world
        .step(&mut [FlowEngineInput::CancelNode(node), FlowEngineInput::CancelFlow { grace_secs: 5 }].into());
    assert_eq!((step.refused.len(), step.is_unchanged()), (0, true));
}

#[test]
fn a_result_beyond_its_limit_fails_the_node() {
    let mut a = spec("a", &[]);
    a.policy.retries = 3;
    let mut world = World::started(&[a]);
    world.end("a", succeeded(&[("k", &"x".repeat(RESULT_BYTES_MAX))]));
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::ResultTooLarge)));
}

#[test]
fn a_stop_at_the_supervisor_counts_as_a_failed_try() {
    let mut a = spec("a", &[]);
    a.policy.retries = 1;
    let mut world = World::started(&[a, spec("b", &["a"])]);
    world.end("a", stopped());
    assert_eq!((world.state("a"), world.node("a").tries), (NodeState::Ready, 1));
    world.pass(60.0);
    world.end("a", stopped());
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::Stopped)));
    assert_eq!((world.code("b"), world.status()), (Some(ReasonCode::UpstreamFailed), FlowStatus::Error));
}
