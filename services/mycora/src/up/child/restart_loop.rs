//! Starting a private server again whenever it ends by itself.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::ChildServer;
use crate::failure::error_chain;
use crate::up::{UpError, UpReporter};

/// The pauses before a start, the first after one that failed and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How many starts in a row may fail: about 40 s.
const STARTS_MAX: u32 = 12;
/// A server that ran so long has recovered: the next end is not one of a row.
const STEADY: Duration = Duration::from_secs(10);

/// A server that is kept running.
#[derive(Debug)]
pub(in crate::up) struct ChildHandle {
    program: &'static str,
    /// Ends it, and what keeps it running.
    stop: CancellationToken,
    keeper: JoinHandle<io::Result<()>>,
    lost: watch::Receiver<Option<ChildRestartFailure>>,
}

impl ChildHandle {
    /// Keeps a server running that was started as this child. What works beside it ends only with an error.
    pub(in crate::up) fn keep<S: ChildServer>(
        server: S,
        child: Child,
        notice: UpReporter,
        beside: impl Future<Output = io::Error> + Send + 'static,
    ) -> Self {
        let (stop, (lose, lost)) = (CancellationToken::new(), watch::channel(None));
        let keeper = ChildRestartLoop { server, notice, stop: stop.clone(), lose };
        let keeper = tokio::spawn(async move {
            tokio::select! {
                kept = keeper.keep(child) => kept,
                error = beside => Err(error),
            }
        });
        Self { program: S::NAMES.program, stop, keeper, lost }
    }

    /// Returns when the server has ended by itself and cannot be started again. Cancel safe.
    pub(in crate::up) async fn wait_until_lost(&mut self) -> UpError {
        match self.lost.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(loss)) => loss.error(),
            _ => UpError::Task(format!("what keeps {} running", self.program)),
        }
    }

    /// Returns true when the server has ended and cannot be started again.
    #[must_use]
    pub(in crate::up) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// Lets the server write what it has and end.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(in crate::up) async fn stop(self) -> Result<(), UpError> {
        self.stop.cancel();
        let ended = self.keeper.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        ended.map_err(|source| UpError::ChildStop { program: self.program, source })
    }
}

/// Why the server could not be started again.
#[derive(Debug, Clone)]
struct ChildRestartFailure {
    program: &'static str,
    starts: u32,
    why: String,
    log: PathBuf,
}

impl ChildRestartFailure {
    fn error(&self) -> UpError {
        let Self { program, starts, why, log } = self.clone();
        UpError::ChildLost { program, starts, why, log }
    }
}

/// Pauses between starts: none before the first one, then ever longer ones. A server that ends again and again does so no
/// faster than the longest pause lets it.
#[derive(Debug, Default)]
struct ChildRestartBackOff {
    pause: Duration,
}

impl ChildRestartBackOff {
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
struct ChildRestartLoop<S> {
    server: S,
    notice: UpReporter,
    stop: CancellationToken,
    /// Receives the failure when it gives up.
    lose: watch::Sender<Option<ChildRestartFailure>>,
}

impl<S: ChildServer> ChildRestartLoop<S> {
    /// Starts the server again whenever it ends, until `stop`; then ends it.
    ///
    /// # Errors
    /// When it cannot be ended.
    async fn keep(self, mut child: Child) -> io::Result<()> {
        let super::ChildNames { program, meanwhile, .. } = S::NAMES;
        let mut back_off = ChildRestartBackOff::default();
        loop {
            let since = Instant::now();
            let status = tokio::select! {
                () = self.stop.cancelled() => return super::end(&self.server, child).await,
                status = child.wait() => status?,
            };
            back_off.ended_after(since.elapsed());
            let ended = Instant::now();
            tracing::error!(%status, "{program} ended by itself and is started again");
            self.notice.print(&format!("{program} ended ({status}) and is started again; {meanwhile}"));
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
            tracing::info!(secs = ended.elapsed().as_secs_f64(), "{program} runs again");
            self.notice.print(&format!("{program} runs again, with the same data"));
        }
        super::forget(&self.server);
        Ok(())
    }

    async fn revive(&self, back_off: &mut ChildRestartBackOff) -> Result<Child, ChildRestartFailure> {
        let super::ChildNames { program, log, .. } = S::NAMES;
        let mut starts = 0;
        loop {
            tokio::time::sleep(back_off.next()).await;
            starts += 1;
            let error = match super::start(&self.server).await {
                Ok(child) => return Ok(child),
                Err(error) => error,
            };
            let why = error_chain(&error);
            tracing::error!(error = why, starts, "{program} cannot be started again");
            if starts >= STARTS_MAX {
                return Err(ChildRestartFailure { program, starts, why, log: self.server.dir().join(log) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_again_and_again_is_started_ever_more_rarely() {
        let mut back_off = ChildRestartBackOff::default();
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
