//! Beats: twice a second a replica says that it lives, and hears who else does and what was decided beside the lanes.
//!
//! A replica that was not heard of for [`LEASE`] is lost to the others, and they take its lanes. It knows that by its own clock, and
//! gives them up itself: what it still commits is fenced, so nothing rests on both knowing it at once.

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

/// Time from one beat to the next. A lane that is given up rests until the next replica has heard of it: less than a second.
pub const BEAT_EACH: Duration = Duration::from_millis(500);
/// Time after its last beat at which a replica is lost.
pub const LEASE: Duration = Duration::from_secs(5);
/// A beat that has no answer for so long is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// View that a replica has of the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SagaReplicaView {
    /// Replicas that live, this one among them; none before the first beat, and while this one's beats are not heard.
    pub members: Vec<PlacementMember>,
    /// Number of times that this replica may have been lost to the others. What it took before that may be another's.
    pub lapses: u64,
    /// Decisions about tenants and lanes.
    pub decided: Arc<OperatorDecisions>,
    /// Revision of the rows beside the lanes. With another one, one of them has changed.
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
    /// Number of beats that were answered.
    pub beats: watch::Receiver<u64>,
}

/// Has a replica beat.
pub struct SagaHeartbeats {
    store: Arc<dyn KvStore>,
    identity: SagaReplicaIdentity,
    role: SagaReplicaRole,
    metrics: Arc<Metrics>,
    view: watch::Sender<Arc<SagaReplicaView>>,
    beats: watch::Sender<u64>,
    /// Asks for a beat at once.
    soon: Notify,
}

/// State of the heartbeats of one process.
struct SagaHeartbeatState {
    /// When the last one was sent that was answered.
    last: Option<Instant>,
    is_lapsed: bool,
    lapses: u64,
    /// The rows beside the lanes as they were read last.
    decided: Arc<OperatorDecisions>,
    /// Their revision then; none before.
    revision: Option<u64>,
    clock: ClockWatch,
}

impl SagaHeartbeats {
    /// Beats of a replica that has not begun.
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

    /// Follows what is heard.
    #[must_use]
    pub fn heard(&self) -> SagaReplicaFeed {
        SagaReplicaFeed { view: self.view.subscribe(), beats: self.beats.subscribe() }
    }

    /// Returns the current view.
    #[must_use]
    pub fn view(&self) -> Arc<SagaReplicaView> {
        Arc::clone(&self.view.borrow())
    }

    /// Has the next beat come at once: something has changed.
    pub fn beat_now(&self) {
        self.soon.notify_one();
    }

    /// Beats for ever. `drained` are tenants whose lanes are given up, `draining` is cancelled once all are.
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
            let words = self.words(&drained.borrow_and_update(), is_known_draining);
            self.beat(words, &mut pulse, condition).await;
        }
    }

    /// Says that the replica lives no longer: others take what it had at once.
    ///
    /// # Errors
    /// [`StoreError`]; it is lost a lease later then.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let beat = self.beat_of(Bytes::new(), Duration::ZERO, false);
        self.store.heartbeat(&beat).await.map(drop)
    }

    fn words(&self, drained: &BTreeSet<TenantId>, is_draining: bool) -> Bytes {
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

    fn beat_of(&self, words: Bytes, ttl: Duration, takes_name: bool) -> StoreHeartbeat {
        let SagaReplicaIdentity { name, session, .. } = &self.identity;
        StoreHeartbeat {
            replica: Replica { name: name.clone(), session: *session, words },
            ttl,
            is_takeover: takes_name,
        }
    }

    /// Beats once, and tells what was heard.
    async fn beat(&self, words: Bytes, pulse: &mut SagaHeartbeatState, condition: &ReadinessCondition) {
        let beat = self.beat_of(words, LEASE, pulse.last.is_none());
        // In a store of one process nobody takes anything meanwhile.
        let is_shared = self.store.capabilities().shared;
        let sent = Instant::now();
        // A lease that ends while an answer is waited for is noticed when it ends.
        let lease = pulse.last.map(|last| (last + LEASE).saturating_duration_since(sent));
        let limit =
            lease.filter(|left| !left.is_zero()).map_or(ANSWER_WITHIN, |left| left.min(ANSWER_WITHIN));
        let answer = match tokio::time::timeout(limit, self.store.heartbeat(&beat)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store did not answer in {limit:?}")),
        };
        if is_shared && pulse.last.is_some_and(|last| last.elapsed() >= LEASE) {
            self.lose(pulse, "no beat of this replica was heard for longer than its lease");
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

    /// Takes note that the others may have lost this replica, so that it gives up what it has.
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

    /// Reads what was decided, where anything beside the lanes has changed since.
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

/// Replicas that live. One whose words cannot be read owns nothing here.
fn members(living: &StoreHeartbeatReply) -> Vec<PlacementMember> {
    let read = |replica: &Replica| match serde_json::from_slice::<PlacementMember>(&replica.words) {
        Ok(member) => Some(PlacementMember { name: replica.name.clone(), ..member }),
        Err(error) => {
            tracing::warn!(replica = replica.name, "its words cannot be read: {error}");
            None
        }
    };
    let by_name: BTreeMap<_, _> =
        living.replicas.iter().filter_map(read).map(|member| (member.name.clone(), member)).collect();
    by_name.into_values().collect()
}
