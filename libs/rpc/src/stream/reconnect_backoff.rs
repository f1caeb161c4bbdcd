//! Back-off while a service that a stream is read from is away: it may be starting again.

use std::time::Duration;

use backoff::ExponentialBackoff;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::RECONNECT_MAX;

/// How long a service may be away before the readers get its status; they resume by themselves then.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Back-off of one reader of another service.
#[derive(Debug, Clone, Default)]
pub struct StreamReconnectBackoff {
    /// Since when the service has not answered, and the pauses until then.
    away: Option<(Instant, ExponentialBackoff)>,
}

impl StreamReconnectBackoff {
    /// Notes that the service has answered.
    pub fn answered(&mut self) {
        self.away = None;
    }

    /// Waits until the service may be called again after it answered with this. Cancel safe: dropping it only makes the call earlier.
    ///
    /// # Errors
    /// The same status, when it is other than UNAVAILABLE, or has been UNAVAILABLE for too long.
    pub async fn after(&mut self, status: Status) -> Result<(), Status> {
        if status.code() != Code::Unavailable {
            return Err(status);
        }
        let (since, backoff) =
            self.away.get_or_insert_with(|| (Instant::now(), ExponentialBackoff::up_to(RECONNECT_MAX)));
        if since.elapsed() >= AWAY_MAX {
            return Err(status);
        }
        backoff.pause().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_away_is_waited_for_and_not_for_ever() {
        let mut patience = StreamReconnectBackoff::default();
        let began = Instant::now();
        while patience.after(Status::unavailable("away")).await.is_ok() {}
        let waited = began.elapsed();
        assert!((AWAY_MAX..AWAY_MAX + RECONNECT_MAX).contains(&waited), "{waited:?}");
        patience.answered();
        patience.after(Status::unavailable("away again")).await.expect("it has answered meanwhile");
    }

    #[tokio::test]
    async fn other_refusals_are_not_waited_for() {
        for code in [Code::NotFound, Code::OutOfRange, Code::Aborted, Code::Internal, Code::DeadlineExceeded]
        {
            let refused = StreamReconnectBackoff::default().after(Status::new(code, "no")).await;
            assert_eq!(refused.expect_err("it is an answer").code(), code);
        }
    }
}
