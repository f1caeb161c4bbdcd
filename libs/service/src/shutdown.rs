//! One moment at which everything begins to end.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit status that a shell expects of a process that was interrupted.
const EXIT_INTERRUPTED: i32 = 130;

/// Meaning of SIGHUP to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SighupAction {
    /// The terminal is gone, and the process ends.
    Ends,
    /// The files were changed; all that follow the reload signal are notified as well.
    Reloads,
}

/// Signal that the process, or a part of it, is to end. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    drain: Arc<ShutdownDrainDeadline>,
}

/// Time that a drain may take.
#[derive(Debug, Default)]
struct ShutdownDrainDeadline {
    /// Time that was set up.
    patience: OnceLock<Duration>,
    /// Moment at which work under way is given up, by both clocks.
    deadline: OnceLock<(Instant, SystemTime)>,
}

impl Shutdown {
    /// One that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets up how long the drain may take that it begins. Counts once, and before it has begun.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        self.drain.patience.get_or_init(|| patience);
        self
    }

    /// Begins it, for this one, its clones and its children.
    pub fn begin(&self) {
        self.begin_within(self.drain.patience.get().copied().unwrap_or_default());
    }

    /// Begins it as [`Shutdown::begin`] does, with so much time for the drain. That of the first call counts.
    pub fn begin_within(&self, patience: Duration) {
        self.drain.deadline.get_or_init(|| (Instant::now() + patience, SystemTime::now() + patience));
        self.token.cancel();
    }

    /// Time that is left of the drain; nothing unless it has begun here.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.drain.deadline.get().map(|(deadline, _)| deadline.saturating_duration_since(Instant::now()))
    }

    /// Moment at which work under way is given up; nothing unless the shutdown has begun here.
    #[must_use]
    pub fn deadline(&self) -> Option<SystemTime> {
        self.drain.deadline.get().map(|(_, deadline)| *deadline)
    }

    /// Returns true once the shutdown has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until it begins. Cancel safe.
    pub async fn begun(&self) {
        self.token.cancelled().await;
    }

    /// Like [`Shutdown::begun`], for a task that keeps nothing borrowed.
    pub fn begun_owned(&self) -> impl Future<Output = ()> + Send + 'static {
        self.token.clone().cancelled_owned()
    }

    /// The token behind it, for what knows nothing of processes.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// One that begins with this one, and may begin earlier.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), drain: Arc::default() }
    }

    /// Begins with the first SIGTERM or SIGINT, or SIGHUP where that ends; the second one ends the process at once
    /// with status 130. Has to be called within a runtime.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn on_signals(&self, on_hangup: SighupAction) -> std::io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let shutdown = self.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    _ = hangup.recv() => "SIGHUP",
                };
                if name == "SIGHUP" && on_hangup == SighupAction::Reloads {
                    tracing::info!(signal = name, "files that are followed are read again");
                    continue;
                }
                if shutdown.has_begun() {
                    tracing::warn!(signal = name, "ending at once");
                    std::process::exit(EXIT_INTERRUPTED);
                }
                tracing::info!(signal = name, "shutdown begins; a second signal ends the process at once");
                shutdown.begin();
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_of_the_first_call_counts() {
        let shutdown = Shutdown::new().with_patience(Duration::from_secs(20));
        assert_eq!((shutdown.left(), shutdown.deadline()), (None, None));
        let child = shutdown.child();
        shutdown.begin_within(Duration::from_secs(600));
        let deadline = shutdown.deadline();
        shutdown.begin();
        shutdown.begin_within(Duration::ZERO);
        assert!(deadline.is_some() && shutdown.deadline() == deadline);
        assert!(shutdown.clone().left().is_some_and(|left| left > Duration::from_secs(500)));
        assert!(child.has_begun() && child.left().is_none());
    }

    #[test]
    fn a_drain_takes_as_long_as_it_was_set_up_for() {
        let shutdown = Shutdown::new().with_patience(Duration::from_secs(20));
        shutdown.begin();
        let left = shutdown.left().expect("begun");
        assert!(left > Duration::from_secs(10) && left <= Duration::from_secs(20), "{left:?}");
    }
}
