//! Single cases: attempts that are given up, lost, stopped, or found again.

use flow::FlowEngineInput;
use model::{Attempt, FlowStatus, NodeReport, NodeSpec, NodeState, ReasonCode, ReportKind, RunnerId};

use crate::world::{
    RUNNER, World, failed, flow, rejected, report, source, spec, started, stopped, succeeded,
};

fn accepted() -> ReportKind {
    ReportKind::Accepted { supervisor: "s".into() }
}

fn retried(name: &str, retries: u32) -> NodeSpec {
    let mut node = spec(name, &[]);
    node.policy.retries = retries;
    node
}

fn limited(name: &str, retries: u32) -> NodeSpec {
    let mut node = retried(name, retries);
    node.policy.timeout_result = 10;
    node
}

fn report_from(mut report: NodeReport, address: &str) -> FlowEngineInput {
    report.source = Some(source(address));
    FlowEngineInput::Report(report)
}

#[test]
fn the_next_attempt_waits_until_the_last_one_has_ended() {
    // A success comes too late as well.
    for kind in [stopped(), failed(1), succeeded(&[]), rejected(true, true), ReportKind::Returned] {
        let mut world = World::started(&[limited("a", 1)]);
        world.pass(10.0);
        assert_eq!(
            (world.state("a"), world.code("a")),
            (NodeState::Dispatched, Some(ReasonCode::TimeoutResult))
        );
        assert_eq!((world.node("a").expired_time, world.stops.len()), (Some(world.now), 1));
        assert_eq!((world.stops[0].runner, world.stops[0].grace_secs), (Some(RUNNER), 5));
        world.crash();
        world.feed([]);
        assert_eq!(world.stops.len(), 2, "the next owner asks again");
        world.end("a", kind);
        assert_eq!((world.state("a"), world.node("a").attempt), (NodeState::Ready, Attempt(2)));
        let node = world.node("a");
        assert_eq!((node.expired_time, node.unconfirmed, node.tries), (None, false, 1));
        assert_eq!(node.reason.as_ref().unwrap().detail, "TIMEOUT_RESULT: within 10 s");
        world.pass(60.0);
        world.succeed("a");
        assert_eq!(world.status(), FlowStatus::Finished);
    }
}

#[test]
fn without_a_word_an_expired_attempt_is_closed_after_a_while() {
    let mut world = World::started(&[limited("a", 0), limited("b", 1)]);
    world.pass(10.0);
    world.pass(29.9);
    assert_eq!(world.state("a"), NodeState::Dispatched);
    world.pass(0.1);
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::TimeoutResult)));
    assert!(world.node("a").unconfirmed);
    let (a, b) = (world.node("a"), world.node("b"));
    assert_eq!(a.reason.as_ref().unwrap().detail, "within 10 s, not confirmed to have stopped");
    assert_eq!((b.state, b.attempt, b.unconfirmed), (NodeState::Ready, Attempt(2), false));
}

#[test]
fn an_attempt_that_is_not_accepted_expires() {
    let mut silent = retried("silent", 0);
    silent.policy.timeout_ack = 10;
    let mut accepting = retried("heard", 0);
    accepting.policy.timeout_ack = 10;
    let mut world = World::started(&[silent, accepting]);
    world.end("heard", accepted());
    world.pass(69.9);
    assert_eq!(world.node("silent").expired_time, None);
    world.pass(0.1);
    assert_eq!(world.code("silent"), Some(ReasonCode::TimeoutAck));
    assert_eq!((world.node("heard").expired_time, world.stops.len()), (None, 1));
    world.end("silent", ReportKind::Unknown);
    assert_eq!(world.state("silent"), NodeState::Dispatched, "it may still be on its way");
    world.pass(30.0);
    assert_eq!(world.state("silent"), NodeState::Failed);
}

#[test]
fn each_report_that_an_expired_attempt_lives_sends_another_stop() {
    let mut world = World::started(&[limited("a", 0)]);
    world.pass(10.0);
    world.end("a", accepted());
    world.start("a");
    assert_eq!((world.state("a"), world.stops.len()), (NodeState::Running, 3));
    assert_eq!(world.code("a"), Some(ReasonCode::TimeoutResult));
    world.end("a", stopped());
    assert_eq!((world.state("a"), world.node("a").unconfirmed), (NodeState::Failed, false));
}

#[test]
fn a_cancel_goes_before_an_expiry_and_a_deadline_before_other_times() {
    let mut limited_flow = flow(3);
    let mut world = World::new(flow(1), &[spec("a", &[])]);
    limited_flow.deadline = Some(world.now + std::time::Duration::from_secs(20));
    let specs = [limited("a", 3), limited("b", 3), limited("c", 3)];
    world = World::new(limited_flow, &specs);
    world.feed([FlowEngineInput::Start]);
    world.pass(10.0);
    let (a, b) = (world.node("a").job_id, world.node("b").job_id);
    world.feed([FlowEngineInput::CancelNode(a)]);
    world.pass(10.0);
    assert_eq!(
        (world.code("a"), world.code("b")),
        (Some(ReasonCode::NodeCancelled), Some(ReasonCode::Deadline))
    );
    world.feed([FlowEngineInput::CancelNode(b)]);
    for name in ["a", "b"] {
        world.end(name, stopped());
    }
    assert_eq!(world.state("a"), NodeState::Cancelled);
    assert_eq!((world.state("b"), world.code("b")), (NodeState::Failed, Some(ReasonCode::Deadline)));
    world.pass(30.0);
    assert_eq!((world.state("c"), world.node("c").attempt), (NodeState::Failed, Attempt(1)));
    assert_eq!(world.status(), FlowStatus::Error);
}

#[test]
fn a_lost_supervisor_ends_what_it_had() {
    let specs = [retried("a", 1), limited("b", 0), retried("c", 0), retried("d", 0), retried("e", 0)];
    let mut world = World::started(&specs);
    let c = world.node("c").job_id;
    world.feed([FlowEngineInput::CancelNode(c)]);
    world.start("a");
    world.end("d", accepted());
    world.pass(10.0);
    world.feed([FlowEngineInput::SupervisorLost(RunnerId(77))]);
    assert_eq!(world.state("d"), NodeState::Dispatched);
    world.budget = 1;
    world.feed([FlowEngineInput::SupervisorLost(RUNNER)]);
    assert_eq!((world.state("b"), world.code("b")), (NodeState::Failed, Some(ReasonCode::TimeoutResult)));
    assert_eq!((world.state("c"), world.node("c").unconfirmed), (NodeState::Cancelled, true));
    for name in ["a", "d", "e"] {
        let node = world.node(name);
        assert_eq!((node.state, node.tries, node.losses), (NodeState::Ready, 0, 1), "{name}");
        let detail = "SUPERVISOR_LOST: nothing was heard of runner 9, loss 1 of 3";
        assert_eq!(node.reason.as_ref().unwrap().detail, detail);
    }
}

#[test]
fn what_a_supervisor_does_not_know_is_lost_once_it_had_accepted_it() {
    let mut world = World::started(&[retried("sent", 0), retried("queued", 0), retried("runs", 1)]);
    world.end("queued", accepted());
    world.start("runs");
    for name in ["sent", "queued", "runs"] {
        world.end(name, ReportKind::Unknown);
    }
    assert_eq!(world.state("sent"), NodeState::Dispatched);
    for name in ["queued", "runs"] {
        let node = world.node(name);
        assert_eq!((node.state, node.tries, node.losses), (NodeState::Ready, 0, 1), "{name}");
    }
}

#[test]
fn a_second_cancel_can_only_be_faster() {
    let mut world = World::started(&[spec("a", &[]), spec("b", &[])]);
    let b = world.node("b").job_id;
    world.feed([FlowEngineInput::CancelNode(b)]);
    let graces = |world: &World| world.stops.iter().map(|stop| stop.grace_secs).collect::<Vec<_>>();
    world.feed([FlowEngineInput::CancelFlow { grace_secs: 60 }]);
    assert_eq!(graces(&world), [5, 60]);
    world.feed([FlowEngineInput::CancelFlow { grace_secs: 90 }]);
    assert_eq!(world.stops.len(), 2);
    world.feed([FlowEngineInput::CancelFlow { grace_secs: 0 }]);
    assert_eq!(graces(&world), [5, 60, 0, 0]);
    assert_eq!(world.engine.flow().cancel_grace_secs, 0);
}

#[test]
fn what_lives_though_it_was_closed_is_stopped_where_it_is() {
    let mut world = World::started(&[retried("a", 1)]);
    let first = world.engine.job_key(world.index("a"));
    world.end("a", failed(1));
    let step = world.step(&mut [report_from(report(first, started(world.now)), "grpc://elsewhere")].into());
    assert!(step.is_unchanged() && step.stale[0].alive);
    let stop = &step.stops[0];
    assert_eq!(
        (stop.job_key, stop.runner, stop.source.clone()),
        (first, None, Some(source("grpc://elsewhere")))
    );
    let step = world.step(&mut [report_from(report(first, succeeded(&[])), "grpc://elsewhere")].into());
    assert!(step.stops.is_empty() && !step.stale[0].alive);
}

/// A flow of `a` and then `b`, whose store went back to before the first `steps` of its last.
fn gone_back(specs: &[NodeSpec], steps: usize, play: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(flow(specs.len()), specs);
    world.keeps_past = true;
    world.feed([FlowEngineInput::Start]);
    play(&mut world);
    world.go_back(steps);
    world.sent.clear();
    world.place.live = false;
    world.feed([]);
    world
}

#[test]
fn an_end_whose_dispatch_was_lost_is_taken_up() {
    // The store has the node READY, without a place.
    let mut world = World::new(flow(1), &[spec("a", &[])]);
    world.keeps_past = true;
    world.place.live = false;
    world.feed([FlowEngineInput::Start]);
    world.place.live = true;
    world.feed([FlowEngineInput::Wake]);
    let key = world.sent[0];
    world.place.live = false;
    world.go_back(1);
    assert_eq!(world.state("a"), NodeState::Ready);
    world.feed([report_from(report(key, started(world.now)), "grpc://known")]);
    assert_eq!((world.state("a"), world.node("a").runner), (NodeState::Running, Some(RUNNER)));
    assert_eq!(world.sent.len(), 1, "it is not sent again");
    world.succeed("a");
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn a_report_waits_until_its_node_may_run() {
    let specs = [spec("a", &[]), spec("b", &["a"])];
    let mut sent = Vec::new();
    let mut world = gone_back(&specs, 1, |world| {
        world.succeed("a");
        sent.clone_from(&world.sent);
    });
    assert_eq!((world.state("a"), world.state("b")), (NodeState::Dispatched, NodeState::Pending));
    let step = world.step(
        &mut [
            report_from(report(sent[1], started(world.now)), "grpc://elsewhere"),
            report_from(report(sent[1], started(world.now)), "grpc://elsewhere"),
            report_from(report(sent[1], succeeded(&[("k", "v")])), "grpc://elsewhere"),
        ]
        .into(),
    );
    assert!(step.is_unchanged() && !step.rests);
    world.succeed("a");
    assert_eq!((world.state("b"), world.status()), (NodeState::Completed, FlowStatus::Finished));
    assert_eq!((world.sent.len(), world.node("b").result.len()), (0, 1));
}

#[test]
fn what_was_kept_of_a_node_that_does_not_run_is_stopped() {
    let specs = [spec("a", &[]), spec("b", &["a"])];
    let mut sent = Vec::new();
    let mut world = gone_back(&specs, 1, |world| {
        world.succeed("a");
        sent.clone_from(&world.sent);
    });
    world.feed([report_from(report(sent[1], accepted()), "grpc://elsewhere")]);
    world.end("a", failed(1));
    assert_eq!(world.state("b"), NodeState::Skipped);
    assert_eq!((world.stops.len(), world.stops[0].job_key), (1, sent[1]));
}

#[test]
fn an_attempt_found_at_an_unknown_place_is_stopped_there() {
    let mut world = gone_back(&[spec("a", &[])], 1, |_| {});
    let key = world.engine.job_key(world.index("a"));
    world.feed([FlowEngineInput::Start, report_from(report(key, accepted()), "grpc://elsewhere")]);
    assert_eq!((world.state("a"), world.node("a").runner), (NodeState::Dispatched, None));
    world.feed([FlowEngineInput::CancelFlow { grace_secs: 5 }]);
    assert_eq!(world.stops[0].source, Some(source("grpc://elsewhere")));
}

#[test]
fn a_later_attempt_than_the_stored_one_closes_that() {
    for state in [NodeState::Ready, NodeState::Running] {
        let mut sent = Vec::new();
        let mut world = gone_back(&[retried("a", 2)], 2, |world| {
            world.start("a");
            world.end("a", failed(1));
            world.pass(60.0);
            sent.clone_from(&world.sent);
        });
        if state == NodeState::Ready {
            world.end("a", failed(2));
        }
        assert_eq!((world.state("a"), world.node("a").tries), (state, u32::from(state == NodeState::Ready)));
        world.place.live = true;
        world.feed([report_from(report(sent[1], started(world.now)), "grpc://known")]);
        let a = world.node("a");
        assert_eq!((a.state, a.attempt, a.tries), (NodeState::Running, Attempt(2), 1));
        assert!(world.sent.is_empty());
        assert_eq!(world.stops.len(), usize::from(state == NodeState::Running), "the one before is stopped");
        world.succeed("a");
        assert_eq!(world.status(), FlowStatus::Finished);
    }
}

#[test]
fn an_attempt_that_cannot_be_is_stale() {
    let mut world = World::started(&[retried("a", 2), spec("done", &[]), spec("ends", &[])]);
    world.succeed("done");
    let ends = world.node("ends").job_id;
    world.feed([FlowEngineInput::CancelNode(ends)]);
    let later = |world: &World, name: &str, by: u32| {
        let mut key = world.engine.job_key(world.index(name));
        key.attempt.0 += by;
        report_from(report(key, started(world.now)), "grpc://elsewhere")
    };
    let mut inputs = [later(&world, "a", 1000), later(&world, "done", 1), later(&world, "ends", 1)].into();
    let step = world.step(&mut inputs);
    assert!(step.is_unchanged());
    assert_eq!((step.stale.len(), step.stops.len()), (3, 3));
}
