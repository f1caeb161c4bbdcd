//! What can be configured.

use keys::Layout;

use crate::app::{App, Deps, StartError};

/// The storage service's own settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// How contexts are kept apart.
    pub layout: Layout,
}

impl Config {
    /// Connects to Redis, learns what it has, and builds the service; nothing else runs before [`App::run`].
    ///
    /// # Errors
    /// When Redis does not answer, or not as one of ours.
    pub async fn build(self, deps: Deps) -> Result<App, StartError> {
        App::new(self, deps).await
    }
}
