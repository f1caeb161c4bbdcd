//! Settings of the router.

use std::time::Duration;

use model::limits;

use crate::app::{App, Deps};
use crate::error::Error;

/// A router's name, at most this long.
const NAME_CHARS_MAX: usize = 64;

/// The router's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of the router: the same after a restart, different for each replica. Storage gives messages that the
    /// router held when it died back to the router of that name.
    pub name: String,
    /// Time without contact after which the router gives up on a supervisor: a context that the supervisor should
    /// forget counts as forgotten, and an attempt that may have arrived there is reported as not delivered.
    pub lost_after: Duration,
}

impl Default for Config {
    /// The machine's name, or `local`; [`limits::LOST_AFTER_SECS`].
    fn default() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim();
        let name = if host.is_empty() { "local".to_owned() } else { host.to_owned() };
        Self { name, lost_after: Duration::from_secs(limits::LOST_AFTER_SECS.into()) }
    }
}

impl Config {
    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Metrics`].
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > NAME_CHARS_MAX || !self.name.chars().all(good) {
            return Err(Error::Name(self.name.chars().take(NAME_CHARS_MAX).collect()));
        }
        App::new(self, deps)
    }
}
