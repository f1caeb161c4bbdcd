//! Capabilities that a runner would find on this machine, tested without any jobs.

use std::sync::Arc;

use model::ScriptType;
use sandbox::IsolationSupport;

use crate::app::{find_runtimes, open};
use crate::isolation::Isolator;
use crate::{RunnerSettings, RunnerStartError};

/// Capabilities that this machine offers to jobs.
#[derive(Debug, Clone)]
pub struct MachineCapabilities {
    /// Isolation that the jobs would get.
    pub isolation_support: IsolationSupport,
    /// Script types that can be executed, tested as they would be for a script.
    pub types: Vec<ScriptType>,
}

/// Tries what [`crate::start`] would, with the same settings, in a work directory that no runner uses.
///
/// # Errors
/// A [`RunnerStartError`], but for types that are not there.
pub async fn probe_capabilities(settings: &RunnerSettings) -> Result<MachineCapabilities, RunnerStartError> {
    let work_dir = open(settings).await?;
    let isolator = Arc::new(Isolator::find(settings, &work_dir).await?);
    let found = find_runtimes(settings, &work_dir, &isolator).await;
    let types = found.runtimes.iter().map(|(script_type, _)| *script_type).collect();
    Ok(MachineCapabilities { isolation_support: isolator.isolation_support().clone(), types })
}
