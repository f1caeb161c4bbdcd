//! Reconciliation: asks supervisors where attempts of unknown fate stand.
//!
//! A scheduler may ask where an attempt stands. The router itself has to know before it gives up an attempt that may have arrived:
//! otherwise the next attempt could run beside it. It first asks the supervisor. If the supervisor has the attempt, nothing is
//! given up. If not, the router sends a stop, after which the supervisor refuses the attempt should it still arrive; only then
//! is the attempt reported.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use model::execution::Outcome;
use model::{JobKey, ReportKind};
use tokio::time::Instant;

use crate::runners::RunnerEndpoint;
use crate::send_queue::{MessageNumber, RunnerRoute};

/// Interval between two questions about the same attempt.
pub const REPEAT_AFTER: Duration = Duration::from_secs(5);
/// How often a scheduler's question is sent; afterwards the scheduler's own patience decides.
pub const QUERY_TRIES: u32 = 4;
/// Attempts that are asked about at once; a scheduler's questions beyond it are dropped.
pub const INQUIRIES_MAX: usize = 100_000;

/// Where to ask about an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptLocation {
    /// The supervisor.
    pub endpoint: RunnerEndpoint,
    /// The runner record it was sent to.
    pub route: RunnerRoute,
    /// Flow of the attempt.
    pub flow: model::FlowId,
}

/// An attempt that is given up as soon as it cannot run any more.
#[derive(Debug, Clone, PartialEq)]
pub struct AbandonedAttempt {
    /// The message that carries it.
    pub message: MessageNumber,
    /// Report to send once the attempt is given up.
    pub kind: ReportKind,
    /// Time from which the attempt is reported in any case.
    pub until: Instant,
    /// True once the supervisor said that it does not have the attempt, and gets a stop for it.
    pub stopping: bool,
}

/// Step that the router takes: a question or a stop for a supervisor, or a report.
#[derive(Debug, Clone, PartialEq)]
pub enum ReconcileStep {
    /// Ask where the attempt stands.
    Ask(JobKey, AttemptLocation),
    /// Stop the attempt.
    Stop(JobKey, AttemptLocation),
    /// Report the attempt: it is permanently given up.
    Report(JobKey, AbandonedAttempt),
}

/// Meaning of a report about an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptReportMeaning {
    /// No one had asked for the report.
    Unsolicited,
    /// The answer to a scheduler's question.
    Answer,
    /// The attempt was being given up, but has arrived: it is not given up.
    Arrived(MessageNumber),
    /// The report says nothing new to a scheduler: the attempt is being given up.
    Unresolved,
    /// The attempt will not run any more, and can be reported.
    Abandoned(AbandonedAttempt),
}

#[derive(Debug)]
struct PendingReconciliation {
    at: AttemptLocation,
    purpose: ReconcilePurpose,
    due: Instant,
}

#[derive(Debug)]
enum ReconcilePurpose {
    Scheduler { tries_left: u32 },
    Abandoned(AbandonedAttempt),
}

/// All open reconciliations.
#[derive(Debug, Default)]
pub struct AttemptReconciler {
    open: HashMap<JobKey, PendingReconciliation>,
    due: BTreeSet<(Instant, JobKey)>,
}

impl AttemptReconciler {
    /// Takes a scheduler's question about where an attempt stands. Returns false when too many are open.
    pub fn ask(&mut self, now: Instant, key: JobKey, at: AttemptLocation) -> bool {
        if self.open.len() >= INQUIRIES_MAX {
            return false;
        }
        if !self.open.contains_key(&key) {
            self.insert(now, key, at, ReconcilePurpose::Scheduler { tries_left: QUERY_TRIES });
        }
        true
    }

    /// Begins to give up an attempt that may have arrived.
    pub fn abandon(&mut self, now: Instant, key: JobKey, at: AttemptLocation, given_up: AbandonedAttempt) {
        self.remove(key);
        self.insert(now, key, at, ReconcilePurpose::Abandoned(given_up));
    }

    /// Takes the steps that are due. `live` returns whether a runner's supervisor can be asked: a dead one cannot
    /// answer, so attempts that are given up there are reported.
    pub fn take_due(&mut self, now: Instant, live: impl Fn(RunnerRoute) -> bool) -> Vec<ReconcileStep> {
        let mut steps = Vec::new();
        while let Some((at, key)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            let Some(inquiry) = self.open.get_mut(&key) else { continue };
            match &mut inquiry.purpose {
                ReconcilePurpose::Scheduler { tries_left: 0 } => {
                    tracing::debug!(%key, "no supervisor answered where an attempt stands");
                    self.open.remove(&key);
                    continue;
                }
                ReconcilePurpose::Scheduler { tries_left } => {
                    *tries_left -= 1;
                    steps.push(ReconcileStep::Ask(key, inquiry.at.clone()));
                }
                ReconcilePurpose::Abandoned(given_up) => {
                    if given_up.until <= now || !live(inquiry.at.route) {
                        // The stop covers the case that the attempt has arrived all the same.
                        steps.push(ReconcileStep::Stop(key, inquiry.at.clone()));
                        steps.push(ReconcileStep::Report(key, given_up.clone()));
                        self.open.remove(&key);
                        continue;
                    }
                    let step = if given_up.stopping { ReconcileStep::Stop } else { ReconcileStep::Ask };
                    steps.push(step(key, inquiry.at.clone()));
                }
            }
            inquiry.due = now + REPEAT_AFTER;
            self.due.insert((inquiry.due, key));
        }
        steps
    }

    /// Classifies a report about an attempt.
    pub fn classify_report(&mut self, now: Instant, key: JobKey, kind: &ReportKind) -> AttemptReportMeaning {
        let Some(inquiry) = self.open.get_mut(&key) else { return AttemptReportMeaning::Unsolicited };
        let ReconcilePurpose::Abandoned(given_up) = &mut inquiry.purpose else {
            self.remove(key);
            return AttemptReportMeaning::Answer;
        };
        match kind {
            ReportKind::Unknown => {
                if !std::mem::replace(&mut given_up.stopping, true) {
                    self.due.remove(&(inquiry.due, key));
                    inquiry.due = now;
                    self.due.insert((now, key));
                }
                AttemptReportMeaning::Unresolved
            }
            ReportKind::Ended(end) if given_up.stopping && end.outcome == Outcome::Stopped => {
                let given_up = given_up.clone();
                self.remove(key);
                AttemptReportMeaning::Abandoned(given_up)
            }
            // The attempt arrived after the supervisor had denied having it. It is being stopped, and its end will be reported.
            ReportKind::Accepted { .. } | ReportKind::Started { .. } if given_up.stopping => {
                AttemptReportMeaning::Unresolved
            }
            ReportKind::Rejected { .. } => AttemptReportMeaning::Unsolicited,
            _ => {
                let message = given_up.message;
                self.remove(key);
                AttemptReportMeaning::Arrived(message)
            }
        }
    }

    /// Ends the reconciliation of an attempt that a scheduler has stopped. Returns its message when it was being given up.
    pub fn cancel(&mut self, key: JobKey) -> Option<MessageNumber> {
        match self.remove(key)?.purpose {
            ReconcilePurpose::Abandoned(given_up) => Some(given_up.message),
            ReconcilePurpose::Scheduler { .. } => None,
        }
    }

    /// Asks all questions again over a new stream to the gateway.
    pub fn ask_all_now(&mut self, now: Instant) {
        self.due = self.open.keys().map(|key| (now, *key)).collect();
        for inquiry in self.open.values_mut() {
            inquiry.due = now;
        }
    }

    /// When the next question is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns true when no reconciliation is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn insert(&mut self, due: Instant, key: JobKey, at: AttemptLocation, purpose: ReconcilePurpose) {
        self.due.insert((due, key));
        self.open.insert(key, PendingReconciliation { at, purpose, due });
    }

    fn remove(&mut self, key: JobKey) -> Option<PendingReconciliation> {
        let inquiry = self.open.remove(&key)?;
        self.due.remove(&(inquiry.due, key));
        Some(inquiry)
    }
}
