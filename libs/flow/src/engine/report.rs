//! Reports on an attempt, from supervisors and from those that deliver to them.

use std::cmp::Ordering;
use std::time::Duration;

use model::execution::Outcome;
use model::limits::RESULT_BYTES_MAX;
use model::{AttemptEnd, FlowNode, NodeReport, NodeState, Reason, ReasonCode, ReportKind, Timestamp};

use super::expiry::note_unconfirmed;
use super::is_in_flight;
use super::pass::Pass;
use super::step::AttemptTimes;
use crate::graph::NodeIndex;
use crate::json_size;
use crate::retry::{self, AttemptFailure, RetryCounters, RetryVerdict};
use crate::transition::NodeTransitionEvent;

/// Known facts of how an attempt ended.
pub(super) struct AttemptClosure {
    start_time: Option<Timestamp>,
    end_time: Timestamp,
    exit_code: Option<i32>,
    output_bytes: u64,
    instance: Option<String>,
    /// Processes that were killed with the attempt, in words.
    killed: Option<String>,
    /// Set when the attempt's instance vanished.
    died: bool,
    /// Set when a reliable source reports that the attempt is no longer in flight.
    pub(super) confirmed: bool,
}

impl AttemptClosure {
    /// Closure of an attempt that is not known to have begun.
    pub(super) const fn unstarted(now: Timestamp, confirmed: bool) -> Self {
        Self {
            start_time: None,
            end_time: now,
            exit_code: None,
            output_bytes: 0,
            instance: None,
            killed: None,
            died: false,
            confirmed,
        }
    }

    /// Closure as the supervisor reported it, with times clamped between the dispatch and now.
    fn reported(end: &AttemptEnd, node: &FlowNode, now: Timestamp) -> Self {
        let end_time = within(end.end_time, node, now);
        Self {
            start_time: end.start_time.map(|time| within(time, node, end_time)),
            end_time,
            exit_code: end.exit_code,
            output_bytes: end.output_bytes,
            instance: end.instance.clone(),
            killed: end.killed(),
            died: is_death(end),
            confirmed: true,
        }
    }

    /// Appends to a reason which processes were killed when the attempt was ended.
    pub(super) fn append_killed(&self, reason: &mut Reason) {
        if let Some(killed) = &self.killed {
            add(reason, killed);
        }
    }

    /// Writes it down.
    pub(super) fn note(self, node: &mut FlowNode) {
        node.start_time = self.start_time.or(node.start_time);
        node.end_time = Some(self.end_time);
        node.exit_code = self.exit_code;
        node.output_bytes = self.output_bytes;
        node.instance = self.instance.or_else(|| node.instance.take());
        node.unconfirmed = !self.confirmed;
    }
}

impl Pass<'_, '_, '_> {
    /// Handles a report on the current attempt, or on one that was sent although the store does not know it; any other
    /// report changes nothing.
    pub(super) fn report(&mut self, report: NodeReport) {
        let key = report.job_key;
        let ours = key.flow == self.engine.flow.uid && key.context == self.engine.context;
        let Some(index) = self.engine.find(key.job).filter(|_| ours) else {
            return self.stale(&report);
        };
        let node = self.engine.node(index);
        match key.attempt.cmp(&node.attempt) {
            Ordering::Equal if is_in_flight(node.state) => self.current(index, report),
            Ordering::Equal | Ordering::Greater if self.is_unstored(index, &report) => {
                self.unstored(index, report);
            }
            _ => self.stale(&report),
        }
    }

    /// Handles a report on the attempt in flight.
    pub(super) fn current(&mut self, index: NodeIndex, report: NodeReport) {
        if reports_alive(&report.kind) && self.engine.is_being_ended(index) {
            // A supervisor that reports the attempt alive may not have received the stop.
            self.stop(index);
        }
        let node = self.engine.node(index);
        let unstarted = node.state == NodeState::Dispatched;
        let accepted = node.supervisor.is_some() || !unstarted;
        match report.kind {
            ReportKind::Accepted { supervisor } if node.supervisor.as_ref() != Some(&supervisor) => {
                self.touch(index, |node| node.supervisor = Some(supervisor));
            }
            ReportKind::Started { instance, time } if unstarted => self.started(index, instance, time),
            ReportKind::Ended(end) => {
                if report.source.is_none() {
                    // The report does not come from the attempt's supervisor, which may still have it in flight.
                    self.stop(index);
                }
                self.close(index, *end);
            }
            ReportKind::Returned if unstarted => self.returned(index),
            ReportKind::Rejected { reason, lasting, counts } if unstarted => {
                self.rejected(index, reason, lasting, counts);
            }
            ReportKind::Unknown if accepted => {
                let reason = Reason::new(ReasonCode::SupervisorLost, "its supervisor does not know it");
                self.end_attempt(index, reason, AttemptClosure::unstarted(self.now, true));
            }
            // A repetition, a rejection of an attempt known to run, or a report on an attempt that is still on its way.
            ReportKind::Accepted { .. }
            | ReportKind::Started { .. }
            | ReportKind::Returned
            | ReportKind::Unknown
            | ReportKind::Rejected { .. } => self.repeated(report.job_key),
        }
    }

    fn started(&mut self, index: NodeIndex, instance: String, time: Timestamp) {
        let now = self.now;
        let is_started = self.apply(index, NodeTransitionEvent::Start, |node| {
            // Another machine's clock must neither delay nor hasten the time limit,
            // and an end that follows a late report needs the time to arrive.
            let earliest = match node.policy.timeout {
                0 => node.dispatch_time.unwrap_or_default(),
                secs => node.dispatch_time.unwrap_or_default().max(before(now, secs)),
            };
            node.start_time = Some(time.max(earliest).min(now));
            node.instance = Some(instance);
        });
        let &FlowNode { dispatch_time, start_time, .. } = self.engine.node(index);
        if let (true, Some(start_time)) = (is_started, start_time) {
            self.step.times.push(AttemptTimes { node: index, dispatch_time, start_time, end_time: None });
        }
    }

    /// Notes when the script of an attempt started and ended. When the script of a lost attempt ended is not known.
    fn note_times(&mut self, index: NodeIndex, outcome: Outcome, ending: &AttemptClosure) {
        let Some(start_time) = ending.start_time else { return };
        let node = self.engine.node(index);
        let dispatch_time = node.dispatch_time.filter(|_| node.state == NodeState::Dispatched);
        let end_time = (outcome != Outcome::Lost).then_some(ending.end_time);
        if dispatch_time.is_some() || end_time.is_some() {
            self.step.times.push(AttemptTimes { node: index, dispatch_time, start_time, end_time });
        }
    }

    /// The attempt ended, by the supervisor's word.
    fn close(&mut self, index: NodeIndex, end: AttemptEnd) {
        let ending = AttemptClosure::reported(&end, self.engine.node(index), self.now);
        let never_ran = end.is_disk_full_before_start();
        let AttemptEnd { outcome, exit_code, reason, result, outputs, .. } = end;
        self.note_times(index, outcome, &ending);
        let reason = match (outcome, reason) {
            (Outcome::Succeeded, _) => {
                let bytes = json_size::result(&result);
                if bytes <= RESULT_BYTES_MAX {
                    let Some(ending) = self.end_as_ordered(index, ending) else { return };
                    self.apply(index, NodeTransitionEvent::Succeed, |node| {
                        ending.note(node);
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
                Reason::new(ReasonCode::Stopped, detail)
            }
            (_, Some(reason)) => reason,
            (Outcome::Failed, None) => match exit_code {
                Some(code) => Reason::new(ReasonCode::ExitCode, format!("exit code {code}")),
                None => Reason::new(ReasonCode::RuntimeError, ""),
            },
            (Outcome::TimedOut, None) => Reason::new(ReasonCode::Timeout, ""),
            (Outcome::Lost, None) => Reason::new(ReasonCode::InstanceLost, ""),
        };
        if let Some(ending) = self.end_as_ordered(index, ending) {
            let mut reason = reason;
            ending.append_killed(&mut reason);
            if never_ran {
                self.put_off(index, NodeTransitionEvent::Retry, &reason);
            } else {
                self.failed_try(index, reason, exit_code, ending);
            }
        }
    }

    /// Closes the attempts of a lost supervisor.
    pub(super) fn lose(&mut self) {
        while self.has_room()
            && let Some((index, attempt)) = self.engine.lost.pop_front()
        {
            let node = self.engine.node(index);
            if is_in_flight(node.state) && node.attempt == attempt {
                let runner = node.runner.map(|runner| format!("nothing was heard of runner {runner}"));
                let reason = Reason::new(ReasonCode::SupervisorLost, runner.unwrap_or_default());
                self.end_attempt(index, reason, AttemptClosure::unstarted(self.now, false));
            }
        }
    }

    /// Closes the attempt: as was ordered, else as a try that failed for `reason`.
    pub(super) fn end_attempt(&mut self, index: NodeIndex, reason: Reason, ending: AttemptClosure) {
        if let Some(ending) = self.end_as_ordered(index, ending) {
            self.failed_try(index, reason, None, ending);
        }
    }

    /// Closes the attempt if it was cancelled or has expired, in this order; gives `ending` back if not.
    pub(super) fn end_as_ordered(
        &mut self,
        index: NodeIndex,
        ending: AttemptClosure,
    ) -> Option<AttemptClosure> {
        if self.is_cancel_requested(index) {
            let mut reason = self.cancel_reason(index);
            if !ending.confirmed {
                note_unconfirmed(&mut reason);
            }
            ending.append_killed(&mut reason);
            self.apply(index, NodeTransitionEvent::Stop, |node| {
                ending.note(node);
                node.reason = Some(reason);
            });
            None
        } else if self.engine.node(index).expired_time.is_some() {
            self.close_expired(index, ending);
            None
        } else {
            Some(ending)
        }
    }

    /// Handles an attempt that failed: retries if another one is left, else ends the node.
    pub(super) fn failed_try(
        &mut self,
        index: NodeIndex,
        mut reason: Reason,
        exit_code: Option<i32>,
        ending: AttemptClosure,
    ) {
        let now = self.now;
        let node = self.engine.node(index);
        let jitter = (self.outside.jitter)();
        let setback = AttemptFailure { reason: reason.code, exit_code, died: ending.died };
        let (verdict, spent) = retry::after(&node.policy, RetryCounters::of(node), setback, jitter);
        if let Some(budget) = retry::describe(&node.policy, spent, setback) {
            add(&mut reason, &budget);
        }
        self.step.losses.extend(setback.lost_with());
        if verdict == RetryVerdict::Quarantine {
            let detail = format!("its instance vanished {} times; the last time {reason}", spent.deaths);
            reason = Reason::new(ReasonCode::Quarantined, detail);
        }
        let count = |node: &mut FlowNode| {
            RetryCounters { tries: node.tries, deaths: node.deaths, losses: node.losses } = spent;
        };
        match verdict {
            RetryVerdict::Again(wait) => {
                self.step.retries.push(reason.code);
                self.apply(index, NodeTransitionEvent::Retry, |node| {
                    next_attempt(node, now);
                    count(node);
                    back_off(node, now, wait, &reason);
                });
            }
            RetryVerdict::GiveUp | RetryVerdict::Quarantine => {
                self.apply(index, NodeTransitionEvent::Fail, |node| {
                    ending.note(node);
                    count(node);
                    node.reason = Some(reason);
                });
            }
        }
    }

    /// Handles an attempt that was returned unstarted: it may go to another runner at once.
    fn returned(&mut self, index: NodeIndex) {
        let now = self.now;
        if self.end_as_ordered(index, AttemptClosure::unstarted(now, true)).is_none() {
            return;
        }
        self.step.retries.push(ReasonCode::Returned);
        self.apply(index, NodeTransitionEvent::Return, |node| {
            next_attempt(node, now);
            node.not_before_time = None;
            node.reason = Some(Reason::new(ReasonCode::Returned, ""));
        });
        self.engine.work.push(index);
    }

    fn rejected(&mut self, index: NodeIndex, reason: Reason, lasting: bool, counts: bool) {
        let now = self.now;
        let Some(ending) = self.end_as_ordered(index, AttemptClosure::unstarted(now, true)) else { return };
        if lasting {
            self.apply(index, NodeTransitionEvent::Fail, |node| {
                ending.note(node);
                node.reason = Some(reason);
            });
        } else if counts {
            self.failed_try(index, reason, None, ending);
        } else {
            self.put_off(index, NodeTransitionEvent::Return, &reason);
        }
    }

    /// Schedules another attempt for later. The closed one does not count as a try, because nothing of it ran.
    fn put_off(&mut self, index: NodeIndex, event: NodeTransitionEvent, reason: &Reason) {
        let now = self.now;
        let node = self.engine.node(index);
        let refusals = node.attempt.0.saturating_sub(1).saturating_sub(RetryCounters::of(node).sum());
        let wait = retry::after_refusal(refusals, (self.outside.jitter)());
        self.step.retries.push(reason.code);
        self.apply(index, event, |node| {
            next_attempt(node, now);
            back_off(node, now, wait, reason);
        });
    }

    /// The flow's cancellation counts before it has reached every node.
    pub(super) fn is_cancel_requested(&self, index: NodeIndex) -> bool {
        self.engine.node(index).cancel_requested_time.is_some()
            || self.engine.flow.cancel_requested_time.is_some()
    }

    /// Returns the reason of the cancellation. A node's own is kept, since it decides what the dependants see.
    fn cancel_reason(&self, index: NodeIndex) -> Reason {
        let node = self.engine.node(index);
        let kept = node.reason.clone().filter(|_| node.cancel_requested_time.is_some());
        kept.unwrap_or_else(|| Reason::new(ReasonCode::FlowCancelled, ""))
    }
}

/// Appends text to the detail of a reason.
pub(super) fn add(reason: &mut Reason, text: &str) {
    let comma = if reason.detail.is_empty() { "" } else { ", " };
    reason.detail.push_str(comma);
    reason.detail.push_str(text);
}

/// Returns true if a report says that the attempt is in flight.
pub(super) const fn reports_alive(kind: &ReportKind) -> bool {
    matches!(kind, ReportKind::Accepted { .. } | ReportKind::Started { .. })
}

/// Returns true if the instance that had an attempt vanished with it.
fn is_death(end: &AttemptEnd) -> bool {
    let by_reason = end.reason.as_ref().is_none_or(|reason| reason.code == ReasonCode::InstanceLost);
    end.outcome == Outcome::Lost && by_reason
}

/// Advances the node to its next attempt, and clears the fields of the closed one.
pub(super) fn next_attempt(node: &mut FlowNode, now: Timestamp) {
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
    node.expired_time = None;
    node.unconfirmed = false;
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
