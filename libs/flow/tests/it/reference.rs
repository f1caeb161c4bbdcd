//! A short interpreter of flows, independent of the engine: what the end of
//! every node must be when nothing is cancelled.

use model::limits::DEATHS_MAX;
use model::{FlowNode, FlowStatus, NodeSpec, NodeState, Prerequisite, ReasonCode, Rerun, RunIf};

use crate::case::{Case, When, end_of, value};

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

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// With what it gave for `k`.
    Completed(Option<i64>),
    Failed,
    SkippedByFailure,
    Skipped,
}

impl End {
    fn state(self) -> NodeState {
        match self {
            Self::Completed(_) => NodeState::Completed,
            Self::Failed => NodeState::Failed,
            Self::SkippedByFailure | Self::Skipped => NodeState::Skipped,
        }
    }
}

/// The ends of all nodes and of the flow, for the first run and each that follows.
pub(crate) fn interpret(case: &Case) -> Vec<(Vec<NodeState>, FlowStatus)> {
    let mut last: Option<Vec<End>> = None;
    let runs = std::iter::once(None).chain(case.reruns.iter().map(Some));
    runs.enumerate()
        .map(|(generation, rerun)| {
            let mut ends = Vec::new();
            for node in 0..case.specs.len() {
                let kept = match (&last, rerun) {
                    (Some(last), Some(rerun)) => {
                        Some(last[node]).filter(|_| !begins_anew(case, last, rerun, node))
                    }
                    _ => None,
                };
                let end = kept.unwrap_or_else(|| end(case, &ends, node, generation));
                ends.push(end);
            }
            let counts = |(spec, end): (&NodeSpec, &End)| *end == End::Failed && !spec.allow_failure;
            let failed = case.specs.iter().zip(&ends).any(counts);
            let status = if failed { FlowStatus::Error } else { FlowStatus::Finished };
            let states = ends.iter().map(|end| end.state()).collect();
            last = Some(ends);
            (states, status)
        })
        .collect()
}

fn before(case: &Case, node: usize) -> impl Iterator<Item = usize> + '_ {
    let position = |wanted: &model::Name| case.specs.iter().position(|spec| spec.name == *wanted).unwrap();
    case.specs[node].depends.iter().map(position)
}

fn begins_anew(case: &Case, last: &[End], rerun: &Rerun, node: usize) -> bool {
    let named = match rerun {
        Rerun::All => true,
        Rerun::Failed => matches!(last[node], End::Failed | End::SkippedByFailure),
        Rerun::From { jobs } => jobs.iter().any(|job| job.0 as usize == node + 1),
    };
    named || before(case, node).any(|before| begins_anew(case, last, rerun, before))
}

/// The end of `node`, whose predecessors' are known.
fn end(case: &Case, ends: &[End], node: usize, generation: usize) -> End {
    let spec = &case.specs[node];
    let before: Vec<End> = before(case, node).map(|before| ends[before]).collect();
    let has = |end| before.contains(&end);
    let completed = before.iter().filter(|end| matches!(end, End::Completed(_))).count();
    let failure_above = has(End::Failed) || has(End::SkippedByFailure);
    let runs = match spec.run_if {
        RunIf::AllSucceeded => completed == before.len(),
        RunIf::NoneFailed => completed > 0 && !has(End::Failed),
        RunIf::AllDone => true,
        RunIf::AnyFailed => failure_above,
    };
    if !runs {
        return if failure_above { End::SkippedByFailure } else { End::Skipped };
    }
    let impossible = |wanted: &Prerequisite| match wanted {
        Prerequisite::Flow(id) => end_of(*id) != Some(FlowStatus::Finished),
        _ => false,
    };
    if spec.prerequisites.iter().any(impossible) {
        return End::Failed;
    }
    match case.whens[node].map(|when| holds(when, ends)) {
        Some(None) => return End::Failed,
        Some(Some(false)) => return End::Skipped,
        Some(Some(true)) | None => {}
    }
    // The instance vanishes so often before a script can end; what is lost is run again within the budget.
    let losses = if spec.policy.idempotent { spec.policy.losses } else { 0 };
    if case.kills[node] >= DEATHS_MAX || case.kills[node] > losses {
        return End::Failed;
    }
    let mut tries = 0..=spec.policy.retries as usize;
    match tries.any(|tries| case.succeeds(node, generation, tries)) {
        true => End::Completed(value(node, generation)),
        false => End::Failed,
    }
}

/// Nothing when it has no answer.
fn holds(when: When, ends: &[End]) -> Option<bool> {
    let (When::Equal(node, wanted) | When::NotEqual(node, wanted) | When::Less(node, wanted)) = when else {
        return None;
    };
    let value = match ends[node] {
        End::Completed(Some(value)) => Some(value),
        End::Completed(None) => return None,
        _ => None,
    };
    Some(match when {
        When::Equal(..) => value == Some(wanted),
        When::NotEqual(..) => value != Some(wanted),
        _ => value.is_some_and(|value| value < wanted),
    })
}
