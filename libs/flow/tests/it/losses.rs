//! Single cases: attempts that end with their instance, their supervisor, or a drain.

use flow::FlowEngineInput;
use model::execution::Outcome;
use model::limits::{DEATH_WAIT_SECS, LOSSES_DEFAULT};
use model::{
    Attempt, BackoffPolicy, FlowNode, FlowStatus, NodeSpec, NodeState, Reason, ReasonCode, ReportKind, Rerun,
};

use crate::world::{RUNNER, World, drained, ended, failed, spec, vanished};

fn retried(retries: u32) -> NodeSpec {
    let mut node = spec("a", &[]);
    node.policy.retries = retries;
    node
}

/// The attempt under way ends with its instance, as its supervisor says it.
fn die(world: &mut World) {
    let mut end = ended(Outcome::Lost, None);
    end.reason = Some(Reason::new(ReasonCode::InstanceLost, "instance shell:default:1 vanished"));
    world.end("a", ReportKind::Ended(Box::new(end)));
}

impl World {
    fn die(&mut self) {
        die(self);
    }

    fn drain(&mut self) {
        self.end("a", drained());
    }

    fn lose(&mut self) {
        self.feed([FlowEngineInput::SupervisorLost(RUNNER)]);
    }
}

fn detail(world: &World) -> &str {
    &world.node("a").reason.as_ref().unwrap().detail
}

#[test]
fn the_third_death_is_a_quarantine_whatever_the_retries() {
    for retries in [0, 1, 100] {
        let mut world = World::started(&[retried(retries)]);
        world.start("a");
        die(&mut world);
        assert_eq!(
            detail(&world),
            "INSTANCE_LOST: instance shell:default:1 vanished, death 1 of 3, loss 1 of 3"
        );
        world.pass(0.5);
        assert_eq!(world.node("a").attempt, Attempt(2), "after the usual back-off");
        assert_eq!(world.state("a"), NodeState::Dispatched);

        world.start("a");
        die(&mut world);
        let second = "INSTANCE_LOST: instance shell:default:1 vanished, death 2 of 3, \
                      loss 2 of 3, waits for death_wait_secs (30 s) at least";
        assert_eq!((world.code("a"), detail(&world)), (Some(ReasonCode::BackingOff), second));
        world.pass(f64::from(DEATH_WAIT_SECS) - 0.1);
        assert_eq!(world.state("a"), NodeState::Ready, "it waits longer");
        world.crash();
        world.pass(0.1);
        assert_eq!((world.state("a"), world.node("a").attempt), (NodeState::Dispatched, Attempt(3)));

        world.start("a");
        die(&mut world);
        assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::Quarantined)));
        let last = "its instance vanished 3 times; the last time INSTANCE_LOST: instance shell:default:1 \
                    vanished, death 3 of 3, loss 3 of 3";
        assert_eq!(detail(&world), last);
        let node = world.node("a");
        assert_eq!((node.deaths, node.tries, node.losses), (3, 0, 0), "a loss is no try");
        assert_eq!(world.status(), FlowStatus::Error);
    }
}

#[test]
fn deaths_and_failures_do_not_add_up() {
    let mut world = World::started(&[retried(1)]);
    for end in [vanished(), failed(1), vanished()] {
        world.end("a", end);
        world.pass(60.0);
    }
    let node = world.node("a");
    assert_eq!((node.state, node.tries, node.deaths), (NodeState::Dispatched, 1, 2));
    world.end("a", failed(2));
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::ExitCode)));
}

#[test]
fn what_runs_again_begins_with_a_fresh_budget() {
    let mut world = World::started(&[retried(0)]);
    for _ in 0..3 {
        world.end("a", vanished());
        world.pass(60.0);
    }
    assert_eq!(world.code("a"), Some(ReasonCode::Quarantined));
    world.run_again(Rerun::Failed, |_| {});
    world.feed([]);
    let node = world.node("a");
    assert_eq!((node.state, node.generation.0, node.deaths, node.losses), (NodeState::Dispatched, 2, 0, 0));
    world.end("a", vanished());
    assert_eq!((world.state("a"), world.node("a").deaths), (NodeState::Ready, 1));
}

#[test]
fn a_machine_or_a_drain_ends_no_job_by_quarantine() {
    let mut world = World::started(&[retried(0)]);
    for count in 1..=LOSSES_DEFAULT {
        if count % 2 == 0 {
            world.end("a", drained());
        } else {
            world.feed([FlowEngineInput::SupervisorLost(RUNNER)]);
        }
        let node = world.node("a");
        assert_eq!((node.state, node.losses, node.deaths), (NodeState::Ready, count, 0));
        assert!(node.not_before_time.unwrap().since(world.now).as_secs() < u64::from(DEATH_WAIT_SECS));
        world.pass(60.0);
    }
    world.end("a", drained());
    assert_eq!((world.state("a"), world.code("a")), (NodeState::Failed, Some(ReasonCode::Drained)));
    assert_eq!(
        detail(&world),
        "the runner ended before the script did, loss 4, and the job allows 3 (`losses`)"
    );
}

#[test]
fn a_job_bounds_its_losses_apart_from_its_retries() {
    let mut node = retried(1);
    node.policy.losses = 1;
    let mut world = World::started(&[node]);
    for end in [drained(), failed(1), vanished()] {
        world.end("a", end);
        world.pass(60.0);
    }
    let node = world.node("a");
    assert_eq!((node.state, node.tries, node.losses, node.deaths), (NodeState::Failed, 1, 1, 1));
    assert_eq!(world.code("a"), Some(ReasonCode::InstanceLost));
    assert_eq!(detail(&world), "death 1 of 3, loss 2, and the job allows 1 (`losses`)");
}

#[test]
fn a_loss_has_a_back_off_of_its_own() {
    let mut node = retried(5);
    node.policy.backoff = BackoffPolicy { initial_secs: 600.0, multiplier: 1.0, max_secs: 600.0 };
    node.policy.loss_backoff = BackoffPolicy { initial_secs: 4.0, multiplier: 3.0, max_secs: 60.0 };
    let mut world = World::started(&[node]);
    let wait = |world: &World| world.node("a").not_before_time.unwrap().since(world.now).as_secs();
    for (end, secs) in [(failed(1), 300), (drained(), 2), (failed(1), 300), (vanished(), 6)] {
        world.end("a", end);
        assert_eq!(wait(&world), secs, "half of what it is at most, by the losses before it");
        world.pass(300.0);
    }
}

#[test]
fn a_loss_ends_a_job_that_is_not_idempotent() {
    for lose in [World::die, World::drain, World::lose] {
        let mut node = retried(5);
        node.policy.idempotent = false;
        let mut world = World::started(&[node, spec("b", &["a"])]);
        world.end("a", failed(1));
        world.pass(60.0);
        world.start("a");
        lose(&mut world);
        assert_eq!((world.state("a"), world.node("a").attempt), (NodeState::Failed, Attempt(2)));
        assert!(detail(&world).contains("the job says `idempotent: false`"), "{}", detail(&world));
        assert_eq!((world.state("b"), world.status()), (NodeState::Skipped, FlowStatus::Error));
    }
}

#[test]
fn a_step_reports_losses_and_the_counts_after_each_change() {
    let mut world = World::started(&[retried(1)]);
    let mut lost = Vec::new();
    for end in [failed(1), vanished(), drained()] {
        let input = world.report("a", end);
        let step = world.step(&mut [input].into());
        let spent = step.changed[0].transitions[0].spent;
        lost.push((step.losses, spent.tries, spent.deaths, spent.losses));
        world.pass(60.0);
    }
    let expected =
        [(vec![], 1, 0, 0), (vec![ReasonCode::InstanceLost], 1, 1, 0), (vec![ReasonCode::Drained], 1, 1, 1)];
    assert_eq!(lost, expected);
}

#[test]
fn a_time_limit_hides_no_death() {
    let mut node = retried(100);
    node.policy.timeout_result = 10;
    let mut world = World::started(&[node]);
    for deaths in 1..3 {
        world.pass(10.0);
        assert_eq!(world.code("a"), Some(ReasonCode::TimeoutResult));
        die(&mut world);
        let node = world.node("a");
        assert_eq!((node.state, node.tries, node.deaths), (NodeState::Ready, deaths, deaths));
        world.pass(60.0);
    }
    world.pass(10.0);
    die(&mut world);
    assert_eq!(world.code("a"), Some(ReasonCode::Quarantined));
    assert!(detail(&world).contains("TIMEOUT_RESULT: within 10 s"), "{}", detail(&world));
}

#[test]
fn a_cancelled_attempt_that_dies_is_cancelled() {
    let mut world = World::started(&[retried(3)]);
    for _ in 0..2 {
        world.end("a", vanished());
        world.pass(60.0);
    }
    let job = world.node("a").job_id;
    world.feed([FlowEngineInput::CancelNode(job)]);
    die(&mut world);
    assert_eq!((world.state("a"), world.node("a").deaths), (NodeState::Cancelled, 2));
}

#[test]
fn records_of_earlier_versions_have_no_deaths() {
    let world = World::started(&[retried(0)]);
    let text = serde_json::to_string(world.node("a")).unwrap();
    assert!(!text.contains("deaths") && !text.contains("\"losses\":0"), "what is 0 is left out: {text}");
    let read: FlowNode = serde_json::from_str(&text).unwrap();
    assert_eq!((&read, read.deaths, read.losses), (world.node("a"), 0, 0));
    let with = FlowNode { deaths: 2, losses: 1, ..read };
    let text = serde_json::to_string(&with).unwrap();
    assert_eq!(serde_json::from_str::<FlowNode>(&text).unwrap(), with);
}
