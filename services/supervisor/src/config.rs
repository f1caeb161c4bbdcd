//! Configuration of the supervisor.

use std::path::PathBuf;
use std::time::Duration;

use model::ScriptType;

use crate::app::{App, Deps};
use crate::error::Error;
use crate::legacy::LegacyBindings;
use crate::logs::LogRetention;
use crate::policy::DefaultCoordinators;

/// The supervisor's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Directory for scripts, files and outputs of jobs; the instances of this
    /// machine work in the same directory.
    pub work_dir: PathBuf,
    /// The topic under which coordinators address the supervisor on a bus.
    pub topic: String,
    /// The Ed25519 key that the supervisor signs with, made if it does not exist; absent: `signing.key` in the work directory.
    pub signing_key: Option<PathBuf>,
    /// Queues shared with old workers and old dispatchers.
    pub legacy: LegacyBindings,
    /// Allows others to push jobs into work queues and take from them; otherwise their jobs are refused.
    pub open_queues: bool,
    /// Script types that external workers run from the work queues; any such type opens the queues.
    pub served_by_others: Vec<ScriptType>,
    /// Policy file of the operator: what jobs may do; absent: everything.
    pub policy: Option<PathBuf>,
    /// Coordinators whose jobs are accepted where the policy names none.
    pub admitted: DefaultCoordinators,
    /// Bytes that must stay free on the work directory's file system, the same as for instances; absent: the default.
    pub disk_floor: Option<u64>,
    /// Bytes of scripts, files and outputs that are kept, beside those that are needed.
    pub blob_bytes_max: u64,
    /// Age and size limits of kept logs.
    pub log_retention: LogRetention,
    /// How long an instance may be missing before its attempts count as lost.
    pub instance_patience: Duration,
}

/// Bytes of blobs that are kept unless the configuration says otherwise.
pub(crate) const BLOB_BYTES_DEFAULT: u64 = 4 * 1024 * 1024 * 1024;

impl Config {
    /// Creates a configuration with this work directory and the default topic.
    #[must_use]
    pub fn new(work_dir: PathBuf) -> Self {
        Self {
            work_dir,
            topic: model::supervision::SUPERVISOR_TOPIC.to_owned(),
            signing_key: None,
            legacy: LegacyBindings::default(),
            open_queues: false,
            served_by_others: Vec::new(),
            policy: None,
            admitted: DefaultCoordinators::Anyone,
            disk_floor: None,
            blob_bytes_max: BLOB_BYTES_DEFAULT,
            log_retention: LogRetention::default(),
            instance_patience: queue::PRESENCE_TTL,
        }
    }

    /// Builds the service; nothing runs before [`App::run`].
    ///
    /// # Errors
    /// [`Error::Policy`] when the policy file cannot be used, [`Error::Metrics`] when another service of the
    /// process registered the same.
    pub fn build(self, deps: Deps<'_>) -> Result<App, Error> {
        App::new(&self, deps)
    }
}
