//! Which lanes this replica owns, and that it does.
//!
//! A lane that has ended is taken again after a pause, unless it was given a message that no filter lets through: then it stays away
//! until a reload, since the broker keeps tenants apart no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::{BlobHash, EffectName, TenantId};
use service::Condition;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use workflow::Lane;

use crate::definitions::{Definitions, InForce, SagaInForce};
use crate::effects::upstreams::Upstreams;
use crate::effects::{EffectLane, OpenCalls};
use crate::lane::gateway::Gateway;
use crate::lane::{Ended, Surroundings};
use crate::providers::Provider;
use crate::sagas::SagaLane;
use crate::tenants::Tenants;

/// A lane that has ended by itself is taken again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// What a replica does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// Whether it owns lanes of sagas.
    pub sagas: bool,
    /// Whether it owns lanes of effects.
    pub effects: bool,
}

/// Ways to the outside world, by effect.
pub type Providers = BTreeMap<EffectName, Arc<dyn Provider>>;

/// What lanes are owned with.
pub struct Placement {
    /// What this replica does.
    pub role: Role,
    /// Whose lanes there are.
    pub tenants: watch::Receiver<Arc<Tenants>>,
    /// Tenants whose lanes this replica has given up.
    pub drained: watch::Receiver<Arc<BTreeSet<TenantId>>>,
    /// What is in force.
    pub definitions: Arc<Definitions>,
    /// Ways to the outside world.
    pub providers: watch::Receiver<Arc<Providers>>,
    /// Where commands of aggregates go.
    pub gateway: Arc<dyn Gateway>,
    /// Calls that are open.
    pub calls: OpenCalls,
    /// What lanes work with.
    pub around: Surroundings,
    /// Met while no lane stays away.
    pub lanes: Condition,
}

/// What a lane is owned for: where that changes, it is given up and taken anew.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    lane: Lane,
    /// Hash of the definition whose sources it reads.
    definition: Option<BlobHash>,
    since: Option<u64>,
    weight: u32,
    /// Which way to the outside world it has: that of another reload is another one.
    provider: usize,
}

/// A lane that is owned.
struct Owned {
    wanted: Wanted,
    stop: CancellationToken,
}

impl Placement {
    /// Owns lanes until it is told to stop, and gives them up then.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut in_force = self.definitions.subscribe();
        let mut owned: BTreeMap<Lane, Owned> = BTreeMap::new();
        let mut away: BTreeMap<Lane, String> = BTreeMap::new();
        let mut owners: JoinSet<(Lane, Ended)> = JoinSet::new();
        let upstreams = Upstreams::default();
        loop {
            let wanted = self.wanted(&in_force.borrow_and_update());
            let lanes: BTreeSet<_> = wanted.iter().map(|wanted| &wanted.lane).collect();
            for (lane, one) in &owned {
                if !lanes.contains(lane) || !wanted.contains(&one.wanted) {
                    one.stop.cancel();
                }
            }
            let is_missing = |one: &Wanted| !owned.contains_key(&one.lane) && !away.contains_key(&one.lane);
            let missing: Vec<_> = wanted.into_iter().filter(is_missing).collect();
            for wanted in missing {
                let token = stop.child_token();
                self.own(&wanted, &token, &upstreams, &mut owners);
                owned.insert(wanted.lane.clone(), Owned { wanted, stop: token });
            }
            self.tell(&away);
            tokio::select! {
                () = stop.cancelled() => break,
                changed = in_force.changed() => if changed.is_err() { break } else { away.clear() },
                changed = self.tenants.changed() => if changed.is_err() { break },
                changed = self.drained.changed() => if changed.is_err() { break },
                changed = self.providers.changed() => if changed.is_err() { break },
                Some(ended) = owners.join_next() => match ended {
                    Ok((lane, Ended::Foreign { subject, .. })) => {
                        tracing::error!(%lane, subject, "the lane stays away until a reload: the broker keeps tenants apart no more");
                        owned.remove(&lane);
                        away.insert(lane, format!("it was given a message of `{subject}`"));
                    }
                    Ok((lane, Ended::Stopped { .. })) => drop(owned.remove(&lane)),
                    Ok((lane, ended)) => {
                        tracing::warn!(%lane, "{ended}; it is taken again");
                        owned.remove(&lane);
                        tokio::select! {
                            () = stop.cancelled() => break,
                            () = tokio::time::sleep(AGAIN) => {}
                        }
                    }
                    Err(error) => tracing::error!("the owner of a lane ended: {error}"),
                },
            }
        }
        while let Some(ended) = owners.join_next().await {
            if let Err(error) = ended {
                tracing::error!("the owner of a lane ended: {error}");
            }
        }
    }

    fn tell(&self, away: &BTreeMap<Lane, String>) {
        match away.iter().next() {
            Some((lane, why)) => self.lanes.unmet(format!("the lane {lane} stays away: {why}")),
            None => self.lanes.met(),
        }
    }

    /// Lanes that this replica is to own.
    fn wanted(&self, in_force: &InForce) -> BTreeSet<Wanted> {
        let (tenants, drained) = (Arc::clone(&self.tenants.borrow()), Arc::clone(&self.drained.borrow()));
        let tenants: Vec<_> = tenants.iter().filter(|(tenant, _)| !drained.contains(*tenant)).collect();
        let mut wanted = BTreeSet::new();
        for (tenant, found) in tenants.iter().copied().filter(|_| self.role.sagas) {
            for SagaInForce { name, active } in in_force.sagas_of(tenant) {
                wanted.extend((0..active.shards).map(|shard| Wanted {
                    lane: Lane::Saga { tenant: tenant.clone(), saga: name.clone(), shard },
                    // One that was left out has no schedule any more.
                    definition: Some(active.hash).filter(|_| !active.is_retired),
                    since: Some(active.since),
                    weight: found.weight,
                    provider: 0,
                }));
            }
        }
        let providers = Arc::clone(&self.providers.borrow());
        for effect in in_force.catalog.effects().filter(|_| self.role.effects) {
            let is_for = |tenant| in_force.catalog.effect(effect, tenant).is_some();
            let Some(provider) = providers.get(effect) else { continue };
            let provider = Arc::as_ptr(provider).cast::<()>() as usize;
            for (tenant, found) in tenants.iter().copied().filter(|(tenant, _)| is_for(tenant)) {
                let lane = Lane::Effect { tenant: tenant.clone(), effect: effect.clone() };
                wanted.insert(Wanted { lane, definition: None, since: None, weight: found.weight, provider });
            }
        }
        wanted
    }

    /// Begins to own a lane.
    fn own(
        &self,
        wanted: &Wanted,
        stop: &CancellationToken,
        upstreams: &Upstreams,
        owners: &mut JoinSet<(Lane, Ended)>,
    ) {
        let (lane, stop) = (wanted.lane.clone(), stop.clone());
        match &wanted.lane {
            Lane::Saga { tenant, saga, shard } => {
                let owner = SagaLane {
                    tenant: tenant.clone(),
                    saga: saga.clone(),
                    shard: *shard,
                    since: wanted.since,
                    definitions: Arc::clone(&self.definitions),
                    gateway: Arc::clone(&self.gateway),
                    around: self.around.clone(),
                };
                owners.spawn(async move { (lane, owner.own(stop).await) });
            }
            Lane::Effect { tenant, effect } => {
                let Some(provider) = self.providers.borrow().get(effect).map(Arc::clone) else { return };
                let owner = EffectLane {
                    tenant: tenant.clone(),
                    effect: effect.clone(),
                    weight: wanted.weight,
                    definitions: Arc::clone(&self.definitions),
                    provider,
                    upstreams: upstreams.clone(),
                    calls: self.calls.clone(),
                    around: self.around.clone(),
                };
                owners.spawn(async move { (lane, owner.own(stop).await) });
            }
        }
    }
}
