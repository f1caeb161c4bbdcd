//! Dead letters that somebody asks something about: applied, left out, removed.
//!
//! A letter that parks its correlation stands in front of what is held back, so that applying it first and then those keeps their
//! order. One of nobody is read once more: if it has a correlation by now, that one's lane is given it.

use std::ops::Range;

use model::CorrelationId;
use store::{Expect, Op};
use workflow::input::{Input, Verb, What};
use workflow::lane::shard;
use workflow::step::{self, Change, Fate, Letter, Origin, Refusal};
use workflow::subject::{Source, Subject};
use workflow::word::{SagaWord, WordMessage};
use workflow::{InputId, Json, Key, Lane, message};

use super::batch::{Commit, HeldWhat, LetterRow};
use super::intake::{Asking, Came, DeadMessage, RawMessage, Said, Wanted};
use super::work::Decision;
use super::{Cached, Item, Shared};
use crate::lane::Ended;
use crate::lane::answers::{self, WordAnswer, WordOutcome};
use crate::lane::relay::OutboxRow;
use crate::lane::rows::row;

/// Inputs behind a letter that are removed in the commit that removes it; others follow.
const PURGED_AT_ONCE: u64 = 900;

/// What somebody asked for about a letter, as it is to be committed.
#[derive(Debug, Default)]
pub(super) struct LetterTurn {
    /// The letter as it is kept.
    pub(super) kept: Option<LetterRow>,
    /// Letter that goes without being applied.
    pub(super) goes: Option<u64>,
    /// Inputs behind it that go.
    pub(super) purged: Range<u64>,
    /// Correlation that it turned out to be of, and the message that gives it to its lane.
    pub(super) passed: Option<(CorrelationId, Box<OutboxRow>)>,
}

/// What a letter is, read once more.
enum Again {
    Input(CorrelationId, Box<Input>),
    Dead { code: String, why: String },
    Nothing,
}

impl Shared {
    /// Decides what follows from what somebody asks about a letter.
    pub(super) async fn decide_word(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        asking: &Asking,
    ) -> Result<Decision, Ended> {
        let record = current.record.as_ref();
        match &asking.word {
            SagaWord::Redrive { letter, skip, data, .. } => {
                let key = Key::dead(correlation, *letter);
                let Some(found) = self.rows.get(&key).await? else {
                    let message = format!("there is no dead letter {letter} of {correlation}");
                    return Ok(Decision::refused(current, "LETTER_NOT_FOUND", message));
                };
                if *skip {
                    return Ok(Decision::without(step::discard(record, *letter, false), *letter, 0..0));
                }
                let kept: LetterRow = self.rows.decode(&found)?;
                self.redrive(correlation, current, kept, data.as_ref(), asking).await
            }
            SagaWord::Purge { letter, .. } => {
                let parks = record.is_some_and(|record| record.parked_by == Some(*letter));
                let held = record.filter(|_| parks).map(|record| record.held).unwrap_or_default();
                let change = step::discard(record, *letter, true);
                let mut decision = Decision::without(change, *letter, held.first..held.next);
                let is_there = self.rows.get(&Key::dead(correlation, *letter)).await?.is_some();
                if let Some(turn) = decision.letter.as_mut().filter(|_| !is_there) {
                    turn.goes = None;
                }
                Ok(decision)
            }
            SagaWord::Take { message, data, .. } => {
                let again = self.read_again(&message.subject, RawMessage::of_passed(message).came())?;
                let Again::Input(found, input) = again else {
                    let message = "it is nothing to this saga any more".to_owned();
                    return Ok(Decision::refused(current, "LETTER_NOT_FOUND", message));
                };
                match edited(*input, data.as_ref()).filter(|_| found == *correlation) {
                    Some(input) => self.apply_letter(correlation, current, input, Origin::Fresh, None).await,
                    None => Ok(Decision::without_data(current)),
                }
            }
            SagaWord::SetBack(_) => {
                Ok(Decision::refused(current, "INVALID_ARGUMENT", "it is about the lane".to_owned()))
            }
        }
    }

    async fn redrive(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        kept: LetterRow,
        data: Option<&Json>,
        asking: &Asking,
    ) -> Result<Decision, Ended> {
        let (record, number) = (current.record.as_ref(), kept.letter.number);
        let again = match (&kept.input, &kept.raw) {
            (Some(input), _) => Again::Input(correlation.clone(), Box::new(input.clone())),
            (None, Some(raw)) => self.read_again(&raw.subject, raw.came())?,
            (None, None) => Again::Nothing,
        };
        match again {
            Again::Input(found, input) if found == *correlation => {
                let Some(input) = edited(*input, data) else { return Ok(Decision::without_data(current)) };
                self.apply_letter(correlation, current, input, Origin::Letter(number), Some(kept)).await
            }
            Again::Input(found, input) => {
                if edited(*input, data).is_none() {
                    return Ok(Decision::without_data(current));
                }
                let Some(message) = kept.raw.as_ref().and_then(|raw| self.pass_on(&found, raw, data, asking))
                else {
                    return Ok(Decision::without_data(current));
                };
                let mut decision = Decision::without(step::discard(record, number, false), number, 0..0);
                if let Some(turn) = &mut decision.letter {
                    turn.passed = Some((found, Box::new(message)));
                }
                Ok(decision)
            }
            Again::Dead { code, why } => {
                let origin = Origin::Letter(number);
                let change = step::bury(record, &code, &why, kept.letter.parks, origin);
                let dead =
                    kept.raw.clone().map(|raw| DeadMessage { code, why, parks: kept.letter.parks, raw });
                let letter = Some(LetterTurn { kept: Some(kept), ..LetterTurn::default() });
                let what = dead.map(|dead| HeldWhat::Dead(Box::new(dead)));
                Ok(Decision { what, origin, change, letter })
            }
            Again::Nothing => {
                let mut decision = Decision::without(step::discard(record, number, false), number, 0..0);
                decision.change.fate = Fate::Ignored(step::Ignored::Unwanted);
                Ok(decision)
            }
        }
    }

    /// Gives an instance what a letter has.
    async fn apply_letter(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        input: Input,
        origin: Origin,
        kept: Option<LetterRow>,
    ) -> Result<Decision, Ended> {
        let Some(mut change) = self.apply(correlation, current, &input, origin).await? else {
            let message = format!("the saga `{}` has no definition in force", self.saga);
            return Ok(Decision::refused(current, "SAGA_NOT_FOUND", message));
        };
        match (&change.fate, &kept) {
            (Fate::Refused(refusal), Some(kept)) => {
                // What somebody sent in the place of an event, and cannot be applied.
                let Refusal { reason: code, message: why } = refusal.clone();
                let letter = Letter { code, why, ..kept.letter.clone() };
                change = Change::nothing(Fate::Dead(letter), current.record.clone());
            }
            (Fate::Later(_), _) => {
                let message = "a letter or a pause comes before it".to_owned();
                return Ok(Decision::refused(current, "SAGA_PARKED", message));
            }
            _ => {}
        }
        let letter = Some(LetterTurn { kept, ..LetterTurn::default() });
        Ok(Decision { what: Some(HeldWhat::Input(Box::new(input))), origin, change, letter })
    }

    /// Reads a message that was no input once more, as things stand now.
    fn read_again(&self, subject: &str, came: Option<Came<'_>>) -> Result<Again, Ended> {
        let dead = |code: &str, why: String| Ok(Again::Dead { code: code.to_owned(), why });
        let Some(came) = came else {
            return dead("TOO_LARGE", "the message is not kept whole".to_owned());
        };
        let subject = Subject::read(subject, self.rows.around().has_tenants);
        let source = match subject {
            Some((_, Subject::Aggregate { kind, .. })) => Source::Aggregate(kind),
            Some((_, Subject::EffectResult { effect, .. })) => Source::Results(effect),
            Some((_, Subject::Workflow { saga, .. })) => Source::Verbs(saga),
            _ => return dead("ENVELOPE", "its subject is none of a source".to_owned()),
        };
        match self.read(&source, came)? {
            Said::Dead { code, why, .. } => dead(code, why),
            Said::Input(correlation, input, None) => Ok(Again::Input(correlation, input)),
            // What was asked for then is not done unasked now.
            Said::Input(_, _, Some(_)) | Said::Word(_) | Said::Nothing => Ok(Again::Nothing),
        }
    }

    /// The message that gives what a letter has to the lane of its correlation.
    fn pass_on(
        &self,
        to: &CorrelationId,
        raw: &RawMessage,
        data: Option<&Json>,
        asking: &Asking,
    ) -> Option<OutboxRow> {
        let message = Box::new(raw.passed()?);
        let shard = shard(&self.tenant, to, self.definitions.shards(&self.tenant, &self.saga));
        let lane = Lane::Saga { tenant: self.tenant.clone(), saga: self.saga.clone(), shard };
        let body = WordMessage {
            tenant_id: self.tenant.to_string(),
            request_id: passed_on(&asking.request),
            lane: lane.to_string(),
            word: SagaWord::Take { correlation: to.clone(), message, data: data.cloned() },
            request_hash: asking.request_hash.clone(),
            reply_to: asking.reply_to.clone(),
        };
        let subject = Subject::workflow(&self.saga, to).of(&self.tenant);
        let id = format!("{}\n{}", self.tenant, body.request_id);
        let id = hex::encode(InputId::Verb(id).digest());
        Some(self.outbox_row(subject, id, to, &message::write(&body)))
    }

    /// Removes inputs that were held back and are not any more, but for their rows.
    pub(super) async fn sweep(&self, correlation: &CorrelationId, current: &Cached) -> Result<(), Ended> {
        let first = current.record.as_ref().map_or(0, |record| record.held.first);
        let range = Key::parked_of(correlation).start..Key::parked(correlation, first);
        self.rows.delete_all(range).await.map(drop)
    }
}

impl Decision {
    pub(super) fn refused(current: &Cached, reason: &str, message: String) -> Self {
        let refusal = Refusal { reason: reason.to_owned(), message };
        let change = Change::nothing(Fate::Refused(refusal), current.record.clone());
        Self { what: None, origin: Origin::Fresh, change, letter: Some(LetterTurn::default()) }
    }

    fn without_data(current: &Cached) -> Self {
        let message = "it is no event, and has no data that could be others".to_owned();
        Self::refused(current, "LETTER_HAS_NO_DATA", message)
    }

    /// A letter goes, and what is `purged` behind it.
    fn without(change: Change, letter: u64, purged: Range<u64>) -> Self {
        let turn = LetterTurn { goes: Some(letter), purged, ..LetterTurn::default() };
        Self { what: None, origin: Origin::Fresh, change, letter: Some(turn) }
    }

    /// The answer to what was asked about a letter.
    fn word_answer(&self, asking: &Asking) -> WordAnswer {
        let turn = self.letter.as_ref();
        let passed = turn.and_then(|turn| turn.passed.as_ref());
        let outcome = match (&self.change.fate, passed) {
            (_, Some((to, _))) => WordOutcome::PassedOn(to.clone()),
            (Fate::Applied, _) if self.what.is_none() => WordOutcome::Done,
            (Fate::Applied, _) => WordOutcome::Applied,
            (Fate::Held(_), _) => WordOutcome::Held,
            (Fate::Kept, _) => WordOutcome::Kept,
            (Fate::Ignored(why), _) => WordOutcome::Ignored(why.as_str().to_owned()),
            (Fate::Dead(letter), _) => WordOutcome::Dead(letter.why.clone()),
            (Fate::Refused(refusal), _) => WordOutcome::Refused(refusal.clone()),
            (Fate::Later(why), _) => WordOutcome::Dead((*why).to_owned()),
            (Fate::NoRoom, _) => WordOutcome::Dead("no room".to_owned()),
        };
        let record = self.change.record.as_ref();
        WordAnswer {
            front: record.and_then(|record| record.parked_by),
            held: record.map_or(0, |record| record.held.len()),
            removed: turn.map_or(0, |turn| turn.purged.end - turn.purged.start),
            correlation: asking.word.correlation().cloned(),
            ..WordAnswer::new(&asking.request_hash, outcome)
        }
    }
}

impl Shared {
    /// Answers whoever asked something about a letter, unless another lane does.
    pub(super) async fn answer_word(&self, item: &Item, decision: &Decision) {
        let Wanted::Word(asking) = &item.what else { return };
        let answer = decision.word_answer(asking);
        if let (Some(to), false) = (&asking.reply_to, matches!(answer.outcome, WordOutcome::PassedOn(_))) {
            answers::answer(self.rows.around(), to, &answer).await;
        }
    }

    /// Answers whoever asked once more, with what was answered first.
    pub(super) async fn answer_word_again(&self, asking: &Asking, decision: &Decision) -> Result<(), Ended> {
        let key = WordAnswer::key(&asking.request);
        let known = self.rows.get(&key).await?.map(|row| self.rows.decode::<WordAnswer>(&row)).transpose()?;
        let answer = match known {
            Some(answer) => answer.again(&asking.request_hash),
            None => {
                // What the letter has was applied before it was one.
                let outcome = WordOutcome::Ignored("known".to_owned());
                let answer = WordAnswer { outcome, ..decision.word_answer(asking) };
                let put = answer.put(&asking.request, asking.time.as_millis());
                self.rows.commit(vec![Expect::Absent(row(&key))], vec![put]).await?;
                answer
            }
        };
        if let Some(to) = &asking.reply_to {
            answers::answer(self.rows.around(), to, &answer).await;
        }
        Ok(())
    }
}

impl Commit {
    /// Writes what somebody asked about a letter, and the answer.
    pub(super) fn put_word(
        &mut self,
        shared: &Shared,
        correlation: &CorrelationId,
        asking: &Asking,
        decision: &Decision,
    ) {
        self.expect.push(Expect::Absent(row(&WordAnswer::key(&asking.request))));
        if let Some(turn) = &decision.letter {
            self.ops.extend(turn.ops(correlation));
            if let Some((_, message)) = &turn.passed {
                self.put_row(shared, (**message).clone());
            }
        }
        let answer = decision.word_answer(asking);
        self.ops.push(answer.put(&asking.request, asking.time.as_millis()));
    }
}

impl LetterTurn {
    /// Whether everything that goes, goes with its commit.
    pub(super) const fn is_whole(&self) -> bool {
        self.purged.end - self.purged.start <= PURGED_AT_ONCE
    }

    /// Changes of rows beside those of the instance.
    pub(super) fn ops(&self, correlation: &CorrelationId) -> Vec<Op> {
        let letter = self.goes.map(|letter| Op::Delete(row(&Key::dead(correlation, letter))));
        let purged = self.purged.clone().take(usize::try_from(PURGED_AT_ONCE).unwrap_or(usize::MAX));
        let purged = purged.map(|number| Op::Delete(row(&Key::parked(correlation, number))));
        letter.into_iter().chain(purged).collect()
    }
}

/// The id under which the lane answers that a letter was passed on to: lanes may be one.
pub(crate) fn passed_on(request: &str) -> String {
    format!("{request}/passed-on")
}

/// An input with other data; nothing where it has none.
fn edited(mut input: Input, other: Option<&Json>) -> Option<Input> {
    let Some(other) = other else { return Some(input) };
    match &mut input.what {
        What::Event(event) => match &mut event.body {
            Json::Map(fields) => drop(fields.insert("data".to_owned(), other.clone())),
            _ => return None,
        },
        What::Verb { verb: Verb::Send { data, .. }, .. } => *data = other.clone(),
        What::Verb { .. } | What::Result(_) | What::Timer { .. } => return None,
    }
    Some(input)
}
