//! What can be configured.

use std::path::PathBuf;

use crate::app::{App, Deps};
use crate::error::Error;
use crate::legacy::Bindings;

/// The supervisor's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where scripts, files and outputs of jobs are kept; the instances of this
    /// machine work in the same directory.
    pub work_dir: PathBuf,
    /// The topic under which it is spoken to on a bus.
    pub topic: String,
    /// Queues that it shares with old workers and old dispatchers.
    pub legacy: Bindings,
}

impl Config {
    /// Works in this directory, under the usual topic.
    #[must_use]
    pub fn new(work_dir: PathBuf) -> Self {
        Self { work_dir, topic: model::supervision::SUPERVISOR_TOPIC.to_owned(), legacy: Bindings::default() }
    }

    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Metrics`] when another service of the process registered the same.
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        App::new(&self, deps)
    }
}
