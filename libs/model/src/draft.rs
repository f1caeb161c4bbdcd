//! Flows of which something could not be read: what could, so that the rest is judged all the same and whoever asked hears of
//! everything at once.

use std::collections::BTreeMap;

use crate::flow::EnvVars;
use crate::job::BlobRef;
use crate::{Name, NodeSpec, RunIf, Violations};

/// A flow with fields that cannot be accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowDraft {
    /// What is wrong with its fields.
    pub violations: Violations,
    /// Its variables.
    pub env_vars: EnvVars,
    /// Its nodes, in their order. Empty when there are none, or too many to look at.
    pub nodes: Vec<NodeDraft>,
}

/// What could be read of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDraft {
    /// Its name.
    pub name: Option<Name>,
    /// The nodes before it, each at its place.
    pub depends: Vec<Option<Name>>,
    /// Which of their ends let it run.
    pub run_if: Option<RunIf>,
    /// Its condition; absent when it has none as well.
    pub when: Option<String>,
    /// Its job's variables.
    pub env_vars: EnvVars,
    /// Its job's files.
    pub files: BTreeMap<String, BlobRef>,
    /// What its job makes.
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
