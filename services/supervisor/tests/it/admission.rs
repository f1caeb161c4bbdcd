//! Coordinators that nobody has named.

use std::collections::BTreeSet;

use envelope::RootChange;
use identity::{Identity, SigningKey};
use model::supervision::{CoordinatorSucceed, CoordinatorSucceeded, method};
use proto::v1::{GetSupervisorRequest, RunAttemptRequest, ScriptType, SucceedCoordinatorRequest};
use supervisor::DefaultCoordinators;
use testkit::{PATIENCE, wait_until};

use crate::backlog::execution;
use crate::refusals::refused;
use crate::setup::Machine;

fn only(roots: &[&SigningKey]) -> DefaultCoordinators {
    DefaultCoordinators::Only(roots.iter().map(|root| root.verifying_key().to_string()).collect())
}

/// Returns what operators are told of a supervisor that takes nobody's jobs.
async fn intake_problem(machine: &Machine) -> String {
    let response = machine.client(Identity::Admin).get_supervisor(GetSupervisorRequest {}).await;
    response.expect("an answer").into_inner().intake_problem
}

#[tokio::test]
async fn without_a_named_coordinator_jobs_are_refused_and_operators_see_why() {
    let machine = Machine::start(|dir, config| {
        config.admitted = DefaultCoordinators::Only(BTreeSet::new());
        let policy = dir.join("policy.toml");
        std::fs::write(&policy, "[default]\nnetwork = false\n").expect("written");
        config.policy = Some(policy);
    })
    .await;
    let coordinator = machine.coordinator().await;
    assert_eq!(coordinator.run(&execution(1, 1)).await, refused("POLICY_REFUSED", true));
    let problem = intake_problem(&machine).await;
    assert!(problem.contains("takes no jobs") && problem.contains("--coordinator"), "{problem}");

    // Operators of the machine are no coordinator.
    let request = RunAttemptRequest {
        request_id: "11111111-1111-4111-8111-111111111111".to_owned(),
        script_type: ScriptType::Shell.into(),
        script: "true".to_owned(),
        ..Default::default()
    };
    machine.client(Identity::Admin).run_attempt(request).await.expect("taken");

    // A policy may name it later.
    let named = format!("[default]\ncoordinators = [\"{}\"]\n", coordinator.name);
    std::fs::write(machine.dir.path().join("policy.toml"), named).expect("written");
    let taken = async || coordinator.run(&execution(1, 2)).await.ok();
    wait_until(taken, PATIENCE, "the policy names it").await;
    assert_eq!(intake_problem(&machine).await, "");
}

#[tokio::test]
async fn only_a_named_root_is_taken_and_its_successor() {
    let (root, next, last) = (SigningKey::generate(), SigningKey::generate(), SigningKey::generate());
    let admitted = only(&[&root]);
    let mut machine = Machine::start(|_, config| config.admitted = admitted).await;
    let stranger = machine.coordinator().await;
    assert_eq!(stranger.run(&execution(1, 1)).await, refused("POLICY_REFUSED", true));
    assert_eq!(intake_problem(&machine).await, "");
    let named = machine.coordinator_of(root.clone()).await;
    assert_eq!(named.run(&execution(2, 1)).await, Ok(()));

    let after = machine.coordinator_of(next.clone()).await;
    assert_eq!(after.run(&execution(2, 2)).await, refused("POLICY_REFUSED", true), "not before it is told");
    let change = RootChange::announce(&root, &next);
    let change = String::from_utf8(change.to_json().to_vec()).expect("JSON");
    let announced: Result<CoordinatorSucceeded, _> =
        after.call(method::COORDINATOR_SUCCEED, &CoordinatorSucceed { changes: vec![change] }).await;
    assert_eq!(announced.map(|presence| presence.contexts), Ok(1));
    assert_eq!(after.run(&execution(2, 2)).await, Ok(()));

    // The operator says the same of a root that is lost.
    let lost = machine.coordinator_of(last.clone()).await;
    let request = SucceedCoordinatorRequest {
        old_coordinator: next.verifying_key().to_string(),
        new_coordinator: last.verifying_key().to_string(),
    };
    machine.client(Identity::Admin).succeed_coordinator(request).await.expect("said");
    assert_eq!(lost.run(&execution(2, 3)).await, Ok(()));

    machine.stop_supervisor().await;
    machine.start_supervisor().await;
    assert_eq!(lost.run(&execution(2, 4)).await, Ok(()), "also after a restart");
    assert_eq!(named.run(&execution(2, 5)).await, refused("ROOT_SUCCEEDED", false));
    assert_eq!(stranger.run(&execution(3, 1)).await, refused("POLICY_REFUSED", true));
}
