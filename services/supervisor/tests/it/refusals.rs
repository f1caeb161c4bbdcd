//! Jobs that the policy refuses, and jobs that no instance here could run.

use std::path::Path;
use std::time::Duration;

use model::execution::Outcome;
use model::{ContextUid, Isolation, ReasonCode, ScriptType};
use testkit::{PATIENCE, wait_until};

use crate::backlog::execution;
use crate::setup::Machine;

pub(crate) fn uid(context: u128) -> ContextUid {
    ContextUid(model::id::Uid::from_bits(context))
}

pub(crate) fn refused(reason: &str, lasting: bool) -> Result<(), (String, bool)> {
    Err((reason.to_owned(), lasting))
}

pub(crate) fn with_policy(text: &str) -> impl FnOnce(&Path, &mut supervisor::Config) {
    move |dir, config| {
        let path = dir.join("policy.toml");
        std::fs::write(&path, text).expect("written");
        config.policy = Some(path);
    }
}

#[tokio::test]
async fn the_policy_decides_by_context_coordinator_and_type() {
    let text = format!(
        "[default]\nscript_types = [\"shell\"]\nnetwork = false\nprocesses = 7\n\
         [contexts.{}]\nallow = false\n[contexts.{}]\ncoordinators = [\"{}\"]\n\
         [contexts.{}]\nnetwork = true\n",
        uid(2),
        uid(3),
        identity::SigningKey::generate().verifying_key(),
        uid(4)
    );
    let machine = Machine::start(with_policy(&text)).await;
    let coordinator = machine.coordinator().await;
    let mut job = execution(1, 1);
    assert_eq!(coordinator.run(&job).await, Ok(()));
    assert_eq!(coordinator.run(&execution(2, 1)).await, refused("POLICY_REFUSED", true));
    assert_eq!(coordinator.run(&execution(3, 1)).await, refused("POLICY_REFUSED", true));
    job = execution(1, 2);
    job.script_type = ScriptType::Python;
    assert_eq!(coordinator.run(&job).await, refused("POLICY_REFUSED", true));
    for (context, expected) in [(1, refused("NETWORK_REFUSED", true)), (4, Ok(()))] {
        let mut job = execution(context, 3);
        job.network = true;
        assert_eq!(coordinator.run(&job).await, expected);
    }

    let mut worker = machine.instance(1, Isolation::Basic).await;
    // That of context 4 came later, and has its turn first.
    for (context, network) in [(4, true), (1, false)] {
        let taken = worker.take().await;
        assert_eq!(taken.execution.job_key.context, uid(context));
        assert_eq!(
            (taken.grants.processes, taken.grants.network),
            (7, network),
            "grants travel with the job"
        );
        worker.finish(taken.execution.job_key, |_| {}).await;
    }
}

#[tokio::test]
async fn a_new_policy_holds_and_a_broken_one_does_not() {
    let machine = Machine::start(with_policy("[default]\nallow = true\n")).await;
    let coordinator = machine.coordinator().await;
    assert_eq!(coordinator.run(&execution(1, 1)).await, Ok(()));
    let path = machine.config.policy.clone().expect("a policy");
    let mut next = 10;
    let mut until = async |text: &str, expected: Result<(), (String, bool)>| {
        std::fs::write(&path, text).expect("written");
        loop {
            next += 1;
            if coordinator.run(&execution(1, next)).await == expected {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let denied = refused("POLICY_REFUSED", true);
    tokio::time::timeout(PATIENCE, until("[default]\nallow = false\n", denied.clone()))
        .await
        .expect("in time");
    // What was accepted before stays accepted.
    assert_eq!(coordinator.run(&execution(1, 1)).await, Ok(()));

    // A broken one changes nothing: judged before the good one that follows it.
    std::fs::write(&path, "[default]\nallow = true\nalow = 1\n").expect("written");
    assert_eq!(coordinator.run(&execution(1, 2)).await, denied);
    tokio::time::timeout(PATIENCE, until("[default]\nallow = true\n", Ok(()))).await.expect("in time");

    let mut broken = machine.config.clone();
    broken.policy = Some(machine.dir.path().join("absent.toml"));
    let deps = supervisor::Deps { kv: machine.kv.clone(), bus: None, metrics: &prometheus::Registry::new() };
    let error = broken.build(deps).map(|_| ()).expect_err("no start without its policy");
    assert!(matches!(error, supervisor::Error::Policy(_)), "{error}");
}

#[tokio::test]
async fn isolation_that_no_instance_gives_is_refused() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let demanding = |number| {
        let mut job = execution(1, number);
        job.isolation = Isolation::Confined;
        job
    };
    assert_eq!(coordinator.run(&demanding(1)).await, Ok(()), "an instance that gives it may come");
    let _basic = machine.instance(1, Isolation::Basic).await;
    coordinator.sees(1).await;
    assert_eq!(coordinator.run(&demanding(2)).await, refused("ISOLATION_UNAVAILABLE", true));
    let mut elsewhere = demanding(3);
    elsewhere.group = Some("other".parse().expect("a name"));
    assert_eq!(coordinator.run(&elsewhere).await, Ok(()), "nobody of the group is here");

    // Counted at once, though the supervisor looks only every second.
    let _contained = machine.instance(2, Isolation::Contained).await;
    assert_eq!(coordinator.run(&demanding(4)).await, Ok(()));
    let mut first = demanding(5);
    first.instance = Some(1);
    assert_eq!(coordinator.run(&first).await, refused("ISOLATION_UNAVAILABLE", true));
}

#[tokio::test]
async fn in_a_mixed_pool_a_demand_waits_for_who_gives_it() {
    let machine = Machine::start(|_, config| config.instance_patience = Duration::ZERO).await;
    let coordinator = machine.coordinator().await;
    let demanding = |number| {
        let mut job = execution(1, number);
        job.isolation = Isolation::Contained;
        job
    };
    let mut basic = machine.instance(1, Isolation::Basic).await;
    let mut contained = machine.instance(2, Isolation::Contained).await;
    coordinator.sees(2).await;
    for number in [1, 2] {
        coordinator.run(&demanding(number)).await.expect("accepted");
    }
    coordinator.run(&execution(1, 3)).await.expect("accepted");
    assert_eq!(basic.take().await.execution.job_key, execution(1, 3).job_key, "the others are not for it");
    assert_eq!(contained.take().await.execution.job_key, demanding(1).job_key);

    // Nobody is left who could take what waits.
    contained.instance.leave().await.expect("left");
    let end = coordinator.receives_end(demanding(2).job_key).await;
    let reason = end.reason.map(|reason| reason.code);
    assert_eq!((end.outcome, reason), (Outcome::Failed, Some(ReasonCode::IsolationUnavailable)));
    let taken = coordinator.receives_end(demanding(1).job_key).await;
    assert_eq!(taken.outcome, Outcome::Lost, "it had been taken, and went with the one that left");
}

#[tokio::test]
async fn the_policy_may_demand_isolation() {
    let machine = Machine::start(with_policy("[default]\nisolation = \"contained\"\n")).await;
    let coordinator = machine.coordinator().await;
    let _worker = machine.instance(1, Isolation::Confined).await;
    coordinator.sees(1).await;
    assert_eq!(coordinator.run(&execution(1, 1)).await, refused("ISOLATION_UNAVAILABLE", true));
    let presence = || async {
        let layers = coordinator.presence().await.instances.first().map(|instance| instance.layers.clone());
        (layers == Some(vec!["session".to_owned()])).then_some(())
    };
    wait_until(presence, PATIENCE, "the layers are told").await;
}
