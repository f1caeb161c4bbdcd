//! What others bring for a flow, for its owner to take up.

use serde::{Deserialize, Serialize};

use crate::execution::NodeReport;
use crate::id::JobId;
use crate::prerequisite::SignalName;

/// One entry of `flow:<id>:inputs`, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum FlowInput {
    /// Somebody has given the flow a signal.
    Signal {
        /// Which.
        name: SignalName,
    },
    /// Somebody wants the flow to end.
    Cancel {
        /// Seconds between asking a script to end and ending it.
        grace_secs: u32,
    },
    /// Somebody wants one node to end.
    CancelNode {
        /// Which.
        job_id: JobId,
    },
    /// Word of an attempt, from those who execute it by other ways.
    Report(NodeReport),
}
