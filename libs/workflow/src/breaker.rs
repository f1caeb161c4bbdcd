//! Upstreams that are left alone while they fail, and calls that are spread over time.

use std::collections::VecDeque;

use model::Timestamp;

use crate::provider::{CallRateLimit, CircuitBreakerPolicy};

/// Circuit breaker of one upstream.
#[derive(Debug)]
pub struct CircuitBreaker {
    breaker: CircuitBreakerPolicy,
    /// The last calls: whether each failed.
    window: VecDeque<bool>,
    failures: u32,
    state: CircuitState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CircuitState {
    Closed,
    /// Nothing is called before this moment.
    Open(Timestamp),
    /// Some calls test whether it has recovered.
    Probing {
        under_way: u32,
        succeeded: u32,
    },
}

impl CircuitBreaker {
    /// A closed one.
    #[must_use]
    pub fn new(breaker: CircuitBreakerPolicy) -> Self {
        Self { breaker, window: VecDeque::new(), failures: 0, state: CircuitState::Closed }
    }

    /// Admits a call, or not. Each admitted call is reported to [`CircuitBreaker::note`].
    pub fn admit(&mut self, now: Timestamp) -> bool {
        match self.state {
            CircuitState::Closed => true,
            CircuitState::Open(until) if now < until => false,
            CircuitState::Open(_) => {
                self.state = CircuitState::Probing { under_way: 1, succeeded: 0 };
                true
            }
            CircuitState::Probing { under_way, succeeded } if under_way + succeeded < self.breaker.probes => {
                self.state = CircuitState::Probing { under_way: under_way + 1, succeeded };
                true
            }
            CircuitState::Probing { .. } => false,
        }
    }

    /// Records the outcome of a call: whether the upstream failed. A refusal by the upstream is no failure.
    pub fn note(&mut self, has_failed: bool, now: Timestamp) {
        match self.state {
            CircuitState::Open(_) => {}
            CircuitState::Probing { .. } if has_failed => self.open(now),
            CircuitState::Probing { under_way, succeeded } => {
                let succeeded = succeeded + 1;
                if succeeded >= self.breaker.probes {
                    self.state = CircuitState::Closed;
                    self.window.clear();
                    self.failures = 0;
                } else {
                    self.state = CircuitState::Probing { under_way: under_way.saturating_sub(1), succeeded };
                }
            }
            CircuitState::Closed => {
                self.window.push_back(has_failed);
                self.failures += u32::from(has_failed);
                if self.window.len() > self.breaker.window as usize {
                    self.failures -= u32::from(self.window.pop_front() == Some(true));
                }
                let is_full = self.window.len() == self.breaker.window as usize;
                let limit = u64::from(self.breaker.failures_per_mille) * u64::from(self.breaker.window);
                if is_full && u64::from(self.failures) * 1000 >= limit {
                    self.open(now);
                }
            }
        }
    }

    /// Releases an admitted call that was not made.
    pub fn release(&mut self) {
        if let CircuitState::Probing { under_way, .. } = &mut self.state {
            *under_way = under_way.saturating_sub(1);
        }
    }

    fn open(&mut self, now: Timestamp) {
        self.state = CircuitState::Open(now + self.breaker.open);
        self.window.clear();
        self.failures = 0;
    }

    /// When calls are admitted again; `None` while it is closed.
    #[must_use]
    pub const fn open_until(&self) -> Option<Timestamp> {
        match self.state {
            CircuitState::Open(until) => Some(until),
            CircuitState::Closed | CircuitState::Probing { .. } => None,
        }
    }

    /// Returns whether it is closed.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, CircuitState::Closed)
    }
}

/// So many calls in a length of time, evenly. Counts in microseconds.
#[derive(Debug)]
pub struct CallRateLimiter {
    between: u64,
    /// How much unused capacity may accumulate.
    saved: u64,
    /// Time of the next call if no capacity were left over.
    next: u64,
}

impl CallRateLimiter {
    /// A limiter without calls so far. A tenth of the calls, at least one, may follow each other at once.
    #[must_use]
    pub fn new(rate: CallRateLimit) -> Self {
        let between = u64::try_from((rate.each / rate.count.max(1)).as_micros()).unwrap_or(u64::MAX);
        let burst = u64::from((rate.count / 10).max(1));
        Self { between, saved: between.saturating_mul(burst - 1), next: 0 }
    }

    /// Asks for a call.
    ///
    /// # Errors
    /// When to ask again.
    pub fn admit(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        let now = now.as_millis().saturating_mul(1000);
        let at = self.next.max(now.saturating_sub(self.saved));
        if at > now {
            return Err(Timestamp::from_millis(at.div_ceil(1000)));
        }
        self.next = at.saturating_add(self.between);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    fn circuit() -> CircuitBreaker {
        let open = Duration::from_secs(30);
        CircuitBreaker::new(CircuitBreakerPolicy { window: 4, failures_per_mille: 500, open, probes: 1 })
    }

    #[test]
    fn it_opens_at_its_share_of_failures_and_closes_by_a_probe() {
        let mut circuit = circuit();
        for has_failed in [false, true, false] {
            assert!(circuit.admit(at(0)));
            circuit.note(has_failed, at(0));
        }
        assert!(circuit.is_closed());
        circuit.note(true, at(0));
        assert_eq!(circuit.open_until(), Some(at(30_000)));
        assert!(!circuit.admit(at(29_999)));
        assert!(circuit.admit(at(30_000)));
        // One at a time, until it is known.
        assert!(!circuit.admit(at(30_000)));
        circuit.release();
        assert!(!circuit.is_closed() && circuit.admit(at(30_000)));
        circuit.note(true, at(30_001));
        assert!(!circuit.admit(at(60_000)) && circuit.admit(at(60_001)));
        circuit.note(false, at(60_002));
        assert!(circuit.is_closed() && circuit.admit(at(60_002)) && circuit.admit(at(60_002)));
    }

    #[test]
    fn only_the_last_calls_count() {
        let mut circuit = circuit();
        for has_failed in [true, false, false, false, true, false, false, false, true] {
            circuit.note(has_failed, at(0));
            assert!(circuit.is_closed());
        }
        circuit.note(true, at(0));
        assert!(!circuit.is_closed());
    }

    #[test]
    fn calls_are_spread_over_the_time() {
        let mut pace = CallRateLimiter::new(CallRateLimit { count: 100, each: Duration::from_secs(1) });
        let given = (0..10_000).filter(|millis| pace.admit(at(*millis)).is_ok()).count();
        assert!((1000..=1010).contains(&given), "{given}");
        let mut pace = CallRateLimiter::new(CallRateLimit { count: 5000, each: Duration::from_secs(1) });
        let given = (0..1000).map(|millis| (0..100).filter(|_| pace.admit(at(millis)).is_ok()).count());
        let given: usize = given.sum();
        assert!((5000..=5500).contains(&given), "{given}");
        let mut pace = CallRateLimiter::new(CallRateLimit { count: 2, each: Duration::from_secs(60) });
        assert_eq!(pace.admit(at(0)), Ok(()));
        assert_eq!(pace.admit(at(1)), Err(at(30_000)));
        assert_eq!(pace.admit(at(30_000)), Ok(()));
    }
}
