//! One input, from its queue to its commit.

use model::{BlobHash, CorrelationId, Timestamp};
use store::{CommitOutcome, RowOperation, VersionedValue};
use workflow::LaneRowKey;
use workflow::definition::Saga;
use workflow::input::{InstanceInput, InstanceInputKind, Verb};
use workflow::instance::{CorrelationEntry, CorrelationRecord, encode};
use workflow::replay::ComputedTransition;
use workflow::step::{
    self, DeferredEvents, InputDisposition, InputOrigin, InstanceIdentity, RequestRefusal, SagaTransition,
};

use std::sync::Arc;

use super::answer::VerbAnswerRow;
use super::batch::{HeldInput, HeldRow, InputCommit};
use super::census;
use super::dead_letters::DeadLetterAction;
use super::input_decision::{InputDecision, verb_context};
use super::intake::{InstanceAction, VerbContext};
use super::starved::CapacityShortage;
use super::summary::InstanceSummary;
use super::timers::{TimerDelta, TimerRow};
use super::transition_telemetry::outcome;
use super::{CachedRecord, QueuedInput, SagaLaneContext};
use crate::definitions::DefinitionError;
use crate::lane::relay::OutboxRow;
use crate::lane::{self, LaneExit, answers};
use crate::spans::PendingSpan;

/// An input that is worked on.
pub(super) struct InputTask {
    pub(super) shared: Arc<SagaLaneContext>,
    pub(super) correlation: CorrelationId,
    pub(super) item: QueuedInput,
    /// The record, where it is in memory.
    pub(super) cached: Option<CachedRecord>,
    /// The change that notes the position of its source.
    pub(super) note: Option<RowOperation>,
}

/// Outcome of an input.
pub(super) struct InputOutcome {
    pub(super) correlation: CorrelationId,
    pub(super) item: QueuedInput,
    /// The record; nothing where it has to be read again.
    pub(super) cached: Option<CachedRecord>,
    pub(super) timers: TimerDelta,
    pub(super) outgoing: Vec<(u64, OutboxRow)>,
    /// Action that is to be done next for the same correlation.
    pub(super) follows: Option<InstanceAction>,
    /// True if there was no room for the input, so that it has to be given again.
    pub(super) is_blocked: bool,
    /// Shortage because of which nothing was done.
    pub(super) starved: Option<CapacityShortage>,
    /// True if the input was committed, and the position of its source with it.
    pub(super) is_committed: bool,
}

impl InputTask {
    pub(super) async fn run(self) -> Result<InputOutcome, LaneExit> {
        let Self { shared, correlation, item, mut cached, note } = self;
        let _counted = shared.rows.around().metrics.under_way();
        let mut begun = Some(PendingSpan::transition());
        loop {
            let current = match cached.take() {
                Some(current) => current,
                None => shared.load(&correlation).await?,
            };
            if let Some(timers) = shared.without_step(&correlation, &current, &item.what).await? {
                // A retired record is not cached.
                let cached = Some(current).filter(|_| !matches!(item.what, InstanceAction::Retire(_)));
                return Ok(InputOutcome { timers, ..InputOutcome::unchanged(correlation, item, cached) });
            }
            let Some(decision) = shared.decide(&correlation, &current, &item.what).await? else {
                return Ok(InputOutcome::unchanged(correlation, item, Some(current)));
            };
            service::crash_point("event.stepped");
            if let Some(done) = shared.without_commit(&correlation, &current, &decision, &item).await {
                shared.count(outcome(&decision.change.fate));
                shared.record_span(begun.take(), &correlation, &decision, &item);
                return Ok(InputOutcome { item, correlation, ..done });
            }
            let room = match shared.room_for(&decision, &item) {
                Ok(room) => room,
                Err(full) => {
                    let starved = shared.refuse_start(&item, &full).await.then_some(full);
                    let unchanged = InputOutcome::unchanged(correlation, item, Some(current));
                    return Ok(InputOutcome { starved, ..unchanged });
                }
            };
            let commit = shared.commit_of(&correlation, &current, &decision, &item, note.clone());
            let InputCommit { expect, ops, timers, outgoing, answer } = commit;
            service::crash_point("event.commit_sent");
            let outcome = shared.rows.commit(expect, ops).await?;
            match shared.known(&correlation, &decision.change, outcome).await? {
                CommitOutcome::Committed(revision) => {
                    shared.note_commit(&decision);
                    shared.record_span(begun.take(), &correlation, &decision, &item);
                    shared.note_usage(&current, &decision, room, &timers);
                    shared.census.change(&census::change(&current, &decision, &timers));
                    shared.answer(&item, answer.as_ref()).await;
                    shared.answer_letter_request(&item, &decision).await;
                    let is_swept = decision.letter.as_ref().is_none_or(DeadLetterAction::is_whole);
                    let record = decision.change.record;
                    let follows =
                        next_held(record.as_ref()).or_else(|| (!is_swept).then_some(InstanceAction::Resume));
                    let cached = Some(CachedRecord { record, revision });
                    return Ok(InputOutcome {
                        correlation,
                        item,
                        cached,
                        timers,
                        outgoing,
                        follows,
                        is_blocked: false,
                        starved: None,
                        is_committed: true,
                    });
                }
                CommitOutcome::Exists(_) => {
                    shared.count("repeat");
                    shared.answer_again(&decision, &item).await?;
                    let is_occurrence = matches!(item.what, InstanceAction::Occurrence(_));
                    let mut done = InputOutcome::unchanged(correlation, item, None);
                    if is_occurrence {
                        // This very commit was made and its answer lost: the next occurrence is scheduled.
                        done.timers = timers;
                    }
                    return Ok(done);
                }
                // Another commit of this lane changed it.
                CommitOutcome::Conflict { .. } => {}
                // `LaneStore::commit` already returns this as an error.
                CommitOutcome::Fenced { epoch } => {
                    return Err(LaneExit::Fenced { lane: shared.rows.lane.to_string(), epoch });
                }
            }
        }
    }
}

impl InputOutcome {
    fn unchanged(correlation: CorrelationId, item: QueuedInput, cached: Option<CachedRecord>) -> Self {
        let follows = cached.as_ref().and_then(|cached| next_held(cached.record.as_ref()));
        let (timers, outgoing) = (TimerDelta::default(), Vec::new());
        Self {
            correlation,
            item,
            cached,
            timers,
            outgoing,
            follows,
            is_blocked: false,
            starved: None,
            is_committed: false,
        }
    }
}

/// Returns the next input that was held back and may be given now.
fn next_held(record: Option<&CorrelationRecord>) -> Option<InstanceAction> {
    let record = record?;
    let may = !record.holds_back()
        && !record.held.is_empty()
        && !matches!(record.entry, CorrelationEntry::Ended(_));
    may.then_some(InstanceAction::Held(record.held.first))
}

impl SagaLaneContext {
    /// Reads a record.
    async fn load(&self, correlation: &CorrelationId) -> Result<CachedRecord, LaneExit> {
        let found = self.rows.get(&LaneRowKey::saga(correlation)).await?;
        let Some(found) = found else { return Ok(CachedRecord { record: None, revision: 0 }) };
        let record = self.rows.decode(&found)?;
        Ok(CachedRecord { record: Some(record), revision: found.revision })
    }

    /// Returns the outcome of a commit, also where its first answer was lost and the retry found the record changed. No other task
    /// writes the record meanwhile, so a record equal to what this commit writes was written by it.
    async fn known(
        &self,
        correlation: &CorrelationId,
        change: &SagaTransition,
        outcome: CommitOutcome,
    ) -> Result<CommitOutcome, LaneExit> {
        let (CommitOutcome::Conflict { .. }, Some(record)) = (&outcome, &change.record) else {
            return Ok(outcome);
        };
        let found = self.rows.get(&LaneRowKey::saga(correlation)).await?;
        let ours = found.filter(|found| found.value == encode(record));
        Ok(ours.map_or(outcome, |found| CommitOutcome::Committed(found.revision)))
    }

    /// Reads the kept events that a record refers to.
    async fn kept(
        &self,
        correlation: &CorrelationId,
        record: Option<&CorrelationRecord>,
    ) -> Result<DeferredEvents, LaneExit> {
        let kept = match record.map(|record| &record.entry) {
            Some(CorrelationEntry::Live(instance)) => &instance.kept,
            Some(CorrelationEntry::Awaited(awaited)) => &awaited.kept,
            Some(CorrelationEntry::Ended(_)) | None => return Ok(DeferredEvents::new()),
        };
        let keys: Vec<_> = kept.iter().map(|kept| LaneRowKey::kept(correlation, kept.number)).collect();
        if keys.is_empty() {
            return Ok(DeferredEvents::new());
        }
        let rows = self.rows.read(&keys).await?;
        let decode = |(number, row): (u64, Option<VersionedValue>)| {
            Some(row?).map(|row| Ok((number, self.rows.decode::<InstanceInput>(&row)?)))
        };
        kept.iter().map(|kept| kept.number).zip(rows).filter_map(decode).collect()
    }

    /// Does actions that need no step of the instance; gives their changes of timers, or `None` where a step is needed.
    async fn without_step(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        wanted: &InstanceAction,
    ) -> Result<Option<TimerDelta>, LaneExit> {
        let mut timers = TimerDelta::default();
        match wanted {
            InstanceAction::Retire(due) => {
                self.retire(correlation, current, *due).await?;
                timers.dropped.push((*due, super::timers::RETIRE.to_owned()));
            }
            InstanceAction::Occurrence(occurrence) if occurrence.start.is_none() => {
                timers = self.pass(occurrence).await?;
            }
            InstanceAction::Resume => {
                self.sweep(correlation, current).await?;
                timers.holds_back = current.record.as_ref().is_some_and(CorrelationRecord::holds_back);
            }
            _ => return Ok(None),
        }
        Ok(Some(timers))
    }

    /// Counts what was committed.
    fn note_commit(&self, decision: &InputDecision) {
        let metrics = &self.rows.around().metrics;
        let fate = &decision.change.fate;
        let is_timer =
            matches!(decision.input().map(|input| &input.what), Some(InstanceInputKind::Timer { .. }));
        service::crash_point(match fate {
            _ if decision.is_of_redrive() => "redrive.committed",
            InputDisposition::DeadLetter(_) => "park.committed",
            _ if is_timer => "timer.committed",
            _ => "event.committed",
        });
        metrics.timers_fired.inc_by(u64::from(is_timer));
        self.count(outcome(fate));
        let is_dead = matches!(fate, InputDisposition::DeadLetter(_)) && decision.letter.is_none();
        let letters = decision.change.dead_letters.len() as u64 + u64::from(is_dead);
        metrics.letters.add(&self.tenant, letters);
    }

    /// Decides what follows; `None` where the input is not there any more.
    async fn decide(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        wanted: &InstanceAction,
    ) -> Result<Option<InputDecision>, LaneExit> {
        let decision = self.unweighed(correlation, current, wanted).await?;
        Ok(decision.map(|decision| decision.weighing(correlation, current, wanted)))
    }

    /// Decides what follows, without regard to the bytes that wait already.
    async fn unweighed(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        wanted: &InstanceAction,
    ) -> Result<Option<InputDecision>, LaneExit> {
        let record = current.record.as_ref();
        let (input, origin) = match wanted {
            InstanceAction::Input { input, origin, .. } => ((**input).clone(), *origin),
            InstanceAction::Answered { input, .. } => ((**input).clone(), InputOrigin::Fresh),
            InstanceAction::Held(number) => {
                let row = self.rows.get(&LaneRowKey::parked(correlation, *number)).await?;
                let Some(row) = row else { return Ok(None) };
                let origin = InputOrigin::Held(*number);
                match self.rows.decode::<HeldRow>(&row)?.what {
                    HeldInput::Input(input) => (*input, origin),
                    HeldInput::Dead(dead) => return Ok(Some(InputDecision::bury(record, &dead, origin))),
                }
            }
            InstanceAction::Dead(dead) => {
                return Ok(Some(InputDecision::bury(record, dead, InputOrigin::Fresh)));
            }
            InstanceAction::DeadLetterRequest(operation) => {
                return self.decide_letter_request(correlation, current, operation).await.map(Some);
            }
            InstanceAction::Occurrence(occurrence) => {
                let Some(input) = occurrence.input() else { return Ok(None) };
                (input, InputOrigin::Fresh)
            }
            InstanceAction::Resume | InstanceAction::Retire(_) => return Ok(None),
        };
        if let Some(refusal) =
            verb_context(wanted).and_then(|verb_context| self.refusal(verb_context, record, &input))
        {
            let change = SagaTransition::nothing(InputDisposition::Refused(refusal), record.cloned());
            let what = Some(HeldInput::Input(Box::new(input)));
            return Ok(Some(InputDecision { what, origin, change, letter: None }));
        }
        let Some(change) = self.apply(correlation, current, &input, origin).await? else {
            return Ok(None);
        };
        let what = Some(HeldInput::Input(Box::new(input)));
        Ok(Some(InputDecision { what, origin, change, letter: None }))
    }

    /// Gives an input to an instance; `None` where its saga has no definition any more.
    pub(super) async fn apply(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        input: &InstanceInput,
        origin: InputOrigin,
    ) -> Result<Option<SagaTransition>, LaneExit> {
        let record = current.record.as_ref();
        let kept = self.kept(correlation, record).await?;
        let whose = InstanceIdentity { tenant: &self.tenant, correlation };
        if let (InstanceInputKind::Verb { verb: Verb::Migrate, .. }, Some(record)) = (&input.what, record)
            && record.instance().is_some()
        {
            let versions = self.definitions.versions(&self.tenant, &self.saga);
            let change = step::migrate(&versions, whose, record, input, &kept);
            let record = Some(record);
            self.verify(ComputedTransition {
                versions: &versions,
                whose,
                record,
                origin,
                kept: &kept,
                change: &change,
            });
            return Ok(Some(change));
        }
        let pinned = record.and_then(CorrelationRecord::definition);
        let Some(saga) = self.definition(pinned).await? else { return Ok(None) };
        let change = step::apply(&saga, whose, record, input, origin, &kept);
        self.verify(ComputedTransition {
            versions: &[saga],
            whose,
            record,
            origin,
            kept: &kept,
            change: &change,
        });
        Ok(Some(change))
    }

    /// Refusal of a request that does not depend on the definition.
    fn refusal(
        &self,
        verb_context: &VerbContext,
        record: Option<&CorrelationRecord>,
        input: &InstanceInput,
    ) -> Option<RequestRefusal> {
        let refuse =
            |reason: &str, message: String| Some(RequestRefusal { reason: reason.to_owned(), message });
        let is_start = matches!(&input.what, InstanceInputKind::Verb { verb: Verb::Start { .. }, .. });
        if is_start && self.definitions.in_force().saga(&self.tenant, &self.saga).is_none() {
            return refuse("SAGA_NOT_FOUND", format!("the saga {} is not in force", self.saga));
        }
        let revision = record.and_then(InstanceSummary::of)?.revision;
        if verb_context.expected_revision == 0 || verb_context.expected_revision == revision {
            return None;
        }
        let expected = verb_context.expected_revision;
        refuse("REVISION_MISMATCH", format!("the instance is at revision {revision}, not {expected}"))
    }

    /// The definition of this hash, or the one that is in force.
    async fn definition(&self, pinned: Option<BlobHash>) -> Result<Option<Arc<Saga>>, LaneExit> {
        let Some(hash) = pinned else {
            let in_force = self.definitions.in_force();
            return Ok(in_force.without_instance(&self.tenant, &self.saga).map(Arc::clone));
        };
        let mut pauses = lane::backoff();
        loop {
            match self.definitions.pinned_to(hash).await {
                Ok(saga) => return Ok(Some(saga)),
                Err(DefinitionError::Store(error)) => {
                    tracing::warn!(lane = %self.rows.lane, "{error}; retrying");
                    tokio::time::sleep(pauses.next_pause()).await;
                }
                Err(error) => return Err(LaneExit::damaged(&self.rows.lane, error)),
            }
        }
    }

    /// Handles inputs that need no commit: those that change nothing, dry runs, and those that have to wait.
    async fn without_commit(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        decision: &InputDecision,
        item: &QueuedInput,
    ) -> Option<InputOutcome> {
        let change = &decision.change;
        let done = |cached: Option<CachedRecord>| {
            InputOutcome::unchanged(correlation.clone(), QueuedInput::nothing(), cached)
        };
        if change.fate == InputDisposition::NoRoom {
            // This includes a dead letter that another lane has passed on and no longer has.
            return Some(InputOutcome { is_blocked: true, ..done(Some(current.clone())) });
        }
        if decision.letter.is_some() {
            return None;
        }
        let verb_context = verb_context(&item.what);
        if let Some(verb_context) = verb_context.filter(|verb_context| verb_context.dry_run) {
            self.answer(item, VerbAnswerRow::of(change, &verb_context.request_hash).as_ref()).await;
            return Some(done(Some(current.clone())));
        }
        match &change.fate {
            InputDisposition::Later(_) => {
                let later = match decision.input().map(|input| (&input.what, input.time)) {
                    Some((InstanceInputKind::Timer { name, generation }, due)) => {
                        let (name, generation) = (name.clone(), *generation);
                        Some(TimerRow { due, correlation: correlation.clone(), name, generation })
                    }
                    _ => None,
                };
                let mut done = done(Some(current.clone()));
                done.timers = TimerDelta { holds_back: true, later, ..TimerDelta::default() };
                done.follows = None;
                Some(done)
            }
            InputDisposition::Ignored(_)
                if change.journal.is_empty()
                    && change.record == current.record
                    // A request needs its answer stored, so that a repeat gets the same one.
                    && verb_context.is_none()
                    && !matches!(item.what, InstanceAction::Answered { .. } | InstanceAction::Occurrence(_)) =>
            {
                Some(done(Some(current.clone())))
            }
            _ => None,
        }
    }

    /// Sends the answer to the caller, if the input is a request.
    pub(super) async fn answer(&self, item: &QueuedInput, answer: Option<&VerbAnswerRow>) {
        let (Some(verb_context), Some(answer)) = (verb_context(&item.what), answer) else { return };
        if let Some(to) = &verb_context.reply_to {
            answers::answer(self.rows.around(), to, answer).await;
        }
    }

    /// Answers a repeated request with its first answer.
    async fn answer_again(&self, decision: &InputDecision, item: &QueuedInput) -> Result<(), LaneExit> {
        if let InstanceAction::DeadLetterRequest(operation) = &item.what {
            return self.answer_letter_request_again(operation, decision).await;
        }
        let what = decision.input().map(|input| &input.what);
        let (Some(InstanceInputKind::Verb { request, .. }), Some(verb_context)) =
            (what, verb_context(&item.what))
        else {
            return Ok(());
        };
        let reused = |why| VerbAnswerRow::reused(&verb_context.request_hash, why);
        let answer = match self.rows.get(&LaneRowKey::request(request)).await? {
            Some(row) => {
                let answer: VerbAnswerRow = self.rows.decode(&row)?;
                let is_it = answer.request_hash == verb_context.request_hash;
                if is_it { answer } else { reused("this request_id came with another body before") }
            }
            None => reused("this request_id was used more than a day ago, and its answer is gone"),
        };
        self.answer(item, Some(&answer)).await;
        Ok(())
    }

    /// Removes what is left of an instance that ended long ago, except its tombstone. If the lane had no owner for long, the tombstone is
    /// gone as well, and a new instance may exist, which keeps its rows.
    async fn retire(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        due: Timestamp,
    ) -> Result<(), LaneExit> {
        let is_over = match current.record.as_ref().map(|record| &record.entry) {
            Some(CorrelationEntry::Ended(tombstone)) => super::batch::retired_at(tombstone.ended) <= due,
            Some(CorrelationEntry::Live(_) | CorrelationEntry::Awaited(_)) => false,
            None => true,
        };
        let mut removed = 0;
        // Kept events come last, since their number is counted.
        let ranges = [
            LaneRowKey::journal_of(correlation),
            LaneRowKey::parked_of(correlation),
            LaneRowKey::kept_of(correlation),
        ];
        for range in ranges.into_iter().filter(|_| is_over) {
            removed = self.rows.delete_all(range).await?;
        }
        let row = TimerRow {
            due,
            correlation: correlation.clone(),
            name: super::timers::RETIRE.to_owned(),
            generation: 0,
        };
        self.rows.commit(Vec::new(), vec![RowOperation::Delete(crate::lane::rows::row(&row.key()))]).await?;
        self.census.change(&census::retired(removed));
        Ok(())
    }

    /// Assembles the commit of one input.
    fn commit_of(
        &self,
        correlation: &CorrelationId,
        current: &CachedRecord,
        decision: &InputDecision,
        item: &QueuedInput,
        note: Option<RowOperation>,
    ) -> InputCommit {
        let InputDecision { what, origin, change, letter } = decision;
        let mut commit = InputCommit::begin(correlation, current, change);
        let kept = letter.as_ref().and_then(|turn| turn.kept.as_ref());
        match what {
            Some(HeldInput::Input(input)) => commit.count_once(correlation, input, *origin),
            Some(HeldInput::Dead(dead)) if *origin == InputOrigin::Fresh => {
                commit.count_message_once(correlation, &dead.raw.id, dead.raw.time);
            }
            Some(HeldInput::Dead(_)) | None => {}
        }
        if !matches!((origin, &change.fate), (InputOrigin::Letter(_), InputDisposition::DeadLetter(_))) {
            commit.take_input(correlation, *origin);
        }
        commit.put_input(correlation, what.as_ref(), kept, &change.fate);
        if let InstanceAction::Occurrence(occurrence) = &item.what {
            commit.put_next(occurrence);
        }
        if let InstanceAction::Answered { number, .. } = &item.what {
            commit.ops.push(RowOperation::Delete(crate::lane::rows::row(&LaneRowKey::outbox(*number))));
        }
        commit.put_change(self, correlation, current, change);
        commit.put_outgoing(self, correlation, current.record.as_ref(), change);
        if let InstanceAction::DeadLetterRequest(operation) = &item.what {
            commit.put_letter_request(self, correlation, operation, decision);
        } else {
            let answer = verb_context(&item.what)
                .and_then(|verb_context| VerbAnswerRow::of(change, &verb_context.request_hash));
            commit.put_answer(decision.input(), *origin, answer);
        }
        commit.ops.extend(note);
        commit
    }
}
