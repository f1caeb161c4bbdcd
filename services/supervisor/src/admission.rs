//! Admission of jobs: checks a job, and determines its grants.

use envelope::actor::{SignedJob, check_job};
use keys::supervisor::DEFAULT_GROUP;
use model::{Execution, Grants, InstanceInfo, Isolation, JobKey, Name, Timestamp};
use mycelium::JsonRpcError;
use queue::{AcceptCondition, ActorNonce, OPERATOR};

use crate::coordinator_requests::{SupervisorState, unavailable};
use crate::policy::JobSender;

/// Returns the grants that the policy gives a job and the condition for accepting it, or a refusal. A job that is
/// known already is not checked again: once accepted, it stays accepted.
///
/// # Errors
/// The refusal to send to the job's coordinator.
pub(crate) async fn admit(
    supervisor: &SupervisorState,
    job: &Execution,
    coordinator: &str,
) -> Result<(Grants, AcceptCondition), JsonRpcError> {
    let refusal = match judge(supervisor, job, coordinator).await {
        Ok(admitted) => return Ok(admitted),
        Err(refusal) => refusal,
    };
    // The queue accepts the job only if it is still known: a refused job must not be accepted because it was forgotten meanwhile.
    known_or(supervisor, job.job_key, refusal).await.map(|()| (Grants::default(), AcceptCondition::Known))
}

/// Passes when a job is known here already: it may run or have ended, and after a refusal its coordinator would send another
/// attempt elsewhere.
///
/// # Errors
/// The refusal when the job is not known; `UNAVAILABLE` when the store does not answer.
pub(crate) async fn known_or(
    supervisor: &SupervisorState,
    job: JobKey,
    refusal: JsonRpcError,
) -> Result<(), JsonRpcError> {
    match supervisor.queue.status(job).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(refusal),
        Err(error) => Err(unavailable(error)),
    }
}

/// Returns the error for a job that a full store could not take: `refusal` for an unknown job, else `UNAVAILABLE`,
/// since a known job cannot be reported again now.
pub(crate) async fn without_room(
    supervisor: &SupervisorState,
    job: JobKey,
    refusal: JsonRpcError,
) -> JsonRpcError {
    let message =
        format!("job {job} is known here, but its events cannot be sent again now; try again: {refusal}");
    match known_or(supervisor, job, refusal).await {
        Ok(()) => JsonRpcError::refused("UNAVAILABLE", false, message),
        Err(refusal) => refusal,
    }
}

async fn judge(
    supervisor: &SupervisorState,
    job: &Execution,
    coordinator: &str,
) -> Result<(Grants, AcceptCondition), JsonRpcError> {
    if supervisor.draining.now().is_some() {
        let message = "this machine is being drained and takes no new jobs";
        return Err(JsonRpcError::refused("DRAINING", false, message));
    }
    if let Some(shortage) = supervisor.floors.shortage() {
        return Err(disk_full(shortage.to_string()));
    }
    let signed = check_job(job, Timestamp::now());
    let signed = signed.map_err(|refusal| {
        let message = format!("the job's actor signature is not valid here: {refusal}");
        JsonRpcError::refused("SIGNATURE_REFUSED", true, message)
    })?;
    let signer = signed.map(|signed| signed.signer);
    let granted = supervisor.policy.rules().grant(job, sender(supervisor, coordinator), signer);
    let grants = granted.map_err(|denial| JsonRpcError::refused(denial.code(), true, denial.to_string()))?;
    supervisor.external_workers.check(job, &grants, &supervisor.presence.now().instances)?;
    let wanted = job.isolation.max(grants.isolation);
    if wanted > Isolation::Basic {
        demand(supervisor, job, wanted).await?;
    }
    Ok((grants, signed.map_or(AcceptCondition::None, only_once)))
}

/// Describes the coordinator to the policy. Operators are admitted: they presented this machine's admin certificate.
fn sender<'a>(supervisor: &SupervisorState, coordinator: &'a str) -> JobSender<'a> {
    let is_admitted = coordinator == OPERATOR
        || supervisor.policy.admits(coordinator, |named| supervisor.coordinators.current_root(named));
    JobSender { root: coordinator, is_admitted }
}

/// Refuses a job for lack of disk space; the coordinator may send it again, here or elsewhere.
pub(crate) fn disk_full(message: String) -> JsonRpcError {
    JsonRpcError::refused("DISK_FULL", false, message)
}

/// Makes the condition that a signature is used for one job only, of which there may be many attempts.
fn only_once(SignedJob { signer, nonce, expires }: SignedJob) -> AcceptCondition {
    AcceptCondition::Signed { nonce: ActorNonce { signer: signer.to_string(), nonce }, expires }
}

/// Refuses a job whose isolation no instance here provides. While there is no instance at all, the job may wait.
async fn demand(
    supervisor: &SupervisorState,
    job: &Execution,
    wanted: Isolation,
) -> Result<(), JsonRpcError> {
    if best(job, &supervisor.presence.now().instances).is_none_or(|best| best >= wanted) {
        return Ok(());
    }
    // The last presence may be a second old, and the refusal is permanent.
    let present = supervisor.queue.instances().await.map_err(unavailable)?;
    let present: Vec<_> = present.iter().map(|(instance, record)| record.info(instance)).collect();
    match best(job, &present) {
        Some(best) if best < wanted => {
            let message = format!(
                "isolation `{wanted}` is demanded, and the instances for it on this machine give only `{best}`"
            );
            Err(JsonRpcError::refused("ISOLATION_UNAVAILABLE", true, message))
        }
        _ => Ok(()),
    }
}

/// Returns the strongest isolation of the instances that may take the job; nothing when there is no such instance.
fn best(job: &Execution, present: &[InstanceInfo]) -> Option<Isolation> {
    let group = job.group.as_ref().map(Name::as_str);
    // An instance number without a group belongs to the default group.
    let group = group.or(job.instance.map(|_| DEFAULT_GROUP));
    let may_take = |instance: &&InstanceInfo| {
        instance.script_type == job.script_type
            && group.is_none_or(|group| instance.group.as_str() == group)
            && job.instance.is_none_or(|number| instance.number == number)
    };
    present.iter().filter(may_take).map(|instance| instance.isolation).max()
}
