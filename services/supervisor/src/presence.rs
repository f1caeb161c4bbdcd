//! Presence of the machine's instances: announced to coordinators every few seconds, and at once when it changes.
//! Also notices instances that vanish.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use model::supervision::method;
use model::{InstanceInfo, Presence, limits};
use queue::{InstanceLossDetector, UnmetIsolationDetector};
use service::ReadinessCondition;
use tokio::sync::watch;

use crate::coordinator_requests::SupervisorState;
use crate::instance_loss;

/// Interval at which presence keys are checked; they expire without a notification.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of announcements to coordinators while nothing changes.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(limits::PRESENCE_INTERVAL_SECS as u64);

/// How long one coordinator may hold up the next check.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(2);

/// View of this supervisor's current presence. Clones share it.
#[derive(Debug, Clone)]
pub struct PresenceView(Arc<watch::Sender<Presence>>);

impl Default for PresenceView {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Presence {
            supervisor: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instances: Vec::new(),
            queued: 0,
            draining: false,
        })))
    }
}

impl PresenceView {
    /// Returns the current presence.
    #[must_use]
    pub fn now(&self) -> Presence {
        self.0.borrow().clone()
    }

    /// Returns the presence to announce, truncated to its limits, and how many instances that leaves out.
    #[must_use]
    pub fn announcement(&self) -> (Presence, usize) {
        let mut presence = self.now();
        let left_out = presence.truncate();
        (presence, left_out)
    }

    /// Returns the supervisor's own name; empty until its store was read.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.borrow().supervisor.clone()
    }

    /// Returns true once the store was read and the supervisor knows its name.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.0.borrow().supervisor.is_empty()
    }

    /// Waits until the supervisor knows its name.
    pub async fn known(&self) {
        // The sender is `self`: it cannot be gone.
        let _ = self.0.subscribe().wait_for(|presence| !presence.supervisor.is_empty()).await;
    }

    fn set_name(&self, name: &str) {
        self.0.send_modify(|presence| name.clone_into(&mut presence.supervisor));
    }

    /// Notes the current instances. Returns true if the offered work has changed.
    fn set(&self, instances: Vec<InstanceInfo>, queued: u64, draining: bool) -> bool {
        let offers = |list: &[InstanceInfo]| -> Vec<_> {
            list.iter().map(|i| (i.script_type, i.group.clone(), i.number, i.slots, i.isolation)).collect()
        };
        let mut changed = false;
        self.0.send_modify(|presence| {
            changed = presence.draining != draining || offers(&presence.instances) != offers(&instances);
            presence.instances = instances;
            presence.queued = queued;
            presence.draining = draining;
        });
        changed
    }
}

/// Checks the instances and announces them, for ever; `store` is met while the store can be read. The caller drops the future
/// to end it.
pub async fn keep(
    supervisor: SupervisorState,
    mut loss: InstanceLossDetector,
    mut demands: UnmetIsolationDetector,
    store: &ReadinessCondition,
) {
    learn(&supervisor).await;
    let mut arrivals = supervisor.coordinators.arrivals();
    let mut drains = supervisor.draining.changes();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut announced = Instant::now();
    loop {
        let arrived = tokio::select! {
            _ = look.tick() => false,
            changed = arrivals.changed() => changed.is_ok(),
            // A drain is announced at once, since coordinators send jobs here until they know of it.
            changed = drains.changed() => changed.is_ok(),
        };
        let changed = match look_once(&supervisor, &mut loss, &mut demands).await {
            Ok(changed) => {
                store.met();
                changed
            }
            Err(error) => {
                store.unmet(error.to_string());
                tracing::warn!(%error, "the instances cannot be read from the store; retrying");
                demands.forget();
                false
            }
        };
        if changed || arrived || announced.elapsed() >= ANNOUNCE_INTERVAL {
            announced = Instant::now();
            announce(&supervisor).await;
        }
    }
}

/// Reads the supervisor's own name, and whether it drains; it must not serve anyone before that.
async fn learn(supervisor: &SupervisorState) {
    let queue = &supervisor.queue;
    loop {
        match tokio::try_join!(queue.drain(), queue.name()) {
            Ok((drain, name)) => {
                supervisor.draining.set(drain);
                return supervisor.presence.set_name(&name);
            }
            Err(error) => {
                tracing::warn!(%error, "the store does not answer; trying again");
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        }
    }
}

async fn look_once(
    supervisor: &SupervisorState,
    loss: &mut InstanceLossDetector,
    demands: &mut UnmetIsolationDetector,
) -> kv::Result<bool> {
    let queue = &supervisor.queue;
    let draining = supervisor.draining.now().is_some();
    let present = queue.instances().await?;
    let mut instances: Vec<_> = present.iter().map(|(instance, record)| record.info(instance)).collect();
    let queues = queue.statistics().await?;
    let queued = queues.iter().map(|stats| stats.depth).sum();
    supervisor.metrics.instances.set(i64::try_from(instances.len()).unwrap_or(i64::MAX));
    supervisor.metrics.queued.set(i64::try_from(queued).unwrap_or(i64::MAX));
    supervisor.metrics.draining.set(i64::from(draining));
    supervisor.metrics.jobs.look(&instances, &queues);
    supervisor.external_workers.complete(&mut instances);
    let changed = supervisor.presence.set(instances, queued, draining);
    instance_loss::end(supervisor, &present, loss).await?;
    for hopeless in demands.check(&queues, &present, Instant::now()) {
        let count = queue.refuse_waiting(&hopeless).await?;
        tracing::warn!(queue = %hopeless, count, "jobs were refused: no instance here offers their isolation");
    }
    if let Some(shortage) = supervisor.floors.shortage() {
        let returned = queue.return_waiting().await?;
        if returned > 0 {
            // If they are sent here again, they are refused with `DISK_FULL` until there is room.
            tracing::warn!(returned, %shortage, "queued jobs were given back");
        }
    }
    if draining {
        // Jobs may have been accepted while the drain began, or put back since.
        queue.return_waiting().await?;
    }
    Ok(changed)
}

async fn announce(supervisor: &SupervisorState) {
    let (presence, left_out) = supervisor.presence.announcement();
    if left_out > 0 {
        tracing::warn!(
            left_out,
            "there are more instances than a presence may announce; the excess is left out"
        );
    }
    let telling = supervisor.coordinators.all().into_iter().map(|peer| {
        let presence = &presence;
        async move {
            let telling = peer.notify(method::SUPERVISOR_PRESENCE, presence);
            match tokio::time::timeout(ANNOUNCE_TIMEOUT, telling).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a presence could not be sent to a coordinator"),
                Err(_) => tracing::debug!("a coordinator did not answer a presence in time"),
            }
        }
    });
    join_all(telling).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_limited_and_all_instances_are_known_locally() {
        let instance = |number: u32| InstanceInfo {
            script_type: model::ScriptType::Shell,
            group: "default".parse().expect("a name"),
            number,
            slots: 1,
            busy: 0,
            isolation: model::Isolation::Basic,
            layers: Vec::new(),
            version: "1".to_owned(),
        };
        let view = PresenceView::default();
        assert!(view.set((1..=1003).map(instance).collect(), 0, false));
        let (presence, left_out) = view.announcement();
        assert_eq!((presence.instances.len(), left_out, view.now().instances.len()), (1000, 3, 1003));
        assert_eq!(presence.check(), Ok(()));
    }
}
