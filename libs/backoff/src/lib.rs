//! Pauses between attempts at something that should not fail.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(50);

/// Pauses that double, from 50 ms or another first pause up to a longest one.
#[derive(Debug, Clone)]
pub struct ExponentialBackoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl ExponentialBackoff {
    /// A connection that stood this long was good: the next attempt follows soon.
    pub const GOOD_AFTER: Duration = Duration::from_secs(10);

    /// Pauses of at most this length.
    #[must_use]
    pub const fn up_to(longest: Duration) -> Self {
        Self::between(FIRST, longest)
    }

    /// Pauses from the first to the longest.
    #[must_use]
    pub const fn between(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    /// Starts again with the first pause, after an attempt that succeeded.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }

    /// Starts again with the first pause if the result of the attempt, such as a connection, lasted for
    /// [`GOOD_AFTER`](Self::GOOD_AFTER).
    pub fn reset_after(&mut self, how_long: Duration) {
        if how_long >= Self::GOOD_AFTER {
            self.reset();
        }
    }

    /// Returns whether the next pause is the first one.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.next == self.first
    }

    /// The next pause, for callers that do not sleep here.
    #[must_use]
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// Waits for the next pause, [jittered]. Cancel safe: that pause is over then.
    pub async fn pause(&mut self) {
        tokio::time::sleep(jittered(self.next_pause())).await;
    }
}

/// Shortens a pause by a random part of up to a half, so that clients that lost the same service do not return together.
#[must_use]
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let mut backoff = ExponentialBackoff::up_to(Duration::from_millis(150));
        for most in [50, 100, 150, 150] {
            let (began, most) = (Instant::now(), Duration::from_millis(most));
            backoff.pause().await;
            // The clock of the runtime ticks once a millisecond.
            let waited = began.elapsed();
            assert!(
                (most.mul_f64(0.5)..=most + Duration::from_millis(1)).contains(&waited),
                "{waited:?} of {most:?}"
            );
        }
        assert!(!backoff.is_reset());
        backoff.reset();
        assert_eq!((backoff.is_reset(), backoff.next_pause()), (true, Duration::from_millis(50)));
        backoff.reset_after(Duration::from_secs(9));
        assert!(!backoff.is_reset());
        backoff.reset_after(ExponentialBackoff::GOOD_AFTER);
        assert!(backoff.is_reset());
    }
}
