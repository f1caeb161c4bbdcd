//! What somebody asks of a call, a letter or the lane.
//!
//! What is asked of an open call is done by its task, which alone changes its row, in one commit with the answer. Its message is
//! settled after that, so that none is lost with the process.

use broker::Receipt;
use model::CommandId;
use store::{Expect, Op};
use tokio::sync::mpsc;
use workflow::Key;
use workflow::instance::encode;
use workflow::ledger::CallRow;
use workflow::message::ReplyAddress;
use workflow::step::Refusal;
use workflow::word::{self, CallWord, EffectWord, OfEffect, SetBack, WordMessage};

use super::intake::accepted;
use super::{Owner, Word};
use crate::lane::Ended;
use crate::lane::answers::{self, WordAnswer, WordOutcome, commit_answer};
use crate::lane::checkpoint::Checkpoint;
use crate::lane::rows::row;
use crate::lane::source::ReadWord;
use crate::metrics::{Census, Counted};
use crate::sagas::{LetterRow, NOBODY};

/// What is asked of a call, and by whom.
#[derive(Debug)]
pub struct CallAsking {
    pub(super) command: CommandId,
    pub(super) asked: CallWord,
    pub(super) by: Asker,
    /// Its message, where it is settled with the answer: not where it was read ahead.
    message: Option<(u64, Receipt)>,
    back: mpsc::UnboundedSender<Back>,
}

/// Who asks.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) request: String,
    pub(super) request_hash: String,
    pub(super) millis: u64,
    reply_to: Option<ReplyAddress>,
}

/// What became of something that was asked of a call.
#[derive(Debug)]
pub(super) enum Back {
    /// It was answered.
    Settled(Option<(u64, Receipt)>),
    /// The call has ended before.
    Ended(Box<CallAsking>),
}

impl CallAsking {
    /// Says that its call has ended.
    pub(super) fn give_back(self: Box<Self>) {
        let back = self.back.clone();
        // Without its owner the message is delivered to the next one.
        let _ = back.send(Back::Ended(self));
    }

    /// Answers, once that is committed.
    pub(super) async fn answer(self: Box<Self>, around: &crate::lane::Surroundings, answer: &WordAnswer) {
        if let Some(to) = &self.by.reply_to {
            answers::answer(around, to, answer).await;
        }
        let _ = self.back.send(Back::Settled(self.message));
    }
}

impl WordAnswer {
    /// The answer to something that was asked of a call.
    pub(super) fn of_call(by: &Asker, refusal: Option<Refusal>) -> Self {
        Self::new(&by.request_hash, refusal.map_or(WordOutcome::Done, WordOutcome::Refused))
    }
}

impl Owner {
    /// Does what somebody says; says whether its message is settled by that.
    pub(super) async fn hear(
        &mut self,
        message: WordMessage<EffectWord>,
        delivered: &broker::Delivered,
    ) -> Result<bool, Ended> {
        let WordMessage { tenant_id: _, request_id, lane, word, request_hash, reply_to } = message;
        if lane != self.shared.rows.lane.to_string() {
            return Ok(true);
        }
        let by = Asker { request: request_id, request_hash, millis: delivered.stored_millis, reply_to };
        match word {
            EffectWord::Call { command, asked } => {
                let message = Some((delivered.sequence, delivered.receipt.clone()));
                self.ask_call(command, asked, by, message).await?;
                return Ok(false);
            }
            EffectWord::Purge { letter } | EffectWord::Redrive { letter, skip: true } => {
                let answer = WordAnswer::new(&by.request_hash, WordOutcome::Done);
                let key = dead(letter)?;
                let was_there = self.shared.rows.get(&key).await?.is_some();
                let ops = vec![Op::Delete(row(&key))];
                self.answer(&by, answer, Vec::new(), ops, delivered.sequence).await?;
                self.count_gone(&key, was_there).await?;
            }
            EffectWord::Redrive { letter, skip: false } => {
                self.redrive(letter, &by, delivered.sequence).await?;
            }
            EffectWord::SetBack(sources) => {
                if self.set_back(&sources, &by, delivered.sequence).await? {
                    delivered.receipt.ack();
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Does what a word says of a call that was read ahead of its turn.
    pub(super) async fn hear_ahead(
        &mut self,
        message: WordMessage<EffectWord>,
        stored_millis: u64,
    ) -> Result<(), Ended> {
        let WordMessage { tenant_id: _, request_id, lane: _, word, request_hash, reply_to } = message;
        // What is said of letters and of the source has its turn.
        let EffectWord::Call { command, asked } = word else { return Ok(()) };
        let by = Asker { request: request_id, request_hash, millis: stored_millis, reply_to };
        self.ask_call(command, asked, by, None).await
    }

    async fn ask_call(
        &mut self,
        command: CommandId,
        asked: CallWord,
        by: Asker,
        message: Option<(u64, Receipt)>,
    ) -> Result<(), Ended> {
        let back = self.backs_to.clone();
        self.ask(Box::new(CallAsking { command, asked, by, message, back })).await
    }

    /// Has a call do what somebody asks; answers in its place where it has ended, or never was.
    pub(super) async fn ask(&mut self, asking: Box<CallAsking>) -> Result<(), Ended> {
        let asking = match self.shared.lane.calls.sender(asking.command) {
            Some(words) => match words.try_send(Word::Ask(asking)) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Full(word)) => {
                    self.lives.spawn(async move {
                        if let Err(mpsc::error::SendError(Word::Ask(asking))) = words.send(word).await {
                            asking.give_back();
                        }
                        Ok(())
                    });
                    return Ok(());
                }
                Err(mpsc::error::TrySendError::Closed(Word::Ask(asking))) => asking,
                Err(mpsc::error::TrySendError::Closed(_)) => return Ok(()),
            },
            None => asking,
        };
        let rows = std::sync::Arc::clone(&self.shared.rows);
        let call = rows.get(&Key::effect(asking.command)).await?;
        let refusal = match call.map(|found| rows.decode::<CallRow>(&found)).transpose()? {
            None => Refusal {
                reason: "EFFECT_NOT_FOUND".to_owned(),
                message: "there is no such call, or none any more".to_owned(),
            },
            Some(mut call) => match call.obey(&asking.asked, model::Timestamp::from_millis(asking.by.millis))
            {
                Err(refusal) => refusal,
                // Its task ends with the lane: whoever takes that does it.
                Ok(_) => return Ok(()),
            },
        };
        let answer = WordAnswer::of_call(&asking.by, Some(refusal));
        let (request, millis) = (&asking.by.request, asking.by.millis);
        let said = commit_answer(&rows, request, millis, answer, Vec::new(), Vec::new()).await?;
        asking.answer(rows.around(), &said).await;
        Ok(())
    }

    /// Takes note of what became of something that was asked of a call.
    pub(super) async fn back(&mut self, back: Back) -> Result<(), Ended> {
        match back {
            Back::Settled(message) => {
                if let Some((sequence, receipt)) = message {
                    self.source.settle(sequence, false);
                    self.source.tidy();
                    receipt.ack();
                }
                Ok(())
            }
            Back::Ended(asking) => self.ask(asking).await,
        }
    }

    /// Commits an answer with what it is about, and sends it.
    async fn answer(
        &mut self,
        by: &Asker,
        answer: WordAnswer,
        expect: Vec<Expect>,
        mut ops: Vec<Op>,
        sequence: u64,
    ) -> Result<(), Ended> {
        let rows = &self.shared.rows;
        ops.extend(self.source.note_with(sequence));
        let said = commit_answer(rows, &by.request, by.millis, answer, expect, ops).await?;
        if let Some(to) = &by.reply_to {
            answers::answer(rows.around(), to, &said).await;
        }
        Ok(())
    }

    /// Counts a letter less if it is gone: its word may have been answered before, and then changes nothing.
    async fn count_gone(&self, key: &Key, was_there: bool) -> Result<(), Ended> {
        if was_there && self.shared.rows.get(key).await?.is_none() {
            let mut census = Census::default();
            census.remove(Counted::Letters, 1);
            self.shared.census.change(&census);
        }
        Ok(())
    }

    /// Takes in once more what a letter has.
    async fn redrive(&mut self, letter: u64, by: &Asker, sequence: u64) -> Result<(), Ended> {
        let rows = std::sync::Arc::clone(&self.shared.rows);
        let key = dead(letter)?;
        let refused =
            |reason: &str, message: &str| WordAnswer::refused(&by.request_hash, reason, message.to_owned());
        let Some(found) = rows.get(&key).await? else {
            let answer = refused("LETTER_NOT_FOUND", "there is no such dead letter");
            return self.answer(by, answer, Vec::new(), Vec::new(), sequence).await;
        };
        let found: LetterRow = rows.decode(&found)?;
        let dead = |why: &str| WordAnswer::new(&by.request_hash, WordOutcome::Dead(why.to_owned()));
        let read = found
            .raw
            .as_ref()
            .and_then(|raw| raw.came())
            .map(|came| word::read_of_effect(came.payload, &self.shared.lane.tenant));
        let command = match read {
            Some(Ok(OfEffect::Command(command))) => command,
            Some(Err(error)) => {
                return self.answer(by, dead(&error.to_string()), Vec::new(), Vec::new(), sequence).await;
            }
            Some(Ok(OfEffect::Word(_))) | None => {
                return self.answer(by, dead(&found.letter.why), Vec::new(), Vec::new(), sequence).await;
            }
        };
        let id = command.command_id;
        if rows.get(&Key::effect(id)).await?.is_some() || command.effect_name != self.shared.lane.effect {
            // The same key with another payload stays what it is.
            return self.answer(by, dead(&found.letter.why), Vec::new(), Vec::new(), sequence).await;
        }
        let now = model::Timestamp::from_millis(rows.now().await?);
        let mut ops = accepted(&CallRow::accept(command, now));
        ops.push(Op::Delete(row(&key)));
        let answer = WordAnswer::new(&by.request_hash, WordOutcome::Applied);
        self.answer(by, answer, vec![Expect::Absent(row(&Key::effect(id)))], ops, sequence).await?;
        self.count_gone(&key, true).await?;
        // What a person has taken in again is that person's to decide.
        self.begin(id, None, self.open.add());
        Ok(())
    }

    /// Has the source read again; says whether it is.
    async fn set_back(&mut self, sources: &[SetBack], by: &Asker, sequence: u64) -> Result<bool, Ended> {
        let rows = std::sync::Arc::clone(&self.shared.rows);
        let name = self.source.source.to_string();
        let key = Key::checkpoint(&name);
        let kept = rows.get(&key).await?.map(|found| rows.decode::<Checkpoint>(&found)).transpose()?;
        let named = sources.iter().find(|named| named.source == name);
        let before = named.and_then(|named| kept?.set_back(named.to));
        let answer = WordAnswer::new(&by.request_hash, WordOutcome::Done);
        let ops = match &before {
            Some(before) => vec![Op::Put(row(&key), encode(before).into())],
            None => self.source.note_with(sequence).into_iter().collect(),
        };
        let said = commit_answer(&rows, &by.request, by.millis, answer, Vec::new(), ops).await?;
        if let Some(to) = &by.reply_to {
            answers::answer(rows.around(), to, &said).await;
        }
        // What was done before is not done again: its word is among what is read again.
        let kept = rows.get(&key).await?.map(|found| rows.decode::<Checkpoint>(&found)).transpose()?;
        if before.is_none() || kept != before {
            return Ok(false);
        }
        self.is_setting_back = true;
        self.source.lost();
        let _ = self.reader.try_send(ReadWord::Drop);
        Ok(true)
    }
}

/// A letter of the lane.
fn dead(number: u64) -> Result<Key, Ended> {
    NOBODY
        .parse()
        .map(|nobody| Key::dead(&nobody, number))
        .map_err(|error| Ended::Damaged { lane: String::new(), why: format!("{error}") })
}
