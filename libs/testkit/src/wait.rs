//! Waiting for a condition, never for a time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long a test waits for what should happen at once, on a machine that has other things to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Looks again and again until `condition` gives something.
///
/// # Panics
/// When it gives nothing for `timeout`; says `what` was waited for.
pub async fn wait_until<T, F>(mut condition: impl FnMut() -> F, timeout: Duration, what: impl Display) -> T
where
    F: Future<Output = Option<T>>,
{
    let begin = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(begin.elapsed() < timeout, "waited {timeout:?} in vain until {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits for a condition like [`wait_until`], for tests without a runtime.
///
/// # Panics
/// As [`wait_until`].
pub fn wait_until_blocking<T>(
    mut condition: impl FnMut() -> Option<T>,
    timeout: Duration,
    what: impl Display,
) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begin.elapsed() < timeout, "waited {timeout:?} in vain until {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
