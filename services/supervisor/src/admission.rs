//! Whether a job is taken, and what it is given.

use keys::supervisor::DEFAULT_GROUP;
use model::{Execution, Grants, InstanceInfo, Isolation, Name};
use mycelium::RpcError;

use crate::intake::{Supervisor, unavailable};

/// What the policy gives a job; a refusal when it is not taken. Of a job that is known already it is not asked:
/// what was accepted stays accepted.
///
/// # Errors
/// What its coordinator is told.
pub(crate) async fn admit(
    supervisor: &Supervisor,
    job: &Execution,
    coordinator: &str,
) -> Result<Grants, RpcError> {
    let refusal = match judge(supervisor, job, coordinator).await {
        Ok(grants) => return Ok(grants),
        Err(refusal) => refusal,
    };
    match supervisor.queue.status(job.job_key).await {
        // Should it be forgotten before it is looked for again, it gets as little as there is.
        Ok(Some(_)) => Ok(Grants { network: false, ..Grants::default() }),
        Ok(None) => Err(refusal),
        Err(error) => Err(unavailable(error)),
    }
}

async fn judge(supervisor: &Supervisor, job: &Execution, coordinator: &str) -> Result<Grants, RpcError> {
    if supervisor.draining.now().is_some() {
        let message = "this machine is being drained and takes no new jobs";
        return Err(RpcError::refused("DRAINING", false, message));
    }
    let granted = supervisor.policy.rules().grant(job, coordinator);
    let grants = granted.map_err(|denial| RpcError::refused(denial.code(), true, denial.to_string()))?;
    let wanted = job.isolation.max(grants.isolation);
    if wanted > Isolation::Basic {
        demand(supervisor, job, wanted).await?;
    }
    Ok(grants)
}

/// Refuses a job that nobody who is here could take for want of isolation. Without anybody it may wait.
async fn demand(supervisor: &Supervisor, job: &Execution, wanted: Isolation) -> Result<(), RpcError> {
    if best(job, &supervisor.presence.now().instances).is_none_or(|best| best >= wanted) {
        return Ok(());
    }
    // What was seen last may be a second old, and the refusal is for good.
    let present = supervisor.queue.instances().await.map_err(unavailable)?;
    let present: Vec<_> = present.iter().map(|(instance, record)| record.info(instance)).collect();
    match best(job, &present) {
        Some(best) if best < wanted => {
            let message = format!(
                "isolation `{wanted}` is demanded, and the instances for it on this machine give only `{best}`"
            );
            Err(RpcError::refused("ISOLATION_UNAVAILABLE", true, message))
        }
        _ => Ok(()),
    }
}

/// The most isolation that an instance gives which may take the job; nothing when there is no such instance.
fn best(job: &Execution, present: &[InstanceInfo]) -> Option<Isolation> {
    let group = job.group.as_ref().map(Name::as_str);
    // A number without a group is one of the default group.
    let group = group.or(job.instance.map(|_| DEFAULT_GROUP));
    let may_take = |instance: &&InstanceInfo| {
        instance.script_type == job.script_type
            && group.is_none_or(|group| instance.group.as_str() == group)
            && job.instance.is_none_or(|number| instance.number == number)
    };
    present.iter().filter(may_take).map(|instance| instance.isolation).max()
}
