//! Times that have come.
//!
//! When an attempt takes too long, the next one does not start at once: the supervisor is asked to stop the attempt, and
//! the try is closed when the supervisor has answered or the flow's `cancel_timeout` has passed. Until then the node keeps
//! its state, with `expired_time` and the reason. Two attempts of a node therefore do not overlap while its supervisor can
//! be reached. Once expired, a try ends for that reason whatever is reported, even a success: the stored reason already
//! says that the try failed.

use model::{Reason, ReasonCode};

use super::pass::Pass;
use super::report::{AttemptClosure, add};
use super::timers::{self, NodeTimerKind};
use super::{HaltCause, is_in_flight};
use crate::graph::NodeIndex;
use crate::transition::NodeTransitionEvent;

impl Pass<'_, '_, '_> {
    pub(super) fn check_deadline(&mut self) {
        let now = self.now;
        // An owner that finds both times passed raises both causes, one after the other.
        while self.engine.counts.open > 0 && self.engine.next_deadline().is_some_and(|time| time <= now) {
            let passed = self.engine.cause == Some(HaltCause::Deadline);
            self.engine.raise(if passed { HaltCause::Overdue } else { HaltCause::Deadline });
        }
    }

    /// Acts on every timer that is due.
    pub(super) fn expire(&mut self) {
        while self.has_room()
            && let Some(node) = self.engine.timers.pop(self.now)
        {
            let Some((time, due)) = timers::next(self.engine.node(node), &self.engine.flow) else { continue };
            debug_assert!(time <= self.now, "a timer is set again with every change of its node");
            let policy = &self.engine.node(node).policy;
            let within = |secs: u32| format!("within {secs} s");
            match due {
                NodeTimerKind::Prerequisite | NodeTimerKind::BackOff => self.engine.work.push(node),
                NodeTimerKind::Unconfirmed => {
                    self.stop(node);
                    self.end_as_ordered(node, AttemptClosure::unstarted(self.now, false));
                }
                NodeTimerKind::Queue => {
                    let detail = within(policy.timeout_queue);
                    self.expire_attempt(node, Reason::new(ReasonCode::TimeoutQueue, detail));
                }
                NodeTimerKind::Ack => {
                    let detail = within(policy.timeout_ack);
                    self.expire_attempt(node, Reason::new(ReasonCode::TimeoutAck, detail));
                }
                NodeTimerKind::Result => {
                    let detail = within(policy.timeout_result);
                    self.expire_attempt(node, Reason::new(ReasonCode::TimeoutResult, detail));
                }
                NodeTimerKind::Run => {
                    let detail = format!("no end was reported {}", within(policy.timeout));
                    self.expire_attempt(node, Reason::new(ReasonCode::Timeout, detail));
                }
            }
        }
    }

    /// Expires an attempt: fails it if it was never sent, and has it stopped otherwise. An attempt that expires twice keeps
    /// the first time; the deadline replaces every other reason, since no attempt follows it.
    pub(super) fn expire_attempt(&mut self, index: NodeIndex, reason: Reason) {
        let node = self.engine.node(index);
        if !is_in_flight(node.state) {
            return self.abort(index, reason);
        }
        let known = node.reason.as_ref().is_some_and(|known| known.code == reason.code);
        if node.expired_time.is_some() && (known || reason.code != ReasonCode::Deadline) {
            return;
        }
        let now = self.now;
        let first = node.expired_time.is_none();
        self.touch(index, |node| {
            node.expired_time.get_or_insert(now);
            node.reason = Some(reason);
        });
        if first {
            self.stop(index);
        }
    }

    /// Closes the try of an expired attempt, with the reason for which it expired.
    pub(super) fn close_expired(&mut self, index: NodeIndex, ending: AttemptClosure) {
        let node = self.engine.node(index);
        // An expired attempt has a reason: both are written together.
        let mut reason = node.reason.clone().unwrap_or_else(|| Reason::new(ReasonCode::Timeout, ""));
        if !ending.confirmed {
            note_unconfirmed(&mut reason);
        }
        ending.append_killed(&mut reason);
        if reason.code == ReasonCode::Deadline {
            self.apply(index, NodeTransitionEvent::Fail, |node| {
                ending.note(node);
                node.reason = Some(reason);
            });
        } else {
            self.failed_try(index, reason, None, ending);
        }
    }
}

/// Adds to a reason that the attempt is not known to have stopped.
pub(super) fn note_unconfirmed(reason: &mut Reason) {
    add(reason, "not confirmed to have stopped");
}
