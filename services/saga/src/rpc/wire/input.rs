//! Inputs, and what followed them.

use proto::v1;
use proto::v1::saga_input::Input as Kind;
use workflow::input::{CommandOutcome, CommandResult, DomainEvent, InstanceInput, InstanceInputKind, Verb};
use workflow::step::{JournalInput, JournalRow};
use workflow::{InputId, Json};

use super::moment;

/// Converts an input, with its payload if that is wanted.
pub(crate) fn input(input: &InstanceInput, with_payload: bool) -> v1::SagaInput {
    let json = |value: &Json| if with_payload { value.to_string() } else { String::new() };
    let kind = match &input.what {
        InstanceInputKind::Event(found) => Kind::Event(event(found, json(&found.body))),
        InstanceInputKind::Result(CommandResult { command, outcome, may_have_happened, payload }) => {
            Kind::Result(v1::SagaResultInput {
                command_id: command.to_string(),
                outcome: self::outcome(*outcome).into(),
                may_have_happened: *may_have_happened,
                result_json: json(payload),
            })
        }
        InstanceInputKind::Timer { name, generation } => {
            Kind::Timer(v1::SagaTimerInput { name: name.clone(), generation: *generation })
        }
        InstanceInputKind::Verb { request, verb } => {
            let (reason, event_type, data) = parts(verb);
            Kind::Verb(v1::SagaVerbInput {
                request_id: request.clone(),
                verb: self::verb(verb).into(),
                reason: reason.to_owned(),
                event_type: event_type.to_owned(),
                data_json: data.map(json).unwrap_or_default(),
            })
        }
    };
    v1::SagaInput { time: moment(input.time), input: Some(kind) }
}

fn event(event: &DomainEvent, event_json: String) -> v1::SagaEventInput {
    let text = |field: &str| event.body.get(field).and_then(Json::as_text).unwrap_or_default().to_owned();
    let version = match event.body.get("version") {
        Some(Json::Int(version)) => u64::try_from(*version).ok(),
        _ => None,
    };
    let (event_id, at) = match &event.id {
        InputId::Event(id) | InputId::Verb(id) => (id.clone(), None),
        InputId::Message { incarnation, sequence } => (String::new(), Some((*incarnation, *sequence))),
        InputId::Result(_) | InputId::Timer { .. } => (String::new(), None),
    };
    v1::SagaEventInput {
        event_id,
        stream_sequence: at.map(|(_, sequence)| sequence).unwrap_or_default(),
        stream_create_time: at
            .and_then(|(incarnation, _)| moment(model::Timestamp::from_millis(incarnation))),
        event_type: event.kind.clone(),
        aggregate_type: text("aggregate_type"),
        aggregate_id: text("aggregate_id"),
        aggregate_version: version,
        event_json,
    }
}

/// Returns the parts of a verb: the reason, the type of an event, and data.
fn parts(verb: &Verb) -> (&str, &str, Option<&Json>) {
    match verb {
        Verb::Start { data } => ("", "", Some(data)),
        Verb::Send { kind, data } => ("", kind, Some(data)),
        Verb::SkipStep { result } => ("", "", Some(result)),
        Verb::Cancel { reason } | Verb::Kill { reason } | Verb::Complete { reason } => (reason, "", None),
        Verb::Pause | Verb::Resume | Verb::RetryStep | Verb::Migrate => ("", "", None),
    }
}

const fn verb(verb: &Verb) -> v1::SagaVerb {
    match verb {
        Verb::Start { .. } => v1::SagaVerb::Start,
        Verb::Send { .. } => v1::SagaVerb::Send,
        Verb::Pause => v1::SagaVerb::Pause,
        Verb::Resume => v1::SagaVerb::Resume,
        Verb::Cancel { .. } => v1::SagaVerb::Cancel,
        Verb::Kill { .. } => v1::SagaVerb::Kill,
        Verb::RetryStep => v1::SagaVerb::RetryStep,
        Verb::SkipStep { .. } => v1::SagaVerb::SkipStep,
        Verb::Complete { .. } => v1::SagaVerb::Complete,
        Verb::Migrate => v1::SagaVerb::Migrate,
    }
}

/// How a command ended.
pub(crate) const fn outcome(outcome: CommandOutcome) -> v1::EffectOutcome {
    match outcome {
        CommandOutcome::Succeeded => v1::EffectOutcome::Succeeded,
        CommandOutcome::Failed => v1::EffectOutcome::Failed,
        CommandOutcome::TimedOut => v1::EffectOutcome::TimedOut,
        CommandOutcome::Unknown => v1::EffectOutcome::Unknown,
        CommandOutcome::Cancelled => v1::EffectOutcome::Cancelled,
    }
}

/// A row of a journal. `kept` is the input of the row that kept it, where this one names another row.
pub(crate) fn entry(
    row: &JournalRow,
    kept: Option<&InstanceInput>,
    with_payloads: bool,
) -> v1::SagaTimelineEntry {
    let (came, kept_at_revision) = match &row.input {
        JournalInput::Came(came) => (Some(&**came), 0),
        JournalInput::Kept(at) => (kept, *at),
    };
    let (fate, ignored_reason) = match row.fate.as_str() {
        "applied" => (v1::SagaInputFate::Applied, ""),
        "kept" => (v1::SagaInputFate::Kept, ""),
        ignored => (v1::SagaInputFate::Ignored, ignored),
    };
    v1::SagaTimelineEntry {
        revision: row.revision,
        time: moment(row.now),
        input: came.map(|came| input(came, with_payloads)),
        kept_at_revision,
        fate: fate.into(),
        ignored_reason: ignored_reason.to_owned(),
        status: proto::convert::enums::saga_status_to_wire(row.status).into(),
        step: row.step.to_string(),
        reason: row.reason.clone().unwrap_or_default(),
        command_ids: row.work.iter().map(ToString::to_string).collect(),
        definition_hash: row.definition.as_ref().map(ToString::to_string).unwrap_or_default(),
        chain_hash: row.chain.to_string(),
        state_json: super::json(row.state.as_ref().filter(|_| with_payloads)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message as _;
    use prost_reflect::{DescriptorPool, DynamicMessage};
    use rehearsal::{ScenarioFile, Variation, play};

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../../libs/workflow/src/manifest/example.yaml");
    const SCENARIOS: &str = include_str!("../../../../../libs/rehearsal/tests/journals/journals.test.yaml");
    const JOURNALS: [(&str, &str); 2] = [
        ("cancelled", include_str!("../../../../../libs/rehearsal/tests/journals/cancelled.json")),
        ("timed-out", include_str!("../../../../../libs/rehearsal/tests/journals/timed-out.json")),
    ];

    /// Checks rows against the files that tools which run journals again read.
    #[test]
    fn rows_are_shown_as_the_entries_of_journal_files() {
        let source = ScenarioFile::read("journals.test.yaml", SCENARIOS).expect("good");
        let manifests = [("example.yaml".to_owned(), EXAMPLE.to_owned())];
        let scenarios = source.scenarios(&manifests).expect("good");
        assert_eq!(scenarios.len(), JOURNALS.len());
        let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("descriptors");
        let kind = pool.get_message_by_name("mycora.v1.SagaTimelineEntry").expect("it is there");
        for scenario in scenarios {
            let run = play(&scenario, &Variation::None);
            let (_, file) = JOURNALS.into_iter().find(|(name, _)| *name == scenario.name).expect("a file");
            let mut journal: serde_json::Value = serde_json::from_str(file).expect("JSON");
            let entries = journal["entries"].as_array_mut().expect("a list");
            assert_eq!(entries.len(), run.journal.len());
            let mut kept = BTreeMap::new();
            for (row, written) in run.journal.iter().zip(entries) {
                if let JournalInput::Came(input) = &row.input {
                    kept.insert(row.revision, (**input).clone());
                }
                let of = if let JournalInput::Kept(at) = &row.input { kept.get(at) } else { None };
                let shown = entry(row, of, true);
                let written = DynamicMessage::deserialize(kind.clone(), written.take()).expect("an entry");
                let bytes = written.encode_to_vec();
                assert_eq!(Ok(shown), v1::SagaTimelineEntry::decode(bytes.as_slice()), "{}", scenario.name);
            }
        }
    }
}
