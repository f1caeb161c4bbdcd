//! External workers at the open work queues.
//!
//! An external worker is invisible until it takes a job, and coordinators send no jobs where they see no worker. So the operator
//! configures the script types that external workers run.

use std::sync::Arc;

use keys::supervisor::DEFAULT_GROUP;
use model::{Execution, Grants, InstanceInfo, Isolation, ScriptType};
use mycelium::JsonRpcError;

/// Placeholder for the version of an external worker's program.
const VERSION: &str = "others";

/// Script types that external workers run.
#[derive(Debug, Clone, Default)]
pub struct ExternalWorkers(Arc<[ScriptType]>);

impl ExternalWorkers {
    /// Makes a list of these script types.
    #[must_use]
    pub fn new(types: &[ScriptType]) -> Self {
        Self(types.into())
    }

    /// Adds the types that only external workers run, as one instance of each type.
    pub(crate) fn complete(&self, instances: &mut Vec<InstanceInfo>) {
        for script_type in
            self.0.iter().filter(|kind| !is_served(**kind, instances)).copied().collect::<Vec<_>>()
        {
            instances.push(InstanceInfo {
                script_type,
                group: DEFAULT_GROUP.parse().expect("the default group is a name"),
                number: 0,
                slots: 1,
                busy: 0,
                isolation: Isolation::Basic,
                layers: Vec::new(),
                version: VERSION.to_owned(),
            });
        }
    }

    /// Refuses a job that only external workers could run, and that needs features they do not have.
    ///
    /// # Errors
    /// The refusal for the coordinator. It is transient: an instance of ours may come.
    pub(crate) fn check(
        &self,
        job: &Execution,
        grants: &Grants,
        instances: &[InstanceInfo],
    ) -> Result<(), JsonRpcError> {
        let kind = job.script_type;
        if !self.0.contains(&kind) || is_served(kind, instances) || queue::is_plain(job, grants) {
            return Ok(());
        }
        let message = format!(
            "only workers of others run `{kind}` jobs on this machine, which know a script and variables as they stand: no files, \
             inputs or outputs, no `${{{{ }}}}`, no isolation beyond `basic`"
        );
        Err(JsonRpcError::refused("POLICY_REFUSED", false, message))
    }
}

/// Returns true if one of our own instances runs scripts of this type.
pub(crate) fn is_served(script_type: ScriptType, instances: &[InstanceInfo]) -> bool {
    instances.iter().any(|instance| instance.script_type == script_type && instance.version != VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_workers_are_listed_for_types_that_no_own_instance_serves() {
        let others = ExternalWorkers::new(&[ScriptType::V, ScriptType::Python]);
        let mut instances = Vec::new();
        others.complete(&mut instances);
        assert_eq!(instances.len(), 2);
        assert!(!is_served(ScriptType::V, &instances), "not by ours");
        instances[0].version = "0.1.0".to_owned();
        instances.truncate(1);
        others.complete(&mut instances);
        let kinds: Vec<_> =
            instances.iter().map(|instance| (instance.script_type, instance.number)).collect();
        assert_eq!(kinds, [(ScriptType::V, 0), (ScriptType::Python, 0)]);
        assert!(is_served(ScriptType::V, &instances) && !is_served(ScriptType::Python, &instances));
    }
}
