//! Upstreams: how many calls each takes, which tenant has the next turn, and which upstreams are left alone.
//!
//! The lanes of a process share these limits. Each effect has a gate, and so has a provider that limits its effects together: a call
//! passes the gate of its effect first, then the gate of its provider.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{EffectName, TenantId, Timestamp};
use tokio::sync::oneshot;
use workflow::breaker::{CallRateLimiter, CircuitBreaker};
use workflow::fair_queue::TenantFairQueue;
use workflow::provider::{CallLimits, CircuitBreakerPolicy, Effect};

use crate::health::ImpairmentGuard;
use crate::lane::LaneEnvironment;

/// Upstreams of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Upstreams(Arc<Mutex<HashMap<UpstreamKey, UpstreamState>>>);

/// A gate that calls have to pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum UpstreamKey {
    /// The gate of one effect.
    Effect(EffectName),
    /// The gate of all effects of a provider.
    Provider(EffectName),
}

/// State of the upstream behind a gate.
struct UpstreamState {
    /// Limits of the gate, as its provider declares them.
    limits: CallLimits,
    breaker: CircuitBreakerPolicy,
    circuit: CircuitBreaker,
    pace: Option<CallRateLimiter>,
    turns: TenantFairQueue<oneshot::Sender<UpstreamSlot>>,
    under_way: u32,
    /// True while a timer is running that serves the gate again.
    is_waking: bool,
    /// Impairment that reports the upstream as left alone, while it is.
    left_alone: Option<ImpairmentGuard>,
}

/// Permission to make one call. Its turns are given back on drop.
pub struct CallPermit {
    of_effect: UpstreamSlot,
    _of_provider: Option<UpstreamSlot>,
}

/// A turn at a gate, given back on drop.
struct UpstreamSlot {
    upstreams: Upstreams,
    gate: UpstreamKey,
    tenant: TenantId,
    /// True if the upstream failed; `None` when the call does not show whether it did.
    verdict: Option<bool>,
}

impl CallPermit {
    /// Notes the outcome of the call: whether the upstream failed.
    pub fn note(&mut self, has_failed: bool) {
        self.of_effect.verdict = Some(has_failed);
    }
}

impl Drop for UpstreamSlot {
    fn drop(&mut self) {
        let now = Timestamp::now();
        if let Some(upstream) = self.upstreams.all().get_mut(&self.gate) {
            upstream.under_way = upstream.under_way.saturating_sub(1);
            upstream.turns.done(&self.tenant);
            match self.verdict {
                Some(has_failed) => upstream.circuit.note(has_failed, now),
                None => upstream.circuit.release(),
            }
        }
        self.upstreams.serve(&self.gate);
    }
}

impl Upstreams {
    fn all(&self) -> MutexGuard<'_, HashMap<UpstreamKey, UpstreamState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call may be made. Cancel-safe: a caller that stops waiting takes no turn.
    pub async fn permit(&self, effect: &Effect, tenant: &TenantId, weight: u32) -> CallPermit {
        loop {
            let limits = (effect.limits, effect.breaker);
            let of_effect = self.turn(UpstreamKey::Effect(effect.name.clone()), limits, tenant, weight).await;
            let Some(shared) = &effect.shared else { return CallPermit { of_effect, _of_provider: None } };
            // Outcomes are noted at the effect's gate only, so the provider's breaker never opens.
            let (gate, limits) = (
                UpstreamKey::Provider(shared.provider.clone()),
                (shared.limits, CircuitBreakerPolicy::default()),
            );
            let of_provider = self.turn(gate, limits, tenant, weight).await;
            // Other calls of the effect may have failed meanwhile.
            if !self.is_left_alone(&of_effect.gate) {
                return CallPermit { of_effect, _of_provider: Some(of_provider) };
            }
        }
    }

    fn is_left_alone(&self, gate: &UpstreamKey) -> bool {
        self.all().get(gate).is_some_and(|upstream| upstream.left_alone_until(Timestamp::now()).is_some())
    }

    /// Waits for a turn at a gate, which has these limits from now on. Cancel-safe.
    async fn turn(
        &self,
        gate: UpstreamKey,
        (limits, breaker): (CallLimits, CircuitBreakerPolicy),
        tenant: &TenantId,
        weight: u32,
    ) -> UpstreamSlot {
        loop {
            let (give, given) = oneshot::channel();
            {
                let mut all = self.all();
                let upstream = all.entry(gate.clone()).or_insert_with(|| UpstreamState::new(limits, breaker));
                upstream.follow(limits, breaker);
                upstream.turns.push(tenant, weight, give);
            }
            self.serve(&gate);
            if let Ok(turn) = given.await {
                return turn;
            }
        }
    }

    /// Gives turns as long as there are some.
    fn serve(&self, gate: &UpstreamKey) {
        loop {
            let now = Timestamp::now();
            let mut all = self.all();
            let Some(upstream) = all.get_mut(gate) else { return };
            if !upstream.turns.has_ready() || upstream.under_way >= upstream.limits.concurrency {
                return;
            }
            if let Some(again) = upstream.refuses(now) {
                if !upstream.is_waking {
                    upstream.is_waking = true;
                    self.wake(gate, again.since(now).max(Duration::from_millis(1)));
                }
                return;
            }
            let Some((tenant, give)) = upstream.turns.take() else { return };
            if give.is_closed() {
                // The caller has stopped waiting.
                upstream.turns.done(&tenant);
                upstream.circuit.release();
                continue;
            }
            upstream.under_way += 1;
            drop(all);
            let (upstreams, gate) = (self.clone(), gate.clone());
            // If the caller has gone since, the unsent turn is dropped, which gives it back.
            let _ = give.send(UpstreamSlot { upstreams, gate, tenant, verdict: None });
        }
    }

    /// Looks again after a while.
    fn wake(&self, gate: &UpstreamKey, length: Duration) {
        let (upstreams, gate) = (self.clone(), gate.clone());
        tokio::spawn(async move {
            tokio::time::sleep(length).await;
            if let Some(upstream) = upstreams.all().get_mut(&gate) {
                upstream.is_waking = false;
            }
            upstreams.serve(&gate);
        });
    }

    /// Reports, in metrics and health, whether an effect's upstream is left alone now.
    pub(super) fn report_circuit(&self, effect: &EffectName, around: &LaneEnvironment) {
        if let Some(upstream) = self.all().get_mut(&UpstreamKey::Effect(effect.clone())) {
            let is_open = !upstream.circuit.is_closed();
            around.metrics.effects.breaker(effect.as_str(), is_open);
            match is_open {
                false => upstream.left_alone = None,
                true if upstream.left_alone.is_some() => {}
                true => {
                    let why = "too many calls have failed; calls are suspended, with occasional probes";
                    upstream.left_alone =
                        Some(around.health.begin_impairment(&format!("upstream of {effect}"), why));
                }
            }
        }
    }

    /// Stops reporting that an effect's upstream is left alone, since another replica makes the calls from now on. If this replica
    /// still owns a lane of another tenant for the effect, that lane reports it with its next call.
    pub(super) fn clear_circuit_report(&self, effect: &EffectName, around: &LaneEnvironment) {
        if let Some(upstream) = self.all().get_mut(&UpstreamKey::Effect(effect.clone())) {
            around.metrics.effects.breaker(effect.as_str(), false);
            upstream.left_alone = None;
        }
    }

    /// Effects whose upstreams are left alone now.
    pub(crate) fn left_alone(&self) -> BTreeSet<EffectName> {
        let all = self.all();
        let alone = all.iter().filter(|(_, upstream)| upstream.left_alone.is_some());
        let effects = alone.filter_map(|(gate, _)| match gate {
            UpstreamKey::Effect(effect) => Some(effect.clone()),
            UpstreamKey::Provider(_) => None,
        });
        effects.collect()
    }
}

impl UpstreamState {
    fn new(limits: CallLimits, breaker: CircuitBreakerPolicy) -> Self {
        Self {
            limits,
            breaker,
            circuit: CircuitBreaker::new(breaker),
            pace: limits.rate.map(CallRateLimiter::new),
            turns: TenantFairQueue::new(limits.per_tenant),
            under_way: 0,
            is_waking: false,
            left_alone: None,
        }
    }

    /// Takes over the provider's current limits, which a reload may have changed. Calls under way still count.
    fn follow(&mut self, limits: CallLimits, breaker: CircuitBreakerPolicy) {
        if self.limits.rate != limits.rate {
            self.pace = limits.rate.map(CallRateLimiter::new);
        }
        if self.limits.per_tenant != limits.per_tenant {
            self.turns.allow(limits.per_tenant);
        }
        if self.breaker != breaker {
            self.circuit = CircuitBreaker::new(breaker);
        }
        (self.limits, self.breaker) = (limits, breaker);
    }

    /// When the breaker lets the next call pass, where it lets none now.
    fn left_alone_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.circuit.open_until().filter(|until| now < *until)
    }

    /// When to ask again, where no call may be made now.
    fn refuses(&mut self, now: Timestamp) -> Option<Timestamp> {
        if let Some(until) = self.left_alone_until(now) {
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

#[cfg(test)]
mod tests {
    use workflow::manifest::{ManifestDefinition, read};
    use workflow::provider::ProviderLimits;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../libs/workflow/src/manifest/example.yaml");

    /// An effect that may be called so often at a time.
    fn effect(concurrency: u32) -> Effect {
        let documents = read("t", EXAMPLE).unwrap_or_else(|problems| panic!("{problems}"));
        let ManifestDefinition::Provider(provider) = &documents[1].definition else { panic!("no provider") };
        let mut effect = Effect::clone(&provider.effects[0]);
        effect.limits = CallLimits { concurrency, per_tenant: concurrency, rate: None };
        effect
    }

    #[tokio::test]
    async fn effects_of_a_provider_share_its_limits() {
        let (upstreams, tenant) = (Upstreams::default(), "acme".parse().expect("a tenant"));
        let limits = CallLimits { concurrency: 2, per_tenant: 2, rate: None };
        let shared = Arc::new(ProviderLimits { provider: "payment".parse().expect("a name"), limits });
        let one = Effect { shared: Some(Arc::clone(&shared)), ..effect(2) };
        // The name of an effect may be that of its provider.
        let other = Effect { name: shared.provider.clone(), ..one.clone() };
        let first = upstreams.permit(&one, &tenant, 1).await;
        let second = upstreams.permit(&other, &tenant, 1).await;
        let waits = upstreams.permit(&other, &tenant, 1);
        tokio::pin!(waits);
        assert!(futures_util::poll!(&mut waits).is_pending(), "there may be two of both");
        drop(first);
        let third = waits.await;
        // A caller that stops waiting for the provider has no turn of the effect either.
        {
            let given_up = upstreams.permit(&one, &tenant, 1);
            tokio::pin!(given_up);
            assert!(futures_util::poll!(&mut given_up).is_pending());
        }
        drop((second, third));
        drop(tokio::join!(upstreams.permit(&one, &tenant, 1), upstreams.permit(&one, &tenant, 1)));
    }

    #[tokio::test]
    async fn who_waits_for_its_provider_while_its_effect_is_left_alone_makes_no_call() {
        let (upstreams, tenant) = (Upstreams::default(), "acme".parse().expect("a tenant"));
        let limits = CallLimits { concurrency: 1, per_tenant: 1, rate: None };
        let provider = "payment".parse().expect("a name");
        let shared = Some(Arc::new(ProviderLimits { provider, limits }));
        let breaker = CircuitBreakerPolicy {
            window: 1,
            open: Duration::from_secs(3600),
            ..CircuitBreakerPolicy::default()
        };
        let effect = Effect { shared, breaker, ..effect(3) };
        let mut first = upstreams.permit(&effect, &tenant, 1).await;
        let waits = upstreams.permit(&effect, &tenant, 1);
        tokio::pin!(waits);
        assert!(futures_util::poll!(&mut waits).is_pending(), "its provider has one at a time");
        first.note(true);
        drop(first);
        assert!(futures_util::poll!(&mut waits).is_pending(), "it is not called");
        let other = Effect { name: "another".parse().expect("a name"), ..effect.clone() };
        drop(upstreams.permit(&other, &tenant, 1).await);
    }

    #[tokio::test]
    async fn what_a_reload_allows_holds_for_what_waits() {
        let (upstreams, tenant) = (Upstreams::default(), "acme".parse().expect("a tenant"));
        let (before, after) = (effect(1), effect(3));
        let first = upstreams.permit(&before, &tenant, 1).await;
        let waits = upstreams.permit(&before, &tenant, 1);
        tokio::pin!(waits);
        assert!(futures_util::poll!(&mut waits).is_pending(), "there may be one at a time");
        let (waited, second) = tokio::join!(&mut waits, upstreams.permit(&after, &tenant, 1));
        // Calls under way still count when the limit is lowered again.
        drop(first);
        let again = upstreams.permit(&before, &tenant, 1);
        tokio::pin!(again);
        assert!(futures_util::poll!(&mut again).is_pending());
        drop(waited);
        assert!(futures_util::poll!(&mut again).is_pending());
        drop(second);
        drop(again.await);
    }
}
