//! Watching the runner records of all contexts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use model::{ContextId, Revision, Runner, RunnerId, Timestamp};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::runners::RUNNERS_READ;
use crate::store::TenantStore;
use crate::watch::events::{EventHub, Hint};

/// The pause after a failed read.
const RETRY: Duration = Duration::from_millis(200);
/// Parts between the watch and its stream.
const OUT_BUFFER: usize = 16;

/// Part of the snapshot, or a change.
#[derive(Debug)]
pub(crate) enum RunnerWatchEvent {
    /// Records of one context that are new or have changed.
    Runners(ContextId, Vec<Runner>),
    /// Records of one context that were removed.
    Gone(ContextId, Vec<RunnerId>),
    /// Everything that there was at the start was sent.
    SnapshotEnd,
}

impl EventHub {
    /// Begins a watch over all contexts. It ends when its receiver is dropped.
    pub(crate) fn watch_runners(&self) -> mpsc::Receiver<RunnerWatchEvent> {
        let (out, parts) = mpsc::channel(OUT_BUFFER);
        let task = RunnerWatchTask { hub: self.clone(), out, known: HashMap::new() };
        tokio::spawn(task.run());
        parts
    }
}

struct RunnerWatchTask {
    hub: EventHub,
    out: mpsc::Sender<RunnerWatchEvent>,
    /// Versions of the records that were sent, by revision and time: a new context of the same id counts from 1 again.
    known: HashMap<(ContextId, RunnerId), (Revision, Timestamp)>,
}

impl RunnerWatchTask {
    async fn run(mut self) {
        // Before the first look, so that no change falls between.
        let mut hints = self.hub.hints();
        self.look_everywhere().await;
        if self.out.send(RunnerWatchEvent::SnapshotEnd).await.is_err() {
            return;
        }
        loop {
            let hint = tokio::select! {
                () = self.out.closed() => return,
                hint = hints.recv() => hint,
            };
            match hint {
                Ok(Hint::Runner(context) | Hint::Removal(context)) => {
                    let place = self.hub.store().tenant_unchecked(context);
                    while let Err(error) = self.look(&place).await {
                        tracing::warn!(%context, %error, "reading runner records failed, trying again");
                        tokio::time::sleep(RETRY).await;
                    }
                }
                Ok(Hint::Missed) | Err(RecvError::Lagged(_)) => self.look_everywhere().await,
                Ok(Hint::Out(_) | Hint::Replicas) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn look_everywhere(&mut self) {
        while let Err(error) = self.try_everywhere().await {
            tracing::warn!(%error, "reading runner records failed, trying again");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn try_everywhere(&mut self) -> Result<()> {
        let store = self.hub.store().clone();
        let mut tenants = store.tenants().await?;
        // Includes contexts that are gone.
        let known: BTreeSet<ContextId> = self.known.keys().map(|(context, _)| *context).collect();
        let is_listed = |id: &ContextId| tenants.iter().any(|tenant| tenant.id == *id);
        let gone: Vec<_> =
            known.into_iter().filter(|id| !is_listed(id)).map(|id| store.tenant_unchecked(id)).collect();
        tenants.extend(gone);
        for tenant in tenants {
            self.look(&tenant).await?;
        }
        Ok(())
    }

    async fn look(&mut self, tenant: &Arc<TenantStore>) -> Result<()> {
        let store = self.hub.store().clone();
        let ids = store.runner_ids(tenant, true).await?;
        let mut there = BTreeSet::new();
        for ids in ids.chunks(RUNNERS_READ) {
            let runners = store.runners_at(tenant, ids).await?;
            there.extend(runners.iter().map(|runner| runner.id));
            self.publish(tenant.id, runners).await;
        }
        let is_gone =
            |(context, runner): &&(ContextId, RunnerId)| *context == tenant.id && !there.contains(runner);
        let gone: Vec<RunnerId> = self.known.keys().filter(is_gone).map(|(_, runner)| *runner).collect();
        for runner in &gone {
            self.known.remove(&(tenant.id, *runner));
        }
        if !gone.is_empty() {
            // As below.
            let _ = self.out.send(RunnerWatchEvent::Gone(tenant.id, gone)).await;
        }
        Ok(())
    }

    /// Sends the records whose present version was not sent yet.
    async fn publish(&mut self, context: ContextId, runners: Vec<Runner>) {
        let version = |runner: &Runner| (runner.revision, runner.updated_at);
        let is_new = |runner: &Runner| {
            self.known.get(&(context, runner.id)).is_none_or(|known| *known != version(runner))
        };
        let changed: Vec<Runner> = runners.into_iter().filter(is_new).collect();
        for runner in &changed {
            self.known.insert((context, runner.id), version(runner));
        }
        if !changed.is_empty() {
            // The receiver may have left, which `run` notices.
            let _ = self.out.send(RunnerWatchEvent::Runners(context, changed)).await;
        }
    }
}
