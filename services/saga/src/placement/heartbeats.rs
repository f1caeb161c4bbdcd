//! Heartbeats: twice a second a replica reports that it lives, and learns which others live and what operators decided.
//!
//! A replica without a heartbeat for [`LEASE`] is lost to the others, and they take its lanes. It notices that by its own clock and gives
//! the lanes up itself. Its late commits are fenced, so the two sides need not notice at the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::TenantId;
use service::ReadinessCondition;
use store::{KvStore, Replica, StoreError, StoreHeartbeat, StoreHeartbeatReply};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use workflow::placement::PlacementMember;

use super::clock_watch::ClockWatch;
use super::decisions::OperatorDecisions;
use super::{SagaReplicaIdentity, SagaReplicaRole};
use crate::metrics::Metrics;

/// Time from one heartbeat to the next. A released lane rests until its next owner learns of it: less than a second.
pub const BEAT_EACH: Duration = Duration::from_millis(500);
/// Time after its last heartbeat at which a replica is lost.
pub const LEASE: Duration = Duration::from_secs(5);
/// Time without an answer after which a heartbeat is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// View that a replica has of the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SagaReplicaView {
    /// Live replicas, this one among them; empty before the first heartbeat, and while this replica's heartbeats are not answered.
    pub members: Vec<PlacementMember>,
    /// Number of times that this replica may have been lost to the others. Lanes that it took before may be another replica's.
    pub lapses: u64,
    /// Decisions about tenants and lanes.
    pub decided: Arc<OperatorDecisions>,
    /// Revision of the rows beside the lanes, which changes with any of them.
    pub revision: u64,
}

impl SagaReplicaView {
    /// Returns whether a replica of this name lives.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }
}

/// Feed of what placement learns from heartbeats. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SagaReplicaFeed {
    /// View since the last heartbeat that changed something.
    pub view: watch::Receiver<Arc<SagaReplicaView>>,
    /// Number of answered heartbeats.
    pub beats: watch::Receiver<u64>,
}

/// Sender of a replica's heartbeats.
pub struct SagaHeartbeats {
    store: Arc<dyn KvStore>,
    identity: SagaReplicaIdentity,
    role: SagaReplicaRole,
    metrics: Arc<Metrics>,
    view: watch::Sender<Arc<SagaReplicaView>>,
    beats: watch::Sender<u64>,
    /// Notified to send a heartbeat at once.
    soon: Notify,
}

/// State of the heartbeats of one process.
struct SagaHeartbeatState {
    /// When the last answered heartbeat was sent.
    last: Option<Instant>,
    is_lapsed: bool,
    lapses: u64,
    /// Decisions of operators, as they were last read.
    decided: Arc<OperatorDecisions>,
    /// Revision of the shared rows at that time; `None` before.
    revision: Option<u64>,
    clock: ClockWatch,
}

impl SagaHeartbeats {
    /// Makes the heartbeats of a replica, which have not begun.
    #[must_use]
    pub fn new(
        store: Arc<dyn KvStore>,
        identity: SagaReplicaIdentity,
        role: SagaReplicaRole,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let (view, beats) = (watch::Sender::default(), watch::Sender::default());
        Self { store, identity, role, metrics: Arc::clone(metrics), view, beats, soon: Notify::new() }
    }

    /// Name of the replica, and its session.
    #[must_use]
    pub const fn identity(&self) -> &SagaReplicaIdentity {
        &self.identity
    }

    /// Subscribes to what the heartbeats learn.
    #[must_use]
    pub fn feed(&self) -> SagaReplicaFeed {
        SagaReplicaFeed { view: self.view.subscribe(), beats: self.beats.subscribe() }
    }

    /// Returns the current view.
    #[must_use]
    pub fn view(&self) -> Arc<SagaReplicaView> {
        Arc::clone(&self.view.borrow())
    }

    /// Sends the next heartbeat at once, since something has changed.
    pub fn beat_now(&self) {
        self.soon.notify_one();
    }

    /// Sends heartbeats for ever. `drained` are tenants whose lanes are given up, `draining` is cancelled once all are.
    pub async fn run(
        &self,
        mut drained: watch::Receiver<Arc<BTreeSet<TenantId>>>,
        draining: CancellationToken,
        condition: &ReadinessCondition,
    ) {
        let mut ticks = tokio::time::interval(BEAT_EACH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (decided, revision) = (Arc::default(), None);
        let clock = ClockWatch::default();
        let mut pulse =
            SagaHeartbeatState { last: None, is_lapsed: false, lapses: 0, decided, revision, clock };
        let mut is_known_draining = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.soon.notified() => {}
                changed = drained.changed() => if changed.is_err() { return },
                () = draining.cancelled(), if !is_known_draining => {}
            }
            is_known_draining = draining.is_cancelled();
            let announcement = self.announcement(&drained.borrow_and_update(), is_known_draining);
            self.beat(announcement, &mut pulse, condition).await;
        }
    }

    /// Reports that the replica leaves: others take its lanes at once.
    ///
    /// # Errors
    /// [`StoreError`]; the others then take the lanes once the lease ends.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let beat = self.beat_of(Bytes::new(), Duration::ZERO, false);
        self.store.heartbeat(&beat).await.map(drop)
    }

    fn announcement(&self, drained: &BTreeSet<TenantId>, is_draining: bool) -> Bytes {
        let member = PlacementMember {
            name: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sagas: self.role.sagas,
            effects: self.role.effects,
            weight: self.identity.weight,
            without: drained.iter().map(ToString::to_string).collect(),
            is_draining,
        };
        serde_json::to_vec(&member).unwrap_or_default().into()
    }

    fn beat_of(&self, announcement: Bytes, ttl: Duration, takes_name: bool) -> StoreHeartbeat {
        let SagaReplicaIdentity { name, session, .. } = &self.identity;
        StoreHeartbeat {
            replica: Replica { name: name.clone(), session: *session, announcement },
            ttl,
            is_takeover: takes_name,
        }
    }

    /// Sends one heartbeat, and publishes what its answer says.
    async fn beat(
        &self,
        announcement: Bytes,
        pulse: &mut SagaHeartbeatState,
        condition: &ReadinessCondition,
    ) {
        let beat = self.beat_of(announcement, LEASE, pulse.last.is_none());
        // In a store of a single process no other replica can take a lane meanwhile.
        let is_shared = self.store.capabilities().shared;
        let sent = Instant::now();
        // The wait for an answer ends with the lease, so that its end is noticed at once.
        let lease = pulse.last.map(|last| (last + LEASE).saturating_duration_since(sent));
        let limit =
            lease.filter(|left| !left.is_zero()).map_or(ANSWER_WITHIN, |left| left.min(ANSWER_WITHIN));
        let answer = match tokio::time::timeout(limit, self.store.heartbeat(&beat)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store did not answer in {limit:?}")),
        };
        if is_shared && pulse.last.is_some_and(|last| last.elapsed() >= LEASE) {
            self.lose(pulse, "the store has answered no heartbeat for longer than the lease of this replica");
        }
        let living = match answer {
            Ok(living) => living,
            Err(why) => {
                condition.unmet(why);
                return;
            }
        };
        self.watch_clock(pulse, sent, &living);
        if living.is_displaced {
            let name = &self.identity.name;
            let why = format!(
                "another process is the replica `{name}` now: give each process a name of its own with --replica"
            );
            self.lose(pulse, &why);
            condition.unmet(why);
            return;
        }
        pulse.last = Some(sent);
        pulse.is_lapsed = false;
        match self.decided(pulse, &living).await {
            Ok(()) => condition.met(),
            Err(error) => {
                condition.unmet(error.to_string());
                return;
            }
        }
        let view = SagaReplicaView {
            members: members(&living),
            lapses: pulse.lapses,
            decided: Arc::clone(&pulse.decided),
            revision: living.revision,
        };
        self.view.send_if_modified(|former| {
            let is_new = **former != view;
            if is_new {
                *former = Arc::new(view);
            }
            is_new
        });
        self.beats.send_modify(|number| *number += 1);
    }

    /// Raises an alarm where the store's clock was set back from one beat to the next, which was `sent` at this moment.
    fn watch_clock(&self, pulse: &mut SagaHeartbeatState, sent: Instant, living: &StoreHeartbeatReply) {
        if let Some(back) = pulse.clock.note(sent, Instant::now(), living.now) {
            self.metrics.clock_went_back.inc();
            let whose = if self.store.capabilities().shared { "of Redis" } else { "of this machine" };
            tracing::error!("the clock {whose} was set back by {back:?}: timers fire so much later");
        }
    }

    /// Notes that the others may have lost this replica, so that it gives up its lanes.
    fn lose(&self, pulse: &mut SagaHeartbeatState, why: &str) {
        if std::mem::replace(&mut pulse.is_lapsed, true) {
            return;
        }
        tracing::warn!("{why}; its lanes are given up");
        pulse.lapses += 1;
        self.view.send_modify(|view| {
            let (decided, revision) = (Arc::clone(&view.decided), view.revision);
            *view =
                Arc::new(SagaReplicaView { members: Vec::new(), lapses: pulse.lapses, decided, revision });
        });
    }

    /// Reads the decisions of operators, if any row beside the lanes has changed since.
    async fn decided(
        &self,
        pulse: &mut SagaHeartbeatState,
        living: &StoreHeartbeatReply,
    ) -> Result<(), StoreError> {
        if pulse.revision != Some(living.revision) {
            pulse.decided = Arc::new(OperatorDecisions::read(&self.store).await?);
            pulse.revision = Some(living.revision);
        }
        Ok(())
    }
}

/// Live replicas. A replica whose heartbeat cannot be parsed is assigned no lanes here.
fn members(living: &StoreHeartbeatReply) -> Vec<PlacementMember> {
    let read = |replica: &Replica| match serde_json::from_slice::<PlacementMember>(&replica.announcement) {
        Ok(member) => Some(PlacementMember { name: replica.name.clone(), ..member }),
        Err(error) => {
            tracing::warn!(replica = replica.name, "its heartbeat cannot be parsed: {error}");
            None
        }
    };
    let by_name: BTreeMap<_, _> =
        living.replicas.iter().filter_map(read).map(|member| (member.name.clone(), member)).collect();
    by_name.into_values().collect()
}
