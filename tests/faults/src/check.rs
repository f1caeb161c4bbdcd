//! Judges a [`History`] by the invariants of `specs/invariants.md`: a pure function.
//!
//! A call without an answer may have had its effect or not; both are right. What was answered counts.

mod ends;
mod runs;
mod watches;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Answer, History, PlannedJob};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The number of the invariant: 1 for I1.
    pub invariant: u8,
    /// Description of the contradiction.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{}: {}", self.invariant, self.what)
    }
}

/// All that contradicts an invariant in what was seen.
#[must_use]
pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Findings::default();
    submissions(history, &mut found);
    ends::check(history, &mut found);
    runs::check(history, &mut found);
    watches::check(history, &mut found);
    strangers(history, &mut found);
    match history.messages_left {
        Some(0) => {}
        Some(left) => found.add(5, format!("{left} messages are on their way though every flow has ended")),
        None => found.add(5, "nobody could count the messages that are on their way"),
    }
    found.0
}

/// Violations so far.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, invariant: u8, what: impl Into<String>) {
        self.0.push(Violation { invariant, what: what.into() });
    }
}

/// Every planned job by its name.
fn jobs(history: &History) -> BTreeMap<&str, &PlannedJob> {
    let jobs = history.planned.values().flat_map(|flow| &flow.jobs);
    jobs.map(|job| (job.name.as_str(), job)).collect()
}

/// I9: one request id has one effect, and different ones have different effects.
fn submissions(history: &History, found: &mut Findings) {
    let mut taken: BTreeMap<&str, u32> = BTreeMap::new();
    let mut owners: BTreeMap<u32, &str> = BTreeMap::new();
    for submission in &history.submissions {
        let id = match &submission.answer {
            Answer::Taken(id) => *id,
            Answer::Unknown(_) => continue,
            Answer::Refused(why) => {
                found.add(9, format!("{} was refused, and nothing is wrong with it: {why}", submission.flow));
                continue;
            }
        };
        let first = *taken.entry(&submission.flow).or_insert(id);
        if first != id {
            found.add(9, format!("{} was taken as flow {first} and as flow {id}", submission.flow));
        }
        let owner = *owners.entry(id).or_insert(&submission.flow);
        if owner != submission.flow {
            found.add(9, format!("flow {id} was answered for {owner} and for {}", submission.flow));
        }
    }
    let mut made: BTreeMap<&str, u32> = BTreeMap::new();
    for flow in &history.flows {
        let before = made.insert(&flow.name, flow.id);
        if let Some(before) = before {
            found.add(9, format!("{} is flow {before} and flow {}", flow.name, flow.id));
        }
        if !history.planned.contains_key(&flow.name) {
            found.add(9, format!("nobody submitted flow {} ({})", flow.id, flow.name));
        }
        let refused = history.submissions.iter().filter(|submission| submission.flow == flow.name);
        if refused.clone().next().is_some() && refused.clone().all(|s| matches!(s.answer, Answer::Refused(_)))
        {
            found.add(9, format!("{} was refused, and is flow {}", flow.name, flow.id));
        }
    }
}

/// I7: who has no role sees and changes nothing.
fn strangers(history: &History, found: &mut Findings) {
    for call in history.strangers.iter().filter(|call| call.allowed) {
        found.add(7, format!("{} was answered to somebody without a role", call.method));
    }
}
