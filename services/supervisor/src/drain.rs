//! Draining a machine: it accepts no new jobs, gives back waiting ones, and its instances end when their scripts have.

use std::sync::Arc;
use std::time::Duration;

use keys::ControlScope;
use model::{ScriptType, Timestamp};
use queue::{InstanceCommand, SupervisorDrain};
use tokio::sync::watch;

use crate::coordinator_requests::SupervisorState;

/// Drain state of the supervisor. Clones share it.
#[derive(Debug, Clone)]
pub struct DrainState(Arc<watch::Sender<Option<SupervisorDrain>>>);

impl Default for DrainState {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

/// How far a drain is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainProgress {
    /// Start and deadline of the drain; absent: the machine does not drain.
    pub drain: Option<SupervisorDrain>,
    /// Jobs that wait in its queues.
    pub queued: u64,
    /// Jobs that instances run.
    pub running: u64,
}

impl DrainState {
    /// Returns the current drain, if any.
    #[must_use]
    pub fn now(&self) -> Option<SupervisorDrain> {
        *self.0.borrow()
    }

    /// Changes with each drain and resume.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Option<SupervisorDrain>> {
        self.0.subscribe()
    }

    pub(crate) fn set(&self, drain: Option<SupervisorDrain>) {
        self.0.send_if_modified(|known| {
            let changed = *known != drain;
            *known = drain;
            changed
        });
    }
}

/// Begins a drain, or gives a running one another deadline. Every instance that is here now takes no more
/// jobs, and has until the deadline for those that it runs; without a deadline, its configured time.
///
/// # Errors
/// Any [`kv::Error`]; repeat the call then, since some instances may not have received the command.
pub async fn begin(supervisor: &SupervisorState, deadline_secs: Option<u32>) -> kv::Result<DrainProgress> {
    let now = Timestamp::now();
    let since = supervisor.draining.now().map_or(now, |drain| drain.since);
    let deadline = deadline_secs.map(|secs| now + Duration::from_secs(secs.into()));
    let drain = SupervisorDrain { since, deadline };
    supervisor.queue.set_drain(Some(drain)).await?;
    // From here on nothing is accepted; the next check of the instances gives back jobs that were just being accepted.
    supervisor.draining.set(Some(drain));
    supervisor.metrics.drains.inc();
    let mut instances = 0;
    for script_type in ScriptType::ALL {
        let command = InstanceCommand::Drain { deadline_secs };
        instances += supervisor.queue.command(&ControlScope::Type(script_type), &command).await?;
    }
    let returned = supervisor.queue.return_waiting().await?;
    tracing::info!(returned, instances, ?deadline_secs, "the machine is being drained");
    progress(supervisor).await
}

/// Ends a drain. Instances that have ended come back when they are started again.
///
/// # Errors
/// Any [`kv::Error`]; may be repeated.
pub async fn end(supervisor: &SupervisorState) -> kv::Result<DrainProgress> {
    supervisor.queue.set_drain(None).await?;
    if supervisor.draining.now().is_some() {
        tracing::info!("the machine takes jobs again");
    }
    supervisor.draining.set(None);
    progress(supervisor).await
}

/// Returns the progress of the drain.
///
/// # Errors
/// Any [`kv::Error`].
pub async fn progress(supervisor: &SupervisorState) -> kv::Result<DrainProgress> {
    let queued = supervisor.queue.statistics().await?.iter().map(|stats| stats.depth).sum();
    let running = supervisor.queue.running().await?.len() as u64;
    Ok(DrainProgress { drain: supervisor.draining.now(), queued, running })
}
