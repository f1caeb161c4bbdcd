//! One moment at which everything begins to end.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell expects of a process that was interrupted.
const EXIT_INTERRUPTED: i32 = 130;

/// What SIGHUP means to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// Its terminal is gone, and so is it.
    Ends,
    /// Somebody has changed its files; whatever follows one hears of it as well.
    Reloads,
}

/// Tells that the process, or a part of it, is to end. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// One that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins it, for this one, its clones and its children.
    pub fn begin(&self) {
        self.0.cancel();
    }

    /// Whether it has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it begins. Cancel safe.
    pub async fn begun(&self) {
        self.0.cancelled().await;
    }

    /// Like [`Shutdown::begun`], for a task that keeps nothing borrowed.
    pub fn begun_owned(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.clone().cancelled_owned()
    }

    /// The token behind it, for what knows nothing of processes.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.0.clone()
    }

    /// One that begins with this one, and may begin earlier.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Begins with the first SIGTERM or SIGINT, or SIGHUP where that ends; the second one ends the process at once
    /// with status 130. Has to be called within a runtime.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn on_signals(&self, on_hangup: Hangup) -> std::io::Result<()> {
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
                if name == "SIGHUP" && on_hangup == Hangup::Reloads {
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
