//! Placement: decides which lanes this replica owns, takes them and gives them up.
//!
//! By its heartbeats every replica learns which others live, and all compute the same owner of each lane. A replica gives up a lane that
//! is no longer its own: work under way ends, committed messages are sent. It takes a lane that is its own once the former owner has
//! given it up or is gone; taking it fences the former owner out in any case.
//!
//! A fenced lane is taken again only after a later heartbeat that still assigns it to this replica: two replicas that know different
//! members take a lane from each other once at most. A lane that received a message which its filter should not let through stays away
//! until a reload, since the broker does not keep tenants apart.

mod clock_watch;
pub mod decisions;
mod handover;
pub mod heartbeats;
pub(crate) mod listing;
pub(crate) mod unowned;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::{BlobHash, EffectName, TenantId};
use service::ReadinessCondition;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use workflow::WorkflowLane;
use workflow::placement::{WEIGHT_MAX, owner_of};

use self::handover::LaneHandover;
use self::heartbeats::{SagaReplicaFeed, SagaReplicaView};
use crate::definitions::{ActiveDefinitions, ActiveSagaRef, Definitions};
use crate::effects::upstreams::Upstreams;
use crate::effects::{EffectLane, OpenCalls};
use crate::health::ImpairmentGuard;
use crate::lane::gateway::Gateway;
use crate::lane::{LaneEnvironment, LaneExit};
use crate::providers::CallProvider;
use crate::quotas::LANE_CALLS_MAX;
use crate::sagas::{SAGA_DEAD_LETTERS_MAX, SagaLane};
use crate::tenants::TenantRegistry;

/// Largest number of lanes that a replica owns.
pub const LANES_MAX: usize = 2000;
/// Reason why a lane stays away; names no other tenant.
const FOREIGN: &str = "it was given a message that its filter does not let through; compare the consumer with its filter, then Reload has \
                       it taken";
/// Reason why a lane is left out; names no other tenant.
const NO_ROOM: &str =
    "its replica owns as many lanes as it may: start another replica, or have fewer sagas, shards or effects";

/// Role of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SagaReplicaRole {
    /// True if the replica owns lanes of sagas.
    pub sagas: bool,
    /// True if the replica owns lanes of effects.
    pub effects: bool,
}

/// Identity of a replica among the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaReplicaIdentity {
    /// Unique name of the replica.
    pub name: String,
    /// Number of its process.
    pub session: u64,
    /// Share of lanes beside others, from 1 to 100.
    pub weight: u32,
}

impl SagaReplicaIdentity {
    /// A replica of this name.
    ///
    /// # Errors
    /// What is wrong with name or share.
    pub fn new(name: &str, weight: u32) -> Result<Self, String> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if name.is_empty() || name.len() > store::REPLICA_NAME_BYTES_MAX || !name.chars().all(is_good) {
            let most = store::REPLICA_NAME_BYTES_MAX;
            return Err(format!(
                "a replica's name is made of 1 to {most} of the characters A-Z a-z 0-9 - _ . :, not `{}`",
                name.escape_debug()
            ));
        }
        if weight == 0 || weight > WEIGHT_MAX {
            return Err(format!("a replica's share is a number from 1 to {WEIGHT_MAX}, not {weight}"));
        }
        Ok(Self { name: name.to_owned(), session: rand::random(), weight })
    }

    /// Makes an identity with a unique name: that of the machine, and the number of the process.
    ///
    /// # Errors
    /// As [`SagaReplicaIdentity::new`].
    pub fn of_process(weight: u32) -> Result<Self, String> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "local" } else { host.trim() };
        Self::new(&format!("{host}-{}", std::process::id()), weight)
    }
}

/// Providers that make the calls, by effect.
pub type CallProviders = BTreeMap<EffectName, Arc<dyn CallProvider>>;

/// Placement of lanes on this replica, and the dependencies that their owners need.
pub struct LanePlacement {
    /// Name of this replica.
    pub name: String,
    /// Feed of the other replicas.
    pub feed: SagaReplicaFeed,
    /// Tenants that have lanes.
    pub tenants: watch::Receiver<Arc<TenantRegistry>>,
    /// Tenants whose lanes this replica has given up.
    pub drained: watch::Receiver<Arc<BTreeSet<TenantId>>>,
    /// Definitions in force.
    pub definitions: Arc<Definitions>,
    /// Providers that make the calls.
    pub providers: watch::Receiver<Arc<CallProviders>>,
    /// Where commands of aggregates go.
    pub gateway: Arc<dyn Gateway>,
    /// Calls that are open.
    pub calls: OpenCalls,
    /// Gates of upstreams, which permit calls.
    pub upstreams: Upstreams,
    /// Environment that lanes work in.
    pub around: LaneEnvironment,
    /// How long calls under way may take to end when their lane is given up.
    pub grace: Duration,
    /// Largest number of lanes to own: [`LANES_MAX`], or fewer in tests.
    pub lanes_max: usize,
    /// Lanes that stay away or are left out, and why.
    pub away: watch::Sender<Arc<BTreeMap<WorkflowLane, &'static str>>>,
    /// Met while no lane stays away.
    pub lanes: ReadinessCondition,
}

/// Assignment that a lane is owned for: where it changes, the lane is given up and taken again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LaneAssignment {
    /// Hash of the definition whose sources it reads.
    definition: Option<BlobHash>,
    since: Option<u64>,
    weight: u32,
    /// Address in memory of the effect's provider, which changes when a reload replaces the provider.
    provider: usize,
    /// How often this replica was lost before: lanes that it took then may be another replica's.
    lapses: u64,
}

/// A lane that is owned, or will be once its former owner has given it up.
struct OwnedLane {
    wanted: LaneAssignment,
    stop: CancellationToken,
}

/// Lanes of this replica.
#[derive(Default)]
struct ReplicaLanes {
    owned: BTreeMap<WorkflowLane, OwnedLane>,
    owners: JoinSet<(WorkflowLane, LaneExit)>,
    /// Lanes that ended on their own, and the last heartbeat before that: a later one says whether they are still ours.
    ended: BTreeMap<WorkflowLane, u64>,
    /// Reports that some lanes are left out, while they are.
    lack: Option<ImpairmentGuard>,
}

impl LanePlacement {
    /// Owns lanes until `stop` is cancelled, and gives them up then.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut in_force = self.definitions.subscribe();
        let mut lanes = ReplicaLanes::default();
        loop {
            self.place(&in_force.borrow_and_update(), &mut lanes, &stop);
            tokio::select! {
                () = stop.cancelled() => break,
                changed = in_force.changed() => {
                    if changed.is_err() { break }
                    self.away.send_replace(Arc::default());
                }
                changed = self.feed.view.changed() => if changed.is_err() { break },
                changed = self.feed.beats.changed(), if !lanes.ended.is_empty() => if changed.is_err() { break },
                changed = self.tenants.changed() => if changed.is_err() { break },
                changed = self.drained.changed() => if changed.is_err() { break },
                changed = self.providers.changed() => if changed.is_err() { break },
                Some(ended) = lanes.owners.join_next() => match ended {
                    Ok((lane, ended)) => self.ended(lane, &ended, &mut lanes),
                    Err(error) => tracing::error!("the owner of a lane ended: {error}"),
                },
            }
        }
        while let Some(ended) = lanes.owners.join_next().await {
            if let Err(error) = ended {
                tracing::error!("the owner of a lane ended: {error}");
            }
        }
    }

    /// Gives up lanes that are not this replica's, and takes those that are.
    fn place(&mut self, in_force: &ActiveDefinitions, lanes: &mut ReplicaLanes, stop: &CancellationToken) {
        let view = Arc::clone(&self.feed.view.borrow_and_update());
        let beat = *self.feed.beats.borrow_and_update();
        let wanted = self.wanted(in_force, &view);
        let (wanted, left_out) = in_turns(wanted, self.lanes_max);
        self.report_left_out(&left_out, lanes);
        for (lane, owned) in &lanes.owned {
            if wanted.get(lane) != Some(&owned.wanted) {
                owned.stop.cancel();
            }
        }
        lanes.ended.retain(|lane, last| wanted.contains_key(lane) && *last >= beat);
        let away = Arc::clone(&self.away.borrow());
        for (lane, wanted) in wanted {
            let waits = lanes.ended.contains_key(&lane) || away.contains_key(&lane);
            if waits || lanes.owned.contains_key(&lane) {
                continue;
            }
            let token = stop.child_token();
            self.own(&lane, &wanted, &token, lanes);
            lanes.owned.insert(lane, OwnedLane { wanted, stop: token });
        }
        match away.values().filter(|why| **why == FOREIGN).count() {
            0 => self.lanes.met(),
            // Anyone may read this, so it names no tenant: the log and ListLanes do.
            count => self.lanes.unmet(format!("{count} stay away until a reload, each because {FOREIGN}")),
        }
    }

    /// Reports which lanes are left out for want of room.
    fn report_left_out(&self, left_out: &[WorkflowLane], lanes: &mut ReplicaLanes) {
        lanes.lack = (!left_out.is_empty()).then(|| {
            let why = format!("{} are left out, each because {NO_ROOM}", left_out.len());
            self.around.health.begin_impairment("lanes of this replica", &why)
        });
        let is_changed = self.away.send_if_modified(|away| {
            let mut now: BTreeMap<_, _> = away
                .iter()
                .filter(|(_, why)| **why != NO_ROOM)
                .map(|(lane, why)| (lane.clone(), *why))
                .collect();
            for lane in left_out {
                // Any other reason keeps the lane away until a reload.
                now.entry(lane.clone()).or_insert(NO_ROOM);
            }
            let is_new = **away != now;
            if is_new {
                *away = Arc::new(now);
            }
            is_new
        });
        if let Some(first) = left_out.first().filter(|_| is_changed) {
            tracing::warn!(count = left_out.len(), %first, "lanes are left out: this replica owns as many as it may");
        }
    }

    /// Notes that a lane is not owned any more.
    fn ended(&self, lane: WorkflowLane, ended: &LaneExit, lanes: &mut ReplicaLanes) {
        lanes.owned.remove(&lane);
        match ended {
            LaneExit::Stopped { .. } => {}
            LaneExit::Foreign { subject, .. } => {
                tracing::error!(%lane, subject, "the lane stays away until a reload: the broker does not keep tenants apart");
                self.away.send_modify(|away| {
                    Arc::make_mut(away).insert(lane, FOREIGN);
                });
            }
            ended => {
                tracing::warn!(%lane, "{ended}; it is taken again if it is still ours");
                lanes.ended.insert(lane, *self.feed.beats.borrow());
            }
        }
    }

    /// Lanes that this replica is to own.
    fn wanted(
        &self,
        in_force: &ActiveDefinitions,
        view: &SagaReplicaView,
    ) -> BTreeMap<WorkflowLane, LaneAssignment> {
        let drained = Arc::clone(&self.drained.borrow());
        let is_mine = |lane: &WorkflowLane| {
            !drained.contains(lane.tenant())
                && owner_of(&view.members, lane, view.decided.moved_to(lane))
                    .is_some_and(|owner| owner.name == self.name)
        };
        let mut wanted = self.all(in_force, view);
        wanted.retain(|lane, _| is_mine(lane));
        wanted
    }

    /// Lanes of all tenants that are not paused.
    fn all(
        &self,
        in_force: &ActiveDefinitions,
        view: &SagaReplicaView,
    ) -> BTreeMap<WorkflowLane, LaneAssignment> {
        let (all, lapses) = (Arc::clone(&self.tenants.borrow()), view.lapses);
        let tenants: Vec<_> =
            all.iter().filter(|(tenant, _)| view.decided.paused_since(tenant).is_none()).collect();
        let mut wanted = BTreeMap::new();
        for (tenant, found) in tenants.iter().copied() {
            for ActiveSagaRef { name, active } in in_force.sagas_of(tenant) {
                // A retired saga has no schedule any more.
                let definition = Some(active.hash).filter(|_| !active.is_retired);
                let (since, weight) = (Some(active.since), found.weight);
                wanted.extend((0..active.shards).map(|shard| {
                    let lane = WorkflowLane::Saga { tenant: tenant.clone(), saga: name.clone(), shard };
                    (lane, LaneAssignment { definition, since, weight, provider: 0, lapses })
                }));
            }
        }
        let providers = Arc::clone(&self.providers.borrow());
        for effect in in_force.catalog.effects() {
            let is_for = |tenant| in_force.catalog.effect(effect, tenant).is_some();
            let Some(provider) = providers.get(effect) else { continue };
            let provider = Arc::as_ptr(provider).cast::<()>() as usize;
            for (tenant, found) in tenants.iter().copied().filter(|(tenant, _)| is_for(tenant)) {
                let lane = WorkflowLane::Effect { tenant: tenant.clone(), effect: effect.clone() };
                let weight = found.weight;
                wanted
                    .insert(lane, LaneAssignment { definition: None, since: None, weight, provider, lapses });
            }
        }
        wanted
    }

    /// Begins to own a lane, once its former owner has given it up.
    fn own(
        &self,
        lane: &WorkflowLane,
        wanted: &LaneAssignment,
        stop: &CancellationToken,
        lanes: &mut ReplicaLanes,
    ) {
        let cut = CancellationToken::new();
        let around = LaneEnvironment { cut: cut.clone(), ..self.around.clone() };
        let hand_over = LaneHandover {
            lane: lane.clone(),
            feed: self.feed.clone(),
            around: around.clone(),
            grace: self.grace,
            stop: stop.clone(),
            cut,
        };
        match lane {
            WorkflowLane::Saga { tenant, saga, shard } => {
                let owner = SagaLane {
                    tenant: tenant.clone(),
                    saga: saga.clone(),
                    shard: *shard,
                    since: wanted.since,
                    definitions: Arc::clone(&self.definitions),
                    letters_max: SAGA_DEAD_LETTERS_MAX,
                    gateway: Arc::clone(&self.gateway),
                    around,
                };
                lanes.owners.spawn(hand_over.run(|stop| owner.own(stop)));
            }
            WorkflowLane::Effect { tenant, effect } => {
                let Some(provider) = self.providers.borrow().get(effect).map(Arc::clone) else { return };
                let owner = EffectLane {
                    tenant: tenant.clone(),
                    effect: effect.clone(),
                    weight: wanted.weight,
                    definitions: Arc::clone(&self.definitions),
                    provider,
                    upstreams: self.upstreams.clone(),
                    calls: self.calls.clone(),
                    calls_max: LANE_CALLS_MAX,
                    around,
                };
                lanes.owners.spawn(hand_over.run(|stop| owner.own(stop)));
            }
        }
    }
}

/// Chooses a limited number of lanes, tenants in turn, so that one with many leaves room for the others; gives the ones left out as
/// well. The lanes of a tenant's effects come first: without them its sagas order calls that no lane makes.
fn in_turns(
    mut lanes: BTreeMap<WorkflowLane, LaneAssignment>,
    most: usize,
) -> (BTreeMap<WorkflowLane, LaneAssignment>, Vec<WorkflowLane>) {
    if lanes.len() <= most {
        return (lanes, Vec::new());
    }
    let mut of_tenant: BTreeMap<TenantId, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, WorkflowLane)> = Vec::with_capacity(lanes.len());
    let is_of_effect = |lane: &&WorkflowLane| matches!(lane, WorkflowLane::Effect { .. });
    for lane in lanes.keys().filter(is_of_effect).chain(lanes.keys().filter(|lane| !is_of_effect(lane))) {
        let turn = of_tenant.entry(lane.tenant().clone()).or_default();
        turns.push((*turn, lane.clone()));
        *turn += 1;
    }
    turns.sort_unstable();
    let left_out: Vec<_> = turns.into_iter().skip(most).map(|(_, lane)| lane).collect();
    for lane in &left_out {
        lanes.remove(lane);
    }
    (lanes, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_many_lanes_leaves_room_for_the_others() {
        let lane = |tenant: &str, shard| WorkflowLane::Saga {
            tenant: tenant.parse().expect("a tenant"),
            saga: "order".parse().expect("a name"),
            shard,
        };
        let wanted = || LaneAssignment { definition: None, since: None, weight: 1, provider: 0, lapses: 0 };
        let lanes: BTreeMap<_, _> = (0..9)
            .map(|shard| (lane("acme", shard), wanted()))
            .chain([(lane("other", 0), wanted())])
            .collect();
        assert_eq!(in_turns(lanes.clone(), 10), (lanes.clone(), vec![]));
        let (chosen, left_out) = in_turns(lanes.clone(), 3);
        assert_eq!(
            chosen.into_keys().collect::<Vec<_>>(),
            [lane("acme", 0), lane("acme", 1), lane("other", 0)]
        );
        assert_eq!(left_out, (2..9).map(|shard| lane("acme", shard)).collect::<Vec<_>>());
        let effect = WorkflowLane::Effect {
            tenant: "acme".parse().expect("a tenant"),
            effect: "pay".parse().expect("a name"),
        };
        let (chosen, _) = in_turns(lanes.into_iter().chain([(effect.clone(), wanted())]).collect(), 3);
        assert_eq!(chosen.into_keys().collect::<Vec<_>>(), [lane("acme", 0), lane("other", 0), effect]);
    }

    #[test]
    fn names_of_replicas_are_plain() {
        for good in ["a", "saga-0.saga:7708", &"x".repeat(255)] {
            assert_eq!(SagaReplicaIdentity::new(good, 1).map(|identity| identity.name).as_deref(), Ok(good));
        }
        for bad in ["", "a b", "é", &"x".repeat(256)] {
            assert!(
                SagaReplicaIdentity::new(bad, 1).is_err_and(|why| why.contains("a replica's name")),
                "{bad}"
            );
        }
        assert!(SagaReplicaIdentity::new("a", 0).is_err() && SagaReplicaIdentity::new("a", 101).is_err());
        let (one, other) = (SagaReplicaIdentity::of_process(3), SagaReplicaIdentity::of_process(3));
        let (Ok(one), Ok(other)) = (one, other) else { panic!("this machine has a name") };
        assert_eq!(one.name, other.name);
        assert_ne!(one.session, other.session);
    }
}
