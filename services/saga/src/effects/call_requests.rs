//! Requests about a call, a dead letter or the lane.
//!
//! The task of an open call handles the requests about it: it alone changes the call's row, in one commit with the answer. The
//! request's message is settled after that, so that none is lost with the process.

use broker::ReceiptHandle;
use model::CommandId;
use store::{RowCondition, RowOperation};
use tokio::sync::mpsc;
use workflow::LaneRowKey;
use workflow::instance::encode;
use workflow::lane_request::{
    self, EffectCallRequest, EffectLaneMessage, EffectLaneRequest, LaneRequestMessage, SourceRewindSpec,
};
use workflow::ledger::CallRow;
use workflow::message::ReplyAddress;
use workflow::step::RequestRefusal;

use super::intake::accepted;
use super::{CallMessage, EffectLaneOwner};
use crate::lane::LaneExit;
use crate::lane::answers::{self, LaneRequestAnswer, LaneRequestOutcome, commit_answer};
use crate::lane::checkpoint::Checkpoint;
use crate::lane::rows::row;
use crate::lane::source::SourceReaderCommand;
use crate::metrics::{Census, CensusKind};
use crate::sagas::{DeadLetterRow, NOBODY};

/// Request about a call, and its origin.
#[derive(Debug)]
pub struct PendingCallRequest {
    pub(super) command: CommandId,
    pub(super) call_request: EffectCallRequest,
    pub(super) by: CallRequestOrigin,
    /// Message of the request, which is settled with the answer; `None` if it was read ahead.
    message: Option<(u64, ReceiptHandle)>,
    back: mpsc::UnboundedSender<CallRequestOutcome>,
}

/// Origin of a request about a call, and the address for the answer.
#[derive(Debug)]
pub(super) struct CallRequestOrigin {
    pub(super) request: String,
    pub(super) request_hash: String,
    pub(super) millis: u64,
    reply_to: Option<ReplyAddress>,
}

/// Outcome of a request about a call.
#[derive(Debug)]
pub(super) enum CallRequestOutcome {
    /// Request was answered.
    Settled(Option<(u64, ReceiptHandle)>),
    /// Call had ended before.
    Ended(Box<PendingCallRequest>),
}

impl PendingCallRequest {
    /// Reports that the call has ended.
    pub(super) fn give_back(self: Box<Self>) {
        let back = self.back.clone();
        // Without its owner the message is delivered to the next one.
        let _ = back.send(CallRequestOutcome::Ended(self));
    }

    /// Answers, once that is committed.
    pub(super) async fn answer(
        self: Box<Self>,
        around: &crate::lane::LaneEnvironment,
        answer: &LaneRequestAnswer,
    ) {
        if let Some(to) = &self.by.reply_to {
            answers::answer(around, to, answer).await;
        }
        let _ = self.back.send(CallRequestOutcome::Settled(self.message));
    }
}

impl LaneRequestAnswer {
    /// Makes the answer to a request about a call.
    pub(super) fn of_call(by: &CallRequestOrigin, refusal: Option<RequestRefusal>) -> Self {
        Self::new(&by.request_hash, refusal.map_or(LaneRequestOutcome::Done, LaneRequestOutcome::Refused))
    }
}

impl EffectLaneOwner {
    /// Handles a request; returns whether that settles its message.
    pub(super) async fn handle_request(
        &mut self,
        message: LaneRequestMessage<EffectLaneRequest>,
        delivered: &broker::StreamDelivery,
    ) -> Result<bool, LaneExit> {
        let LaneRequestMessage { tenant_id: _, request_id, lane, word: lane_request, request_hash, reply_to } =
            message;
        if lane != self.shared.rows.lane.to_string() {
            return Ok(true);
        }
        let by = CallRequestOrigin {
            request: request_id,
            request_hash,
            millis: delivered.stored_millis,
            reply_to,
        };
        match lane_request {
            EffectLaneRequest::Call { command, asked: call_request } => {
                let message = Some((delivered.sequence, delivered.receipt.clone()));
                self.ask_call(command, call_request, by, message).await?;
                return Ok(false);
            }
            EffectLaneRequest::Purge { letter } | EffectLaneRequest::Redrive { letter, skip: true } => {
                let answer = LaneRequestAnswer::new(&by.request_hash, LaneRequestOutcome::Done);
                let key = dead(letter)?;
                let was_there = self.shared.rows.get(&key).await?.is_some();
                let ops = vec![RowOperation::Delete(row(&key))];
                self.answer(&by, answer, Vec::new(), ops, delivered.sequence).await?;
                self.count_gone(&key, was_there).await?;
            }
            EffectLaneRequest::Redrive { letter, skip: false } => {
                self.redrive(letter, &by, delivered.sequence).await?;
            }
            EffectLaneRequest::SetBack(sources) => {
                if self.set_back(&sources, &by, delivered.sequence).await? {
                    delivered.receipt.ack();
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Handles a request about a call that was read ahead.
    pub(super) async fn handle_request_ahead(
        &mut self,
        message: LaneRequestMessage<EffectLaneRequest>,
        stored_millis: u64,
    ) -> Result<(), LaneExit> {
        let LaneRequestMessage {
            tenant_id: _,
            request_id,
            lane: _,
            word: lane_request,
            request_hash,
            reply_to,
        } = message;
        // Requests about dead letters and the source wait for the first cursor.
        let EffectLaneRequest::Call { command, asked: call_request } = lane_request else { return Ok(()) };
        let by = CallRequestOrigin { request: request_id, request_hash, millis: stored_millis, reply_to };
        self.ask_call(command, call_request, by, None).await
    }

    async fn ask_call(
        &mut self,
        command: CommandId,
        call_request: EffectCallRequest,
        by: CallRequestOrigin,
        message: Option<(u64, ReceiptHandle)>,
    ) -> Result<(), LaneExit> {
        let back = self.backs_to.clone();
        self.ask(Box::new(PendingCallRequest { command, call_request, by, message, back })).await
    }

    /// Passes a request to its call's task; answers in its place if the call has ended or does not exist.
    pub(super) async fn ask(&mut self, pending: Box<PendingCallRequest>) -> Result<(), LaneExit> {
        let pending = match self.shared.lane.calls.sender(pending.command) {
            Some(sender) => match sender.try_send(CallMessage::Request(pending)) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Full(message)) => {
                    self.lives.spawn(async move {
                        if let Err(mpsc::error::SendError(CallMessage::Request(pending))) =
                            sender.send(message).await
                        {
                            pending.give_back();
                        }
                        Ok(())
                    });
                    return Ok(());
                }
                Err(mpsc::error::TrySendError::Closed(CallMessage::Request(pending))) => pending,
                Err(mpsc::error::TrySendError::Closed(_)) => return Ok(()),
            },
            None => pending,
        };
        let rows = std::sync::Arc::clone(&self.shared.rows);
        let call = rows.get(&LaneRowKey::effect(pending.command)).await?;
        let refusal = match call.map(|found| rows.decode::<CallRow>(&found)).transpose()? {
            None => RequestRefusal {
                reason: "EFFECT_NOT_FOUND".to_owned(),
                message: "there is no such call, or none any more".to_owned(),
            },
            Some(mut call) => {
                match call
                    .apply_request(&pending.call_request, model::Timestamp::from_millis(pending.by.millis))
                {
                    Err(refusal) => refusal,
                    // The call's task has ended with the lane: the next owner handles the request.
                    Ok(_) => return Ok(()),
                }
            }
        };
        let answer = LaneRequestAnswer::of_call(&pending.by, Some(refusal));
        let (request, millis) = (&pending.by.request, pending.by.millis);
        let committed = commit_answer(&rows, request, millis, answer, Vec::new(), Vec::new()).await?;
        pending.answer(rows.around(), &committed).await;
        Ok(())
    }

    /// Processes the outcome of a request about a call.
    pub(super) async fn back(&mut self, back: CallRequestOutcome) -> Result<(), LaneExit> {
        match back {
            CallRequestOutcome::Settled(message) => {
                if let Some((sequence, receipt)) = message {
                    self.source.settle(sequence, false);
                    self.source.tidy();
                    receipt.ack();
                }
                Ok(())
            }
            CallRequestOutcome::Ended(pending) => self.ask(pending).await,
        }
    }

    /// Commits an answer together with the requested changes, and sends it.
    async fn answer(
        &mut self,
        by: &CallRequestOrigin,
        answer: LaneRequestAnswer,
        expect: Vec<RowCondition>,
        mut ops: Vec<RowOperation>,
        sequence: u64,
    ) -> Result<(), LaneExit> {
        let rows = &self.shared.rows;
        ops.extend(self.source.note_with(sequence));
        let committed = commit_answer(rows, &by.request, by.millis, answer, expect, ops).await?;
        if let Some(to) = &by.reply_to {
            answers::answer(rows.around(), to, &committed).await;
        }
        Ok(())
    }

    /// Counts one dead letter less if it is gone. A repeated request changes nothing, since it was answered before.
    async fn count_gone(&self, key: &LaneRowKey, was_there: bool) -> Result<(), LaneExit> {
        if was_there && self.shared.rows.get(key).await?.is_none() {
            let mut census = Census::default();
            census.remove(CensusKind::Letters, 1);
            self.shared.census.change(&census);
        }
        Ok(())
    }

    /// Takes in the command of a dead letter once more.
    async fn redrive(&mut self, letter: u64, by: &CallRequestOrigin, sequence: u64) -> Result<(), LaneExit> {
        let rows = std::sync::Arc::clone(&self.shared.rows);
        let key = dead(letter)?;
        let refused = |reason: &str, message: &str| {
            LaneRequestAnswer::refused(&by.request_hash, reason, message.to_owned())
        };
        let Some(found) = rows.get(&key).await? else {
            let answer = refused("LETTER_NOT_FOUND", "there is no such dead letter");
            return self.answer(by, answer, Vec::new(), Vec::new(), sequence).await;
        };
        let found: DeadLetterRow = rows.decode(&found)?;
        let dead =
            |why: &str| LaneRequestAnswer::new(&by.request_hash, LaneRequestOutcome::Dead(why.to_owned()));
        let read = found
            .raw
            .as_ref()
            .and_then(|raw| raw.came())
            .map(|came| lane_request::read_effect_lane_message(came.payload, &self.shared.lane.tenant));
        let command = match read {
            Some(Ok(EffectLaneMessage::Command(command))) => command,
            Some(Err(error)) => {
                return self.answer(by, dead(&error.to_string()), Vec::new(), Vec::new(), sequence).await;
            }
            Some(Ok(EffectLaneMessage::Request(_))) | None => {
                return self.answer(by, dead(&found.letter.why), Vec::new(), Vec::new(), sequence).await;
            }
        };
        let id = command.command_id;
        if rows.get(&LaneRowKey::effect(id)).await?.is_some()
            || command.effect_name != self.shared.lane.effect
        {
            // A command with the id of an existing call, which has another payload, stays a dead letter; so does one for another effect.
            return self.answer(by, dead(&found.letter.why), Vec::new(), Vec::new(), sequence).await;
        }
        let now = model::Timestamp::from_millis(rows.now().await?);
        let mut ops = accepted(&CallRow::accept(command, now));
        ops.push(RowOperation::Delete(row(&key)));
        let answer = LaneRequestAnswer::new(&by.request_hash, LaneRequestOutcome::Applied);
        self.answer(by, answer, vec![RowCondition::Absent(row(&LaneRowKey::effect(id)))], ops, sequence)
            .await?;
        self.count_gone(&key, true).await?;
        // A redrive may exceed the limits of open calls: that is its caller's decision.
        self.begin(id, None, self.open.add());
        Ok(())
    }

    /// Sets the source back so that it is read again; returns whether it was.
    async fn set_back(
        &mut self,
        sources: &[SourceRewindSpec],
        by: &CallRequestOrigin,
        sequence: u64,
    ) -> Result<bool, LaneExit> {
        let rows = std::sync::Arc::clone(&self.shared.rows);
        let name = self.source.source.to_string();
        let key = LaneRowKey::checkpoint(&name);
        let kept = rows.get(&key).await?.map(|found| rows.decode::<Checkpoint>(&found)).transpose()?;
        let named = sources.iter().find(|named| named.source == name);
        let before = named.and_then(|named| kept?.set_back(named.to));
        let answer = LaneRequestAnswer::new(&by.request_hash, LaneRequestOutcome::Done);
        let ops = match &before {
            Some(before) => vec![RowOperation::Put(row(&key), encode(before).into())],
            None => self.source.note_with(sequence).into_iter().collect(),
        };
        let committed = commit_answer(&rows, &by.request, by.millis, answer, Vec::new(), ops).await?;
        if let Some(to) = &by.reply_to {
            answers::answer(rows.around(), to, &committed).await;
        }
        // A request that was done before is not done again: its message is among those that are read again.
        let kept = rows.get(&key).await?.map(|found| rows.decode::<Checkpoint>(&found)).transpose()?;
        if before.is_none() || kept != before {
            return Ok(false);
        }
        self.is_setting_back = true;
        self.source.lost();
        let _ = self.reader.try_send(SourceReaderCommand::Drop);
        Ok(true)
    }
}

/// Key of a dead letter of the lane.
fn dead(number: u64) -> Result<LaneRowKey, LaneExit> {
    NOBODY
        .parse()
        .map(|nobody| LaneRowKey::dead(&nobody, number))
        .map_err(|error| LaneExit::Damaged { lane: String::new(), why: format!("{error}") })
}
