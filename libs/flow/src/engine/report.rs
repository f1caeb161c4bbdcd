//! What supervisors, and whoever is on the way to them, say of an attempt.

use std::time::Duration;

use model::execution::Outcome;
use model::limits::RESULT_BYTES_MAX;
use model::{AttemptEnd, FlowNode, NodeReport, NodeState, Reason, ReasonCode, ReportKind, Timestamp};

use super::is_in_flight;
use super::pass::Pass;
use crate::graph::NodeIndex;
use crate::retry::{self, Verdict};
use crate::size;
use crate::transition::NodeEvent;

impl Pass<'_, '_, '_> {
    /// Takes up a report of the current attempt; any other changes nothing.
    pub(super) fn report(&mut self, report: NodeReport) {
        let key = report.job_key;
        let node = self
            .engine
            .find(key.job)
            .filter(|&node| self.engine.job_key(node) == key && is_in_flight(self.engine.node(node).state));
        let lives = matches!(report.kind, ReportKind::Accepted { .. } | ReportKind::Started { .. });
        let Some(index) = node else {
            let ours = key.flow == self.engine.flow.uid && key.context == self.engine.context;
            return self.stale(key, lives && ours);
        };
        let node = self.engine.node(index);
        let unstarted = node.state == NodeState::Dispatched;
        match report.kind {
            ReportKind::Accepted { supervisor } if node.supervisor.as_ref() != Some(&supervisor) => {
                self.touch(index, |node| node.supervisor = Some(supervisor));
            }
            ReportKind::Started { instance, time } if unstarted => self.started(index, instance, time),
            ReportKind::Ended(end) => self.close(index, *end),
            ReportKind::Returned if unstarted => self.returned(index),
            ReportKind::Rejected { reason, lasting, counts } if unstarted => {
                self.rejected(index, reason, lasting, counts);
            }
            // A repetition, or a refusal of what is known to run.
            ReportKind::Accepted { .. }
            | ReportKind::Started { .. }
            | ReportKind::Returned
            | ReportKind::Unknown
            | ReportKind::Rejected { .. } => self.stale(key, false),
        }
    }

    fn started(&mut self, index: NodeIndex, instance: String, time: Timestamp) {
        let now = self.now;
        self.apply(index, NodeEvent::Start, |node| {
            // Another machine's clock must neither delay nor hasten the time limit,
            // and an end that follows a late report needs the time to arrive.
            let earliest = match node.policy.timeout {
                0 => node.dispatch_time.unwrap_or_default(),
                secs => node.dispatch_time.unwrap_or_default().max(before(now, secs)),
            };
            node.start_time = Some(time.max(earliest).min(now));
            node.instance = Some(instance);
        });
    }

    /// The attempt ended, by the supervisor's word.
    fn close(&mut self, index: NodeIndex, end: AttemptEnd) {
        let node = self.engine.node(index);
        let AttemptEnd { outcome, exit_code, reason, result, outputs, output_bytes, instance, .. } = end;
        let end_time = within(end.end_time, node, self.now);
        let start_time = end.start_time.map(|time| within(time, node, end_time)).or(node.start_time);
        let stamp = move |node: &mut FlowNode| {
            node.start_time = start_time;
            node.end_time = Some(end_time);
            node.exit_code = exit_code;
            node.output_bytes = output_bytes;
            node.instance = instance.or_else(|| node.instance.take());
        };
        if self.is_cancel_requested(index) {
            let reason = self.cancel_reason(index);
            self.apply(index, NodeEvent::Stop, |node| {
                stamp(node);
                node.reason = Some(reason);
            });
            return;
        }
        let reason = match (outcome, reason) {
            (Outcome::Succeeded, _) => {
                let bytes = size::result(&result);
                if bytes <= RESULT_BYTES_MAX {
                    self.apply(index, NodeEvent::Succeed, |node| {
                        stamp(node);
                        node.reason = None;
                        node.result = result;
                        node.outputs = outputs;
                    });
                    return;
                }
                let detail = format!("the result has {bytes} bytes, at most {RESULT_BYTES_MAX} are allowed");
                Reason::new(ReasonCode::ResultTooLarge, detail)
            }
            (Outcome::Stopped, reason) => {
                let detail =
                    reason.map_or("stopped at its supervisor".to_owned(), |reason| reason.to_string());
                self.apply(index, NodeEvent::Stop, |node| {
                    stamp(node);
                    node.reason = Some(Reason::new(ReasonCode::NodeCancelled, detail));
                });
                return;
            }
            (_, Some(reason)) => reason,
            (Outcome::Failed, None) => match exit_code {
                Some(code) => Reason::new(ReasonCode::ExitCode, format!("exit code {code}")),
                None => Reason::new(ReasonCode::RuntimeError, ""),
            },
            (Outcome::TimedOut, None) => Reason::new(ReasonCode::Timeout, ""),
            (Outcome::Lost, None) => Reason::new(ReasonCode::InstanceLost, ""),
        };
        self.failed_try(index, reason, exit_code, stamp);
    }

    /// A try failed: another one, if there is one left, else the node's end,
    /// on which `stamp` notes what is known of it.
    pub(super) fn failed_try(
        &mut self,
        index: NodeIndex,
        reason: Reason,
        exit_code: Option<i32>,
        stamp: impl FnOnce(&mut FlowNode),
    ) {
        let now = self.now;
        let node = self.engine.node(index);
        let jitter = (self.outside.jitter)();
        match retry::after_failure(&node.policy, node.tries, exit_code, reason.code, jitter) {
            Verdict::Again(wait) => {
                self.apply(index, NodeEvent::Retry, |node| {
                    next_attempt(node, now);
                    node.tries += 1;
                    back_off(node, now, wait, &reason);
                });
            }
            Verdict::GiveUp => {
                self.apply(index, NodeEvent::Fail, |node| {
                    stamp(node);
                    node.end_time = node.end_time.or(Some(now));
                    node.reason = Some(reason);
                });
            }
        }
    }

    /// Handed back unstarted: it may go elsewhere at once.
    fn returned(&mut self, index: NodeIndex) {
        let now = self.now;
        if self.is_cancel_requested(index) {
            return self.close_cancelled(index, false);
        }
        self.apply(index, NodeEvent::Return, |node| {
            next_attempt(node, now);
            node.not_before_time = None;
            node.reason = Some(Reason::new(ReasonCode::Returned, ""));
        });
        self.engine.work.push(index);
    }

    fn rejected(&mut self, index: NodeIndex, reason: Reason, lasting: bool, counts: bool) {
        let now = self.now;
        if self.is_cancel_requested(index) {
            self.close_cancelled(index, false);
        } else if lasting {
            self.apply(index, NodeEvent::Fail, |node| {
                node.end_time = Some(now);
                node.reason = Some(reason);
            });
        } else if counts {
            self.failed_try(index, reason, None, |_| {});
        } else {
            let node = self.engine.node(index);
            let refusals = node.attempt.0.saturating_sub(1).saturating_sub(node.tries);
            let wait = retry::after_refusal(refusals, (self.outside.jitter)());
            self.apply(index, NodeEvent::Return, |node| {
                next_attempt(node, now);
                back_off(node, now, wait, &reason);
            });
        }
    }

    /// Closes the attempt of a cancelled node without an end from the supervisor.
    pub(super) fn close_cancelled(&mut self, index: NodeIndex, unconfirmed: bool) {
        let now = self.now;
        let reason = self.cancel_reason(index);
        self.apply(index, NodeEvent::Stop, |node| {
            node.end_time = Some(now);
            node.unconfirmed = unconfirmed;
            node.reason = Some(reason);
        });
    }

    /// The flow's cancellation counts before it has reached every node.
    fn is_cancel_requested(&self, index: NodeIndex) -> bool {
        self.engine.node(index).cancel_requested_time.is_some()
            || self.engine.flow.cancel_requested_time.is_some()
    }

    /// Who cancelled it decides what its dependants see, so that it is kept.
    fn cancel_reason(&self, index: NodeIndex) -> Reason {
        let node = self.engine.node(index);
        let kept = node.reason.clone().filter(|_| node.cancel_requested_time.is_some());
        kept.unwrap_or_else(|| Reason::new(ReasonCode::FlowCancelled, ""))
    }
}

/// Forgets the attempt that is closed.
fn next_attempt(node: &mut FlowNode, now: Timestamp) {
    node.attempt.0 += 1;
    node.ready_time = Some(now);
    node.dispatch_time = None;
    node.start_time = None;
    node.end_time = None;
    node.runner = None;
    node.supervisor = None;
    node.instance = None;
    node.exit_code = None;
    node.output_bytes = 0;
    node.message_key = None;
}

fn back_off(node: &mut FlowNode, now: Timestamp, wait: Duration, after: &Reason) {
    node.not_before_time = Some(now + wait);
    node.reason = Some(Reason::new(ReasonCode::BackingOff, after.to_string()));
}

/// Another machine's time, between the dispatch and `latest`.
fn within(time: Timestamp, node: &FlowNode, latest: Timestamp) -> Timestamp {
    time.max(node.dispatch_time.unwrap_or_default()).min(latest)
}

fn before(time: Timestamp, secs: u32) -> Timestamp {
    Timestamp::from_millis(time.as_millis().saturating_sub(u64::from(secs) * 1000))
}
