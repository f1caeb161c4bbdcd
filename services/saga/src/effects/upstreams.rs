//! Upstreams: how many calls there may be, whose turn it is, and which of them is left alone.
//!
//! One for a process: its lanes share what their effects' providers allow.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{EffectName, TenantId, Timestamp};
use tokio::sync::oneshot;
use workflow::breaker::{Circuit, Pace};
use workflow::provider::Effect;
use workflow::turns::Turns;

use crate::health::Lack;
use crate::lane::Surroundings;

/// Upstreams of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Upstreams(Arc<Mutex<HashMap<EffectName, Upstream>>>);

/// What is known of one effect's upstream.
struct Upstream {
    circuit: Circuit,
    pace: Option<Pace>,
    turns: Turns<oneshot::Sender<Permit>>,
    under_way: u32,
    most: u32,
    /// Whether somebody will look again by itself.
    is_waking: bool,
    /// Tells that it is left alone, where it is.
    left_alone: Option<Lack>,
}

/// A turn: a call may be made. Given back when it is dropped.
pub struct Permit {
    upstreams: Upstreams,
    effect: EffectName,
    tenant: TenantId,
    /// Whether the upstream failed; nothing when nothing was learnt of it.
    verdict: Option<bool>,
}

impl Permit {
    /// Notes what came of the call: whether the upstream failed.
    pub fn note(&mut self, has_failed: bool) {
        self.verdict = Some(has_failed);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = Timestamp::now();
        if let Some(upstream) = self.upstreams.all().get_mut(&self.effect) {
            upstream.under_way = upstream.under_way.saturating_sub(1);
            upstream.turns.done(&self.tenant);
            match self.verdict {
                Some(has_failed) => upstream.circuit.note(has_failed, now),
                None => upstream.circuit.give_back(),
            }
        }
        self.upstreams.serve(&self.effect);
    }
}

impl Upstreams {
    fn all(&self) -> MutexGuard<'_, HashMap<EffectName, Upstream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. Cancel-safe: whoever stops waiting has no turn.
    pub async fn permit(&self, effect: &Effect, tenant: &TenantId, weight: u32) -> Permit {
        loop {
            let (give, given) = oneshot::channel();
            self.all()
                .entry(effect.name.clone())
                .or_insert_with(|| Upstream {
                    circuit: Circuit::new(effect.breaker),
                    pace: effect.limits.rate.map(Pace::new),
                    turns: Turns::new(effect.limits.per_tenant),
                    under_way: 0,
                    most: effect.limits.concurrency,
                    is_waking: false,
                    left_alone: None,
                })
                .turns
                .push(tenant, weight, give);
            self.serve(&effect.name);
            if let Ok(permit) = given.await {
                return permit;
            }
        }
    }

    /// Gives turns as long as there are some.
    fn serve(&self, effect: &EffectName) {
        loop {
            let now = Timestamp::now();
            let mut all = self.all();
            let Some(upstream) = all.get_mut(effect) else { return };
            if !upstream.turns.is_somebodys() || upstream.under_way >= upstream.most {
                return;
            }
            if let Some(again) = upstream.refuses(now) {
                if !upstream.is_waking {
                    upstream.is_waking = true;
                    self.wake(effect, again.since(now).max(Duration::from_millis(1)));
                }
                return;
            }
            let Some((tenant, give)) = upstream.turns.take() else { return };
            if give.is_closed() {
                // Whoever it was has stopped waiting.
                upstream.turns.done(&tenant);
                upstream.circuit.give_back();
                continue;
            }
            upstream.under_way += 1;
            drop(all);
            let (upstreams, effect) = (self.clone(), effect.clone());
            // Where nobody waits any more, the turn is given back by being dropped.
            let _ = give.send(Permit { upstreams, effect, tenant, verdict: None });
        }
    }

    /// Looks again after a while.
    fn wake(&self, effect: &EffectName, length: Duration) {
        let (upstreams, effect) = (self.clone(), effect.clone());
        tokio::spawn(async move {
            tokio::time::sleep(length).await;
            if let Some(upstream) = upstreams.all().get_mut(&effect) {
                upstream.is_waking = false;
            }
            upstreams.serve(&effect);
        });
    }

    /// Tells whether an effect's upstream is left alone now.
    pub(super) fn tell(&self, effect: &EffectName, around: &Surroundings) {
        if let Some(upstream) = self.all().get_mut(effect) {
            let is_open = !upstream.circuit.is_closed();
            around.metrics.breaker(effect.as_str(), is_open);
            match is_open {
                false => upstream.left_alone = None,
                true if upstream.left_alone.is_some() => {}
                true => {
                    let why = "too many calls have failed; it is left alone, and tried from time to time";
                    upstream.left_alone = Some(around.health.lack(&format!("upstream of {effect}"), why));
                }
            }
        }
    }

    /// Tells no more whether an effect's upstream is left alone, since its calls are another replica's from now on. A lane of another
    /// tenant that is still owned tells it with its next call.
    pub(super) fn hush(&self, effect: &EffectName, around: &Surroundings) {
        if let Some(upstream) = self.all().get_mut(effect) {
            around.metrics.breaker(effect.as_str(), false);
            upstream.left_alone = None;
        }
    }

    /// Effects whose upstreams are left alone now.
    pub(crate) fn left_alone(&self) -> BTreeSet<EffectName> {
        let all = self.all();
        let alone = all.iter().filter(|(_, upstream)| upstream.left_alone.is_some());
        alone.map(|(effect, _)| effect.clone()).collect()
    }
}

impl Upstream {
    /// When to ask again, where no call may be made now.
    fn refuses(&mut self, now: Timestamp) -> Option<Timestamp> {
        if let Some(until) = self.circuit.open_until()
            && now < until
        {
            return Some(until);
        }
        if let Some(pace) = &mut self.pace
            && let Err(again) = pace.admit(now)
        {
            return Some(again);
        }
        // Probes are under way; the next turn is given when one of them ends.
        (!self.circuit.admit(now)).then(|| now + Duration::from_secs(1))
    }
}
