//! Single cases: times of attempts, retries and active nodes, which a step returns for metrics.

use std::collections::VecDeque;
use std::time::Duration;

use flow::{ActiveNodes, AttemptTimes, FlowEngineInput, FlowStepOutput};
use model::execution::Outcome;
use model::{NodeSpec, ReasonCode, ReportKind, Timestamp};

use crate::case::BEGIN;
use crate::world::{RUNNER, World, ended, flow, rejected, spec, started};

fn at(secs: u64) -> Timestamp {
    BEGIN + Duration::from_secs(secs)
}

fn retried() -> NodeSpec {
    let mut node = spec("a", &[]);
    node.policy.retries = 1;
    node
}

/// The end of a script that ran for this time.
fn ran(outcome: Outcome, start: Timestamp, end: Timestamp) -> ReportKind {
    let mut report = ended(outcome, None);
    (report.start_time, report.end_time) = (Some(start), end);
    ReportKind::Ended(Box::new(report))
}

impl World {
    /// One step with a report on the node `a`, so many seconds after the beginning.
    fn step_at(&mut self, secs: u64, kind: ReportKind) -> FlowStepOutput {
        self.now = at(secs);
        let input = self.report("a", kind);
        self.step(&mut VecDeque::from([input]))
    }
}

#[test]
fn a_start_and_an_end_have_their_times_once() {
    let mut world = World::started(&[retried()]);
    let node = world.index("a");
    let start = world.step_at(2, started(at(1)));
    let times = AttemptTimes { node, dispatch_time: Some(BEGIN), start_time: at(1), end_time: None };
    assert_eq!((start.times, start.retries), (vec![times], vec![]));
    assert_eq!(world.step_at(3, started(at(1))).times, [], "a repetition tells nothing new");
    let end = world.step_at(9, ran(Outcome::Failed, at(1), at(8)));
    let times = AttemptTimes { dispatch_time: None, end_time: Some(at(8)), ..times };
    assert_eq!((end.times, end.retries), (vec![times], vec![ReasonCode::RuntimeError]));
}

#[test]
fn an_end_tells_of_a_start_that_was_not_reported() {
    let mut world = World::started(&[spec("a", &[])]);
    let node = world.index("a");
    let end = world.step_at(9, ran(Outcome::Succeeded, at(3), at(8)));
    let times = AttemptTimes { node, dispatch_time: Some(BEGIN), start_time: at(3), end_time: Some(at(8)) };
    assert_eq!((end.times, end.retries), (vec![times], vec![]));
}

#[test]
fn a_lost_attempt_has_no_end_of_its_script() {
    let mut world = World::started(&[retried()]);
    world.start("a");
    let lost = world.step_at(9, ran(Outcome::Lost, BEGIN, at(8)));
    assert_eq!((lost.times, lost.retries), (vec![], vec![ReasonCode::InstanceLost]));
    world.pass(60.0);
    world.start("a");
    let mut inputs = VecDeque::from([FlowEngineInput::SupervisorLost(RUNNER)]);
    let lost = world.step(&mut inputs);
    assert_eq!((lost.times, lost.retries), (vec![], vec![ReasonCode::SupervisorLost]));
}

#[test]
fn what_comes_back_unstarted_is_tried_again_and_has_no_times() {
    let mut world = World::started(&[spec("a", &[])]);
    for (kind, code) in
        [(ReportKind::Returned, ReasonCode::Returned), (rejected(false, false), ReasonCode::Refused)]
    {
        let step = world.step_at(1, kind);
        assert_eq!((step.times, step.retries), (vec![], vec![code]));
    }
}

#[test]
fn active_nodes_are_counted_by_state() {
    let mut world = World::new(flow(2), &[retried(), spec("b", &["a"])]);
    world.place.live = false;
    world.feed([FlowEngineInput::Start]);
    let none = ActiveNodes::default();
    assert_eq!(world.engine.active_nodes(), ActiveNodes { ready: 1, ..none });
    world.place.live = true;
    world.feed([FlowEngineInput::Wake]);
    assert_eq!(world.engine.active_nodes(), ActiveNodes { dispatched: 1, ..none });
    world.start("a");
    assert_eq!(world.engine.active_nodes(), ActiveNodes { running: 1, ..none });
    world.crash();
    assert_eq!(world.engine.active_nodes(), ActiveNodes { running: 1, ..none }, "as it is stored");
    world.succeed("a");
    assert_eq!(world.engine.active_nodes(), ActiveNodes { dispatched: 1, ..none }, "the next one");
    world.succeed("b");
    assert_eq!(world.engine.active_nodes(), none);
}
