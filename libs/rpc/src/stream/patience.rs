//! Waiting for a service that is away while somebody listens to what it says: it may be starting again.

use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

/// How long a service may be away before those who listen are told; they resume by themselves then.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// The pause before it is asked again; doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Back-off of one reader of another service.
#[derive(Debug, Clone, Default)]
pub struct Patience {
    /// Since when the service has not answered, and how long the next pause is.
    away: Option<(Instant, Duration)>,
}

impl Patience {
    /// Notes that the service has answered.
    pub fn answered(&mut self) {
        self.away = None;
    }

    /// Waits until the service may be asked again after it answered with this. Cancel safe: it is asked earlier then.
    ///
    /// # Errors
    /// The same status, when it says something else than UNAVAILABLE, or says it for too long.
    pub async fn after(&mut self, status: Status) -> Result<(), Status> {
        if status.code() != Code::Unavailable {
            return Err(status);
        }
        let (since, pause) = self.away.unwrap_or_else(|| (Instant::now(), PAUSE_FIRST));
        if since.elapsed() >= AWAY_MAX {
            return Err(status);
        }
        self.away = Some((since, (pause * 2).min(PAUSE_MAX)));
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_away_is_waited_for_and_not_for_ever() {
        let mut patience = Patience::default();
        let began = Instant::now();
        while patience.after(Status::unavailable("away")).await.is_ok() {}
        let waited = began.elapsed();
        assert!((AWAY_MAX..AWAY_MAX + PAUSE_MAX).contains(&waited), "{waited:?}");
        patience.answered();
        patience.after(Status::unavailable("away again")).await.expect("it has answered meanwhile");
    }

    #[tokio::test]
    async fn other_refusals_are_not_waited_for() {
        for code in [Code::NotFound, Code::OutOfRange, Code::Aborted, Code::Internal, Code::DeadlineExceeded]
        {
            let refused = Patience::default().after(Status::new(code, "no")).await;
            assert_eq!(refused.expect_err("it is an answer").code(), code);
        }
    }
}
