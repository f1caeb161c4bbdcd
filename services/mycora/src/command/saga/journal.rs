//! Journals in files: `{tenant_id, saga, correlation_id, definition, entries}`, entries as proto JSON.

use std::str::FromStr;
use std::sync::Arc;

use model::{BlobHash, CommandId, CorrelationId, SagaName, TenantId, Timestamp};
use proto::v1;
use proto::v1::saga_input::Input as Kind;
use serde::Deserialize;
use workflow::definition::Saga;
use workflow::input::{CommandOutcome, CommandResult, DomainEvent, InstanceInput, InstanceInputKind, Verb};
use workflow::manifest::{self, ManifestDefinition};
use workflow::replay::{self, ReplayDifference};
use workflow::step::{InstanceIdentity, JournalInput, JournalRow};
use workflow::{InputId, Json};

use crate::output::json;

/// A value of a journal, in bytes.
const VALUE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A journal and everything that it takes to run it again.
#[derive(Debug)]
pub(super) struct ReplayableJournal {
    tenant: TenantId,
    /// Name of the saga.
    pub(super) saga: SagaName,
    /// Correlation of the instance.
    pub(super) correlation: CorrelationId,
    definitions: Vec<Arc<Saga>>,
    /// Rows, oldest first.
    pub(super) rows: Vec<JournalRow>,
}

/// The file as it stands.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalDocument {
    #[serde(default)]
    tenant_id: String,
    saga: String,
    correlation_id: String,
    definition: String,
    entries: Vec<serde_json::Value>,
}

impl ReplayableJournal {
    /// Reads a journal.
    ///
    /// # Errors
    /// What is wrong with the file, for people.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let written: JournalDocument =
            serde_json::from_str(text).map_err(|error| format!("no journal: {error}"))?;
        let JournalDocument { tenant_id, saga, correlation_id, definition, entries } = written;
        let tenant = match tenant_id.as_str() {
            "" => TenantId::single(),
            text => parsed(text)?,
        };
        let documents = manifest::read("definition", &definition).map_err(|problems| problems.to_string())?;
        let definitions = documents.into_iter().filter_map(|document| match document.definition {
            ManifestDefinition::Saga(saga) => Some(saga),
            ManifestDefinition::Provider(_) => None,
        });
        let rows = entries.into_iter().zip(1..).map(|(entry, number): (_, u64)| {
            let read = json::read::<v1::SagaTimelineEntry>(entry).and_then(row);
            read.map_err(|why| format!("entry {number}: {why}"))
        });
        Ok(Self {
            tenant,
            saga: parsed(&saga)?,
            correlation: parsed(&correlation_id)?,
            definitions: definitions.collect(),
            rows: rows.collect::<Result<_, _>>()?,
        })
    }

    /// The tenant; empty where there are none.
    pub(super) fn tenant_text(&self) -> &str {
        self.tenant.as_str()
    }

    /// Runs the journal again.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn verify(&self) -> Result<(), ReplayDifference> {
        let whose = InstanceIdentity { tenant: &self.tenant, correlation: &self.correlation };
        let find = |hash| self.definitions.iter().find(|saga| saga.hash == hash).cloned();
        let mut rows = self.rows.clone();
        let mut from = 0;
        loop {
            let difference = match replay::replay(find, whose, &rows) {
                Ok(_) => return Ok(()),
                Err(difference) => difference,
            };
            // A reason of no characters and none at all look the same on the wire; the hash tells them apart.
            let ReplayDifference::Row { revision, .. } = difference else { return Err(difference) };
            let open =
                rows.iter_mut().filter(|row| row.revision >= revision.max(from) && row.reason.is_none());
            let changed = open.map(|row| row.reason = Some(String::new())).count();
            if changed == 0 || revision < from {
                return Err(difference);
            }
            from = revision + 1;
        }
    }
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| format!("`{text}`: {error}"))
}

/// A row of the journal, as the transition function makes them.
fn row(entry: v1::SagaTimelineEntry) -> Result<JournalRow, String> {
    let v1::SagaTimelineEntry {
        revision,
        time,
        input,
        kept_at_revision,
        fate,
        ignored_reason,
        status,
        step,
        reason,
        command_ids,
        definition_hash,
        chain_hash,
        state_json,
    } = entry;
    let input = match (kept_at_revision, input) {
        (0, Some(input)) => JournalInput::Came(Box::new(self::input(input)?)),
        (0, None) => return Err("it has no input".to_owned()),
        (number, _) => JournalInput::Kept(number),
    };
    let fate = match v1::SagaInputFate::try_from(fate) {
        Ok(v1::SagaInputFate::Applied) => "applied".to_owned(),
        Ok(v1::SagaInputFate::Kept) => "kept".to_owned(),
        Ok(v1::SagaInputFate::Ignored) => ignored_reason,
        _ => return Err("its fate is applied, kept or ignored".to_owned()),
    };
    let status = proto::convert::enums::saga_status_from_wire(status);
    Ok(JournalRow {
        revision,
        input,
        definition: Some(definition_hash)
            .filter(|hash| !hash.is_empty())
            .map(|hash| parsed(&hash))
            .transpose()?,
        now: moment(time)?,
        fate,
        status: status.ok_or("it has no status")?,
        step: parsed(&step)?,
        reason: Some(reason).filter(|reason| !reason.is_empty()),
        work: command_ids.iter().map(|id| parsed::<CommandId>(id)).collect::<Result<_, _>>()?,
        chain: parsed::<BlobHash>(&chain_hash)?,
        state: if state_json.is_empty() { None } else { Some(value(&state_json)?) },
    })
}

fn input(input: v1::SagaInput) -> Result<InstanceInput, String> {
    let v1::SagaInput { time, input } = input;
    let what = match input.ok_or("its input is of no kind")? {
        Kind::Event(event) => InstanceInputKind::Event(self::event(event)?),
        Kind::Result(result) => InstanceInputKind::Result(self::result(&result)?),
        Kind::Timer(v1::SagaTimerInput { name, generation }) => InstanceInputKind::Timer { name, generation },
        Kind::Verb(verb) => self::verb(verb)?,
    };
    Ok(InstanceInput { time: moment(time)?, what })
}

fn event(event: v1::SagaEventInput) -> Result<DomainEvent, String> {
    let v1::SagaEventInput {
        event_id,
        stream_sequence: sequence,
        stream_create_time,
        event_type: kind,
        aggregate_type,
        aggregate_id,
        aggregate_version,
        event_json,
    } = event;
    let id = match (event_id, aggregate_type.is_empty()) {
        (id, _) if id.is_empty() => {
            InputId::Message { incarnation: moment(stream_create_time)?.as_millis(), sequence }
        }
        // An event sent by a caller names no aggregate: its request id identifies it.
        (id, true) => InputId::Verb(id),
        (id, false) => InputId::Event(id),
    };
    let version = aggregate_version.map(|version| (format!("{aggregate_type}/{aggregate_id}"), version));
    Ok(DomainEvent { id, kind, body: value(&event_json)?, version })
}

fn result(result: &v1::SagaResultInput) -> Result<CommandResult, String> {
    let v1::SagaResultInput { command_id, outcome, may_have_happened, result_json } = result;
    let outcome = match v1::EffectOutcome::try_from(*outcome) {
        Ok(v1::EffectOutcome::Succeeded) => CommandOutcome::Succeeded,
        Ok(v1::EffectOutcome::Failed) => CommandOutcome::Failed,
        Ok(v1::EffectOutcome::TimedOut) => CommandOutcome::TimedOut,
        Ok(v1::EffectOutcome::Unknown) => CommandOutcome::Unknown,
        Ok(v1::EffectOutcome::Cancelled) => CommandOutcome::Cancelled,
        Ok(v1::EffectOutcome::Unspecified) | Err(_) => return Err("its result has no outcome".to_owned()),
    };
    let (command, may_have_happened) = (parsed(command_id)?, *may_have_happened);
    Ok(CommandResult { command, outcome, may_have_happened, payload: value(result_json)? })
}

fn verb(verb: v1::SagaVerbInput) -> Result<InstanceInputKind, String> {
    let v1::SagaVerbInput { request_id: request, verb, reason, event_type: kind, data_json } = verb;
    let data = || value(&data_json);
    let verb = match v1::SagaVerb::try_from(verb) {
        Ok(v1::SagaVerb::Start) => Verb::Start { data: data()? },
        Ok(v1::SagaVerb::Send) => Verb::Send { kind, data: data()? },
        Ok(v1::SagaVerb::Pause) => Verb::Pause,
        Ok(v1::SagaVerb::Resume) => Verb::Resume,
        Ok(v1::SagaVerb::Cancel) => Verb::Cancel { reason },
        Ok(v1::SagaVerb::Kill) => Verb::Kill { reason },
        Ok(v1::SagaVerb::RetryStep) => Verb::RetryStep,
        Ok(v1::SagaVerb::SkipStep) => Verb::SkipStep { result: data()? },
        Ok(v1::SagaVerb::Complete) => Verb::Complete { reason },
        Ok(v1::SagaVerb::Migrate) => Verb::Migrate,
        Ok(v1::SagaVerb::Unspecified) | Err(_) => return Err("its verb is not known".to_owned()),
    };
    Ok(InstanceInputKind::Verb { request, verb })
}

fn value(text: &str) -> Result<Json, String> {
    if text.is_empty() {
        return Err("its payload is left out; `mycora saga timeline --journal` writes it".to_owned());
    }
    workflow::json::read(text.as_bytes(), VALUE_BYTES_MAX).map_err(|error| error.to_string())
}

fn moment(time: Option<prost_types::Timestamp>) -> Result<Timestamp, String> {
    let time = time.ok_or("it has no time")?;
    let millis = time
        .seconds
        .checked_mul(1000)
        .and_then(|millis| millis.checked_add(i64::from(time.nanos / 1_000_000)));
    let millis = millis.and_then(|millis| u64::try_from(millis).ok());
    millis.map(Timestamp::from_millis).ok_or_else(|| "its time is before 1970".to_owned())
}
