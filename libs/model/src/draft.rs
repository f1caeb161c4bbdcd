//! Flows that could be read in part only: the readable parts, so that these are checked all the same and the caller
//! gets all violations at once.

use std::collections::BTreeMap;

use crate::flow::EnvVars;
use crate::job::BlobRef;
use crate::{Name, NodeSpec, RunIf, Violations};

/// A flow with fields that cannot be accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowDraft {
    /// Violations in the flow's fields.
    pub violations: Violations,
    /// Variables of the flow.
    pub env_vars: EnvVars,
    /// Nodes of the flow, in order. Empty when there are none, or too many to check.
    pub nodes: Vec<NodeDraft>,
}

/// Readable parts of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDraft {
    /// Name of the node.
    pub name: Option<Name>,
    /// The nodes before it, each at its place.
    pub depends: Vec<Option<Name>>,
    /// Which of their ends let it run.
    pub run_if: Option<RunIf>,
    /// Condition of the node; absent also when it has none.
    pub when: Option<String>,
    /// Variables of the node's job.
    pub env_vars: EnvVars,
    /// Files of the node's job.
    pub files: BTreeMap<String, BlobRef>,
    /// Outputs of the node's job.
    pub outputs: Vec<String>,
}

impl From<NodeSpec> for NodeDraft {
    fn from(node: NodeSpec) -> Self {
        let NodeSpec { name, depends, run_if, when, job, .. } = node;
        Self {
            name: Some(name),
            depends: depends.into_iter().map(Some).collect(),
            run_if: Some(run_if),
            when,
            env_vars: job.env_vars,
            files: job.files,
            outputs: job.outputs,
        }
    }
}
