//! What a runner would find here, without any jobs.

use std::sync::Arc;

use model::ScriptType;
use sandbox::IsolationSupport;

use crate::app::{find_runtimes, open};
use crate::isolation::Isolator;
use crate::{RunnerSettings, RunnerStartError};

/// What this machine gives to jobs.
#[derive(Debug, Clone)]
pub struct MachineCapabilities {
    /// What would stand between them and everything else.
    pub isolation_support: IsolationSupport,
    /// What can execute them, tried as it would be for a script.
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
