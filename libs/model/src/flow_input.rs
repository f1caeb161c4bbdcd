//! Inputs that other parties send to a flow, for its owner to take up.

use serde::{Deserialize, Serialize};

use crate::execution::NodeReport;
use crate::id::JobId;
use crate::prerequisite::SignalName;

/// One entry of `flow:<id>:inputs`, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "input")]
pub enum FlowInput {
    /// Gives the flow a signal.
    Signal {
        /// Which.
        name: SignalName,
    },
    /// Cancels the flow.
    Cancel {
        /// Seconds between asking a script to end and ending it.
        grace_secs: u32,
    },
    /// Cancels one node.
    CancelNode {
        /// Which.
        job_id: JobId,
    },
    /// Report on an attempt, from a system that executes it by other ways.
    Report(NodeReport),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Attempt, ContextId, ContextUid, FlowId, FlowUid, JobKey, Uid};
    use crate::{NodeReport, ReportKind};

    #[test]
    fn each_kind_survives_its_json() {
        let uid = Uid::from_bits(1);
        let job_key =
            JobKey { context: ContextUid(uid), flow: FlowUid(uid), job: JobId(1), attempt: Attempt(1) };
        let (context_id, flow_id) = (ContextId(1), FlowId(1));
        let report = NodeReport { job_key, context_id, flow_id, source: None, kind: ReportKind::Returned };
        for input in [
            FlowInput::Signal { name: "go".parse().expect("a name") },
            FlowInput::Cancel { grace_secs: 5 },
            FlowInput::CancelNode { job_id: JobId(7) },
            FlowInput::Report(report),
        ] {
            let json = serde_json::to_string(&input).expect("JSON");
            assert_eq!(serde_json::from_str::<FlowInput>(&json).expect(&json), input);
        }
    }
}
