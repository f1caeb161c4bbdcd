//! The life of one call, from its row in the ledger to its result.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use model::{CommandId, EffectState, Timestamp};
use store::{CommitOutcome, RowCondition, RowOperation};
use tokio::sync::mpsc;
use workflow::LaneRowKey;
use workflow::instance::encode;
use workflow::ledger::{CallDirective, CallRow, ProviderAnswer};
use workflow::message::{self, ResultRecipient};
use workflow::provider::Effect;
use workflow::subject::MessageSubject;
use workflow::transition::ImpossibleTransition;

use super::call_requests::{CallRequestOrigin, PendingCallRequest};
use super::upstreams::CallPermit;
use super::{CallMessage, EffectLaneContext};
use crate::lane::LaneExit;
use crate::lane::answers::LaneRequestAnswer;
use crate::lane::relay::{OutboxRow, RelayMessage};
use crate::lane::rows::row;
use crate::metrics::Metrics;
use crate::providers::{ProviderCall, SentFlag};
use crate::quotas::OpenCallGuard;
use crate::spans::PendingSpan;

/// How long a row stays after the call's end, in milliseconds: longer than the stream keeps the command.
const ENDED_MILLIS: u64 = 15 * 24 * 3_600_000;
/// The longest single wait.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Key of the row that schedules a call's next action.
pub(super) fn due_key(call: &CallRow) -> LaneRowKey {
    LaneRowKey::effect_due(call.due, call.command)
}

/// How long a call stays listed after its end, in milliseconds.
const LISTED_MILLIS: u64 = 7 * 24 * 3_600_000;

/// Key of the row by which a call is listed.
pub(super) fn list_key(call: &CallRow) -> LaneRowKey {
    let ResultRecipient { saga, correlation, .. } = &call.reply_to;
    LaneRowKey::effect_by(call.state.as_str(), saga, correlation, call.command)
}

/// Task of one open call.
pub(super) struct CallTask {
    shared: Arc<EffectLaneContext>,
    command: CommandId,
    messages: mpsc::Receiver<CallMessage>,
    /// Row and revision of a call whose command was taken just now.
    taken: Option<(CallRow, u64)>,
    /// Messages that came while the call was being made.
    later: VecDeque<CallMessage>,
    /// Share of the call in what its lane and its tenant may have open.
    open: OpenCallGuard,
}

/// A call's row: as it was read, and as it will be written.
struct LedgerEntry {
    kept: CallRow,
    row: CallRow,
    revision: u64,
    open: OpenCallGauge,
}

/// Counts an open call by its state until dropped.
struct OpenCallGauge {
    metrics: Arc<Metrics>,
    state: Option<EffectState>,
}

impl OpenCallGauge {
    fn move_to(&mut self, state: Option<EffectState>) {
        self.metrics.effects.moved(self.state, state);
        self.state = state;
    }
}

impl Drop for OpenCallGauge {
    fn drop(&mut self) {
        self.move_to(None);
    }
}

impl CallTask {
    pub(super) const fn new(
        shared: Arc<EffectLaneContext>,
        command: CommandId,
        messages: mpsc::Receiver<CallMessage>,
        open: OpenCallGuard,
    ) -> Self {
        Self { shared, command, messages, taken: None, later: VecDeque::new(), open }
    }

    /// Sets a row that was written just now, so that it need not be read.
    pub(super) fn with_row(self, taken: Option<(CallRow, u64)>) -> Self {
        Self { taken, ..self }
    }

    /// Runs until the call ends or the lane is given up.
    pub(super) async fn run(mut self) -> Result<(), LaneExit> {
        let ended = self.live().await;
        self.shared.lane.calls.remove(self.command);
        self.give_back();
        ended
    }

    async fn live(&mut self) -> Result<(), LaneExit> {
        let Some(mut ledger) = self.open().await? else { return Ok(()) };
        while !ledger.row.state.is_end() && !self.shared.rows.around().cut.is_cancelled() {
            let Some(effect) = self.effect().await else { return Ok(()) };
            let now = self.now().await?;
            let epoch = self.shared.rows.epoch();
            let todo = self.legal(ledger.row.next_directive(&effect, epoch, now))?;
            self.count_doubt(&ledger, &effect);
            self.keep(&mut ledger).await?;
            match todo {
                CallDirective::Call => {
                    if !self.make(&mut ledger, &effect).await? {
                        return Ok(());
                    }
                }
                CallDirective::Ask => self.ask(&mut ledger, &effect).await?,
                CallDirective::Stop => self.stop(&ledger, &effect).await,
                CallDirective::Nothing if ledger.row.state.is_end() => {}
                CallDirective::Nothing => {
                    if !self.wait(&mut ledger, &effect, now).await? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Has the provider report the end of whatever already runs for the call. It asks for a stop again, since an earlier owner's request
    /// may have been lost, and expects the next heartbeat from now on, since heartbeats without an owner were lost.
    async fn adopt(&self, ledger: &mut LedgerEntry) -> Result<(), LaneExit> {
        let (CallRow { state: EffectState::Waiting, is_unwanted, .. }, Some(external)) =
            (&ledger.row, &ledger.row.external)
        else {
            return Ok(());
        };
        let Some(effect) = self.effect().await else { return Ok(()) };
        self.shared.lane.provider.adopt(&self.call(ledger, &effect, None), external).await;
        if *is_unwanted {
            self.stop(ledger, &effect).await;
        }
        let now = self.now().await?;
        ledger.row.record_heartbeat(&effect, now);
        Ok(())
    }

    /// The effect's definition in force; waits until there is one, or gives `None` once the lane is given up.
    async fn effect(&self) -> Option<Arc<Effect>> {
        let lane = &self.shared.lane;
        let mut changes = lane.definitions.subscribe();
        loop {
            let catalog = Arc::clone(&changes.borrow_and_update().catalog);
            if let Some((_, effect)) = catalog.effect(&lane.effect, &lane.tenant) {
                return Some(Arc::clone(effect));
            }
            tokio::select! {
                () = self.shared.stop.cancelled() => return None,
                changed = changes.changed() => changed.ok()?,
            }
        }
    }

    /// Opens the ledger row and resumes the call from its state; `None` where there is no row.
    async fn open(&mut self) -> Result<Option<LedgerEntry>, LaneExit> {
        if let Some((row, revision)) = self.taken.take() {
            // The call is new: nothing runs for it yet, and a cancellation can only come later.
            return Ok(Some(self.ledger(row, revision)));
        }
        let rows = &self.shared.rows;
        let found =
            rows.read(&[LaneRowKey::effect(self.command), LaneRowKey::unwanted(self.command)]).await?;
        let [Some(found), unwanted] = &found[..] else { return Ok(None) };
        self.open.weigh(found.value.len());
        let mut ledger = self.ledger(rows.decode(found)?, found.revision);
        self.adopt(&mut ledger).await?;
        if unwanted.is_some() && !ledger.row.state.is_end() {
            self.cancel(&mut ledger).await?;
        }
        Ok(Some(ledger))
    }

    fn ledger(&self, row: CallRow, revision: u64) -> LedgerEntry {
        let mut open = OpenCallGauge { metrics: Arc::clone(&self.shared.rows.around().metrics), state: None };
        open.move_to(Some(row.state));
        LedgerEntry { kept: row.clone(), row, revision, open }
    }

    async fn now(&self) -> Result<Timestamp, LaneExit> {
        Ok(Timestamp::from_millis(self.shared.rows.now().await?))
    }

    /// Ends the lane if the change is impossible: no program wrote such a row.
    fn legal<T>(&self, changed: Result<T, ImpossibleTransition>) -> Result<T, LaneExit> {
        changed
            .map_err(|error| LaneExit::damaged(&self.shared.rows.lane, format!("{}: {error}", self.command)))
    }

    /// Commits what has changed; at the call's end together with the message that reports it.
    async fn keep(&self, ledger: &mut LedgerEntry) -> Result<(), LaneExit> {
        if ledger.row == ledger.kept {
            return Ok(());
        }
        self.commit(ledger, None).await.map(|_| ())
    }

    /// Row operations that bring the stored ledger up to date.
    fn ops(&self, ledger: &LedgerEntry) -> Vec<RowOperation> {
        if ledger.row == ledger.kept {
            return Vec::new();
        }
        let (key, is_end) = (row(&LaneRowKey::effect(self.command)), ledger.row.state.is_end());
        let bytes = encode(&ledger.row).into();
        let until = ledger.row.end.as_ref().map(|end| end.at.as_millis().saturating_add(ENDED_MILLIS));
        let mut ops = vec![match until {
            Some(until) => RowOperation::PutUntil(key, bytes, until),
            None => RowOperation::Put(key, bytes),
        }];
        let (before, after) = (due_key(&ledger.kept), due_key(&ledger.row));
        if before != after || is_end {
            ops.push(RowOperation::Delete(row(&before)));
        }
        if ledger.row.is_unwanted && (is_end || !ledger.kept.is_unwanted) {
            ops.push(RowOperation::Delete(row(&LaneRowKey::unwanted(self.command))));
        }
        if ledger.kept.state != ledger.row.state {
            let (listed, bytes) = (row(&list_key(&ledger.row)), encode(&self.command).into());
            ops.push(RowOperation::Delete(row(&list_key(&ledger.kept))));
            ops.push(match &ledger.row.end {
                Some(end) => {
                    RowOperation::PutUntil(listed, bytes, end.at.as_millis().saturating_add(LISTED_MILLIS))
                }
                None => RowOperation::Put(listed, bytes),
            });
        }
        if before != after && !is_end {
            ops.push(RowOperation::Put(row(&after), encode(&self.command).into()));
        }
        ops
    }

    /// Commits what has changed, and the answer to the request for it. Returns false if the same request was committed before.
    async fn commit(
        &self,
        ledger: &mut LedgerEntry,
        answer: Option<(&CallRequestOrigin, &LaneRequestAnswer)>,
    ) -> Result<bool, LaneExit> {
        let rows = &self.shared.rows;
        let key = row(&LaneRowKey::effect(self.command));
        let (is_changed, mut ops) = (ledger.row != ledger.kept, self.ops(ledger));
        let mut expect = Vec::new();
        if let Some((by, answer)) = answer {
            expect.push(RowCondition::Absent(row(&LaneRequestAnswer::key(&by.request))));
            ops.push(answer.put(&by.request, by.millis));
        }
        if is_changed {
            expect.push(RowCondition::Revision(key, ledger.revision));
        }
        let outgoing = self.outgoing(&ledger.row).filter(|_| is_changed);
        if let Some((number, message)) = &outgoing {
            ops.push(RowOperation::Put(row(&LaneRowKey::outbox(*number)), encode(message).into()));
        }
        match rows.commit(expect, ops).await? {
            CommitOutcome::Committed(revision) if is_changed => ledger.revision = revision,
            CommitOutcome::Committed(_) => {}
            CommitOutcome::Exists(_) => {
                // Either this very change was made and its answer lost, or the request is a repeat: the stored row says which.
                let Some(found) = rows.get(&LaneRowKey::effect(self.command)).await? else {
                    return Ok(false);
                };
                ledger.row = rows.decode(&found)?;
                ledger.kept = ledger.row.clone();
                ledger.revision = found.revision;
                ledger.open.move_to(Some(ledger.row.state));
                let _ = self.shared.relay.send(RelayMessage::LookAgain);
                return Ok(false);
            }
            // This very change was made and its answer lost: no other task changes this row.
            CommitOutcome::Conflict { found, .. } => {
                ledger.revision = found;
                let _ = self.shared.relay.send(RelayMessage::LookAgain);
            }
            CommitOutcome::Fenced { .. } => {}
        }
        ledger.kept = ledger.row.clone();
        ledger.open.move_to(Some(ledger.row.state));
        if let Some(outgoing) = outgoing {
            service::crash_point("effect.outcome");
            if let CallRow { end: Some(end), attempts, accepted, .. } = &ledger.row {
                let (effect, took) = (self.shared.lane.effect.as_str(), end.at.since(*accepted));
                let (tenant, result) = (&self.shared.lane.tenant, end.outcome.as_str());
                rows.around().metrics.effects.ended(tenant, (effect, result), *attempts, took);
            }
            // The relay ends with its owner only, so the send cannot fail.
            let _ = self.shared.relay.send(RelayMessage::Rows(vec![outgoing]));
        }
        Ok(true)
    }

    /// The message that reports the end of a call.
    fn outgoing(&self, call: &CallRow) -> Option<(u64, OutboxRow)> {
        let lane = &self.shared.lane;
        let result = call.result(&lane.tenant, &lane.effect)?;
        let subject = MessageSubject::EffectResult { effect: lane.effect.clone(), command: call.command };
        let (reply_to, id) = (&call.reply_to, format!("result-{}", call.command));
        let body = message::write(&result);
        let (subject, correlation) = (subject.of(&lane.tenant), reply_to.correlation.clone());
        let row = OutboxRow::message(subject, id, &reply_to.saga, correlation, &body);
        Some((self.shared.rows.next_outbox(), row))
    }

    fn call(&self, ledger: &LedgerEntry, effect: &Arc<Effect>, token: Option<String>) -> ProviderCall {
        ProviderCall {
            tenant: self.shared.lane.tenant.clone(),
            command: self.command,
            effect: Arc::clone(effect),
            input: Arc::new(ledger.row.input.clone()),
            traceparent: ledger.row.metadata.get("traceparent").cloned(),
            callback_token: token,
            sent: SentFlag::default(),
        }
    }

    /// Waits for a turn and makes the call; returns whether the task continues.
    async fn make(&mut self, ledger: &mut LedgerEntry, effect: &Arc<Effect>) -> Result<bool, LaneExit> {
        let shared = Arc::clone(&self.shared);
        let lane = &shared.lane;
        let now = self.now().await?;
        let deadline = ledger.row.next_deadline(effect).since(now).min(WAIT_MAX);
        let permit = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Ok(false),
            message = self.next_message() => return self.handle_message(ledger, effect, message).await,
            permit = lane.upstreams.permit(effect, &lane.tenant, lane.weight) => permit,
            // The deadline may have passed by now.
            () = tokio::time::sleep(deadline) => return Ok(true),
        };
        let token = is_callback(effect).then(|| hex::encode(rand::random::<[u8; 16]>()));
        ledger.row.expect_token(token.as_ref().map(|token| model::BlobHash::of(token.as_bytes())));
        self.legal(ledger.row.record_attempt(effect, self.shared.rows.epoch()))?;
        self.keep(ledger).await?;
        service::crash_point("effect.intent");
        let call = self.call(ledger, effect, token);
        let begun = PendingSpan::call();
        let answer = self.sent(ledger, &call, effect, permit).await?;
        let seeing = shared.rows.around().metrics.seeing;
        begun.answered((&lane.tenant, &lane.effect, seeing), &ledger.row, answer.as_ref());
        let Some(answer) = answer else { return Ok(true) };
        service::crash_point(if answer.is_waiting() { "effect.submitted" } else { "effect.answered" });
        let now = self.now().await?;
        self.legal(ledger.row.record_answer(effect, answer, rand::random(), now))?;
        self.count_doubt(ledger, effect);
        lane.upstreams.report_circuit(&effect.name, self.shared.rows.around());
        self.keep(ledger).await?;
        Ok(!self.shared.stop.is_cancelled() || ledger.row.state.is_end())
    }

    /// Counts a call whose outcome has just become unknown.
    fn count_doubt(&self, ledger: &LedgerEntry, effect: &Effect) {
        if ledger.row.is_in_doubt && !ledger.kept.is_in_doubt {
            let metrics = &self.shared.rows.around().metrics;
            metrics.effects.unknown_outcome(effect.name.as_str(), effect.unknown.as_str());
        }
    }

    /// Waits for the next message to the call. Cancel-safe.
    async fn next_message(&mut self) -> Option<CallMessage> {
        match self.later.pop_front() {
            Some(message) => Some(message),
            None => self.messages.recv().await,
        }
    }

    /// Sends a call and handles requests about it meanwhile; gives the answer, or `None` if a request ended the call.
    async fn sent(
        &mut self,
        ledger: &mut LedgerEntry,
        call: &ProviderCall,
        effect: &Arc<Effect>,
        permit: CallPermit,
    ) -> Result<Option<ProviderAnswer>, LaneExit> {
        let shared = Arc::clone(&self.shared);
        let sending = shared.send(call, effect, permit);
        tokio::pin!(sending);
        loop {
            tokio::select! {
                answer = &mut sending => return Ok(Some(answer)),
                Some(message) = self.messages.recv() => match message {
                    CallMessage::Request(pending) => {
                        self.handle_request(ledger, effect, pending).await?;
                        if ledger.row.state.is_end() {
                            return Ok(None);
                        }
                    }
                    // The call has only just begun: a heartbeat adds nothing.
                    CallMessage::Beat => {}
                    message => self.later.push_back(message),
                },
            }
        }
    }

    /// Handles a request, in one commit with the answer.
    async fn handle_request(
        &self,
        ledger: &mut LedgerEntry,
        effect: &Arc<Effect>,
        mut pending: Box<PendingCallRequest>,
    ) -> Result<(), LaneExit> {
        let now = self.now().await?;
        pending.call_request.redact(effect);
        let handled = ledger.row.apply_request(&pending.call_request, now);
        let runs = matches!(handled, Ok(true));
        let answer = LaneRequestAnswer::of_call(&pending.by, handled.err());
        let reply = match self.commit(ledger, Some((&pending.by, &answer))).await? {
            true => answer,
            false => {
                // The request is a repeat: it gets its first answer.
                let key = LaneRequestAnswer::key(&pending.by.request);
                let known = self.shared.rows.get(&key).await?;
                let known =
                    known.map(|row| self.shared.rows.decode::<LaneRequestAnswer>(&row)).transpose()?;
                known.map_or(answer, |known| known.again(&pending.by.request_hash))
            }
        };
        pending.answer(self.shared.rows.around(), &reply).await;
        if runs && ledger.row.is_unwanted {
            self.stop(ledger, effect).await;
        }
        Ok(())
    }

    /// Closes the channel: from now on the lane answers requests about this call.
    fn give_back(&mut self) {
        self.messages.close();
        while let Some(message) = self.later.pop_front().or_else(|| self.messages.try_recv().ok()) {
            if let CallMessage::Request(pending) = message {
                pending.give_back();
            }
        }
    }
}

impl EffectLaneContext {
    /// Sends a call, within its time limit.
    async fn send(&self, call: &ProviderCall, effect: &Effect, mut permit: CallPermit) -> ProviderAnswer {
        let limit = effect.timeouts.start_to_close;
        let answer = tokio::select! {
            answer = tokio::time::timeout(limit, self.lane.provider.call(call)) => {
                answer.map_err(|_| format!("in {limit:?}"))
            }
            () = self.rows.around().cut.cancelled() => Err("until its lane was given up".to_owned()),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(by) if call.sent.is_raised() => ProviderAnswer::Unknown { why: format!("no answer {by}") },
            Err(by) => ProviderAnswer::Passing { why: format!("it could not be sent {by}"), after: None },
        };
        permit.note(matches!(answer, ProviderAnswer::Passing { .. } | ProviderAnswer::Unknown { .. }));
        answer
    }
}

impl CallTask {
    /// Asks whether a call has happened.
    async fn ask(&self, ledger: &mut LedgerEntry, effect: &Arc<Effect>) -> Result<(), LaneExit> {
        let call = self.call(ledger, effect, None);
        let limit = effect.timeouts.start_to_close;
        let answer = tokio::select! {
            answer = tokio::time::timeout(limit, self.shared.lane.provider.ask(&call)) => answer,
            // The next owner of the lane asks again.
            () = self.shared.rows.around().cut.cancelled() => return Ok(()),
        };
        let now = self.now().await?;
        self.legal(ledger.row.record_query_answer(effect, answer.ok().flatten(), rand::random(), now))?;
        self.keep(ledger).await?;
        if ledger.row.state == EffectState::Waiting && ledger.row.is_unwanted {
            self.stop(ledger, effect).await;
        }
        Ok(())
    }

    async fn stop(&self, ledger: &LedgerEntry, effect: &Arc<Effect>) {
        if let Some(external) = &ledger.row.external {
            let call = self.call(ledger, effect, None);
            self.shared.lane.provider.stop(&call, external).await;
        }
    }

    /// Waits until an action is due or a message comes; returns whether the task continues.
    async fn wait(
        &mut self,
        ledger: &mut LedgerEntry,
        effect: &Arc<Effect>,
        now: Timestamp,
    ) -> Result<bool, LaneExit> {
        let wake = Arc::clone(&self.shared.rows.around().wake);
        let stop = self.shared.stop.clone();
        tokio::select! {
            () = stop.cancelled() => Ok(false),
            message = self.next_message() => self.handle_message(ledger, effect, message).await,
            () = wake.notified() => Ok(true),
            () = tokio::time::sleep(ledger.row.due.since(now).min(WAIT_MAX)) => Ok(true),
        }
    }

    /// Marks the call as unwanted by its saga, and stops what runs for it.
    async fn cancel(&self, ledger: &mut LedgerEntry) -> Result<(), LaneExit> {
        let now = self.now().await?;
        let runs = self.legal(ledger.row.cancel(now))?;
        // Commits first, so that the next owner of the lane knows that the call has to be stopped.
        self.keep(ledger).await?;
        if runs && let Some(effect) = self.effect().await {
            self.stop(ledger, &effect).await;
        }
        Ok(())
    }

    /// Handles a message to the call; returns whether the task continues.
    async fn handle_message(
        &self,
        ledger: &mut LedgerEntry,
        effect: &Arc<Effect>,
        message: Option<CallMessage>,
    ) -> Result<bool, LaneExit> {
        let Some(message) = message else { return Ok(false) };
        let now = self.now().await?;
        match message {
            CallMessage::Cancel => self.cancel(ledger).await?,
            CallMessage::Answer(answer) => {
                // A late answer changes nothing.
                let _ = ledger.row.record_answer(effect, answer, rand::random(), now);
            }
            CallMessage::Beat => ledger.row.record_heartbeat(effect, now),
            CallMessage::Request(pending) => self.handle_request(ledger, effect, pending).await?,
        }
        self.keep(ledger).await?;
        Ok(true)
    }
}

const fn is_callback(effect: &Effect) -> bool {
    matches!(&effect.call, workflow::provider::EffectAction::Http(http) if http.is_callback)
}
