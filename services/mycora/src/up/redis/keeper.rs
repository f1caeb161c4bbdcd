//! Starting the private Redis again whenever it ends by itself.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::process::Child;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{LOG, Server};
use crate::failure::error_chain;
use crate::up::{Notice, UpError};

/// The pauses before a start, the first after one that failed and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How many starts in a row may fail: about 40 s.
const STARTS_MAX: u32 = 12;
/// A server that ran so long has recovered: the next end is not one of a row.
const STEADY: Duration = Duration::from_secs(10);

/// Why the server could not be started again.
#[derive(Debug, Clone)]
pub(super) struct Loss {
    starts: u32,
    why: String,
    log: PathBuf,
}

impl Loss {
    pub(super) fn error(&self) -> UpError {
        let Self { starts, why, log } = self.clone();
        UpError::RedisLost { starts, why, log }
    }
}

/// Pauses between starts: none before the first one, then ever longer ones. A server that ends again and again does so no
/// faster than the longest pause lets it.
#[derive(Debug, Default)]
struct BackOff {
    pause: Duration,
}

impl BackOff {
    /// The server ended after it ran so long.
    fn ended_after(&mut self, ran: Duration) {
        if ran >= STEADY {
            self.pause = Duration::ZERO;
        }
    }

    /// How long to wait before the next start.
    fn next(&mut self) -> Duration {
        let longer = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
        std::mem::replace(&mut self.pause, longer)
    }
}

/// Keeps a server running until it is to stop.
pub(super) struct Keeper {
    pub(super) server: Server,
    pub(super) notice: Notice,
    pub(super) stop: CancellationToken,
    /// Told when it gives up.
    pub(super) lose: watch::Sender<Option<Loss>>,
}

impl Keeper {
    /// Starts the server again whenever it ends, until `stop`; then ends it.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(super) async fn keep(self, mut child: Child) -> io::Result<()> {
        let mut back_off = BackOff::default();
        loop {
            let since = Instant::now();
            let status = tokio::select! {
                () = self.stop.cancelled() => return self.server.end(child).await,
                status = child.wait() => status?,
            };
            back_off.ended_after(since.elapsed());
            let ended = Instant::now();
            tracing::error!(%status, "redis-server ended by itself and is started again");
            self.notice.say(&format!(
                "redis-server ended ({status}) and is started again; jobs that run go on and report afterwards"
            ));
            let revived = tokio::select! {
                () = self.stop.cancelled() => break,
                revived = self.revive(&mut back_off) => revived,
            };
            child = match revived {
                Ok(child) => child,
                Err(loss) => {
                    self.lose.send_replace(Some(loss));
                    self.stop.cancelled().await;
                    break;
                }
            };
            tracing::info!(secs = ended.elapsed().as_secs_f64(), "redis-server runs again");
            self.notice.say("redis-server runs again, with the same data");
        }
        self.server.forget();
        Ok(())
    }

    async fn revive(&self, back_off: &mut BackOff) -> Result<Child, Loss> {
        let mut starts = 0;
        loop {
            tokio::time::sleep(back_off.next()).await;
            starts += 1;
            let error = match self.server.start().await {
                Ok(child) => return Ok(child),
                Err(error) => error,
            };
            let why = error_chain(&error);
            tracing::error!(error = why, starts, "redis-server cannot be started again");
            if starts >= STARTS_MAX {
                return Err(Loss { starts, why, log: self.server.dir.join(LOG) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_again_and_again_is_started_ever_more_rarely() {
        let mut back_off = BackOff::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            back_off.ended_after(STEADY / 2);
            pauses.push(back_off.next().as_millis());
        }
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        back_off.ended_after(STEADY);
        assert_eq!(back_off.next(), Duration::ZERO);
    }
}
