//! Plain supervisors, which know nothing but JSON-RPC: their answers to `job.run`, at once or when the job has ended, in one
//! of several shapes; and the attempts that they were sent, since they may run a job twice that they receive twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::execution::Outcome;
use model::flow::ResultMap;
use model::limits::RESULT_BYTES_MAX;
use model::supervision::{STATE_QUEUED, STATE_STARTED};
use model::{AttemptEnd, JobKey, Reason, ReasonCode, ReportKind, Timestamp};
use serde_json::Value;

use crate::delivery::cut;

/// Attempts that are remembered; beyond it, those that were sent first are forgotten.
const ATTEMPTS_MAX: usize = 10_000;
/// The key of a result that is only a text.
const OUTPUT_KEY: &str = "output";

/// Turns an answer to `job.run` into a report of its attempt.
///
/// An unreadable answer shows only that the job was accepted: whether it ran is unknown.
#[must_use]
pub fn read(answer: &str, job: JobKey, supervisor: &str) -> ReportKind {
    let accepted = |name: &str| ReportKind::Accepted { supervisor: cut(name) };
    let Ok(value) = serde_json::from_str::<Value>(answer) else { return unreadable(answer) };
    let members = match value {
        Value::Bool(true) => return accepted(supervisor),
        Value::String(text) if text == job.to_string() => return accepted(supervisor),
        Value::String(text) => return ended(&Value::String(text)),
        // Some languages write their variants with a capital letter.
        Value::Object(members) => members.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)),
        _ => return unreadable(answer),
    };
    let members: BTreeMap<String, Value> = members.collect();
    let text = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
    let gave = || members.get("result").or_else(|| members.get("output")).unwrap_or(&Value::Null);
    let error = members.get("error").filter(|error| !error.is_null() && error.as_str() != Some(""));
    let status = text("status").to_ascii_lowercase();
    match (members.get("accepted"), members.get("success"), error) {
        (Some(Value::Bool(true)), ..) => {
            accepted(Some(text("supervisor")).filter(|name| !name.is_empty()).unwrap_or(supervisor))
        }
        (_, Some(Value::Bool(true)), _) => ended(gave()),
        (_, Some(success), None) if *success != Value::Bool(false) => ended(success),
        (.., Some(error)) => failed(&text_of(error)),
        _ => match status.as_str() {
            "finished" | "completed" | "success" => ended(gave()),
            "error" | "failed" => failed("it says no more than that"),
            STATE_QUEUED
            | STATE_STARTED
            | "accepted"
            | "dispatched"
            | "running"
            | "waiting_for_prerequisites" => accepted(supervisor),
            _ => unreadable(answer),
        },
    }
}

fn unreadable(answer: &str) -> ReportKind {
    let answer: String = answer.chars().take(200).collect();
    let detail = format!(
        "the supervisor's answer to the job cannot be read, so it is unknown whether the job ran: {answer}"
    );
    ReportKind::Rejected { reason: Reason::new(ReasonCode::Unknown, detail), lasting: true, counts: false }
}

fn ended(gave: &Value) -> ReportKind {
    let result: ResultMap = match gave {
        Value::Null => ResultMap::new(),
        Value::Object(members) => members.iter().map(|(key, value)| (key.clone(), text_of(value))).collect(),
        other => ResultMap::from([(OUTPUT_KEY.to_owned(), text_of(other))]),
    };
    let bytes = serde_json::to_string(&result).map_or(usize::MAX, |json| json.len());
    if bytes > RESULT_BYTES_MAX {
        let detail = format!("the result has {bytes} bytes, the limit is {RESULT_BYTES_MAX}");
        return end(Outcome::Failed, Some(Reason::new(ReasonCode::ResultTooLarge, detail)), ResultMap::new());
    }
    end(Outcome::Succeeded, None, result)
}

fn failed(why: &str) -> ReportKind {
    end(Outcome::Failed, Some(Reason::new(ReasonCode::RuntimeError, cut(why))), ResultMap::new())
}

fn end(outcome: Outcome, reason: Option<Reason>, result: ResultMap) -> ReportKind {
    let end = AttemptEnd::unstarted(outcome, reason, Timestamp::now());
    ReportKind::Ended(Box::new(AttemptEnd { result, ..end }))
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// State of an attempt that was sent to a plain supervisor.
#[derive(Debug, Clone, PartialEq)]
pub enum PlainAttemptState {
    /// The supervisor has the attempt, and has not answered yet.
    Waiting,
    /// The supervisor has answered, and no router has acknowledged the report yet.
    Answered(Box<ReportKind>),
    /// A router has acknowledged the report.
    Reported,
}

/// The attempts that were sent to plain supervisors, which are never sent again. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SentAttempts(Arc<Mutex<SentAttemptTable>>);

#[derive(Debug, Default)]
struct SentAttemptTable {
    attempts: HashMap<JobKey, (String, PlainAttemptState)>,
    order: VecDeque<JobKey>,
}

impl SentAttempts {
    /// Notes that an attempt is being sent; returns the state of an attempt that was sent before.
    #[must_use]
    pub fn begin(&self, job: JobKey, address: &str) -> Option<PlainAttemptState> {
        let mut known = self.lock();
        if let Some((_, sent)) = known.attempts.get(&job) {
            return Some(sent.clone());
        }
        if known.order.len() >= ATTEMPTS_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.attempts.remove(&oldest);
        }
        known.order.push_back(job);
        known.attempts.insert(job, (address.to_owned(), PlainAttemptState::Waiting));
        None
    }

    /// Notes the report that an attempt's answer gave.
    pub fn answered(&self, job: JobKey, kind: &ReportKind) {
        self.becomes(job, PlainAttemptState::Answered(Box::new(kind.clone())));
    }

    /// Notes that a router has acknowledged the report of an attempt.
    pub fn mark_reported(&self, job: JobKey) {
        self.becomes(job, PlainAttemptState::Reported);
    }

    fn becomes(&self, job: JobKey, now: PlainAttemptState) {
        if let Some((_, sent)) = self.lock().attempts.get_mut(&job) {
            *sent = now;
        }
    }

    /// Forgets an attempt that was not sent after all.
    pub fn forget(&self, job: JobKey) {
        let mut known = self.lock();
        known.attempts.remove(&job);
        known.order.retain(|other| *other != job);
    }

    /// Returns true when a supervisor has attempts without an answer: it may be busy with one.
    #[must_use]
    pub fn waits_for(&self, address: &str) -> bool {
        self.lock().attempts.values().any(|(at, sent)| at == address && *sent == PlainAttemptState::Waiting)
    }

    fn lock(&self) -> MutexGuard<'_, SentAttemptTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;
    use model::{Attempt, ContextUid, FlowUid, JobId};

    fn job(attempt: u32) -> JobKey {
        let (context, flow) = (ContextUid(Uid::from_bits(1)), FlowUid(Uid::from_bits(2)));
        JobKey { context, flow, job: JobId(3), attempt: Attempt(attempt) }
    }

    /// Short text of an answer's meaning.
    fn read_as_text(answer: &str) -> String {
        match read(answer, job(1), "s") {
            ReportKind::Accepted { supervisor } => format!("accepted by {supervisor}"),
            ReportKind::Ended(end) => {
                let reason = end.reason.map(|reason| reason.to_string()).unwrap_or_default();
                format!("{:?} {}{reason}", end.outcome, serde_json::to_string(&end.result).expect("JSON"))
            }
            ReportKind::Rejected { reason, lasting: true, counts: false } => reason.code.as_str().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_the_supervisors_of_old_answer() {
        let key = format!("\"{}\"", job(1));
        for (answer, expected) in [
            (r#"{"accepted":true,"supervisor":"old"}"#, "accepted by old"),
            (r#"{"accepted":true}"#, "accepted by s"),
            ("true", "accepted by s"),
            (key.as_str(), "accepted by s"),
            (r#"{"job_id":"7","status":"dispatched"}"#, "accepted by s"),
            (r#"{"success":"42"}"#, r#"Succeeded {"output":"42"}"#),
            (r#"{"Success":{"answer":42,"who":"me"}}"#, r#"Succeeded {"answer":"42","who":"me"}"#),
            (r#"{"success":true,"output":"42"}"#, r#"Succeeded {"output":"42"}"#),
            (r#"{"status":"Finished","result":null,"error":null}"#, "Succeeded {}"),
            (r#""printed""#, r#"Succeeded {"output":"printed"}"#),
            (r#"{"error":"no such file"}"#, "Failed {}RUNTIME_ERROR: no such file"),
            (r#"{"success":false,"error":"no"}"#, "Failed {}RUNTIME_ERROR: no"),
            (r#"{"status":"error"}"#, "Failed {}RUNTIME_ERROR: it says no more than that"),
            ("null", "UNKNOWN"),
            ("7", "UNKNOWN"),
            ("[]", "UNKNOWN"),
            ("{}", "UNKNOWN"),
            (r#"{"accepted":false}"#, "UNKNOWN"),
        ] {
            assert_eq!(read_as_text(answer), expected, "{answer}");
        }
        let huge = format!(r#"{{"success":"{}"}}"#, "x".repeat(RESULT_BYTES_MAX));
        assert!(read_as_text(&huge).contains("RESULT_TOO_LARGE"));
    }

    #[test]
    fn what_was_sent_is_remembered() {
        let sent = SentAttempts::default();
        assert_eq!(
            (sent.begin(job(1), "a"), sent.begin(job(1), "a")),
            (None, Some(PlainAttemptState::Waiting))
        );
        assert!(sent.waits_for("a") && !sent.waits_for("b"));
        sent.answered(job(1), &ReportKind::Unknown);
        assert_eq!(sent.begin(job(1), "a"), Some(PlainAttemptState::Answered(Box::new(ReportKind::Unknown))));
        assert!(!sent.waits_for("a"));
        sent.mark_reported(job(1));
        assert_eq!(sent.begin(job(1), "a"), Some(PlainAttemptState::Reported));
        sent.forget(job(1));
        for attempt in 1..=20_000 {
            assert_eq!(sent.begin(job(attempt), "a"), None);
        }
        assert_eq!(sent.begin(job(1), "a"), None, "it is long ago");
        assert_eq!(sent.lock().attempts.len(), ATTEMPTS_MAX);
    }
}
