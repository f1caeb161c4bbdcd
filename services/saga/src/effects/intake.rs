//! Intake of commands into the ledger: commands that arrive together share one commit.

use std::collections::HashSet;
use std::sync::Arc;

use broker::StreamDelivery;
use model::{CommandId, Timestamp};
use store::{CommitOutcome, RowCondition, RowOperation, VersionedValue};
use workflow::LaneRowKey;
use workflow::cursor::DeliveryClass;
use workflow::instance::encode;
use workflow::lane_request::{self, EffectLaneMessage, EffectLaneRequest, LaneRequestMessage};
use workflow::ledger::CallRow;
use workflow::message::{EffectCommand, MessagePosition};
use workflow::step::DeadLetter;
use workflow::subject::MessageSubject;

use super::call::{due_key, list_key};
use super::{CallMessage, EffectLane, EffectLaneOwner};
use crate::lane::LaneExit;
use crate::lane::in_flight::{InFlightGuard, OpenReceipt};
use crate::lane::rows::row;
use crate::lane::source::{SourceEvent, SourceReaderCommand};
use crate::metrics::{Census, CensusKind};
use crate::quotas::OpenCallGuard;
use crate::sagas::{DeadLetterRow, RawMessage, SagaIncomingMessage};

/// Messages that are looked at together. Each command has four rows of a commit.
pub(super) const TOGETHER_MAX: usize = 64;
/// Bytes of commands from which on they are taken without waiting for more: far less than a commit may have.
const BYTES: usize = 512 * 1024;

/// Commands that have arrived and are not in the ledger yet.
#[derive(Default)]
struct EffectCommandBatch {
    commands: Vec<(EffectCommand, StreamDelivery, (OpenCallGuard, InFlightGuard))>,
    ids: HashSet<CommandId>,
    bytes: usize,
}

impl EffectCommandBatch {
    /// Returns whether the batch already has a command.
    fn has(&self, command: CommandId) -> bool {
        self.ids.contains(&command)
    }

    /// Adds a command; returns whether the batch is full.
    fn push(
        &mut self,
        command: EffectCommand,
        delivered: StreamDelivery,
        (mut open, in_flight): (OpenCallGuard, InFlightGuard),
    ) -> bool {
        self.ids.insert(command.command_id);
        self.bytes += delivered.payload.len();
        open.weigh(delivered.payload.len());
        self.commands.push((command, delivered, (open, in_flight)));
        self.bytes >= BYTES
    }
}

impl EffectLaneOwner {
    /// Takes in what the source has brought, until there is no room for another call.
    pub(super) async fn take_in(&mut self) -> Result<(), LaneExit> {
        let mut arrived = EffectCommandBatch::default();
        let quotas = self.shared.lane.definitions.quotas(&self.shared.lane.tenant);
        while let Some(brought) = self.waiting.pop_front() {
            // Any message may be a command. None is taken from a source that is being set back.
            let open = match &brought {
                SourceEvent::Message(..) if !self.is_setting_back => match self.open.open(quotas) {
                    Some(open) => Some(open),
                    None => {
                        self.waiting.push_front(brought);
                        break;
                    }
                },
                _ => None,
            };
            self.see_to(brought, open, &mut arrived).await?;
        }
        self.take(&mut arrived).await
    }

    /// Takes note of something the source has brought; commands are left in `arrived`, to be taken together.
    async fn see_to(
        &mut self,
        brought: SourceEvent,
        open: Option<OpenCallGuard>,
        arrived: &mut EffectCommandBatch,
    ) -> Result<(), LaneExit> {
        if !matches!(brought, SourceEvent::Message(..)) {
            self.take(arrived).await?;
        }
        match brought {
            // Events of the former cursor must not move the position any more.
            SourceEvent::Opened(_) | SourceEvent::Message(..) | SourceEvent::Passed(_)
                if self.is_setting_back => {}
            SourceEvent::Opened(checkpoint) => self.source.opened(checkpoint),
            SourceEvent::Passed(passed) => self.source.pass(passed),
            SourceEvent::Lost => {
                self.is_setting_back = false;
                self.source.lost();
                // No message of the lost cursor is under way: those that arrived before were taken.
                let _ = self.reader.try_send(SourceReaderCommand::Open);
            }
            SourceEvent::Message(message, in_flight) => match self.source.deliver(&message) {
                None => {}
                Some(DeliveryClass::InFlight) => message.receipt.progress(),
                Some(DeliveryClass::Anew(_)) => {
                    self.take(arrived).await?;
                    self.source.lost();
                    let _ = self.reader.try_send(SourceReaderCommand::Drop);
                }
                Some(DeliveryClass::Next) => {
                    service::crash_point("effect.pulled");
                    self.receive(*message, (open, in_flight), arrived).await?;
                }
            },
        }
        Ok(())
    }

    /// Leaves a command in `arrived`; handles any other message at once.
    async fn receive(
        &mut self,
        delivered: StreamDelivery,
        (open, in_flight): (Option<OpenCallGuard>, InFlightGuard),
        arrived: &mut EffectCommandBatch,
    ) -> Result<(), LaneExit> {
        let read = match self.read(&delivered.subject, &delivered.payload)? {
            Ok(EffectLaneMessage::Command(command))
                if !command.cancel && !arrived.has(command.command_id) =>
            {
                let open = open.unwrap_or_else(|| self.open.add());
                if arrived.push(command, delivered, (open, in_flight)) {
                    self.take(arrived).await?;
                }
                return Ok(());
            }
            read => read,
        };
        // Earlier commands come first.
        self.take(arrived).await?;
        let is_settled = match read {
            Ok(EffectLaneMessage::Command(command)) => {
                let known = self.shared.rows.get(&LaneRowKey::effect(command.command_id)).await?;
                self.repeat(&command, &delivered, known).await?;
                true
            }
            Ok(EffectLaneMessage::Request(request)) => self.handle_request(request, &delivered).await?,
            Err((code, why)) => {
                let note = self.source.note_with(delivered.sequence);
                self.bury(&delivered, code, &why, note).await?;
                true
            }
        };
        if is_settled {
            self.settled(&delivered);
        }
        Ok(())
    }

    /// Takes commands into the ledger and begins their calls. Commands that the ledger already has are handled one by one.
    async fn take(&mut self, arrived: &mut EffectCommandBatch) -> Result<(), LaneExit> {
        let EffectCommandBatch { commands, .. } = std::mem::take(arrived);
        if commands.is_empty() {
            return Ok(());
        }
        let rows = Arc::clone(&self.shared.rows);
        let keys: Vec<_> =
            commands.iter().map(|(command, ..)| LaneRowKey::effect(command.command_id)).collect();
        let known = rows.read(&keys).await?;
        let now = Timestamp::from_millis(rows.now().await?);
        let (mut calls, mut repeated) = (Vec::with_capacity(commands.len()), Vec::new());
        let (mut expect, mut ops) = (Vec::new(), Vec::new());
        for ((command, delivered, (open, in_flight)), known) in commands.into_iter().zip(known) {
            if let Some(known) = known {
                repeated.push((command, delivered, known));
                continue;
            }
            let call = CallRow::accept(command, now);
            expect.push(RowCondition::Absent(row(&LaneRowKey::effect(call.command))));
            ops.extend(accepted(&call));
            self.source.settle(delivered.sequence, false);
            calls.push((call, OpenReceipt::new(delivered.receipt, in_flight), open));
        }
        let taken: Vec<_> = calls.iter().map(|(call, ..)| call.command).collect();
        if !calls.is_empty() {
            ops.extend(self.source.note());
            // A conflict means that this very commit was made and its answer lost: the rows are there.
            let revision = match rows.commit(expect, ops).await? {
                CommitOutcome::Committed(revision) => Some(revision),
                _ => None,
            };
            service::crash_point("effect.accepted");
            self.source.tidy();
            for (call, receipt, open) in calls {
                self.begin(call.command, revision.map(|revision| (call, revision)), open);
                receipt.ack();
            }
        }
        for (command, delivered, known) in repeated {
            self.repeat(&command, &delivered, Some(known)).await?;
            self.settled(&delivered);
        }
        self.handle_early_requests(&taken).await
    }

    /// Takes note that a message is settled by what was committed with its position.
    fn settled(&mut self, delivered: &StreamDelivery) {
        self.source.settle(delivered.sequence, true);
        self.source.tidy();
        delivered.receipt.ack();
    }

    /// Handles a command that has come before, or that takes back another one.
    async fn repeat(
        &mut self,
        command: &EffectCommand,
        delivered: &StreamDelivery,
        known: Option<VersionedValue>,
    ) -> Result<(), LaneExit> {
        let rows = Arc::clone(&self.shared.rows);
        let note = self.source.note_with(delivered.sequence);
        // There is no call to take back.
        let Some(known) = known else { return self.note(note.into_iter().collect()).await };
        if !command.cancel {
            rows.around().metrics.dedupe_hit("ledger");
        }
        let known: CallRow = rows.decode(&known)?;
        if !known.is_same(command) {
            let why = format!("the command {} has another payload than before", command.command_id);
            return self.bury(delivered, "KEY_CONFLICT", &why, note).await;
        }
        if command.cancel {
            return self.cancel(&known, note).await;
        }
        self.note(note.into_iter().collect()).await
    }

    /// Takes a call back, unless it has ended.
    pub(super) async fn cancel(&self, call: &CallRow, note: Option<RowOperation>) -> Result<(), LaneExit> {
        let mut ops: Vec<_> = note.into_iter().collect();
        if !call.state.is_end() {
            // The row is stored before the command counts as read: the call's task may be busy, or gone.
            let key = LaneRowKey::unwanted(call.command);
            ops.push(RowOperation::Put(row(&key), encode(&call.command).into()));
        }
        self.note(ops).await?;
        self.shared.lane.calls.notify(call.command, CallMessage::Cancel);
        Ok(())
    }

    /// Commits these changes, if there are any.
    pub(super) async fn note(&self, ops: Vec<RowOperation>) -> Result<(), LaneExit> {
        if !ops.is_empty() {
            self.shared.rows.commit(Vec::new(), ops).await?;
        }
        Ok(())
    }

    /// Reads a command; gives why it is none.
    pub(super) fn read(
        &self,
        subject: &str,
        payload: &[u8],
    ) -> Result<Result<EffectLaneMessage, (&'static str, String)>, LaneExit> {
        let EffectLane { tenant, effect, .. } = &self.shared.lane;
        let has_tenants = self.shared.rows.around().has_tenants;
        let read = MessageSubject::read(subject, has_tenants);
        let Some((_, MessageSubject::Effect { command, .. })) = read.filter(|(found, subject)| {
            found == tenant
                && matches!(subject, MessageSubject::Effect { effect: found, .. } if found == effect)
        }) else {
            self.shared.rows.around().metrics.foreign_messages.inc();
            let (lane, subject) = (self.shared.rows.lane.to_string(), subject.to_owned());
            return Err(LaneExit::Foreign { lane, subject });
        };
        let read = match lane_request::read_effect_lane_message(payload, tenant) {
            Ok(read) => read,
            Err(error) => return Ok(Err((error.code(), error.to_string()))),
        };
        let is_same = match &read {
            EffectLaneMessage::Command(read) => read.command_id == command && read.effect_name == *effect,
            EffectLaneMessage::Request(LaneRequestMessage {
                word: EffectLaneRequest::Call { command: read, .. },
                ..
            }) => *read == command,
            EffectLaneMessage::Request(_) => true,
        };
        if !is_same {
            return Ok(Err(("ENVELOPE", "the body names another command than its subject".to_owned())));
        }
        Ok(Ok(read))
    }

    /// Stores a message as a dead letter.
    async fn bury(
        &self,
        delivered: &StreamDelivery,
        code: &str,
        why: &str,
        note: Option<RowOperation>,
    ) -> Result<(), LaneExit> {
        let rows = &self.shared.rows;
        let Ok(nobody) = crate::sagas::NOBODY.parse() else { return Ok(()) };
        let came = SagaIncomingMessage {
            subject: &delivered.subject,
            payload: &delivered.payload,
            time: model::Timestamp::from_millis(delivered.stored_millis),
            at: MessagePosition { incarnation: self.source.incarnation(), sequence: delivered.sequence },
        };
        let letter = DeadLetterRow {
            letter: DeadLetter {
                number: delivered.sequence,
                code: code.to_owned(),
                why: why.to_owned(),
                parks: false,
            },
            input: None,
            raw: Some(RawMessage::of(came)),
            time: came.time,
            correlation: None,
        };
        let key = LaneRowKey::dead(&nobody, delivered.sequence);
        // After its source was set back, the message may be a dead letter already.
        let is_new = rows.get(&key).await?.is_none();
        let mut ops = vec![RowOperation::Put(row(&key), encode(&letter).into())];
        ops.extend(note);
        rows.commit(Vec::new(), ops).await?;
        rows.around().metrics.letters.add(rows.lane.tenant(), 1);
        let mut census = Census::default();
        census.add(CensusKind::Letters, usize::from(is_new));
        self.shared.census.change(&census);
        // `why` is a field, which is quoted: it may contain text of the command, with line breaks.
        tracing::warn!(lane = %rows.lane, code, why, "a command is a dead letter");
        Ok(())
    }
}

/// The rows of a call whose command was taken.
pub(super) fn accepted(call: &CallRow) -> Vec<RowOperation> {
    let id = call.command;
    vec![
        RowOperation::Put(row(&LaneRowKey::effect(id)), encode(call).into()),
        RowOperation::Put(row(&due_key(call)), encode(&id).into()),
        RowOperation::Put(row(&list_key(call)), encode(&id).into()),
    ]
}
