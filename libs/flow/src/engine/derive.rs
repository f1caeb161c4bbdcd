//! Changes derived from the stored state and the time: every owner derives the same.

use model::limits::INPUTS_BYTES_MAX;
use model::{FlowNode, NodeState, Reason, ReasonCode, RunIf};

use super::UpstreamCounts;
use super::pass::Pass;
use super::prerequisites::PrerequisiteVerdict;
use super::step::PlacementRequest;
use crate::graph::NodeIndex;
use crate::transition::NodeTransitionEvent;

/// Verdict of `run_if` once everything before a node has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunVerdict {
    Run,
    Skip(ReasonCode),
}

/// Decides by how the dependencies ended. A skip counts as a failure when a failure caused it.
const fn run_verdict(run_if: RunIf, upstream: UpstreamCounts, dependencies: u32) -> RunVerdict {
    let UpstreamCounts { completed, failed, skipped_by_failure, .. } = upstream;
    let runs = match run_if {
        RunIf::AllSucceeded => completed == dependencies,
        RunIf::NoneFailed => completed > 0 && failed == 0,
        RunIf::AllDone => true,
        RunIf::AnyFailed => failed + skipped_by_failure > 0,
    };
    if runs {
        RunVerdict::Run
    } else if failed + skipped_by_failure > 0 {
        RunVerdict::Skip(ReasonCode::UpstreamFailed)
    } else {
        RunVerdict::Skip(ReasonCode::ConditionNotMet)
    }
}

impl Pass<'_, '_, '_> {
    /// Fails a node that was not sent anywhere.
    pub(super) fn abort(&mut self, node: NodeIndex, reason: Reason) {
        let now = self.now;
        self.apply(node, NodeTransitionEvent::Abort, |node| {
            node.end_time = Some(now);
            node.reason = Some(reason);
        });
    }

    /// Looks at the nodes to which something happened.
    pub(super) fn derive(&mut self) {
        while self.has_room()
            && let Some(node) = self.engine.work.pop()
        {
            match self.engine.node(node).state {
                NodeState::Pending => self.decide(node),
                NodeState::Ready => self.place(node),
                _ => {}
            }
        }
    }

    /// Explains which of the nodes before this one made its `run_if` fail.
    fn why_skipped(&self, index: NodeIndex, code: ReasonCode) -> String {
        let node = self.engine.node(index);
        let before =
            node.depends.iter().filter_map(|job| self.engine.find(*job)).map(|at| self.engine.node(at));
        let fails = |before: &&FlowNode| {
            let skipped = before.reason.as_ref().is_some_and(|why| why.code == ReasonCode::UpstreamFailed);
            match before.state {
                NodeState::Failed | NodeState::Cancelled => true,
                NodeState::Skipped => skipped,
                _ => false,
            }
        };
        match before.into_iter().find(fails).filter(|_| code == ReasonCode::UpstreamFailed) {
            Some(before) => format!("`{}` is {}", before.name, before.state),
            None => {
                format!("what comes before it ended otherwise than `run_if: {}` asks", node.run_if.as_str())
            }
        }
    }

    /// Everything before a node has ended: it runs, waits for something else, is skipped, or cannot run.
    fn decide(&mut self, index: NodeIndex) {
        if self.engine.is_halted(index) {
            return;
        }
        let node = self.engine.node(index);
        let dependencies = u32::try_from(node.depends.len()).unwrap_or(u32::MAX);
        let upstream = self.engine.upstream[index.index()];
        if let RunVerdict::Skip(code) = run_verdict(node.run_if, upstream, dependencies) {
            return self.skip(index, Reason::new(code, self.why_skipped(index, code)));
        }
        match self.check_prerequisites(index) {
            PrerequisiteVerdict::Met => {}
            PrerequisiteVerdict::Waits => return,
            PrerequisiteVerdict::Impossible(reason) => return self.abort(index, reason),
        }
        match self.engine.condition(index) {
            Ok(true) => {}
            Ok(false) => {
                return self.skip(index, Reason::new(ReasonCode::ConditionNotMet, "`when` is false"));
            }
            Err(reason) => return self.abort(index, reason),
        }
        if let Some(missing) = self.engine.missing_result(self.engine.plan.references(index)) {
            let reason = self.engine.missing_reason(missing);
            return self.abort(index, reason);
        }
        let bytes = self.engine.inputs_bytes(index);
        if bytes > INPUTS_BYTES_MAX {
            let detail =
                format!("the upstream results have {bytes} bytes, at most {INPUTS_BYTES_MAX} are allowed");
            return self.abort(index, Reason::new(ReasonCode::InputsTooLarge, detail));
        }
        let now = self.now;
        let release = |node: &mut FlowNode| {
            node.ready_time = Some(now);
            node.reason = None;
        };
        if self.apply(index, NodeTransitionEvent::Release, release) {
            self.place(index);
        }
    }

    fn skip(&mut self, index: NodeIndex, reason: Reason) {
        let now = self.now;
        self.apply(index, NodeTransitionEvent::Skip, |node| {
            node.end_time = Some(now);
            node.reason = Some(reason);
        });
    }

    /// Sends a READY node to a place, or notes that there is none.
    pub(super) fn place(&mut self, index: NodeIndex) {
        if self.adopt_kept(index) {
            return;
        }
        let node = self.engine.node(index);
        let backs_off = node.not_before_time.is_some_and(|time| time > self.now);
        if backs_off || self.engine.is_halted(index) {
            return;
        }
        let kind = self.engine.waiting.kind[index.index()];
        if self.try_place(index, kind) {
            // A runner is available for this kind now, so other nodes of the kind need not wait either.
            if !self.engine.waiting.nodes[kind as usize].is_empty() {
                self.engine.waiting.to_try.insert(kind);
            }
            return;
        }
        self.engine.waiting.nodes[kind as usize].push_back(index);
        let noted =
            self.engine.node(index).reason.as_ref().is_some_and(|r| r.code == ReasonCode::NoLiveRunner);
        if !noted {
            let why = self.placeless.get(&kind).map(|none| none.why.clone()).unwrap_or_default();
            self.touch(index, |node| node.reason = Some(Reason::new(ReasonCode::NoLiveRunner, why)));
        }
    }

    /// Asks for a runner, at most once per step and kind when there is none.
    fn try_place(&mut self, index: NodeIndex, kind: u32) -> bool {
        if self.placeless.contains_key(&kind) {
            return false;
        }
        let view = PlacementRequest {
            script_type: self.engine.job(index).script_type,
            target: &self.engine.node(index).target,
            isolation: self.engine.node(index).policy.isolation,
        };
        match self.outside.destinations.choose(&view) {
            Ok(runner) => {
                let now = self.now;
                let sent = self.apply(index, NodeTransitionEvent::Dispatch, |node| {
                    node.dispatch_time = Some(now);
                    node.runner = Some(runner);
                    node.reason = None;
                });
                if sent {
                    self.send(runner, index);
                }
                sent
            }
            Err(none) => {
                self.placeless.insert(kind, none);
                false
            }
        }
    }

    /// Retries the nodes that wait for a runner where one may have become available.
    pub(super) fn place_waiting(&mut self) {
        while self.has_room()
            && let Some(&kind) = self.engine.waiting.to_try.first()
        {
            let Some(&node) = self.engine.waiting.nodes[kind as usize].front() else {
                self.engine.waiting.to_try.remove(&kind);
                continue;
            };
            let stored = self.engine.node(node);
            let waits = stored.state == NodeState::Ready
                && stored.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::NoLiveRunner)
                && !self.engine.is_halted(node);
            if !waits || self.try_place(node, kind) {
                self.engine.waiting.nodes[kind as usize].pop_front();
            } else {
                self.engine.waiting.to_try.remove(&kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_if_decides_as_specified() {
        use RunIf::{AllDone, AllSucceeded, AnyFailed, NoneFailed};
        use RunVerdict::{Run, Skip};
        let up = Skip(ReasonCode::UpstreamFailed);
        let no = Skip(ReasonCode::ConditionNotMet);
        // completed, failed, skipped by a failure, ended otherwise; then the four answers.
        let rows = [
            ([0, 0, 0, 0], [(AllSucceeded, Run), (NoneFailed, no), (AllDone, Run), (AnyFailed, no)]),
            ([2, 0, 0, 0], [(AllSucceeded, Run), (NoneFailed, Run), (AllDone, Run), (AnyFailed, no)]),
            ([1, 0, 0, 1], [(AllSucceeded, no), (NoneFailed, Run), (AllDone, Run), (AnyFailed, no)]),
            ([0, 0, 0, 2], [(AllSucceeded, no), (NoneFailed, no), (AllDone, Run), (AnyFailed, no)]),
            ([1, 1, 0, 0], [(AllSucceeded, up), (NoneFailed, up), (AllDone, Run), (AnyFailed, Run)]),
            ([0, 1, 0, 1], [(AllSucceeded, up), (NoneFailed, up), (AllDone, Run), (AnyFailed, Run)]),
            ([1, 0, 1, 0], [(AllSucceeded, up), (NoneFailed, Run), (AllDone, Run), (AnyFailed, Run)]),
            ([0, 0, 1, 1], [(AllSucceeded, up), (NoneFailed, up), (AllDone, Run), (AnyFailed, Run)]),
        ];
        for ([completed, failed, skipped_by_failure, other], answers) in rows {
            let upstream = UpstreamCounts { waiting: 0, completed, failed, skipped_by_failure };
            let all = completed + failed + skipped_by_failure + other;
            for (run_if, expected) in answers {
                assert_eq!(run_verdict(run_if, upstream, all), expected, "{run_if:?} {upstream:?}");
            }
        }
    }
}
