//! Limits of one actor at a server: calls a second, and calls at once. Services and the bootstrap identity are not bounded
//! so, and neither are callers of methods that are open to anyone: other limits exist for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::{ActorId, limits};
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::load_shedder::{QUICK_MAX, STREAMS_MAX, WAITING_MAX};
use crate::gate::methods::RpcMethodKind;
use crate::lock::lock;
use crate::metrics::Metrics;
use crate::rate::Rates;

/// Calls at once of one actor, by kind.
pub(crate) const ACTOR_QUICK_MAX: usize = QUICK_MAX / 4;
pub(crate) const ACTOR_WAITING_MAX: usize = WAITING_MAX / 4;
pub(crate) const ACTOR_STREAMS_MAX: usize = STREAMS_MAX / 4;
/// When to try again where too many are under way.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// How often one actor may call one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRate {
    /// Calls a second, on average; at least one.
    pub per_sec: u64,
    /// Calls at once, after it has been quiet for a while; at least one.
    pub burst: u64,
}

impl Default for CallRate {
    fn default() -> Self {
        Self { per_sec: limits::ACTOR_CALLS_PER_SEC, burst: limits::ACTOR_CALLS_BURST }
    }
}

impl CallRate {
    /// Returns the time that one call uses up.
    fn interval(self) -> Duration {
        Duration::from_secs(1) / u32::try_from(self.per_sec.max(1)).unwrap_or(u32::MAX)
    }

    /// How far ahead of the time an actor may be.
    fn ahead(self) -> Duration {
        self.interval().saturating_mul(u32::try_from(self.burst.max(1)).unwrap_or(u32::MAX))
    }
}

/// The shares of all actors of one server.
#[derive(Debug)]
pub(crate) struct ActorCallLimiter {
    actors: Arc<Mutex<ActorCallUsage>>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct ActorCallUsage {
    rate: CallRate,
    rates: Rates<ActorId>,
    /// How many calls are under way.
    under_way: HashMap<(ActorId, ActorCallKind), usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ActorCallKind {
    Quick,
    Waiting,
    Stream,
}

impl ActorCallKind {
    const fn of(shape: RpcMethodKind) -> (Self, usize) {
        match shape {
            RpcMethodKind::Quick => (Self::Quick, ACTOR_QUICK_MAX),
            RpcMethodKind::Waiting(_) => (Self::Waiting, ACTOR_WAITING_MAX),
            RpcMethodKind::Stream => (Self::Stream, ACTOR_STREAMS_MAX),
        }
    }
}

/// A call of an actor, until it is dropped.
#[derive(Debug)]
pub(crate) struct ActorCallPermit {
    actors: Arc<Mutex<ActorCallUsage>>,
    of: (ActorId, ActorCallKind),
}

impl ActorCallLimiter {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { actors: Arc::default(), metrics }
    }

    /// Bounds the rate from now on.
    pub(crate) fn set_rate(&self, rate: CallRate) {
        lock(&self.actors).rate = rate;
    }

    /// One more call of this actor.
    pub(crate) fn take(&self, actor: ActorId, shape: RpcMethodKind) -> Result<ActorCallPermit, Error> {
        let (kind, max) = ActorCallKind::of(shape);
        let mut actors = lock(&self.actors);
        if actors.under_way.get(&(actor, kind)).is_some_and(|count| *count >= max) {
            return Err(self.refuse(too_many(actor, max)));
        }
        let rate = actors.rate;
        let counted = actors.rates.take(actor, rate.interval(), rate.ahead(), Instant::now());
        counted.map_err(|over| self.refuse(too_often(actor, rate, over)))?;
        *actors.under_way.entry((actor, kind)).or_default() += 1;
        Ok(ActorCallPermit { actors: Arc::clone(&self.actors), of: (actor, kind) })
    }

    fn refuse(&self, error: Error) -> Error {
        self.metrics.shed.with_label_values(&["actor"]).inc();
        error
    }
}

impl Drop for ActorCallPermit {
    fn drop(&mut self) {
        let mut actors = lock(&self.actors);
        if let Some(count) = actors.under_way.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                actors.under_way.remove(&self.of);
            }
        }
    }
}

fn too_many(actor: ActorId, max: usize) -> Error {
    let message = format!("actor {actor} has as many calls under way as one may have ({max})");
    Error::new(ErrorKind::ResourceExhausted, RpcReason::Overloaded, message)
        .with("kind", "actor")
        .with("max", max)
        .retry_after(RETRY_AFTER)
}

fn too_often(actor: ActorId, rate: CallRate, over: Duration) -> Error {
    let CallRate { per_sec, burst } = rate;
    let message = format!(
        "actor {actor} calls too often: actor_calls_per_sec is {per_sec}, and {burst} may come at once"
    );
    Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message)
        .with("limit", "actor_calls_per_sec")
        .with("max", per_sec)
        .with("asked", per_sec.saturating_add(1))
        // In whole milliseconds, and not too early.
        .retry_after(over + Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::view::ErrorView;

    const ONE: ActorId = ActorId(1);
    const OTHER: ActorId = ActorId(2);

    fn shares(per_sec: u64, burst: u64) -> ActorCallLimiter {
        let shares = ActorCallLimiter::new(Metrics::new());
        shares.set_rate(CallRate { per_sec, burst });
        shares
    }

    /// How many of so many calls are taken, each of which ends at once.
    fn taken(shares: &ActorCallLimiter, actor: ActorId, calls: usize) -> usize {
        (0..calls).filter(|_| shares.take(actor, RpcMethodKind::Quick).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn an_actor_has_its_own_rate_and_burst() {
        let shares = shares(10, 20);
        assert_eq!(taken(&shares, ONE, 100), 20);
        assert_eq!(taken(&shares, OTHER, 5), 5);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(taken(&shares, ONE, 100), 10);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(taken(&shares, ONE, 100), 20, "quiet time is not saved up beyond the burst");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_succeeds_after_the_retry_time_that_its_refusal_gave() {
        let shares = shares(4, 1);
        assert_eq!(taken(&shares, ONE, 1), 1);
        let refused = shares.take(ONE, RpcMethodKind::Quick).expect_err("too often").into_status();
        let view = ErrorView::from(&refused);
        assert_eq!(view.reason, "LIMIT_EXCEEDED");
        assert_eq!(view.metadata["limit"], "actor_calls_per_sec");
        tokio::time::advance(view.retry_after.expect("it helps to wait")).await;
        assert_eq!(taken(&shares, ONE, 1), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_under_way_are_bounded_and_give_their_places_back() {
        let shares = shares(u64::from(u32::MAX), u64::from(u32::MAX));
        let held: Vec<_> = (0..ACTOR_QUICK_MAX).map(|_| shares.take(ONE, RpcMethodKind::Quick)).collect();
        assert!(held.iter().all(Result::is_ok));
        let refused = shares.take(ONE, RpcMethodKind::Quick).expect_err("too many");
        assert_eq!(refused.reason(), RpcReason::Overloaded);
        shares.take(ONE, RpcMethodKind::Stream).expect("those are others");
        shares.take(OTHER, RpcMethodKind::Quick).expect("nobody else is in its way");
        drop(held);
        shares.take(ONE, RpcMethodKind::Quick).expect("they are free again");
        assert!(lock(&shares.actors).under_way.is_empty());
        assert_eq!(shares.metrics.shed.with_label_values(&["actor"]).get(), 1);
    }
}
