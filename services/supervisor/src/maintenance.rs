//! Periodic maintenance: prunes logs, and keeps blobs within their bound.

use std::time::{Duration, SystemTime};

use crate::coordinator_requests::SupervisorState;

/// Interval of the maintenance.
const INTERVAL: Duration = Duration::from_secs(60);

/// Cleans up for ever. The caller drops the future to end it.
pub(crate) async fn keep(supervisor: SupervisorState) {
    match supervisor.blobs.remove_drafts(SystemTime::now()).await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "files that a crash left half-written were removed"),
        Err(error) => tracing::warn!(%error, "half-written files cannot be removed"),
    }
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = interval.tick() => thin_out_logs(&supervisor).await,
            () = supervisor.blobs.grown() => {}
        }
        clean_blobs(&supervisor).await;
    }
}

async fn thin_out_logs(supervisor: &SupervisorState) {
    let running = || supervisor.queue.running();
    match supervisor.logs.prune(running, SystemTime::now()).await {
        Ok(thinned) => {
            supervisor.metrics.logs_removed.inc_by(thinned.removed);
            supervisor.metrics.log_bytes.set(gauge(thinned.bytes));
        }
        Err(error) => tracing::warn!("{}", service::error_chain(&error)),
    }
}

async fn clean_blobs(supervisor: &SupervisorState) {
    match supervisor.blobs.clean(&supervisor.queue, SystemTime::now()).await {
        Ok(cleaned) => {
            supervisor.metrics.blobs_evicted.inc_by(cleaned.removed);
            supervisor.metrics.blob_bytes.set(gauge(cleaned.bytes));
        }
        Err(error) => tracing::warn!("{}", service::error_chain(&error)),
    }
}

fn gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
