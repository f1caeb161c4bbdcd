//! The rows that one input changes.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{BlobHash, CorrelationId, SagaStatus, StepName, Timestamp};
use serde::{Deserialize, Serialize};
use store::{RowCondition, RowOperation};
use workflow::input::{InstanceInput, InstanceInputKind};
use workflow::instance::{CorrelationEntry, CorrelationRecord, encode};
use workflow::message::{self, EffectCommand, FactMessage, ResultRecipient};
use workflow::step::{
    DeadLetter, InputDisposition, InputOrigin, JournalRow, SagaTransition, WorkItem, WorkPayload,
};
use workflow::subject::MessageSubject;
use workflow::trace;
use workflow::{InputId, Json, LaneRowKey};

use super::answer::VerbAnswerRow;
use super::intake::{DeadMessage, NOBODY, RawMessage};
use super::timers::{RETIRE, TimerDelta, TimerRow};
use super::{CachedRecord, SagaLaneContext};
use crate::lane::gateway::AggregateCommand;
use crate::lane::relay::{OutboxDestination, OutboxRow};
use crate::lane::rows::row;
use crate::spans::OrderedBy;

/// Time for which received messages are remembered, in milliseconds: longer than streams keep them.
pub(crate) const KNOWN_MILLIS: u64 = 30 * 24 * 3_600_000;
/// How long answers to verbs are kept, in milliseconds.
const ANSWERS_MILLIS: u64 = 24 * 3_600_000;
/// How long a tombstone stays, in milliseconds.
pub(crate) const TOMBSTONE_MILLIS: u64 = 30 * 24 * 3_600_000;
/// How long the journal of an instance stays after its end.
const JOURNAL: Duration = Duration::from_secs(7 * 24 * 3600);

/// When the journal of an instance that ended at this time is removed.
pub(super) fn retired_at(ended: Timestamp) -> Timestamp {
    ended + JOURNAL
}

/// An input that was kept back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRow {
    /// The correlation that it is for.
    pub correlation: CorrelationId,
    /// The input.
    pub what: HeldInput,
}

/// Input that was held back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldInput {
    /// An input.
    Input(Box<InstanceInput>),
    /// A message that will be a dead letter when its turn comes.
    Dead(Box<DeadMessage>),
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterRow {
    /// Reason why it is a dead letter.
    pub letter: DeadLetter,
    /// The input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InstanceInput>,
    /// The message, where it is no input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawMessage>,
    /// When it was stored.
    pub time: Timestamp,
    /// The correlation that it is of; none where none could be read. A key may have no more than its hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<CorrelationId>,
}

impl DeadLetterRow {
    /// Makes a dead letter of an input or a message.
    fn of(correlation: &CorrelationId, letter: DeadLetter, what: HeldInput) -> Self {
        let correlation = Some(correlation.clone()).filter(|correlation| correlation.as_str() != NOBODY);
        match what {
            HeldInput::Input(input) => {
                Self { letter, correlation, time: input.time, input: Some(*input), raw: None }
            }
            HeldInput::Dead(dead) => {
                Self { letter, correlation, time: dead.raw.time, input: None, raw: Some(dead.raw) }
            }
        }
    }
}

/// Row of an instance in an operator's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceListRow {
    /// Correlation of the instance.
    pub correlation: CorrelationId,
    /// When it came to this step.
    pub since: Timestamp,
    /// Hash of the definition that it is pinned to; nothing in older rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<BlobHash>,
}

/// Commit for one input, and what follows from it.
pub(super) struct InputCommit {
    pub(super) expect: Vec<RowCondition>,
    pub(super) ops: Vec<RowOperation>,
    pub(super) timers: TimerDelta,
    pub(super) outgoing: Vec<(u64, OutboxRow)>,
    pub(super) answer: Option<VerbAnswerRow>,
}

impl InputCommit {
    pub(super) fn begin(
        correlation: &CorrelationId,
        current: &CachedRecord,
        change: &SagaTransition,
    ) -> Self {
        let key = row(&LaneRowKey::saga(correlation));
        let mut commit = Self {
            expect: vec![RowCondition::Revision(key.clone(), current.revision)],
            ops: Vec::new(),
            timers: TimerDelta::default(),
            outgoing: Vec::new(),
            answer: None,
        };
        match &change.record {
            Some(record) => {
                let bytes = encode(record).into();
                commit.ops.push(match &record.entry {
                    CorrelationEntry::Ended(tombstone) => {
                        let until = tombstone.ended.as_millis().saturating_add(TOMBSTONE_MILLIS);
                        RowOperation::PutUntil(key, bytes, until)
                    }
                    CorrelationEntry::Live(_) | CorrelationEntry::Awaited(_) => RowOperation::Put(key, bytes),
                });
            }
            None if current.record.is_some() => commit.ops.push(RowOperation::Delete(key)),
            None => {}
        }
        commit
    }

    /// Makes a message that is no input count only once.
    pub(super) fn count_message_once(&mut self, correlation: &CorrelationId, id: &InputId, time: Timestamp) {
        let until = time.as_millis().saturating_add(KNOWN_MILLIS);
        let key = row(&LaneRowKey::dedupe(correlation, &id.digest()));
        self.expect.push(RowCondition::Absent(key.clone()));
        self.ops.push(RowOperation::PutUntil(key, bytes::Bytes::new(), until));
    }

    /// Makes an input count only once: events by their id, verbs by their request. The instance recognises results and timers itself.
    pub(super) fn count_once(
        &mut self,
        correlation: &CorrelationId,
        input: &InstanceInput,
        origin: InputOrigin,
    ) {
        if origin != InputOrigin::Fresh {
            return;
        }
        match &input.what {
            InstanceInputKind::Event(event) => self.count_message_once(correlation, &event.id, input.time),
            InstanceInputKind::Verb { request, .. } => {
                self.expect.push(RowCondition::Absent(row(&LaneRowKey::request(request))));
                // The answer expires long before the message does.
                self.count_message_once(correlation, &input.id(), input.time);
            }
            InstanceInputKind::Result(_) | InstanceInputKind::Timer { .. } => {}
        }
    }

    /// Removes an input from where it waited.
    pub(super) fn take_input(&mut self, correlation: &CorrelationId, origin: InputOrigin) {
        match origin {
            InputOrigin::Held(number) => {
                self.ops.push(RowOperation::Delete(row(&LaneRowKey::parked(correlation, number))))
            }
            InputOrigin::Letter(number) => {
                self.ops.push(RowOperation::Delete(row(&LaneRowKey::dead(correlation, number))))
            }
            InputOrigin::Fresh => {}
        }
    }

    /// Stores an input where it waits from now on. `kept` is the dead letter that it was, which changes only in its reason.
    pub(super) fn put_input(
        &mut self,
        correlation: &CorrelationId,
        what: Option<&HeldInput>,
        kept: Option<&DeadLetterRow>,
        fate: &InputDisposition,
    ) {
        match (fate, what) {
            (InputDisposition::Held(number), Some(what)) => {
                let held = HeldRow { correlation: correlation.clone(), what: what.clone() };
                self.ops.push(RowOperation::Put(
                    row(&LaneRowKey::parked(correlation, *number)),
                    encode(&held).into(),
                ));
            }
            (InputDisposition::DeadLetter(letter), what) => match (kept, what) {
                (Some(kept), _) => {
                    self.put_letter(correlation, &DeadLetterRow { letter: letter.clone(), ..kept.clone() })
                }
                (None, Some(what)) => {
                    self.put_letter(
                        correlation,
                        &DeadLetterRow::of(correlation, letter.clone(), what.clone()),
                    );
                }
                (None, None) => {}
            },
            _ => {}
        }
    }

    fn put_letter(&mut self, correlation: &CorrelationId, letter: &DeadLetterRow) {
        let key = row(&LaneRowKey::dead(correlation, letter.letter.number));
        self.ops.push(RowOperation::Put(key, encode(letter).into()));
    }

    /// Writes what follows from a transition: kept events, dead letters, journal, timers, lists.
    pub(super) fn put_change(
        &mut self,
        shared: &SagaLaneContext,
        correlation: &CorrelationId,
        current: &CachedRecord,
        change: &SagaTransition,
    ) {
        let taken = change
            .removed
            .iter()
            .map(|number| RowOperation::Delete(row(&LaneRowKey::kept(correlation, *number))));
        self.ops.extend(taken);
        let kept = change.deferred.iter().map(|(number, input)| {
            RowOperation::Put(row(&LaneRowKey::kept(correlation, *number)), encode(input).into())
        });
        self.ops.extend(kept);
        for (letter, input) in &change.dead_letters {
            let what = HeldInput::Input(Box::new(input.clone()));
            self.put_letter(correlation, &DeadLetterRow::of(correlation, letter.clone(), what));
        }
        self.put_journal(correlation, change, shared.history());
        self.put_timers(correlation, current, change);
        self.put_lists(correlation, current.record.as_ref(), change.record.as_ref());
    }

    fn put_journal(&mut self, correlation: &CorrelationId, change: &SagaTransition, history: u64) {
        for journal in &change.journal {
            let key = row(&LaneRowKey::journal(correlation, journal.revision));
            self.ops.push(RowOperation::Put(key, encode(journal).into()));
            if let Some(old) = journal.revision.checked_sub(history).filter(|old| *old > 0) {
                self.ops.push(RowOperation::Delete(row(&LaneRowKey::journal(correlation, old))));
            }
        }
    }

    fn put_timers(&mut self, correlation: &CorrelationId, current: &CachedRecord, change: &SagaTransition) {
        let changes = change.timers(current.record.as_ref());
        for (name, due) in changes.dropped {
            self.ops.push(RowOperation::Delete(row(&LaneRowKey::due(due, correlation, name))));
            self.timers.dropped.push((due, name.to_owned()));
        }
        let set = changes.set.iter().map(|(name, timer)| TimerRow {
            due: timer.due,
            correlation: correlation.clone(),
            name: (*name).to_owned(),
            generation: timer.generation,
        });
        let mut set: Vec<_> = set.collect();
        let was_ended =
            matches!(current.record.as_ref().map(|record| &record.entry), Some(CorrelationEntry::Ended(_)));
        if let Some(CorrelationEntry::Ended(tombstone)) = change.record.as_ref().map(|record| &record.entry)
            && !was_ended
        {
            let due = retired_at(tombstone.ended);
            let name = RETIRE.to_owned();
            set.push(TimerRow { due, correlation: correlation.clone(), name, generation: 0 });
        }
        for timer in set {
            self.ops.push(RowOperation::Put(row(&timer.key()), encode(&timer).into()));
            self.timers.set.push(timer);
        }
        self.timers.holds_back = change.record.as_ref().is_some_and(CorrelationRecord::holds_back);
    }

    fn put_lists(
        &mut self,
        correlation: &CorrelationId,
        before: Option<&CorrelationRecord>,
        after: Option<&CorrelationRecord>,
    ) {
        let (pinned, definition) =
            (before.and_then(CorrelationRecord::definition), after.and_then(CorrelationRecord::definition));
        let (before, after) = (before.and_then(place), after.and_then(place));
        let key = |(status, step, _): &(SagaStatus, StepName, Timestamp)| {
            row(&LaneRowKey::by(status.as_str(), step.as_str(), correlation))
        };
        let same = |one: &(SagaStatus, StepName, Timestamp), other: &(SagaStatus, StepName, Timestamp)| {
            (one.0, &one.1) == (other.0, &other.1)
        };
        let is_there = matches!((&before, &after), (Some(before), Some(after)) if same(before, after));
        if is_there && pinned == definition {
            return;
        }
        self.ops.extend(before.filter(|_| !is_there).map(|before| RowOperation::Delete(key(&before))));
        if let Some(after) = after {
            let listed = InstanceListRow { correlation: correlation.clone(), since: after.2, definition };
            let (key, bytes) = (key(&after), encode(&listed).into());
            self.ops.push(if after.0.is_end() {
                RowOperation::PutUntil(key, bytes, after.2.as_millis().saturating_add(TOMBSTONE_MILLIS))
            } else {
                RowOperation::Put(key, bytes)
            });
        }
    }

    /// Writes the outgoing messages: work, and facts about the instance.
    pub(super) fn put_outgoing(
        &mut self,
        shared: &SagaLaneContext,
        correlation: &CorrelationId,
        before: Option<&CorrelationRecord>,
        change: &SagaTransition,
    ) {
        let run = change.record.as_ref().map_or(0, run);
        let definition = change.record.as_ref().and_then(CorrelationRecord::definition);
        for item in &change.work {
            let cause = change.journal.iter().find(|row| row.work.contains(&item.command));
            let mut message = shared.message(correlation, run, item, cause);
            message.ordered_by = cause.map(|row| OrderedBy { transition: trace::of_row(row), definition });
            self.put_row(shared, message);
        }
        let mut last = before.and_then(place).map(|(status, step, _)| (status, step));
        for journal in &change.journal {
            let now = (journal.status, journal.step.clone());
            if journal.revision == 1 || last.as_ref().is_none_or(|last| *last != now) {
                let fact = shared.fact(correlation, run, journal);
                self.put_row(shared, fact);
            }
            last = Some(now);
        }
        for kind in held_back(before, change.record.as_ref()) {
            if let Some(fact) =
                change.record.as_ref().and_then(|now| shared.held_fact(correlation, now, kind))
            {
                self.put_row(shared, fact);
            }
        }
    }

    pub(super) fn put_row(&mut self, shared: &SagaLaneContext, message: OutboxRow) {
        let number = shared.rows.next_outbox();
        self.ops.push(RowOperation::Put(row(&LaneRowKey::outbox(number)), encode(&message).into()));
        self.outgoing.push((number, message));
    }

    /// Stores the answer to a request that came just now. A request that was held back already got the answer that it is held.
    pub(super) fn put_answer(
        &mut self,
        input: Option<&InstanceInput>,
        origin: InputOrigin,
        answer: Option<VerbAnswerRow>,
    ) {
        let (InputOrigin::Fresh, Some(answer)) = (origin, answer) else { return };
        if let Some(InstanceInput { time, what: InstanceInputKind::Verb { request, .. } }) = input {
            let until = time.as_millis().saturating_add(ANSWERS_MILLIS);
            self.ops.push(RowOperation::PutUntil(
                row(&LaneRowKey::request(request)),
                encode(&answer).into(),
                until,
            ));
            self.answer = Some(answer);
        }
    }
}

/// Status and step by which an instance is listed, and since when.
fn place(record: &CorrelationRecord) -> Option<(SagaStatus, StepName, Timestamp)> {
    match &record.entry {
        CorrelationEntry::Live(instance) => Some((instance.status, instance.step.clone(), instance.entered)),
        CorrelationEntry::Ended(tombstone) => {
            Some((tombstone.status, tombstone.step.clone(), tombstone.ended))
        }
        CorrelationEntry::Awaited(_) => None,
    }
}

/// Lists changes in what holds inputs back. They are separate facts, since neither step nor status shows them.
fn held_back(before: Option<&CorrelationRecord>, after: Option<&CorrelationRecord>) -> Vec<&'static str> {
    let is_paused = |record: Option<&CorrelationRecord>| record.is_some_and(|record| record.is_paused);
    let parked_by = |record: Option<&CorrelationRecord>| record.and_then(|record| record.parked_by);
    let mut kinds = Vec::new();
    match (is_paused(before), is_paused(after)) {
        (false, true) => kinds.push("paused"),
        (true, false) => kinds.push("resumed"),
        _ => {}
    }
    match (parked_by(before), parked_by(after)) {
        (before, after) if before == after => {}
        (_, Some(_)) => kinds.push("parked"),
        (_, None) => kinds.push("unparked"),
    }
    kinds
}

fn run(record: &CorrelationRecord) -> u64 {
    match &record.entry {
        CorrelationEntry::Live(instance) => instance.run,
        CorrelationEntry::Ended(tombstone) => tombstone.run,
        CorrelationEntry::Awaited(_) => 0,
    }
}

/// Content of a fact about an instance.
struct FactBody<'a> {
    revision: u64,
    kind: &'a str,
    step: &'a StepName,
    reason: Option<&'a String>,
    time: Timestamp,
}

impl SagaLaneContext {
    /// Number of journal rows kept of a run.
    fn history(&self) -> u64 {
        let saga = self.definitions.saga(&self.tenant, &self.saga);
        saga.map_or(workflow::definition::HISTORY_MAX, |saga| saga.limits.history) as u64
    }

    /// The message that orders a piece of work.
    fn message(
        &self,
        correlation: &CorrelationId,
        run: u64,
        item: &WorkItem,
        cause: Option<&JournalRow>,
    ) -> OutboxRow {
        let traceparent = cause.map(|row| trace::of_work(row, item.command).to_string());
        let reply_to = ResultRecipient {
            saga: self.saga.clone(),
            correlation: correlation.clone(),
            run,
            step: item.step.clone(),
        };
        let mut metadata = BTreeMap::from([
            ("correlation_id".to_owned(), correlation.to_string()),
            ("causation_id".to_owned(), item.command.to_string()),
        ]);
        metadata.extend(traceparent.clone().map(|trace| ("traceparent".to_owned(), trace)));
        let command = |effect: &model::EffectName, of, payload, cancel| {
            let subject = MessageSubject::Effect { effect: effect.clone(), command: of };
            let body = EffectCommand {
                tenant_id: self.tenant.to_string(),
                command_id: of,
                effect_name: effect.clone(),
                payload,
                cancel,
                reply_to: reply_to.clone(),
                metadata: metadata.clone(),
            };
            (subject.of(&self.tenant), message::write(&body))
        };
        let (subject, body) = match &item.what {
            WorkPayload::Effect { effect, input } => command(effect, item.command, input.clone(), false),
            WorkPayload::Cancel { effect, of } => command(effect, *of, Json::Null, true),
            WorkPayload::Command { aggregate, id, kind, payload } => {
                let body = AggregateCommand {
                    tenant_id: self.tenant.to_string(),
                    command_id: item.command,
                    aggregate_type: aggregate.clone(),
                    aggregate_id: id.clone(),
                    command_type: kind.clone(),
                    payload_json: payload.to_string(),
                    correlation_id: correlation.to_string(),
                    traceparent,
                };
                let (id, body) = (item.command.to_string(), message::write(&body));
                let row = self.outbox_row(String::new(), id, correlation, &body);
                return OutboxRow { to: OutboxDestination::Gateway, ..row };
            }
        };
        self.outbox_row(subject, item.command.to_string(), correlation, &body)
    }

    /// The message that reports a change of an instance.
    fn fact(&self, correlation: &CorrelationId, run: u64, journal: &JournalRow) -> OutboxRow {
        let kind = match (journal.revision, journal.status) {
            (1, SagaStatus::Running) => "started",
            (_, SagaStatus::Running) => "step",
            (_, status) => status.as_str(),
        };
        let fact = FactBody {
            revision: journal.revision,
            kind,
            step: &journal.step,
            reason: journal.reason.as_ref(),
            time: journal.now,
        };
        // One fact for each revision of each run.
        self.fact_row(correlation, run, &fact, &journal.revision.to_string())
    }

    /// The message that reports that inputs of an instance are held back, or no longer. `None` without a live instance: its end was
    /// reported.
    fn held_fact(
        &self,
        correlation: &CorrelationId,
        record: &CorrelationRecord,
        kind: &'static str,
    ) -> Option<OutboxRow> {
        let instance = record.instance()?;
        let (revision, time) = (instance.revision, instance.now);
        let fact = FactBody { revision, kind, step: &instance.step, reason: instance.reason.as_ref(), time };
        // An instance may be parked again at the same revision, by another dead letter.
        let id = format!("{revision}\n{kind}\n{}", record.letters);
        Some(self.fact_row(correlation, instance.run, &fact, &id))
    }

    fn fact_row(&self, correlation: &CorrelationId, run: u64, fact: &FactBody<'_>, id: &str) -> OutboxRow {
        let body = FactMessage {
            tenant_id: self.tenant.to_string(),
            saga: self.saga.clone(),
            correlation: correlation.clone(),
            run,
            revision: fact.revision,
            kind: fact.kind.to_owned(),
            step: fact.step.clone(),
            reason: fact.reason.cloned(),
            timestamp: fact.time.as_millis(),
        };
        let subject = MessageSubject::workflow_event(&self.saga, correlation).of(&self.tenant);
        let id = format!("{}\n{}\n{correlation}\n{run}\n{id}", self.tenant, self.saga);
        let id = hex::encode(InputId::Event(id).digest());
        self.outbox_row(subject, id, correlation, &message::write(&body))
    }

    pub(super) fn outbox_row(
        &self,
        subject: String,
        id: String,
        correlation: &CorrelationId,
        body: &[u8],
    ) -> OutboxRow {
        OutboxRow::message(subject, id, &self.saga, correlation.clone(), body)
    }
}
