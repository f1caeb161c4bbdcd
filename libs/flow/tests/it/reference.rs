//! A short interpreter of flows, independent of the engine: what the end of
//! every node must be when nothing is cancelled.

use model::{FlowNode, FlowStatus, NodeSpec, NodeState, ReasonCode, RunIf};

/// `run_if` by the words of the specification, over the ended nodes themselves.
pub(crate) fn runs(run_if: RunIf, before: &[&FlowNode]) -> bool {
    let code = |node: &FlowNode| node.reason.as_ref().map(|reason| reason.code);
    let completed = |node: &&FlowNode| node.state == NodeState::Completed;
    let failed = |node: &&FlowNode| match node.state {
        NodeState::Failed => true,
        NodeState::Cancelled => matches!(code(node), Some(ReasonCode::NodeCancelled | ReasonCode::FailFast)),
        _ => false,
    };
    let skipped_by_failure =
        |node: &&FlowNode| node.state == NodeState::Skipped && code(node) == Some(ReasonCode::UpstreamFailed);
    match run_if {
        RunIf::AllSucceeded => before.iter().all(completed),
        RunIf::NoneFailed => before.iter().any(completed) && !before.iter().any(failed),
        RunIf::AllDone => true,
        RunIf::AnyFailed => before.iter().any(|node| failed(node) || skipped_by_failure(node)),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Completed,
    Failed,
    SkippedByFailure,
    Skipped,
}

/// The end of every node and of the flow. `specs` stand in an order in which
/// each depends on earlier ones only; `outcomes[i][t]` says whether try `t` of
/// node `i` succeeds.
pub(crate) fn interpret(specs: &[NodeSpec], outcomes: &[Vec<bool>]) -> (Vec<NodeState>, FlowStatus) {
    let mut ends: Vec<End> = Vec::new();
    for (spec, outcomes) in specs.iter().zip(outcomes) {
        let before: Vec<End> = spec
            .depends
            .iter()
            .map(|wanted| ends[specs.iter().position(|s| s.name == *wanted).unwrap()])
            .collect();
        let has = |end| before.contains(&end);
        let failure_above = has(End::Failed) || has(End::SkippedByFailure);
        let runs = match spec.run_if {
            RunIf::AllSucceeded => !failure_above && !has(End::Skipped),
            RunIf::NoneFailed => has(End::Completed) && !has(End::Failed),
            RunIf::AllDone => true,
            RunIf::AnyFailed => failure_above,
        };
        let tries = spec.policy.retries as usize + 1;
        ends.push(match (runs, failure_above) {
            (true, _) if outcomes.iter().take(tries).any(|succeeds| *succeeds) => End::Completed,
            (true, _) => End::Failed,
            (false, true) => End::SkippedByFailure,
            (false, false) => End::Skipped,
        });
    }
    let counts = |(spec, end): (&NodeSpec, &End)| *end == End::Failed && !spec.allow_failure;
    let status = if specs.iter().zip(&ends).any(counts) { FlowStatus::Error } else { FlowStatus::Finished };
    let states = ends
        .iter()
        .map(|end| match end {
            End::Completed => NodeState::Completed,
            End::Failed => NodeState::Failed,
            End::SkippedByFailure | End::Skipped => NodeState::Skipped,
        })
        .collect();
    (states, status)
}
