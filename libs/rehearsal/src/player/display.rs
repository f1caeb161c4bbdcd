//! Lines of a story, for people.

use workflow::Json;
use workflow::input::{CommandOutcome, InstanceInputKind};
use workflow::instance::{CommandPurpose, CorrelationEntry, CorrelationRecord};
use workflow::step::InputDisposition;

use super::RunWork;

/// Characters of a value that a line shows.
const SHOWN_CHARS_MAX: usize = 120;

/// An input, in short.
pub(super) fn input(what: &InstanceInputKind, works: &[RunWork]) -> String {
    match what {
        InstanceInputKind::Event(event) => format!("event {}", event.kind),
        InstanceInputKind::Timer { name, .. } => format!("timer {name}"),
        InstanceInputKind::Verb { verb, .. } => format!("verb {}", verb.as_str()),
        InstanceInputKind::Result(result) => {
            let name = works.iter().find(|work| work.command == result.command);
            let name = name.map_or("unknown work", |work| work.name.as_str());
            let end = match result.outcome {
                CommandOutcome::Succeeded => "succeeded",
                CommandOutcome::Failed => "failed",
                CommandOutcome::TimedOut => "timed out",
                CommandOutcome::Unknown => "is unknown",
                CommandOutcome::Cancelled => "was called off",
            };
            match result.payload.get("code").and_then(Json::as_text) {
                Some(code) if result.outcome == CommandOutcome::Failed => format!("{name} {end}: {code}"),
                _ => format!("{name} {end}"),
            }
        }
    }
}

/// A piece of work, in short.
pub(super) fn work(work: &RunWork) -> String {
    let purpose = match work.purpose {
        CommandPurpose::Undo | CommandPurpose::Tidy => "undo ",
        CommandPurpose::Forward | CommandPurpose::Last => "",
    };
    if work.is_cancel {
        return format!("call off {}", work.name);
    }
    format!("{purpose}{} {}", work.name, json(&work.input))
}

/// A value, as far as a line has room for it.
pub(crate) fn json(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Fate of an input, in short.
pub(super) fn fate(fate: &InputDisposition) -> String {
    match fate {
        InputDisposition::Applied => "applied".to_owned(),
        InputDisposition::Ignored(why) => format!("ignored: {}", why.as_str()),
        InputDisposition::Deferred => "kept for a later step".to_owned(),
        InputDisposition::Held(_) => "held back".to_owned(),
        InputDisposition::Later(why) => format!("later: {why}"),
        InputDisposition::NoRoom => "no room".to_owned(),
        InputDisposition::DeadLetter(letter) => format!("dead letter {}: {}", letter.code, letter.why),
        InputDisposition::Refused(refusal) => format!("refused: {}: {refusal}", refusal.reason),
    }
}

/// Status and step of an instance; empty where there is none.
pub(super) fn place(record: Option<&CorrelationRecord>) -> (String, String) {
    match record.map(|record| &record.entry) {
        Some(CorrelationEntry::Live(instance)) => (instance.status.to_string(), instance.step.to_string()),
        Some(CorrelationEntry::Ended(tombstone)) => {
            (tombstone.status.to_string(), tombstone.step.to_string())
        }
        Some(CorrelationEntry::Awaited(_)) | None => (String::new(), String::new()),
    }
}
