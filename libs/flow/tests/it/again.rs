//! Single cases: a flow that is run again.

use flow::{FlowEngineInput, rerun};
use model::{Attempt, FlowStatus, Generation, JobId, NodeSpec, NodeState, ReasonCode, Rerun, RunIf};

use crate::world::{World, failed, flow, spec, stopped, succeeded};

/// `ok` and `bad`, a node after each, a clean-up, and a join.
fn specs() -> Vec<NodeSpec> {
    let mut clean = spec("clean", &["bad"]);
    clean.run_if = RunIf::AnyFailed;
    let mut join = spec("join", &["after_ok", "clean"]);
    join.run_if = RunIf::AllDone;
    vec![
        spec("ok", &[]),
        spec("bad", &[]),
        spec("after_ok", &["ok"]),
        spec("after_bad", &["bad"]),
        clean,
        join,
    ]
}

/// Run once: `bad` failed.
fn failed_once() -> World {
    let mut world = World::started(&specs());
    world.end("ok", succeeded(&[("k", "1")]));
    world.end("bad", failed(3));
    for name in ["after_ok", "clean", "join"] {
        world.succeed(name);
    }
    assert_eq!(world.status(), FlowStatus::Error);
    world
}

fn chosen(world: &World, rerun: &Rerun) -> Vec<String> {
    let nodes: Vec<_> = world.engine.nodes().iter().collect();
    let chosen = rerun::select(world.engine.graph(), &nodes, rerun);
    let named = world.engine.nodes().iter().zip(chosen).filter(|(_, chosen)| *chosen);
    let mut names: Vec<String> = named.map(|(node, _)| node.name.to_string()).collect();
    names.sort();
    names
}

#[test]
fn a_selection_is_closed_downwards() {
    let world = failed_once();
    assert_eq!(chosen(&world, &Rerun::Failed), ["after_bad", "bad", "clean", "join"]);
    assert_eq!(chosen(&world, &Rerun::All).len(), 6);
    let jobs = vec![world.node("after_ok").job_id, JobId(4711)];
    assert_eq!(chosen(&world, &Rerun::From { jobs }), ["after_ok", "join"]);
}

#[test]
fn what_failed_is_run_again_and_the_rest_is_reused() {
    let mut world = failed_once();
    world.run_again(Rerun::Failed, |flow| {
        flow.env_vars.insert("FIXED".into(), "1".into());
    });
    world.sent.clear();
    world.feed([]);
    assert_eq!(world.count_of_generation(2), 4);
    let bad = world.node("bad");
    assert_eq!(
        (bad.state, bad.attempt, bad.tries, bad.generation),
        (NodeState::Dispatched, Attempt(2), 0, Generation(2))
    );
    assert_eq!((bad.exit_code, bad.end_time), (None, None));
    assert_eq!(world.node("after_bad").attempt, Attempt(1), "nobody ever heard of its first");
    assert_eq!((world.state("ok"), world.node("ok").result.len()), (NodeState::Completed, 1));
    assert_eq!(world.sent.len(), 1);
    assert_eq!(world.engine.execution(world.index("bad")).env_vars["FIXED"], "1");
    world.succeed("bad");
    world.succeed("after_bad");
    assert_eq!(
        (world.state("clean"), world.code("clean")),
        (NodeState::Skipped, Some(ReasonCode::ConditionNotMet))
    );
    world.succeed("join");
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn it_begins_in_pieces_that_any_owner_can_go_on_with() {
    for budget in 1..6 {
        let mut world = failed_once();
        world.run_again(Rerun::Failed, |_| {});
        world.sent.clear();
        world.budget = budget;
        let mut reset = 0;
        while reset < 4 {
            world.step_in_vain(&[].into());
            let step = world.step(&mut [].into());
            assert!(step.more || world.count_of_generation(2) == 4, "more is to reset");
            assert!(world.sent.is_empty() || world.count_of_generation(2) == 4, "nothing begins before");
            reset = world.count_of_generation(2);
            world.crash();
        }
        world.feed([]);
        assert_eq!((world.state("bad"), world.sent.len()), (NodeState::Dispatched, 1));
        for name in ["bad", "after_bad", "join"] {
            world.succeed(name);
        }
        assert_eq!(world.status(), FlowStatus::Finished);
    }
}

#[test]
fn inputs_wait_until_all_is_reset() {
    let mut world = failed_once();
    world.run_again(Rerun::All, |_| {});
    world.budget = 2;
    let ok = world.node("ok").job_id;
    let mut inputs = [FlowEngineInput::CancelNode(ok)].into();
    assert!(world.step(&mut inputs).more);
    assert_eq!(inputs.len(), 1);
    while world.step(&mut inputs).more {}
    assert_eq!((inputs.len(), world.code("ok")), (0, Some(ReasonCode::NodeCancelled)));
}

#[test]
fn a_failure_that_is_kept_neither_ends_the_rest_nor_is_forgotten() {
    let mut fast = flow(6);
    fast.fail_fast = true;
    let mut world = World::new(fast, &specs());
    world.feed([FlowEngineInput::Start]);
    world.end("ok", succeeded(&[]));
    world.end("bad", failed(1));
    world.end("after_ok", stopped());
    world.succeed("clean");
    world.succeed("join");
    assert_eq!((world.state("after_ok"), world.status()), (NodeState::Cancelled, FlowStatus::Error));
    let jobs = vec![world.node("after_ok").job_id];
    world.run_again(Rerun::From { jobs }, |_| {});
    world.feed([]);
    assert_eq!(world.state("after_ok"), NodeState::Dispatched);
    world.succeed("after_ok");
    world.succeed("join");
    assert_eq!((world.state("bad"), world.status()), (NodeState::Failed, FlowStatus::Error));
}

#[test]
fn a_flow_can_be_rerun_any_number_of_times() {
    let mut world = failed_once();
    for generation in 2..5 {
        world.run_again(Rerun::Failed, |_| {});
        world.feed([]);
        world.crash();
        world.feed([]);
        assert_eq!(world.node("bad").attempt, Attempt(generation));
        world.end("bad", failed(1));
        world.succeed("clean");
        world.succeed("join");
        assert_eq!(world.status(), FlowStatus::Error);
    }
    world.run_again(Rerun::All, |_| {});
    world.feed([FlowEngineInput::CancelFlow { grace_secs: 0 }]);
    for name in ["ok", "bad"] {
        world.end(name, stopped());
    }
    assert_eq!((world.status(), world.count_of_generation(5)), (FlowStatus::Cancelled, 6));
}

#[test]
fn signals_are_kept_and_prerequisites_looked_at_again() {
    let mut a = spec("a", &[]);
    a.prerequisites = vec!["go".parse().unwrap(), "flow:7".parse().unwrap()];
    let mut world = World::started(&[a]);
    world.signals.insert("go".parse().unwrap());
    let finished = FlowEngineInput::FlowState { flow: model::FlowId(7), status: Some(FlowStatus::Finished) };
    world.feed([FlowEngineInput::Signal("go".parse().unwrap()), finished]);
    world.end("a", failed(1));
    world.run_again(Rerun::Failed, |_| {});
    world.feed([]);
    let a = world.node("a");
    assert_eq!(
        (a.state, a.prerequisites_met.len()),
        (NodeState::Pending, 1),
        "the other flow is asked for again"
    );
    assert_eq!(a.reason.as_ref().unwrap().detail, "for flow:7");
}
