//! Flows of the largest size, in steps of a bounded size.

use std::collections::VecDeque;

use flow::FlowEngineInput;
use model::limits::FLOW_NODES_MAX;
use model::{FlowStatus, NodeSpec, NodeState};

use crate::world::{World, flow, report, spec, succeeded};

/// A start, `width` nodes after it, and a join.
fn fan(width: usize) -> Vec<NodeSpec> {
    let names: Vec<String> = (0..width).map(|i| format!("n{i}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let middle = names.iter().map(|name| spec(name, &["start"]));
    [spec("start", &[])].into_iter().chain(middle).chain([spec("join", &all)]).collect()
}

/// Steps until nothing is to do at once; gives how many nodes each step changed.
fn steps(world: &mut World, inputs: impl IntoIterator<Item = FlowEngineInput>) -> Vec<usize> {
    let mut inputs: VecDeque<FlowEngineInput> = inputs.into_iter().collect();
    let mut counts = Vec::new();
    loop {
        let step = world.step(&mut inputs);
        counts.push(step.changed.len());
        if !step.more {
            return counts;
        }
    }
}

#[test]
fn a_fan_out_is_derived_in_steps_of_the_budget() {
    let mut world = World::started(&fan(2000));
    let start = world.report("start", succeeded(&[]));
    assert_eq!(steps(&mut world, [start]), [500, 500, 500, 500, 1]);
    let sent: Vec<_> = world.sent.drain(1..).collect();
    assert_eq!(sent.len(), 2000);
    let ends = sent.into_iter().map(|key| FlowEngineInput::Report(report(key, succeeded(&[]))));
    assert_eq!(steps(&mut world, ends), [500, 500, 500, 500, 1]);
    world.succeed("join");
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn an_owner_that_dies_within_a_fan_out_loses_nothing() {
    let mut world = World::started(&fan(2000));
    let mut inputs = VecDeque::from([world.report("start", succeeded(&[]))]);
    while world.step(&mut inputs).more {
        world.crash();
    }
    assert_eq!(world.sent.len(), 2001);
}

#[test]
fn the_largest_flow_is_cancelled_in_pieces() {
    let mut specs = fan(FLOW_NODES_MAX - 2);
    specs[FLOW_NODES_MAX - 1].run_if = model::RunIf::AllDone;
    let mut world = World::new(flow(FLOW_NODES_MAX), &specs);
    world.feed([FlowEngineInput::Start]);
    world.end("start", succeeded(&[]));
    assert_eq!(world.sent.len(), FLOW_NODES_MAX - 1);
    let counts = steps(&mut world, [FlowEngineInput::CancelFlow { grace_secs: 5 }]);
    assert!(counts.iter().all(|&count| count <= 500), "{counts:?}");
    assert_eq!(world.stops.len(), FLOW_NODES_MAX - 2);
    world.pass(30.0);
    assert_eq!(world.status(), FlowStatus::Cancelled);
    assert_eq!(world.state("join"), NodeState::Cancelled);
}
