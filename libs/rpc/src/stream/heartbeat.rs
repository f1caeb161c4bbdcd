//! When a stream that had nothing to say gives a sign of life.

use std::time::Duration;

use tokio::time::Instant;

/// How long a stream may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Time by which the next message has to be sent. Only sent messages count as signs of life, not received ones.
#[derive(Debug)]
pub struct StreamHeartbeat(Instant);

impl Default for StreamHeartbeat {
    fn default() -> Self {
        Self(Instant::now() + SILENCE_MAX)
    }
}

impl StreamHeartbeat {
    /// Something was sent.
    pub fn sent(&mut self) {
        *self = Self::default();
    }

    /// Waits until the heartbeat is due.
    ///
    /// Cancel safe.
    pub async fn due(&self) {
        tokio::time::sleep_until(self.0).await;
    }

    /// Returns what `next` gives, or nothing when it is time for a sign of life, however much comes.
    ///
    /// Cancel safe when `next` is.
    pub async fn or_due<T>(&self, next: impl Future<Output = T>) -> Option<T> {
        if Instant::now() >= self.0 {
            return None;
        }
        tokio::time::timeout_at(self.0, next).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_beats_when_nothing_was_sent_for_a_while() {
        let mut pulse = StreamHeartbeat::default();
        let begun = Instant::now();
        assert_eq!(pulse.or_due(ready(1)).await, Some(1));
        assert_eq!(pulse.or_due(pending::<u32>()).await, None);
        assert_eq!(begun.elapsed(), SILENCE_MAX);
        // The heartbeat stays due until it was sent, whatever else there is.
        assert_eq!(pulse.or_due(ready(1)).await, None);
        pulse.due().await;
        assert_eq!(begun.elapsed(), SILENCE_MAX);

        pulse.sent();
        tokio::time::advance(SILENCE_MAX / 2).await;
        assert_eq!(pulse.or_due(ready(1)).await, Some(1), "it came, and was not passed on");
        pulse.due().await;
        assert_eq!(begun.elapsed(), 2 * SILENCE_MAX);
    }
}
