//! The registry's view of runners, kept by a watch.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use backoff::ExponentialBackoff;
use model::{ContextId, RunnerId, RunnerView};
use proto::convert;
use proto::internal::v1::{ViewedRunner, WatchRequest};
use rpc::RECONNECT_MAX;
use service::ReadinessCondition;
use tonic::Status;

use crate::clients::SchedulerRegistryClient;
use crate::destinations::RunnerTable;
use crate::driver::{Handle, SchedulerEvent};
use crate::liveness::RunnerKey;

/// The registry's view of runners, shared with the code that explains placements.
pub type SharedRunners = Arc<RwLock<RunnerTable>>;

/// Forwards the registry's view to the driver and keeps `shared` up to date; `known` is met while the view is
/// complete and is being followed. Never returns; the caller drops the future to end it.
pub async fn follow(
    mut registry: SchedulerRegistryClient,
    driver: Handle,
    shared: SharedRunners,
    known: ReadinessCondition,
) {
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    loop {
        let mut seen = false;
        let ended = watch(&mut registry, &driver, (&shared, &known), &mut seen).await;
        if seen {
            backoff.reset();
        }
        match ended {
            Ok(()) => known.unmet("the registry ended its view"),
            Err(status) => {
                known.unmet(status.message());
                tracing::warn!(%status, "the view of runners broke off");
            }
        }
        backoff.pause().await;
    }
}

async fn watch(
    registry: &mut SchedulerRegistryClient,
    driver: &Handle,
    (shared, known): (&SharedRunners, &ReadinessCondition),
    seen: &mut bool,
) -> Result<(), Status> {
    let mut answers = registry.watch(WatchRequest {}).await?.into_inner();
    // Until the snapshot is complete: runners of an earlier stream that this one has not sent.
    let mut missing: Option<BTreeSet<RunnerKey>> = Some(table(shared).keys().collect());
    while let Some(answer) = answers.message().await? {
        *seen = true;
        let views = answer.runners.into_iter().filter_map(|ViewedRunner { context_id, runner }| {
            match convert::runner::from_wire(runner?) {
                Ok(view) => Some((ContextId(context_id), view)),
                Err(error) => {
                    tracing::error!(%error, "the registry sent a runner that cannot be read");
                    None
                }
            }
        });
        let views: Vec<(ContextId, RunnerView)> = views.collect();
        let removed = answer.gone.iter().map(|gone| (ContextId(gone.context_id), RunnerId(gone.runner_id)));
        let mut gone: Vec<RunnerKey> = removed.collect();
        if let Some(missing) = &mut missing {
            for (context, view) in &views {
                missing.remove(&(*context, view.runner.id));
            }
        }
        if answer.snapshot_end {
            gone.extend(missing.take().into_iter().flatten());
        }
        {
            let mut table = table(shared);
            for (context, view) in &views {
                table.update(*context, view.clone());
            }
            for runner in &gone {
                table.remove(*runner);
            }
        }
        driver.send(SchedulerEvent::Runners { views, gone }).await;
        if answer.snapshot_end {
            known.met();
        }
    }
    Ok(())
}

/// Locks the table; no code panics while the lock is held.
fn table(shared: &SharedRunners) -> RwLockWriteGuard<'_, RunnerTable> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}
