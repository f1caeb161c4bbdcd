//! Files that are read again while a process runs.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

/// How often such files are looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Calls `look` for ever: every [`LOOK_INTERVAL`], and at once on SIGHUP, with true then. `what` names the files
/// for the log. Loses nothing when it is dropped.
pub async fn poll_files(what: &str, mut look: impl FnMut(bool)) {
    let mut hangups = signal(SignalKind::hangup()).inspect_err(|error| {
        tracing::warn!(%error, what, "cannot listen for SIGHUP; files are still checked every 2 s");
    });
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_requested = tokio::select! {
            _ = looks.tick() => false,
            Some(()) = async { hangups.as_mut().ok()?.recv().await }, if hangups.is_ok() => true,
        };
        look(is_requested);
    }
}
