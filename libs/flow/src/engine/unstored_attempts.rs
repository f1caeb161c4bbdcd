//! Attempts that are in flight although the store does not know it.
//!
//! A store that rolled back has lost the last steps of a flow: an attempt that was sent is READY there, or PENDING, or
//! would follow one that is in flight. Reports on such an attempt must be accepted; otherwise its work would be done twice.
//! The attempt counts as dispatched as soon as the stored state allows the node to run; until then its reports are kept in
//! memory.
//!
//! - READY: dispatched now, at the runner that the report came from.
//! - PENDING: reports are kept, and used instead of a dispatch when the node is released. If the node is never released, or
//!   is cancelled, the attempt is stopped.
//! - An earlier attempt is in flight: the lost steps had closed it, since the next one was sent. It is closed now as a
//!   failed try, and stopped in case it is alive.
//! - The node has ended, or is being cancelled (no node returns to READY then), or the attempt number is too far ahead to
//!   be plausible: the report is stale, and the attempt is stopped if it is alive.
//!
//! An attempt therefore still has one end (I2), and the later one begins after it (I3).

use model::limits::{LOSSES_MAX, RETRIES_MAX};
use model::{NodeReport, NodeState, Reason, ReasonCode, ReportKind};

use super::pass::Pass;
use super::report::{next_attempt, reports_alive};
use crate::graph::NodeIndex;
use crate::transition::NodeTransitionEvent;

/// Attempts of one generation that may follow the stored one. Attempts that come back unstarted are not counted.
const AHEAD_MAX: u32 = RETRIES_MAX + LOSSES_MAX;

/// Reports kept of one attempt at most: accepted, started, ended.
const KEPT_MAX: usize = 4;

impl Pass<'_, '_, '_> {
    /// Returns true if `report`, of the current attempt or a later one, shows that an attempt was sent that
    /// the store does not know.
    pub(super) fn is_unstored(&self, index: NodeIndex, report: &NodeReport) -> bool {
        let node = self.engine.node(index);
        let ahead = report.job_key.attempt.0.saturating_sub(node.attempt.0);
        let may_be = match node.state {
            NodeState::Pending | NodeState::Ready => true,
            NodeState::Dispatched | NodeState::Running => !self.is_cancel_requested(index),
            _ => false,
        };
        may_be && ahead <= AHEAD_MAX && report.kind != ReportKind::Unknown && self.engine.is_started()
    }

    /// Handles a report that [`Pass::is_unstored`] accepted.
    pub(super) fn unstored(&mut self, index: NodeIndex, report: NodeReport) {
        match self.engine.node(index).state {
            NodeState::Pending => {
                self.step.has_unstored_reports = true;
                let kept = self.engine.kept.entry(index).or_default();
                let attempt = report.job_key.attempt;
                kept.retain(|known| known.job_key.attempt >= attempt && *known != report);
                if kept.len() < KEPT_MAX && kept.iter().all(|known| known.job_key.attempt == attempt) {
                    kept.push(report);
                }
            }
            NodeState::Ready => self.adopt(index, report),
            _ => {
                self.stop(index);
                let now = self.now;
                self.apply(index, NodeTransitionEvent::Retry, |node| {
                    let before = node.attempt;
                    next_attempt(node, now);
                    node.tries = (node.tries + 1).min(node.policy.retries);
                    let detail = format!("a later attempt than {before} is under way");
                    node.reason = Some(Reason::new(ReasonCode::BackingOff, detail));
                });
                self.adopt(index, report);
            }
        }
    }

    /// Replays the kept reports of a node that is READY now; returns false when there are none.
    pub(super) fn adopt_kept(&mut self, index: NodeIndex) -> bool {
        let Some(kept) = self.engine.kept.remove(&index) else { return false };
        for report in kept {
            self.report(report);
        }
        true
    }

    /// Counts a READY node's attempt as dispatched, and handles the report on it.
    fn adopt(&mut self, index: NodeIndex, report: NodeReport) {
        let (now, attempt) = (self.now, report.job_key.attempt);
        let runner = report.source.as_ref().and_then(|source| self.outside.destinations.locate(source));
        self.touch(index, |node| node.attempt = attempt);
        self.apply(index, NodeTransitionEvent::Dispatch, |node| {
            node.dispatch_time = Some(now);
            node.runner = runner;
            node.reason = None;
        });
        if runner.is_none()
            && let Some(source) = &report.source
        {
            self.engine.sources.insert(index, source.clone());
        }
        self.current(index, report);
    }

    /// Stops the attempts behind the kept reports of a node that has ended without them.
    pub(super) fn drop_kept(&mut self, index: NodeIndex) {
        for report in self.engine.kept.remove(&index).unwrap_or_default() {
            if reports_alive(&report.kind) {
                self.stop_at_source(&report);
            }
        }
    }
}
