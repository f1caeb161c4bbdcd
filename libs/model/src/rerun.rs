//! Running an ended flow again.

use serde::{Deserialize, Serialize};

use crate::id::JobId;

/// Which nodes are run again; kept with the flow until it is run again the next time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "scope")]
pub enum Rerun {
    /// Nodes that failed, were cancelled, or were skipped because of a failure; and all that comes after.
    Failed,
    /// Every node.
    All,
    /// These nodes, and all that comes after them.
    From {
        /// Which.
        jobs: Vec<JobId>,
    },
}
