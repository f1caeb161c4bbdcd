//! Instances that are gone: their scripts are ended first, and only then are their attempts reported as lost.

use std::collections::HashSet;
use std::fs::File;
use std::time::Instant;

use queue::work_dir::{lock_path, running_dir};
use queue::{InstanceLossDetector, InstanceRef, PresenceRecord};
use sandbox::processes;
use sandbox::records::{self, SweptProcess};
use service::FileLock;

use crate::coordinator_requests::SupervisorState;
use crate::work_dir::blocking;

/// Ends the attempts of instances that are gone, and puts back jobs that they had popped and not claimed.
///
/// # Errors
/// Any [`kv::Error`]; may be repeated.
pub(crate) async fn end(
    supervisor: &SupervisorState,
    present: &[(InstanceRef, PresenceRecord)],
    loss: &mut InstanceLossDetector,
) -> kv::Result<()> {
    for (instance, record) in present {
        if let Some(_lock) = lock_of_dead(supervisor, instance, record).await {
            // The instance is certainly dead: there is no need to wait until its presence has expired.
            end_scripts(supervisor, instance, ScriptSelection::All).await;
            if supervisor.queue.expel(instance, record).await? {
                end_claims(supervisor, instance).await?;
            }
        }
    }
    for instance in loss.check(&supervisor.queue, Instant::now()).await? {
        // The instance may only hang, and go on later. Only its claimed jobs are ended: other instances of its
        // process may be healthy.
        let claims = supervisor.queue.claims_of(&instance).await?;
        let claims: HashSet<String> = claims.iter().map(ToString::to_string).collect();
        if !claims.is_empty() {
            end_scripts(supervisor, &instance, ScriptSelection::Jobs(claims)).await;
        }
        end_claims(supervisor, &instance).await?;
    }
    let count = supervisor.queue.requeue_unclaimed().await?;
    if count > 0 {
        tracing::info!(count, "jobs that were popped and never claimed were put back");
    }
    Ok(())
}

async fn end_claims(supervisor: &SupervisorState, instance: &InstanceRef) -> kv::Result<()> {
    let lost = supervisor.queue.end_lost(instance).await?;
    supervisor.metrics.lost.inc_by(lost as u64);
    tracing::warn!(%instance, lost, "an instance has vanished; its attempts ended as lost");
    Ok(())
}

/// Selection of the recorded scripts to end.
enum ScriptSelection {
    All,
    /// The scripts of these jobs.
    Jobs(HashSet<String>),
}

/// Ends the scripts that an instance has recorded on this machine. An instance without a record here ran elsewhere.
async fn end_scripts(supervisor: &SupervisorState, instance: &InstanceRef, meant: ScriptSelection) {
    let running = running_dir(&supervisor.work_dir.of_instance(instance));
    let ended = blocking(move || match meant {
        ScriptSelection::All => records::end_recorded(&running),
        ScriptSelection::Jobs(jobs) => records::end_recorded_of(&running, |job| jobs.contains(job)),
    });
    match ended.await {
        Ok(ended) => {
            supervisor.metrics.processes_ended.inc_by(ended.len() as u64);
            for SweptProcess { ended, job } in ended {
                let job = job.unwrap_or_default();
                tracing::warn!(%instance, job, pid = ended.pid, name = ended.name, "ended a process that was left");
            }
        }
        Err(error) => tracing::error!(%instance, %error, "scripts of a vanished instance may still run"),
    }
}

/// Takes the lock of a runner process that is known to be dead, so that no other can take its place meanwhile. Returns nothing
/// when the process lives, or may live: its pid alone proves nothing, since it may live in another PID namespace.
async fn lock_of_dead(
    supervisor: &SupervisorState,
    instance: &InstanceRef,
    record: &PresenceRecord,
) -> Option<FileLock> {
    if record.hostname != processes::hostname() || record.pid == std::process::id() {
        return None;
    }
    if processes::observe(record.pid).is_ok_and(|process| process.start_ticks == record.process_start) {
        return None;
    }
    let path = lock_path(&supervisor.work_dir.of_instance(instance));
    blocking(move || FileLock::try_take(File::open(path)?)).await.ok()?.ok()
}
