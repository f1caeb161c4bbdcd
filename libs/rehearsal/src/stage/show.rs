//! Lines of a story, for people.

use workflow::Json;
use workflow::input::{Outcome, What};
use workflow::instance::{Entry, Purpose, Record};
use workflow::step::Fate;

use super::Work;

/// Characters of a value that a line shows.
const SHOWN_CHARS_MAX: usize = 120;

/// An input, in short.
pub(super) fn input(what: &What, works: &[Work]) -> String {
    match what {
        What::Event(event) => format!("event {}", event.kind),
        What::Timer { name, .. } => format!("timer {name}"),
        What::Verb { verb, .. } => format!("verb {}", verb.as_str()),
        What::Result(result) => {
            let name = works.iter().find(|work| work.command == result.command);
            let name = name.map_or("unknown work", |work| work.name.as_str());
            let end = match result.outcome {
                Outcome::Succeeded => "succeeded",
                Outcome::Failed => "failed",
                Outcome::TimedOut => "timed out",
                Outcome::Unknown => "is unknown",
                Outcome::Cancelled => "was called off",
            };
            match result.payload.get("code").and_then(Json::as_text) {
                Some(code) if result.outcome == Outcome::Failed => format!("{name} {end}: {code}"),
                _ => format!("{name} {end}"),
            }
        }
    }
}

/// A piece of work, in short.
pub(super) fn work(work: &Work) -> String {
    let purpose = match work.purpose {
        Purpose::Undo | Purpose::Tidy => "undo ",
        Purpose::Forward | Purpose::Last => "",
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
pub(super) fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Applied => "applied".to_owned(),
        Fate::Ignored(why) => format!("ignored: {}", why.as_str()),
        Fate::Kept => "kept for a later step".to_owned(),
        Fate::Held(_) => "held back".to_owned(),
        Fate::Later(why) => format!("later: {why}"),
        Fate::NoRoom => "no room".to_owned(),
        Fate::Dead(letter) => format!("dead letter {}: {}", letter.code, letter.why),
        Fate::Refused(refusal) => format!("refused: {}: {refusal}", refusal.reason),
    }
}

/// Status and step of an instance; empty where there is none.
pub(super) fn place(record: Option<&Record>) -> (String, String) {
    match record.map(|record| &record.entry) {
        Some(Entry::Live(instance)) => (instance.status.to_string(), instance.step.to_string()),
        Some(Entry::Ended(tombstone)) => (tombstone.status.to_string(), tombstone.step.to_string()),
        Some(Entry::Awaited(_)) | None => (String::new(), String::new()),
    }
}
