//! Coordinators that have another root, and those who say so without being one.

use std::time::Duration;

use envelope::{Envelope, RootChange, Sealer};
use identity::{Identity, SigningKey};
use model::Isolation;
use model::execution::Outcome;
use model::supervision::{CoordinatorSucceed, CoordinatorSucceeded, method};
use mycelium::PublicKey;
use proto::v1::{SucceedCoordinatorRequest, SucceedCoordinatorResponse};
use testkit::{PATIENCE, wait_until};
use tonic::Code;

use crate::backlog::execution;
use crate::refusals::{refused, uid, with_policy};
use crate::setup::{Coordinator, Machine};

fn params(changes: &[&Envelope]) -> CoordinatorSucceed {
    let text = |change: &&Envelope| String::from_utf8(change.to_json().to_vec()).expect("JSON");
    CoordinatorSucceed { changes: changes.iter().map(text).collect() }
}

/// Says that it has the root to which these changes lead; gives how many contexts were passed on.
async fn announce(coordinator: &Coordinator, changes: &[&Envelope]) -> Result<u64, (String, bool)> {
    let succeeded: Result<CoordinatorSucceeded, _> =
        coordinator.call(method::COORDINATOR_SUCCEED, &params(changes)).await;
    succeeded.map(|succeeded| succeeded.contexts)
}

fn failed<T>(reason: &str, lasting: bool) -> Result<T, (String, bool)> {
    Err((reason.to_owned(), lasting))
}

#[tokio::test]
async fn jobs_go_on_under_the_next_root() {
    let mut machine = Machine::start(|_, _| {}).await;
    let (old, new) = (machine.coordinator().await, machine.coordinator().await);
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let [running, waiting, late, next] = [1, 2, 3, 4].map(|job| execution(1, job));
    for job in [&running, &waiting] {
        old.run(job).await.expect("taken");
    }
    assert_eq!(worker.take().await.execution.job_key, running.job_key);
    assert_eq!(new.run(&late).await, refused("CONTEXT_CLAIMED", true));

    let change = RootChange::announce(&old.root, &new.root);
    assert_eq!(announce(&new, &[&change]).await, Ok(1));
    assert_eq!(announce(&new, &[&change]).await, Ok(0), "again it changes nothing");
    assert_eq!(old.run(&late).await, refused("ROOT_SUCCEEDED", false));
    assert_eq!(new.run(&running).await, Ok(()), "it is known");
    assert_eq!(new.state(waiting.job_key).await, "queued");
    worker.finish(running.job_key, |_| {}).await;
    assert_eq!(new.receives_end(running.job_key).await.outcome, Outcome::Succeeded);

    machine.stop_supervisor().await;
    machine.start_supervisor().await;
    assert_eq!(old.run(&late).await, refused("ROOT_SUCCEEDED", false), "also after a restart");
    assert_eq!(new.run(&next).await, Ok(()));
    assert_eq!(worker.take().await.execution.job_key, waiting.job_key);
    worker.finish(waiting.job_key, |_| {}).await;
    new.receives_end(waiting.job_key).await;
}

/// The job's events were never told, and the root that they were meant for has been succeeded.
#[tokio::test]
async fn events_from_before_a_root_rotation_are_sent_to_the_next_root() {
    let machine = Machine::start(|_, _| {}).await;
    let (old, new) = (machine.coordinator().await, machine.coordinator().await);
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let job = execution(1, 1);
    old.run(&job).await.expect("taken");
    old.signer.renew(Sealer::of_root(SigningKey::generate()));
    worker.take().await;
    worker.finish(job.job_key, |_| {}).await;
    assert_eq!(announce(&new, &[&RootChange::announce(&old.root, &new.root)]).await, Ok(1));
    new.receives_end(job.job_key).await;
}

#[tokio::test]
async fn a_change_that_is_forged_of_others_or_of_another_time_changes_nothing() {
    let machine = Machine::start(|_, _| {}).await;
    let (first, second, third) =
        (machine.coordinator().await, machine.coordinator().await, machine.coordinator().await);
    first.run(&execution(1, 1)).await.expect("taken");
    let change = RootChange::announce(&first.root, &second.root);
    let thief = machine.coordinator().await;

    let of_thief = RootChange::announce(&thief.root, &second.root);
    let forged = Envelope { payload: of_thief.payload.clone(), ..change.clone() };
    assert_eq!(announce(&second, &[&forged]).await, failed("BAD_SIGNATURE", true));
    assert_eq!(announce(&thief, &[&change]).await, failed("WRONG_ROOT", true));
    assert_eq!(announce(&second, &[]).await, failed("MALFORMED_ENVELOPE", true));
    let unlinked = [&of_thief, &change];
    assert_eq!(announce(&second, &unlinked).await, failed("MALFORMED_ENVELOPE", true));
    assert_eq!(announce(&second, &[&of_thief]).await, Ok(0), "nothing of that root is here");
    assert_eq!(first.run(&execution(1, 2)).await, Ok(()), "it is who it was");

    // Somebody was away while there were two changes.
    let further = RootChange::announce(&second.root, &third.root);
    assert_eq!(announce(&third, &[&change, &further]).await, Ok(1));
    third.run(&execution(1, 3)).await.expect("its own");
    let stolen = RootChange::announce(&first.root, &thief.root);
    assert_eq!(announce(&thief, &[&stolen]).await, failed("ROOT_SUCCEEDED", true), "another came after it");
    let back = RootChange::announce(&third.root, &first.root);
    assert_eq!(announce(&first, &[&back]).await, failed("ROOT_SUCCEEDED", false), "it does not come back");
    assert_eq!(third.run(&execution(1, 4)).await, Ok(()));

    // The same once more after a further change.
    let fourth = machine.coordinator().await;
    let last = RootChange::announce(&third.root, &fourth.root);
    assert_eq!(announce(&fourth, &[&change, &further, &last]).await, Ok(1));
    assert_eq!(announce(&third, &[&change, &further]).await, failed("ROOT_SUCCEEDED", false));
    assert_eq!(fourth.run(&execution(1, 5)).await, Ok(()));
}

#[tokio::test]
async fn a_root_that_the_policy_names_is_followed_with_its_named_successor() {
    let (old_root, new_root) = (SigningKey::generate(), SigningKey::generate());
    let policy = |names: &[&SigningKey]| {
        let names: Vec<_> = names.iter().map(|key| format!("\"{}\"", key.verifying_key())).collect();
        format!("[contexts.{}]\ncoordinators = [{}]\n", uid(1), names.join(", "))
    };
    let machine = Machine::start(with_policy(&policy(&[&old_root]))).await;
    let (old, new) =
        (machine.coordinator_of(old_root.clone()).await, machine.coordinator_of(new_root.clone()).await);
    old.run(&execution(1, 1)).await.expect("taken");
    let change = RootChange::announce(&old_root, &new_root);
    assert_eq!(announce(&new, &[&change]).await, failed("POLICY_REFUSED", false));
    let by_operator = succeed(&machine, Identity::Admin, &old.name, &new.name).await.expect_err("refused");
    assert_eq!(by_operator.code(), Code::FailedPrecondition);
    assert!(by_operator.message().contains(&new.name), "{by_operator}");
    assert_eq!(old.run(&execution(1, 2)).await, Ok(()), "nothing has changed");

    std::fs::write(machine.dir.path().join("policy.toml"), policy(&[&old_root, &new_root])).expect("written");
    let followed = async || announce(&new, &[&change]).await.ok();
    assert_eq!(wait_until(followed, PATIENCE, "the policy names it").await, 1);
    assert_eq!(new.run(&execution(1, 3)).await, Ok(()));
}

async fn succeed(
    machine: &Machine,
    who: Identity,
    old: &str,
    new: &str,
) -> Result<SucceedCoordinatorResponse, tonic::Status> {
    let request = SucceedCoordinatorRequest { old_coordinator: old.into(), new_coordinator: new.into() };
    machine.client(who).succeed_coordinator(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn an_operator_announces_the_successor_of_a_lost_root() {
    let machine = Machine::start(|_, _| {}).await;
    let (lost, new) = (machine.coordinator().await, machine.coordinator().await);
    let succeed_as = |who, old, new| succeed(&machine, who, old, new);
    let code = async |old, new| succeed_as(Identity::Admin, old, new).await.expect_err("refused").code();
    assert_eq!(code(&lost.name, &new.name).await, Code::NotFound, "nothing is bound to it");
    lost.run(&execution(1, 1)).await.expect("taken");
    let stranger = Identity::Actor(model::ActorId(1));
    let denied = succeed_as(stranger, &lost.name, &new.name).await.expect_err("refused");
    assert_eq!(denied.code(), Code::PermissionDenied);
    for (old, new) in [("no key", &*new.name), (&*lost.name, ""), (&*new.name, &*new.name)] {
        assert_eq!(code(old, new).await, Code::InvalidArgument);
    }
    let both = rpc::ErrorView::from(&succeed_as(Identity::Admin, "no key", "").await.expect_err("refused"));
    let fields: Vec<_> = both.violations.iter().map(|wrong| wrong.field.as_str()).collect();
    assert_eq!(fields, ["old_coordinator", "new_coordinator"], "all that is wrong");

    for passed in [1, 0] {
        let answer = succeed_as(Identity::Admin, &lost.name, &new.name).await.expect("said");
        assert_eq!((answer.contexts, answer.jobs), (passed, passed));
    }
    assert_eq!(new.run(&execution(1, 2)).await, Ok(()));
    assert_eq!(lost.run(&execution(1, 3)).await, refused("ROOT_SUCCEEDED", false));
    let other = SigningKey::generate().verifying_key().to_string();
    assert_eq!(code(&lost.name, &other).await, Code::FailedPrecondition, "another came after it");
    // It was found again.
    assert_eq!(succeed_as(Identity::Admin, &new.name, &lost.name).await.expect("said").contexts, 1);
    assert_eq!(lost.run(&execution(1, 3)).await, Ok(()));
}

/// A gateway goes on through its node with another root: nobody has to be silent first.
#[tokio::test]
async fn a_node_speaks_for_the_next_root_once_that_is_shown() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    coordinator.run(&execution(1, 1)).await.expect("taken");
    let next = SigningKey::generate();
    coordinator.signer.renew(Sealer::of_root(next.clone()));
    // What was said to it before still comes.
    coordinator.signer.add_name(coordinator.name.clone());
    let change = params(&[&RootChange::announce(&coordinator.root, &next)]);
    let announced = async || {
        let response =
            coordinator.peer.call(method::COORDINATOR_SUCCEED, &change, Duration::from_millis(300)).await;
        response.ok().map(|answer| answer.get().to_owned())
    };
    assert_eq!(wait_until(announced, PATIENCE, "it is heard").await, r#"{"contexts":1}"#);
    assert_eq!(coordinator.run(&execution(1, 2)).await, Ok(()));
    let nodes = machine.queue.nodes().await.expect("an answer");
    assert_eq!(nodes.keys().collect::<Vec<_>>(), [&next.verifying_key().to_string()]);
}

#[tokio::test]
async fn nothing_is_kept_of_strangers_and_nothing_promised_that_cannot_be_kept() {
    let machine = Machine::start(|_, _| {}).await;
    let root = SigningKey::generate();
    let coordinator = machine.coordinator_of(root.clone()).await;
    coordinator.presence().await;
    assert_eq!(machine.queue.nodes().await, Ok([].into()), "nothing was promised to it");
    coordinator.run(&execution(1, 1)).await.expect("taken");
    let kept = machine.queue.nodes().await.expect("an answer");
    assert!(kept.get(&coordinator.name).is_some_and(|node| node.parse::<PublicKey>().is_ok()), "{kept:?}");

    // Through another node, which cannot be kept.
    let database = machine.kv.endpoint().database();
    let raw = |command: &[&str]| assert_eq!(machine.redis.raw(database, command), "+OK\r\n");
    raw(&["RENAME", "hero:supervisor", "saved"]);
    raw(&["SET", "hero:supervisor", "no hash"]);
    let moved = machine.coordinator_of(root).await;
    assert_eq!(moved.run(&execution(1, 2)).await, refused("UNAVAILABLE", false));
    assert_eq!(machine.queue.status(execution(1, 2).job_key).await, Ok(None));
    raw(&["RENAME", "saved", "hero:supervisor"]);
    assert_eq!(moved.run(&execution(1, 2)).await, Ok(()));
    assert_ne!(machine.queue.nodes().await.expect("an answer"), kept);
}
