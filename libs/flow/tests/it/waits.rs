//! Single cases: conditions and what is waited for outside the flow.

use std::time::Duration;

use flow::FlowEngineInput;
use model::{FlowId, FlowStatus, NodeSpec, NodeState, Prerequisite, ReasonCode, RunIf};

use crate::world::{World, failed, flow, report, spec, succeeded};

fn waiting(name: &str, depends: &[&str], prerequisites: &[&str]) -> NodeSpec {
    let prerequisites = prerequisites.iter().map(|text| text.parse().unwrap()).collect();
    NodeSpec { prerequisites, ..spec(name, depends) }
}

fn when(name: &str, depends: &[&str], text: &str) -> NodeSpec {
    NodeSpec { when: Some(text.to_owned()), ..spec(name, depends) }
}

fn signal(name: &str) -> FlowEngineInput {
    FlowEngineInput::Signal(name.parse().unwrap())
}

fn detail<'a>(world: &'a World, name: &str) -> &'a str {
    &world.node(name).reason.as_ref().unwrap().detail
}

fn state_of(flow: u32, status: Option<FlowStatus>) -> FlowEngineInput {
    FlowEngineInput::FlowState { flow: FlowId(flow), status }
}

#[test]
fn a_condition_lets_a_node_run_or_skips_it() {
    let mut world = World::started(&[
        spec("split", &[]),
        when("many", &["split"], "results.split.rows > 10"),
        when("few", &["split"], "results.split.rows <= 10"),
        when("after", &["few"], "true"),
    ]);
    world.end("split", succeeded(&[("rows", "12")]));
    assert_eq!(world.state("many"), NodeState::Dispatched);
    assert_eq!(
        (world.state("few"), world.code("few")),
        (NodeState::Skipped, Some(ReasonCode::ConditionNotMet))
    );
    assert_eq!(detail(&world, "few"), "`when` is false");
    assert_eq!(world.code("after"), Some(ReasonCode::ConditionNotMet), "`run_if` comes first");
    world.succeed("many");
    assert_eq!(world.status(), FlowStatus::Finished);
}

#[test]
fn a_condition_without_an_answer_fails_its_node() {
    let mut excused = spec("gone", &[]);
    excused.allow_failure = true;
    let mut later = when("later", &["gone"], "results.gone.rows == ()");
    later.run_if = RunIf::AllDone;
    let mut world = World::started(&[
        spec("a", &[]),
        excused,
        when("missing", &["a"], "results.a.lines > 1"),
        when("number", &["a"], "results.a.rows + 1"),
        when("wrong", &["a"], "results.a.kind * 2 > 1"),
        later,
    ]);
    world.end("a", succeeded(&[("rows", "3"), ("kind", "rain")]));
    assert_eq!(
        (world.state("missing"), world.code("missing")),
        (NodeState::Failed, Some(ReasonCode::MissingResult))
    );
    assert_eq!(detail(&world, "missing"), "`a` completed without giving `lines`");
    assert_eq!(
        (world.state("number"), world.code("number")),
        (NodeState::Failed, Some(ReasonCode::WhenFailed))
    );
    assert_eq!(detail(&world, "number"), "`when` gives a number, not true or false");
    assert_eq!(
        (world.state("wrong"), world.code("wrong")),
        (NodeState::Failed, Some(ReasonCode::WhenFailed))
    );
    world.end("gone", failed(1));
    assert_eq!(world.state("later"), NodeState::Dispatched, "a key of what failed is ()");
}

#[test]
fn a_false_condition_goes_before_a_missing_key_of_the_environment() {
    let mut b = when("b", &["a"], "results.a.found");
    b.job.env_vars = [("ROWS".to_owned(), "${{ results.a.rows }}".to_owned())].into();
    let mut world = World::started(&[spec("a", &[]), b.clone()]);
    world.end("a", succeeded(&[("found", "false")]));
    assert_eq!(world.code("b"), Some(ReasonCode::ConditionNotMet));
    let mut world = World::started(&[spec("a", &[]), b]);
    world.end("a", succeeded(&[("found", "true")]));
    assert_eq!(world.code("b"), Some(ReasonCode::MissingResult));
}

#[test]
fn what_a_condition_looks_at_does_not_travel_to_the_job() {
    let mut world = World::started(&[
        spec("a", &[]),
        spec("b", &["a"]),
        when("c", &["b"], "results.a.ok && flow.name == \"test\""),
    ]);
    world.end("a", succeeded(&[("ok", "true")]));
    world.succeed("b");
    let inputs = world.engine.execution(world.index("c")).inputs;
    assert_eq!(inputs.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_signal_is_waited_for() {
    let mut world = World::started(&[spec("a", &[]), waiting("b", &["a"], &["signal:go", "approved"])]);
    assert_eq!(world.code("b"), None, "what comes before has not ended");
    assert!(!world.rests);
    world.succeed("a");
    assert_eq!((world.state("b"), world.code("b")), (NodeState::Pending, Some(ReasonCode::Waiting)));
    assert_eq!(detail(&world, "b"), "for signal:go, signal:approved");
    assert!(world.rests && world.due.is_none(), "a flow that waits costs nothing");
    world.crash();
    let step = world.step(&mut [].into());
    assert!(step.is_unchanged() && step.rests, "it is said once");
    let step = world.step(&mut [signal("other")].into());
    assert!(step.is_unchanged());
    world.signals.insert("go".parse().unwrap());
    world.feed([signal("go")]);
    assert_eq!((detail(&world, "b"), world.state("b")), ("for signal:approved", NodeState::Pending));
    let met: Vec<String> = world.node("b").prerequisites_met.iter().map(ToString::to_string).collect();
    assert_eq!(met, ["signal:go"]);
    world.crash();
    world.feed([signal("approved")]);
    assert_eq!((world.state("b"), world.code("b")), (NodeState::Dispatched, None));
    assert_eq!(world.node("b").prerequisites_met.len(), 2);
}

#[test]
fn an_early_signal_is_no_wait() {
    let mut world = World::new(flow(1), &[waiting("a", &[], &["go"])]);
    world.signals.insert("go".parse().unwrap());
    world.crash();
    world.feed([FlowEngineInput::Start]);
    assert_eq!(world.state("a"), NodeState::Dispatched);
}

#[test]
fn a_time_is_waited_for() {
    let mut world = World::new(flow(1), &[spec("a", &[])]);
    let time = Prerequisite::After(world.now + Duration::from_secs(60));
    let past = Prerequisite::After(world.now);
    let specs = [NodeSpec { prerequisites: vec![past, time], ..spec("a", &[]) }];
    world = World::started(&specs);
    assert_eq!(
        (world.state("a"), world.due),
        (NodeState::Pending, Some(world.now + Duration::from_secs(60)))
    );
    assert_eq!(world.node("a").prerequisites_met.len(), 1, "what is past is met");
    assert!(world.rests);
    world.crash();
    world.pass(59.9);
    assert_eq!(world.state("a"), NodeState::Pending);
    world.pass(0.1);
    assert_eq!(world.state("a"), NodeState::Dispatched);
}

#[test]
fn a_flow_is_waited_for() {
    let mut world = World::started(&[
        waiting("a", &[], &["flow:7", "go"]),
        waiting("b", &[], &["flow:7"]),
        spec("c", &["b"]),
    ]);
    assert_eq!(world.asks, [FlowId(7)], "it is asked for once");
    world.feed([state_of(7, Some(FlowStatus::Started))]);
    assert_eq!((world.state("b"), world.asks.len()), (NodeState::Pending, 1));
    world.crash();
    world.feed([]);
    assert_eq!(world.asks.len(), 2, "and by the next owner");
    world.feed([state_of(7, Some(FlowStatus::Finished))]);
    assert_eq!((world.state("a"), world.state("b")), (NodeState::Pending, NodeState::Dispatched));
    assert_eq!(detail(&world, "a"), "for signal:go");
    // It is run again and fails; what was met stays met.
    world.crash();
    world.feed([state_of(7, Some(FlowStatus::Error)), signal("go")]);
    assert_eq!((world.state("a"), world.asks.len()), (NodeState::Dispatched, 2));
}

#[test]
fn a_flow_that_cannot_finish_makes_a_prerequisite_impossible() {
    for (status, text) in [
        (Some(FlowStatus::Error), "flow 7 is failed"),
        (Some(FlowStatus::Cancelled), "flow 7 is cancelled"),
        (None, "there is no flow 7"),
    ] {
        let mut a = waiting("a", &[], &["go", "flow:7"]);
        a.policy.retries = 3;
        let mut world = World::started(&[a]);
        world.feed([state_of(7, status)]);
        assert_eq!(
            (world.state("a"), world.code("a"), world.status()),
            (NodeState::Failed, Some(ReasonCode::PrerequisiteImpossible), FlowStatus::Error)
        );
        assert_eq!(detail(&world, "a"), text);
    }
    let world = World::started(&[waiting("a", &[], &["flow:1"])]);
    assert_eq!(detail(&world, "a"), "flow:1 is this flow itself");
}

#[test]
fn who_does_not_run_does_not_wait_and_who_waits_can_be_ended() {
    let mut never = waiting("never", &["a"], &["go"]);
    never.run_if = RunIf::AnyFailed;
    let specs = [
        spec("a", &[]),
        never,
        waiting("b", &["a"], &["go"]),
        NodeSpec { when: Some("false".into()), ..waiting("c", &["a"], &["stop"]) },
        waiting("d", &["a"], &["go"]),
    ];
    let mut world = World::started(&specs);
    world.succeed("a");
    assert_eq!(world.state("never"), NodeState::Skipped);
    let b = world.node("b").job_id;
    world.feed([FlowEngineInput::CancelNode(b), signal("stop")]);
    assert_eq!((world.state("b"), world.state("c")), (NodeState::Cancelled, NodeState::Skipped));
    world.feed([FlowEngineInput::CancelFlow { grace_secs: 0 }]);
    assert_eq!((world.state("d"), world.status()), (NodeState::Cancelled, FlowStatus::Cancelled));
}

#[test]
fn a_deadline_ends_a_wait() {
    let mut limited = flow(1);
    limited.deadline = Some(World::new(flow(1), &[spec("a", &[])]).now + Duration::from_secs(5));
    let mut world = World::new(limited, &[waiting("a", &[], &["go"])]);
    world.feed([FlowEngineInput::Start]);
    assert!(world.rests && world.due.is_some());
    world.pass(5.0);
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::Deadline)));
}

#[test]
fn the_wait_for_a_signal_is_no_time_in_a_queue() {
    let mut limited = waiting("a", &[], &["go"]);
    limited.policy.timeout_queue = 5;
    let mut world = World::started(&[limited]);
    world.pass(3600.0);
    assert_eq!((world.state("a"), world.due), (NodeState::Pending, None));
    world.place.live = false;
    world.feed([signal("go")]);
    assert_eq!(world.state("a"), NodeState::Ready);
    world.pass(4.9);
    assert_eq!(world.state("a"), NodeState::Ready, "its time begins with the signal");
    world.pass(0.1);
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::TimeoutQueue)));
}

#[test]
fn a_signal_for_many_is_derived_in_pieces() {
    let specs: Vec<NodeSpec> = (0..20).map(|i| waiting(&format!("n{i}"), &[], &["go"])).collect();
    let mut world = World::started(&specs);
    world.budget = 3;
    let mut inputs = [signal("go")].into();
    world.signals.insert("go".parse().unwrap());
    while world.step(&mut inputs).more {
        world.crash();
    }
    assert_eq!(world.sent.len(), 20);
    let ends: Vec<FlowEngineInput> = world
        .sent
        .clone()
        .into_iter()
        .map(|key| FlowEngineInput::Report(report(key, succeeded(&[]))))
        .collect();
    world.feed(ends);
    assert_eq!(world.status(), FlowStatus::Finished);
}
