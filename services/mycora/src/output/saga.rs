//! Sagas as people read them.

pub mod change;
pub mod dead_letter;
pub mod definition;
pub mod effect;
pub mod graph;
pub mod instance;
pub mod lane;
pub mod server;
pub mod timeline;

use model::Timestamp;
use proto::convert::{enums, time as wire_time};
use proto::v1;

use super::{table, time};

/// Status of an instance, in lower case.
fn status(status: v1::SagaStatus) -> &'static str {
    enums::saga_status_from_wire(status.into()).map_or("unknown", |status| status.as_str())
}

/// State of a call, in lower case.
fn state(state: v1::EffectState) -> &'static str {
    enums::effect_state_from_wire(state.into()).map_or("unknown", |state| state.as_str())
}

/// Purpose of a command within its saga.
const fn purpose(purpose: v1::SagaCommandPurpose) -> &'static str {
    match purpose {
        v1::SagaCommandPurpose::Unspecified => "-",
        v1::SagaCommandPurpose::Forward => "the step",
        v1::SagaCommandPurpose::Tidy => "undoing a branch",
        v1::SagaCommandPurpose::Undo => "undoing",
        v1::SagaCommandPurpose::Last => "the last order",
    }
}

/// Outcome of a command; empty before its end.
const fn outcome(outcome: v1::EffectOutcome) -> &'static str {
    match outcome {
        v1::EffectOutcome::Unspecified => "",
        v1::EffectOutcome::Succeeded => "succeeded",
        v1::EffectOutcome::Failed => "failed",
        v1::EffectOutcome::TimedOut => "timed out",
        v1::EffectOutcome::Unknown => "unknown",
        v1::EffectOutcome::Cancelled => "cancelled",
    }
}

/// Fate of an input, and why it was ignored.
fn fate(fate: v1::SagaInputFate, ignored: &str) -> String {
    match fate {
        v1::SagaInputFate::Unspecified => "-".to_owned(),
        v1::SagaInputFate::Applied => "applied".to_owned(),
        v1::SagaInputFate::Ignored if ignored.is_empty() => "ignored".to_owned(),
        v1::SagaInputFate::Ignored => format!("ignored ({ignored})"),
        v1::SagaInputFate::Kept => "kept until its step comes".to_owned(),
        v1::SagaInputFate::Held => "held back".to_owned(),
        v1::SagaInputFate::DeadLetter => "a dead letter".to_owned(),
    }
}

/// Names and values below each other: values as a terminal may be given them, and those that are empty left out.
fn pairs(rows: Vec<(&str, String)>) -> String {
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    table::pairs(&rows.map(|(name, value)| (name, table::shown_whole(&value))).collect::<Vec<_>>())
}

/// A table below a blank line; nothing where it has no rows.
fn below(heading: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { String::new() } else { format!("\n{}", table::render(heading, rows)) }
}

/// JSON below a blank line and its name; nothing where there is none.
fn json_below(name: &str, json: &str) -> String {
    if json.is_empty() { String::new() } else { format!("\n{name}\n{}\n", super::pretty(json)) }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

/// A moment; empty where there is none.
fn moment(wire: Option<prost_types::Timestamp>) -> String {
    wire.map(|wire| time::utc(wire_time::from_wire(wire))).unwrap_or_default()
}

/// How long ago it was, or `-`.
fn ago(now: Timestamp, wire: Option<prost_types::Timestamp>) -> String {
    time::ago(now, wire.map(wire_time::from_wire))
}

/// How long it is until then, or `-`.
fn until(now: Timestamp, wire: Option<prost_types::Timestamp>) -> String {
    match wire.map(wire_time::from_wire) {
        None => "-".to_owned(),
        Some(then) if then > now => format!("in {}", time::duration(then.since(now))),
        Some(then) => format!("{} ago", time::duration(now.since(then))),
    }
}

/// The beginning of a hash, for people.
fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// Work of a step: an effect, or a command of an aggregate.
fn work(effect: &str, aggregate_type: &str, command_type: &str) -> String {
    match (effect, aggregate_type) {
        ("", "") => "a command".to_owned(),
        ("", aggregate) => format!("{aggregate}/{command_type}"),
        (effect, _) => effect.to_owned(),
    }
}
