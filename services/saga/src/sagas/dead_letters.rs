//! Requests about dead letters: redrive, skip, purge.
//!
//! A letter that parks its correlation stands in front of the held inputs, so that applying the letter first and then the inputs keeps
//! their order. A letter without a correlation is parsed again: if it has one by now, it is passed on to the lane of that correlation.

use std::ops::Range;

use model::CorrelationId;
use store::{RowCondition, RowOperation};
use workflow::input::{InstanceInput, InstanceInputKind, Verb};
use workflow::lane::shard;
use workflow::lane_request::{LaneRequestMessage, SagaLaneRequest};
use workflow::step::{self, DeadLetter, InputDisposition, InputOrigin, RequestRefusal, SagaTransition};
use workflow::subject::{ConsumerSource, MessageSubject};
use workflow::{InputId, Json, LaneRowKey, WorkflowLane, message};

use super::batch::{DeadLetterRow, HeldInput, InputCommit};
use super::input_decision::InputDecision;
use super::intake::{
    DeadLetterOperation, DeadMessage, InstanceAction, RawMessage, SagaIncomingMessage, SagaParsedMessage,
};
use super::{CachedRecord, QueuedInput, SagaLaneContext};
use crate::lane::LaneExit;
use crate::lane::answers::{self, LaneRequestAnswer, LaneRequestOutcome};
use crate::lane::relay::OutboxRow;
use crate::lane::rows::row;

/// Inputs behind a letter that are removed in the commit that removes it; others follow.
const PURGED_AT_ONCE: u64 = 900;

/// Requested action on a letter, as it is to be committed.
#[derive(Debug, Default)]
pub(super) struct DeadLetterAction {
    /// The letter as it is stored.
    pub(super) kept: Option<DeadLetterRow>,
    /// Letter that is removed without being applied.
    pub(super) goes: Option<u64>,
    /// Inputs behind the letter that are removed with it.
    pub(super) purged: Range<u64>,
    /// Correlation that the letter turned out to be for, and the message that passes it on to that lane.
    pub(super) passed: Option<(CorrelationId, Box<OutboxRow>)>,
}

/// Result of parsing a letter again.
enum ReparsedDeadLetter {
    Input(CorrelationId, Box<InstanceInput>),
    Dead { code: String, why: String },
    Nothing,
}

impl SagaLaneContext {
    /// Decides what follows from a request about a letter.
    pub(super) async fn decide_letter_request(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        operation: &DeadLetterOperation,
    ) -> Result<InputDecision, LaneExit> {
        let record = current.record.as_ref();
        match &operation.lane_request {
            SagaLaneRequest::Redrive { letter, skip, data, .. } => {
                let key = LaneRowKey::dead(correlation, *letter);
                let Some(found) = self.rows.get(&key).await? else {
                    let message = format!("there is no dead letter {letter} of {correlation}");
                    return Ok(InputDecision::refused(current, "LETTER_NOT_FOUND", message));
                };
                if *skip {
                    return Ok(InputDecision::without(step::discard(record, *letter, false), *letter, 0..0));
                }
                let kept: DeadLetterRow = self.rows.decode(&found)?;
                self.redrive(correlation, current, kept, data.as_ref(), operation).await
            }
            SagaLaneRequest::Purge { letter, .. } => {
                let parks = record.is_some_and(|record| record.parked_by == Some(*letter));
                let held = record.filter(|_| parks).map(|record| record.held).unwrap_or_default();
                let change = step::discard(record, *letter, true);
                let mut decision = InputDecision::without(change, *letter, held.first..held.next);
                let is_there = self.rows.get(&LaneRowKey::dead(correlation, *letter)).await?.is_some();
                if let Some(turn) = decision.letter.as_mut().filter(|_| !is_there) {
                    turn.goes = None;
                }
                Ok(decision)
            }
            SagaLaneRequest::Take { message, data, .. } => {
                let again = self.read_again(&message.subject, RawMessage::of_passed(message).came())?;
                let ReparsedDeadLetter::Input(found, input) = again else {
                    let message = "the message is not for this saga any more".to_owned();
                    return Ok(InputDecision::refused(current, "LETTER_NOT_FOUND", message));
                };
                match edited(*input, data.as_ref()).filter(|_| found == *correlation) {
                    Some(input) => {
                        self.apply_letter(correlation, current, input, InputOrigin::Fresh, None).await
                    }
                    None => Ok(InputDecision::without_data(current)),
                }
            }
            SagaLaneRequest::SetBack(_) => {
                Ok(InputDecision::refused(current, "INVALID_ARGUMENT", "it is about the lane".to_owned()))
            }
        }
    }

    async fn redrive(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        kept: DeadLetterRow,
        data: Option<&Json>,
        operation: &DeadLetterOperation,
    ) -> Result<InputDecision, LaneExit> {
        let (record, number) = (current.record.as_ref(), kept.letter.number);
        let again = match (&kept.input, &kept.raw) {
            (Some(input), _) => ReparsedDeadLetter::Input(correlation.clone(), Box::new(input.clone())),
            (None, Some(raw)) => self.read_again(&raw.subject, raw.came())?,
            (None, None) => ReparsedDeadLetter::Nothing,
        };
        match again {
            ReparsedDeadLetter::Input(found, input) if found == *correlation => {
                let Some(input) = edited(*input, data) else {
                    return Ok(InputDecision::without_data(current));
                };
                self.apply_letter(correlation, current, input, InputOrigin::Letter(number), Some(kept)).await
            }
            ReparsedDeadLetter::Input(found, input) => {
                if edited(*input, data).is_none() {
                    return Ok(InputDecision::without_data(current));
                }
                let Some(message) =
                    kept.raw.as_ref().and_then(|raw| self.pass_on(&found, raw, data, operation))
                else {
                    return Ok(InputDecision::without_data(current));
                };
                let mut decision = InputDecision::without(step::discard(record, number, false), number, 0..0);
                if let Some(turn) = &mut decision.letter {
                    turn.passed = Some((found, Box::new(message)));
                }
                Ok(decision)
            }
            ReparsedDeadLetter::Dead { code, why } => {
                let origin = InputOrigin::Letter(number);
                let change = step::dead_letter(record, &code, &why, kept.letter.parks, origin);
                let dead =
                    kept.raw.clone().map(|raw| DeadMessage { code, why, parks: kept.letter.parks, raw });
                let letter = Some(DeadLetterAction { kept: Some(kept), ..DeadLetterAction::default() });
                let what = dead.map(|dead| HeldInput::Dead(Box::new(dead)));
                Ok(InputDecision { what, origin, change, letter })
            }
            ReparsedDeadLetter::Nothing => {
                let mut decision = InputDecision::without(step::discard(record, number, false), number, 0..0);
                decision.change.fate = InputDisposition::Ignored(step::IgnoreReason::Unwanted);
                Ok(decision)
            }
        }
    }

    /// Gives the input of a dead letter to its instance.
    async fn apply_letter(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        input: InstanceInput,
        origin: InputOrigin,
        kept: Option<DeadLetterRow>,
    ) -> Result<InputDecision, LaneExit> {
        let Some(mut change) = self.apply(correlation, current, &input, origin).await? else {
            let message = format!("the saga `{}` has no definition in force", self.saga);
            return Ok(InputDecision::refused(current, "SAGA_NOT_FOUND", message));
        };
        match (&change.fate, &kept) {
            (InputDisposition::Refused(refusal), Some(kept)) => {
                // The data sent in place of the event's own cannot be applied.
                let RequestRefusal { reason: code, message: why } = refusal.clone();
                let letter = DeadLetter { code, why, ..kept.letter.clone() };
                change =
                    SagaTransition::nothing(InputDisposition::DeadLetter(letter), current.record.clone());
            }
            (InputDisposition::Later(_), _) => {
                let message = "another dead letter or a pause comes before it".to_owned();
                return Ok(InputDecision::refused(current, "SAGA_PARKED", message));
            }
            _ => {}
        }
        let letter = Some(DeadLetterAction { kept, ..DeadLetterAction::default() });
        Ok(InputDecision { what: Some(HeldInput::Input(Box::new(input))), origin, change, letter })
    }

    /// Parses a message that was no input again, with the definitions of now.
    fn read_again(
        &self,
        subject: &str,
        came: Option<SagaIncomingMessage<'_>>,
    ) -> Result<ReparsedDeadLetter, LaneExit> {
        let dead = |code: &str, why: String| Ok(ReparsedDeadLetter::Dead { code: code.to_owned(), why });
        let Some(came) = came else {
            return dead("TOO_LARGE", "the message is not kept whole".to_owned());
        };
        let subject = MessageSubject::read(subject, self.rows.around().has_tenants);
        let source = match subject {
            Some((_, MessageSubject::Aggregate { kind, .. })) => ConsumerSource::Aggregate(kind),
            Some((_, MessageSubject::EffectResult { effect, .. })) => ConsumerSource::Results(effect),
            Some((_, MessageSubject::Workflow { saga, .. })) => ConsumerSource::Verbs(saga),
            _ => return dead("ENVELOPE", "the subject of the message belongs to no source".to_owned()),
        };
        match self.read(&source, came)? {
            SagaParsedMessage::Dead { code, why, .. } => dead(code, why),
            SagaParsedMessage::Input(correlation, input, None) => {
                Ok(ReparsedDeadLetter::Input(correlation, input))
            }
            // A request from back then is not carried out now: its caller no longer waits.
            SagaParsedMessage::Input(_, _, Some(_))
            | SagaParsedMessage::Request(_)
            | SagaParsedMessage::Nothing => Ok(ReparsedDeadLetter::Nothing),
        }
    }

    /// The message that passes a letter on to the lane of its correlation.
    fn pass_on(
        &self,
        to: &CorrelationId,
        raw: &RawMessage,
        data: Option<&Json>,
        operation: &DeadLetterOperation,
    ) -> Option<OutboxRow> {
        let message = Box::new(raw.passed()?);
        let shard = shard(&self.tenant, to, self.definitions.shards(&self.tenant, &self.saga));
        let lane = WorkflowLane::Saga { tenant: self.tenant.clone(), saga: self.saga.clone(), shard };
        let body = LaneRequestMessage {
            tenant_id: self.tenant.to_string(),
            request_id: passed_on(&operation.request),
            lane: lane.to_string(),
            word: SagaLaneRequest::Take { correlation: to.clone(), message, data: data.cloned() },
            request_hash: operation.request_hash.clone(),
            reply_to: operation.reply_to.clone(),
        };
        let subject = MessageSubject::workflow(&self.saga, to).of(&self.tenant);
        let id = format!("{}\n{}", self.tenant, body.request_id);
        let id = hex::encode(InputId::Verb(id).digest());
        Some(self.outbox_row(subject, id, to, &message::write(&body)))
    }

    /// Deletes the rows of inputs that are held no longer.
    pub(super) async fn sweep(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
    ) -> Result<(), LaneExit> {
        let first = current.record.as_ref().map_or(0, |record| record.held.first);
        let range = LaneRowKey::parked_of(correlation).start..LaneRowKey::parked(correlation, first);
        self.rows.delete_all(range).await.map(drop)
    }
}

impl InputDecision {
    pub(super) fn refused(current: &CachedRecord, reason: &str, message: String) -> Self {
        let refusal = RequestRefusal { reason: reason.to_owned(), message };
        let change = SagaTransition::nothing(InputDisposition::Refused(refusal), current.record.clone());
        Self { what: None, origin: InputOrigin::Fresh, change, letter: Some(DeadLetterAction::default()) }
    }

    fn without_data(current: &CachedRecord) -> Self {
        let message = "the dead letter has no data that could be replaced".to_owned();
        Self::refused(current, "LETTER_HAS_NO_DATA", message)
    }

    /// Removes a letter without applying it, and the `purged` inputs behind it.
    fn without(change: SagaTransition, letter: u64, purged: Range<u64>) -> Self {
        let turn = DeadLetterAction { goes: Some(letter), purged, ..DeadLetterAction::default() };
        Self { what: None, origin: InputOrigin::Fresh, change, letter: Some(turn) }
    }

    /// The answer to a request about a dead letter.
    fn letter_request_answer(&self, operation: &DeadLetterOperation) -> LaneRequestAnswer {
        let turn = self.letter.as_ref();
        let passed = turn.and_then(|turn| turn.passed.as_ref());
        let outcome = match (&self.change.fate, passed) {
            (_, Some((to, _))) => LaneRequestOutcome::PassedOn(to.clone()),
            (InputDisposition::Applied, _) if self.what.is_none() => LaneRequestOutcome::Done,
            (InputDisposition::Applied, _) => LaneRequestOutcome::Applied,
            (InputDisposition::Held(_), _) => LaneRequestOutcome::Held,
            (InputDisposition::Deferred, _) => LaneRequestOutcome::Kept,
            (InputDisposition::Ignored(why), _) => LaneRequestOutcome::Ignored(why.as_str().to_owned()),
            (InputDisposition::DeadLetter(letter), _) => LaneRequestOutcome::Dead(letter.why.clone()),
            (InputDisposition::Refused(refusal), _) => LaneRequestOutcome::Refused(refusal.clone()),
            (InputDisposition::Later(why), _) => LaneRequestOutcome::Dead((*why).to_owned()),
            (InputDisposition::NoRoom, _) => LaneRequestOutcome::Dead("no room".to_owned()),
        };
        let record = self.change.record.as_ref();
        LaneRequestAnswer {
            front: record.and_then(|record| record.parked_by),
            held: record.map_or(0, |record| record.held.len()),
            removed: turn.map_or(0, |turn| turn.purged.end - turn.purged.start),
            correlation: operation.lane_request.correlation().cloned(),
            ..LaneRequestAnswer::new(&operation.request_hash, outcome)
        }
    }
}

impl SagaLaneContext {
    /// Answers a request about a dead letter, unless another lane does.
    pub(super) async fn answer_letter_request(&self, item: &QueuedInput, decision: &InputDecision) {
        let InstanceAction::DeadLetterRequest(operation) = &item.what else { return };
        let answer = decision.letter_request_answer(operation);
        if let (Some(to), false) =
            (&operation.reply_to, matches!(answer.outcome, LaneRequestOutcome::PassedOn(_)))
        {
            answers::answer(self.rows.around(), to, &answer).await;
        }
    }

    /// Answers a repeated request with its first answer.
    pub(super) async fn answer_letter_request_again(
        &self,
        operation: &DeadLetterOperation,
        decision: &InputDecision,
    ) -> Result<(), LaneExit> {
        let key = LaneRequestAnswer::key(&operation.request);
        let known =
            self.rows.get(&key).await?.map(|row| self.rows.decode::<LaneRequestAnswer>(&row)).transpose()?;
        let answer = match known {
            Some(answer) => answer.again(&operation.request_hash),
            None => {
                // The input of the letter was applied before it became a dead letter.
                let outcome = LaneRequestOutcome::Ignored("known".to_owned());
                let answer = LaneRequestAnswer { outcome, ..decision.letter_request_answer(operation) };
                let put = answer.put(&operation.request, operation.time.as_millis());
                self.rows.commit(vec![RowCondition::Absent(row(&key))], vec![put]).await?;
                answer
            }
        };
        if let Some(to) = &operation.reply_to {
            answers::answer(self.rows.around(), to, &answer).await;
        }
        Ok(())
    }
}

impl InputCommit {
    /// Writes the changes of a request about a dead letter, and the answer.
    pub(super) fn put_letter_request(
        &mut self,
        shared: &SagaLaneContext,
        correlation: &CorrelationId,
        operation: &DeadLetterOperation,
        decision: &InputDecision,
    ) {
        self.expect.push(RowCondition::Absent(row(&LaneRequestAnswer::key(&operation.request))));
        if let Some(turn) = &decision.letter {
            self.ops.extend(turn.ops(correlation));
            if let Some((_, message)) = &turn.passed {
                self.put_row(shared, (**message).clone());
            }
        }
        let answer = decision.letter_request_answer(operation);
        self.ops.push(answer.put(&operation.request, operation.time.as_millis()));
    }
}

impl DeadLetterAction {
    /// Returns true if its commit removes everything that has to go.
    pub(super) const fn is_whole(&self) -> bool {
        self.purged.end - self.purged.start <= PURGED_AT_ONCE
    }

    /// Row changes apart from those of the instance.
    pub(super) fn ops(&self, correlation: &CorrelationId) -> Vec<RowOperation> {
        let letter =
            self.goes.map(|letter| RowOperation::Delete(row(&LaneRowKey::dead(correlation, letter))));
        let purged = self.purged.clone().take(usize::try_from(PURGED_AT_ONCE).unwrap_or(usize::MAX));
        let purged = purged.map(|number| RowOperation::Delete(row(&LaneRowKey::parked(correlation, number))));
        letter.into_iter().chain(purged).collect()
    }
}

/// Request id under which the lane that a letter was passed on to stores its answer: it may be the same lane.
pub(crate) fn passed_on(request: &str) -> String {
    format!("{request}/passed-on")
}

/// Replaces the data of an input; `None` where it has none.
fn edited(mut input: InstanceInput, other: Option<&Json>) -> Option<InstanceInput> {
    let Some(other) = other else { return Some(input) };
    match &mut input.what {
        InstanceInputKind::Event(event) => match &mut event.body {
            Json::Map(fields) => drop(fields.insert("data".to_owned(), other.clone())),
            _ => return None,
        },
        InstanceInputKind::Verb { verb: Verb::Send { data, .. }, .. } => *data = other.clone(),
        InstanceInputKind::Verb { .. } | InstanceInputKind::Result(_) | InstanceInputKind::Timer { .. } => {
            return None;
        }
    }
    Some(input)
}
