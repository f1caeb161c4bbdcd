//! Attempts of which a supervisor is to tell where they stand.
//!
//! A scheduler may want to know. And the router itself has to, before it gives an attempt up that may have
//! arrived: otherwise the next attempt could run beside it. Such an attempt is asked for first. When the
//! supervisor has it, nothing is given up. When not, it is stopped there, which also makes the supervisor
//! refuse it from then on; only then is it reported.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use model::execution::Outcome;
use model::{JobKey, ReportKind};
use tokio::time::Instant;

use crate::lanes::{LaneKey, MessageNumber};
use crate::runners::Place;

/// Between two questions about the same attempt.
pub const REPEAT_AFTER: Duration = Duration::from_secs(5);
/// How often a scheduler's question is asked; afterwards the scheduler's own patience decides.
pub const QUERY_TRIES: u32 = 4;
/// Attempts that are asked for at once; a scheduler's questions beyond it are dropped.
pub const INQUIRIES_MAX: usize = 100_000;

/// Where an attempt is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whereabouts {
    /// The supervisor.
    pub place: Place,
    /// The runner record it was sent to.
    pub lane: LaneKey,
    /// Its flow.
    pub flow: model::FlowId,
}

/// An attempt that is given up as soon as it cannot run any more.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenUp {
    /// The message that carries it.
    pub message: MessageNumber,
    /// What is to be reported then.
    pub kind: ReportKind,
    /// From then on it is reported in any case.
    pub until: Instant,
    /// It is known not to be there, and is being stopped.
    pub stopping: bool,
}

/// What is to be said to a supervisor, or reported.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Ask where it stands.
    Ask(JobKey, Whereabouts),
    /// Stop it.
    Stop(JobKey, Whereabouts),
    /// Report it: it is given up for good.
    Report(JobKey, GivenUp),
}

/// What a report about an attempt means.
#[derive(Debug, Clone, PartialEq)]
pub enum Meaning {
    /// Nobody had asked for it.
    NotAsked,
    /// The answer to a scheduler's question.
    Answer,
    /// An attempt that was to be given up has arrived: it is not.
    Arrived(MessageNumber),
    /// It says nothing new to a scheduler: the attempt is being given up.
    OnTheWay,
    /// The attempt will not run any more, and can be reported.
    Over(GivenUp),
}

#[derive(Debug)]
struct Inquiry {
    at: Whereabouts,
    purpose: Purpose,
    due: Instant,
}

#[derive(Debug)]
enum Purpose {
    Scheduler { tries_left: u32 },
    GivenUp(GivenUp),
}

/// All of them.
#[derive(Debug, Default)]
pub struct Inquiries {
    open: HashMap<JobKey, Inquiry>,
    due: BTreeSet<(Instant, JobKey)>,
}

impl Inquiries {
    /// A scheduler wants to know where an attempt stands. Says whether it will be asked for.
    pub fn ask(&mut self, now: Instant, key: JobKey, at: Whereabouts) -> bool {
        if self.open.len() >= INQUIRIES_MAX {
            return false;
        }
        if !self.open.contains_key(&key) {
            self.insert(now, key, at, Purpose::Scheduler { tries_left: QUERY_TRIES });
        }
        true
    }

    /// An attempt is to be given up, and may have arrived.
    pub fn give_up(&mut self, now: Instant, key: JobKey, at: Whereabouts, given_up: GivenUp) {
        self.remove(key);
        self.insert(now, key, at, Purpose::GivenUp(given_up));
    }

    /// What is to be done by now. `open` says whether anything can be asked there: somebody who is not alive
    /// tells nothing, and what is given up there is reported.
    pub fn take_due(&mut self, now: Instant, live: impl Fn(LaneKey) -> bool) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some((at, key)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            let Some(inquiry) = self.open.get_mut(&key) else { continue };
            match &mut inquiry.purpose {
                Purpose::Scheduler { tries_left: 0 } => {
                    tracing::debug!(%key, "nobody tells where an attempt stands");
                    self.open.remove(&key);
                    continue;
                }
                Purpose::Scheduler { tries_left } => {
                    *tries_left -= 1;
                    steps.push(Step::Ask(key, inquiry.at.clone()));
                }
                Purpose::GivenUp(given_up) => {
                    if given_up.until <= now || !live(inquiry.at.lane) {
                        // Should it be there all the same, it is not to go on.
                        steps.push(Step::Stop(key, inquiry.at.clone()));
                        steps.push(Step::Report(key, given_up.clone()));
                        self.open.remove(&key);
                        continue;
                    }
                    let step = if given_up.stopping { Step::Stop } else { Step::Ask };
                    steps.push(step(key, inquiry.at.clone()));
                }
            }
            inquiry.due = now + REPEAT_AFTER;
            self.due.insert((inquiry.due, key));
        }
        steps
    }

    /// Something was reported of an attempt.
    pub fn heard(&mut self, now: Instant, key: JobKey, kind: &ReportKind) -> Meaning {
        let Some(inquiry) = self.open.get_mut(&key) else { return Meaning::NotAsked };
        let Purpose::GivenUp(given_up) = &mut inquiry.purpose else {
            self.remove(key);
            return Meaning::Answer;
        };
        match kind {
            ReportKind::Unknown => {
                if !std::mem::replace(&mut given_up.stopping, true) {
                    self.due.remove(&(inquiry.due, key));
                    inquiry.due = now;
                    self.due.insert((now, key));
                }
                Meaning::OnTheWay
            }
            ReportKind::Ended(end) if given_up.stopping && end.outcome == Outcome::Stopped => {
                let given_up = given_up.clone();
                self.remove(key);
                Meaning::Over(given_up)
            }
            // It arrived after it was said not to be there. It is stopped, and its end will be told.
            ReportKind::Accepted { .. } | ReportKind::Started { .. } if given_up.stopping => {
                Meaning::OnTheWay
            }
            ReportKind::Rejected { .. } => Meaning::NotAsked,
            _ => {
                let message = given_up.message;
                self.remove(key);
                Meaning::Arrived(message)
            }
        }
    }

    /// An attempt is not given up any more, since a scheduler has it stopped. Gives its message.
    pub fn cancel(&mut self, key: JobKey) -> Option<MessageNumber> {
        match self.remove(key)?.purpose {
            Purpose::GivenUp(given_up) => Some(given_up.message),
            Purpose::Scheduler { .. } => None,
        }
    }

    /// A stream to the gateway stands: what was asked over another one is asked again.
    pub fn hurry(&mut self, now: Instant) {
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

    /// Whether nobody is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn insert(&mut self, due: Instant, key: JobKey, at: Whereabouts, purpose: Purpose) {
        self.due.insert((due, key));
        self.open.insert(key, Inquiry { at, purpose, due });
    }

    fn remove(&mut self, key: JobKey) -> Option<Inquiry> {
        let inquiry = self.open.remove(&key)?;
        self.due.remove(&(inquiry.due, key));
        Some(inquiry)
    }
}
