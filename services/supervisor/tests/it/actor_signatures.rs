//! Signatures of actors, genuine and forged.

use std::collections::BTreeSet;
use std::time::Duration;

use envelope::actor::{JobTerms, sign_job};
use identity::SigningKey;
use model::flow::EnvVars;
use model::{Attempt, Execution, FlowUid, JobId, JobSpec, NodePolicy, ScriptSource, Timestamp};
use testkit::{PATIENCE, wait_until};

use crate::backlog::execution;
use crate::refusals::{refused, uid, with_policy};
use crate::setup::{Coordinator, Machine};

const HOUR: Duration = Duration::from_secs(3600);

/// Signs this attempt until a time.
fn signed_until(mut job: Execution, key: &SigningKey, expires: Timestamp) -> Execution {
    let spec = JobSpec {
        script_type: job.script_type,
        script: job.script.clone(),
        env_vars: job.env_vars.clone(),
        files: [].into(),
        outputs: job.outputs.clone(),
        signature: None,
    };
    let policy = NodePolicy { timeout: job.timeout_secs, ..NodePolicy::default() };
    let place = (job.job_key.context, job.caller_id);
    let terms = JobTerms::of_job(&spec, &policy, &EnvVars::new(), BTreeSet::new(), place);
    job.signature = Some(sign_job(&terms, key, expires));
    job
}

fn signed(job: Execution, key: &SigningKey) -> Execution {
    signed_until(job, key, Timestamp::now() + HOUR)
}

async fn is_refused(machine: &Machine, coordinator: &Coordinator, job: &Execution, reason: &str) {
    assert_eq!(coordinator.run(job).await, refused(reason, true), "{}", job.job_key);
    assert_eq!(machine.queue.status(job.job_key).await, Ok(None), "{reason}: nothing is left of it");
}

#[tokio::test]
async fn the_policy_defines_whose_signature_is_required() {
    let [one, other] = [(); 2].map(|()| SigningKey::generate());
    let text = format!(
        "[contexts.{}]\nrequire_actor_signature = true\nactor_keys = [\"{}\"]\n\
         [contexts.{}]\nrequire_actor_signature = true\n",
        uid(1),
        one.verifying_key(),
        uid(2)
    );
    let machine = Machine::start(with_policy(&text)).await;
    let coordinator = machine.coordinator().await;
    assert_eq!(coordinator.run(&signed(execution(1, 1), &one)).await, Ok(()));
    is_refused(&machine, &coordinator, &execution(1, 2), "POLICY_REFUSED").await;
    is_refused(&machine, &coordinator, &signed(execution(1, 2), &other), "POLICY_REFUSED").await;
    assert_eq!(coordinator.run(&signed(execution(2, 1), &other)).await, Ok(()), "anybody's");
    is_refused(&machine, &coordinator, &execution(2, 2), "POLICY_REFUSED").await;
    assert_eq!(coordinator.run(&execution(3, 1)).await, Ok(()), "nobody's");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_whether_or_not_it_is_wanted() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let (key, thief) = (SigningKey::generate(), SigningKey::generate());
    let refuses = async |job: Execution| is_refused(&machine, &coordinator, &job, "SIGNATURE_REFUSED").await;

    let good = signed(execution(1, 1), &key);
    refuses(Execution { script: ScriptSource::Inline("rm -r /".to_owned()), ..good.clone() }).await;
    refuses(Execution { network: true, ..good.clone() }).await;
    let mut elsewhere = good.clone();
    elsewhere.job_key.context = uid(2);
    refuses(elsewhere).await;

    // By a key that did not sign it.
    let signature = good.signature.clone().expect("it is signed");
    let forged = signature.replace(&key.verifying_key().to_string(), &thief.verifying_key().to_string());
    assert_ne!(forged, signature);
    refuses(Execution { signature: Some(forged), ..good.clone() }).await;
    refuses(Execution { signature: Some("{}".to_owned()), ..good.clone() }).await;

    let now = Timestamp::now();
    refuses(signed_until(execution(1, 1), &key, Timestamp::from_millis(now.as_millis() - 1))).await;
    refuses(signed_until(execution(1, 1), &key, now + HOUR * 24 * 400)).await;
    assert_eq!(coordinator.run(&good).await, Ok(()));
}

#[tokio::test]
async fn a_signature_is_good_for_every_attempt_of_one_job() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let first = signed(execution(1, 1), &SigningKey::generate());
    let with = |change: &dyn Fn(&mut Execution)| {
        let mut job = first.clone();
        change(&mut job);
        job
    };
    assert_eq!(coordinator.run(&first).await, Ok(()));
    assert_eq!(coordinator.run(&first).await, Ok(()), "it is known");
    let second = with(&|job| job.job_key.attempt = Attempt(2));
    assert_eq!(coordinator.run(&second).await, Ok(()), "tried again");
    let another_job = with(&|job| job.job_key.job = JobId(2));
    is_refused(&machine, &coordinator, &another_job, "SIGNATURE_REFUSED").await;
    let another_flow = with(&|job| job.job_key.flow = FlowUid::random());
    is_refused(&machine, &coordinator, &another_flow, "SIGNATURE_REFUSED").await;
}

/// An accepted job stays accepted, whatever is said of it later.
#[tokio::test]
async fn a_known_job_is_not_judged_again() {
    let machine = Machine::start(with_policy("")).await;
    let coordinator = machine.coordinator().await;
    let job = execution(1, 1);
    assert_eq!(coordinator.run(&job).await, Ok(()));
    let path = machine.config.policy.clone().expect("a policy");
    std::fs::write(&path, "[default]\nrequire_actor_signature = true\n").expect("written");
    let next = std::cell::Cell::new(1);
    let holds = async || {
        next.set(next.get() + 1);
        let answer = coordinator.run(&execution(1, next.get())).await;
        (answer == refused("POLICY_REFUSED", true)).then_some(())
    };
    wait_until(holds, PATIENCE, "the policy holds").await;
    assert_eq!(coordinator.run(&job).await, Ok(()));
    let other = Execution { timeout_secs: 9, ..job };
    assert_eq!(coordinator.run(&other).await, refused("KEY_CONFLICT", true));
}
