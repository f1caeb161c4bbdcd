//! Timelines: what an instance was given, and what followed.

use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;
use proto::v1::saga_input::Input;

use super::{fate, outcome, short, status};
use crate::output::{labels, table, time};

/// Rows of a timeline, each in a line; payloads below it where they are wanted.
#[must_use]
pub fn text(entries: &[v1::SagaTimelineEntry], with_payloads: bool) -> String {
    let rows: Vec<_> = entries.iter().map(row).collect();
    let table = table::render(&["REV", "TIME", "CAME", "FOLLOWED"], &rows);
    if !with_payloads {
        return table;
    }
    let mut lines = table.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (line, entry) in lines.zip(entries) {
        text.push_str(&format!("{line}\n"));
        let given = entry.input.as_ref().map(payload).unwrap_or_default();
        for (name, json) in [("payload", given), ("state", entry.state_json.as_str())] {
            if !json.is_empty() {
                text.push_str(&format!("     {name} {}\n", table::shown_whole(json)));
            }
        }
    }
    text
}

fn row(entry: &v1::SagaTimelineEntry) -> Vec<String> {
    let moment: Timestamp = wire_time::required(entry.time);
    let mut input = entry.input.as_ref().map_or_else(|| "an event".to_owned(), came);
    if entry.kept_at_revision > 0 {
        input.push_str(&format!(", kept since revision {}", entry.kept_at_revision));
    }
    vec![entry.revision.to_string(), time::exact(moment), input, followed(entry)]
}

/// Describes what followed from an input.
fn followed(entry: &v1::SagaTimelineEntry) -> String {
    if entry.fate() != v1::SagaInputFate::Applied {
        return fate(entry.fate(), &entry.ignored_reason);
    }
    let mut text = status(entry.status()).to_owned();
    if !entry.step.is_empty() {
        text.push_str(&format!(" at {}", entry.step));
    }
    if !entry.command_ids.is_empty() {
        text.push_str(&format!(
            ", {} ordered",
            labels::count(entry.command_ids.len(), "command", "commands")
        ));
    }
    if !entry.definition_hash.is_empty() {
        text.push_str(&format!(", on {}", short(&entry.definition_hash)));
    }
    if !entry.reason.is_empty() {
        text.push_str(&format!(": {}", entry.reason));
    }
    text
}

/// An input in a few words.
#[must_use]
pub(super) fn came(input: &v1::SagaInput) -> String {
    match &input.input {
        None => "an input".to_owned(),
        Some(Input::Event(event)) => {
            let v1::SagaEventInput { event_type, aggregate_type, aggregate_id, aggregate_version, .. } =
                event;
            let version = aggregate_version.map(|version| format!(" version {version}")).unwrap_or_default();
            let of = match aggregate_type.as_str() {
                "" => String::new(),
                aggregate => format!(" of {aggregate} {aggregate_id}{version}"),
            };
            format!("event {event_type}{of}")
        }
        Some(Input::Result(result)) => {
            let may = if result.may_have_happened { ", may have happened" } else { "" };
            format!("result of {}: {}{may}", result.command_id, outcome(result.outcome()))
        }
        Some(Input::Timer(timer)) => format!("timer {}", timer.name),
        Some(Input::Verb(verb)) => {
            let event =
                if verb.event_type.is_empty() { String::new() } else { format!(" {}", verb.event_type) };
            let reason = if verb.reason.is_empty() { String::new() } else { format!(": {}", verb.reason) };
            format!("{}{event}{reason}", verb_name(verb.verb()))
        }
    }
}

/// Payload of an input, in JSON; empty where it has none, or it was left out.
#[must_use]
pub(super) fn payload(input: &v1::SagaInput) -> &str {
    match &input.input {
        Some(Input::Event(event)) => &event.event_json,
        Some(Input::Result(result)) => &result.result_json,
        Some(Input::Verb(verb)) => &verb.data_json,
        Some(Input::Timer(_)) | None => "",
    }
}

/// A verb, as the command line has it.
const fn verb_name(verb: v1::SagaVerb) -> &'static str {
    match verb {
        v1::SagaVerb::Unspecified => "a request",
        v1::SagaVerb::Start => "start",
        v1::SagaVerb::Send => "send",
        v1::SagaVerb::Pause => "pause",
        v1::SagaVerb::Resume => "resume",
        v1::SagaVerb::Cancel => "cancel",
        v1::SagaVerb::Kill => "kill",
        v1::SagaVerb::RetryStep => "retry-step",
        v1::SagaVerb::SkipStep => "skip-step",
        v1::SagaVerb::Complete => "complete",
        v1::SagaVerb::Migrate => "migrate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(revision: u64, input: Input) -> v1::SagaTimelineEntry {
        let mut entry = v1::SagaTimelineEntry {
            revision,
            time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 125_000_000 }),
            input: Some(v1::SagaInput { time: None, input: Some(input) }),
            step: "reserve".into(),
            ..Default::default()
        };
        entry.set_fate(v1::SagaInputFate::Applied);
        entry.set_status(v1::SagaStatus::Running);
        entry
    }

    #[test]
    fn every_row_is_a_line() {
        let event = v1::SagaEventInput {
            event_type: "OrderPlaced".into(),
            aggregate_type: "Order".into(),
            aggregate_id: "o\n1".into(),
            aggregate_version: Some(1),
            event_json: "{\"data\":\n1}".into(),
            ..Default::default()
        };
        let verb = v1::SagaVerbInput { reason: "late".into(), ..Default::default() };
        let mut first = entry(1, Input::Event(event));
        first.command_ids = vec!["018f".into()];
        first.definition_hash = "ab".repeat(32);
        let mut second = entry(2, Input::Timer(v1::SagaTimerInput { name: "pay-by".into(), generation: 1 }));
        second.set_fate(v1::SagaInputFate::Ignored);
        second.ignored_reason = "unwanted".into();
        let mut third =
            entry(3, Input::Verb(v1::SagaVerbInput { verb: v1::SagaVerb::Cancel.into(), ..verb }));
        third.set_status(v1::SagaStatus::Compensating);
        third.reason = "late".into();
        let text = text(&[first.clone(), second, third], false);
        let expected = "\
REV  TIME                      CAME                                       FOLLOWED
1    2027-01-15T08:00:00.125Z  event OrderPlaced of Order o\\n1 version 1  running at reserve, 1 command ordered, on abababababab
2    2027-01-15T08:00:00.125Z  timer pay-by                               ignored (unwanted)
3    2027-01-15T08:00:00.125Z  cancel: late                               compensating at reserve: late
";
        assert_eq!(text, expected);
        let text = super::text(&[first], true);
        assert!(text.ends_with("     payload {\"data\":\\n1}\n"), "{text}");
    }
}
