//! One input, from its line to its commit.

use model::{BlobHash, CorrelationId, Timestamp};
use store::{Op, Outcome, Versioned};
use workflow::Key;
use workflow::definition::Saga;
use workflow::input::{Input, Verb, What};
use workflow::instance::{Entry, Record, encode};
use workflow::replay::Made;
use workflow::step::{self, Change, Fate, KeptEvents, Origin, Refusal, Whose};

use std::sync::Arc;

use super::answer::AnswerRow;
use super::batch::{Commit, HeldRow, HeldWhat};
use super::census;
use super::intake::{Asked, DeadMessage, Wanted};
use super::letters::LetterTurn;
use super::starved::Short;
use super::summary::Summary;
use super::timers::{DueRow, TimerDelta};
use super::told::outcome;
use super::{Cached, Item, Shared};
use crate::definitions::DefinitionError;
use crate::lane::relay::OutboxRow;
use crate::lane::{Ended, Pauses, answers};
use crate::spans::Begun;

/// An input that is worked on.
pub(super) struct Work {
    pub(super) shared: Arc<Shared>,
    pub(super) correlation: CorrelationId,
    pub(super) item: Item,
    /// The record, where it is in memory.
    pub(super) cached: Option<Cached>,
    /// The change that notes the position of its source.
    pub(super) note: Option<Op>,
}

/// What became of an input.
pub(super) struct Done {
    pub(super) correlation: CorrelationId,
    pub(super) item: Item,
    /// The record; nothing where it has to be read again.
    pub(super) cached: Option<Cached>,
    pub(super) timers: TimerDelta,
    pub(super) outgoing: Vec<(u64, OutboxRow)>,
    /// What is to be done next of the same correlation.
    pub(super) follows: Option<Wanted>,
    /// Whether there was no room for it, so that it has to be given again.
    pub(super) is_blocked: bool,
    /// Room for want of which nothing was done.
    pub(super) starved: Option<Short>,
    /// Whether it was committed, and the position of its source with it.
    pub(super) is_committed: bool,
}

/// What was decided about an input.
pub(super) struct Decision {
    /// What came; nothing where it is gone, or is given to nobody.
    pub(super) what: Option<HeldWhat>,
    pub(super) origin: Origin,
    pub(super) change: Change,
    /// What somebody asked for about a letter.
    pub(super) letter: Option<LetterTurn>,
}

impl Work {
    pub(super) async fn run(self) -> Result<Done, Ended> {
        let Self { shared, correlation, item, mut cached, note } = self;
        let _counted = shared.rows.around().metrics.under_way();
        let mut begun = Some(Begun::transition());
        loop {
            let current = match cached.take() {
                Some(current) => current,
                None => shared.load(&correlation).await?,
            };
            if let Some(timers) = shared.without_step(&correlation, &current, &item.what).await? {
                // Of what was retired nothing is in memory.
                let cached = Some(current).filter(|_| !matches!(item.what, Wanted::Retire(_)));
                return Ok(Done { timers, ..Done::unchanged(correlation, item, cached) });
            }
            let Some(decision) = shared.decide(&correlation, &current, &item.what).await? else {
                return Ok(Done::unchanged(correlation, item, Some(current)));
            };
            service::crash_point("event.stepped");
            if let Some(done) = shared.without_commit(&correlation, &current, &decision, &item).await {
                shared.count(outcome(&decision.change.fate));
                shared.tell(begun.take(), &correlation, &decision, &item);
                return Ok(Done { item, correlation, ..done });
            }
            let room = match shared.room_for(&decision, &item) {
                Ok(room) => room,
                Err(full) => {
                    let starved = shared.refuse_start(&item, &full).await.then_some(full);
                    return Ok(Done { starved, ..Done::unchanged(correlation, item, Some(current)) });
                }
            };
            let commit = shared.commit_of(&correlation, &current, &decision, &item, note.clone());
            let Commit { expect, ops, timers, outgoing, answer } = commit;
            service::crash_point("event.commit_sent");
            let outcome = shared.rows.commit(expect, ops).await?;
            match shared.known(&correlation, &decision.change, outcome).await? {
                Outcome::Committed(revision) => {
                    shared.note_commit(&decision);
                    shared.tell(begun.take(), &correlation, &decision, &item);
                    shared.note_usage(&current, &decision, room, &timers);
                    shared.census.change(&census::change(&current, &decision, &timers));
                    shared.answer(&item, answer.as_ref()).await;
                    shared.answer_word(&item, &decision).await;
                    let is_swept = decision.letter.as_ref().is_none_or(LetterTurn::is_whole);
                    let record = decision.change.record;
                    let follows =
                        next_held(record.as_ref()).or_else(|| (!is_swept).then_some(Wanted::Resume));
                    let cached = Some(Cached { record, revision });
                    return Ok(Done {
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
                Outcome::Exists(_) => {
                    shared.count("repeat");
                    shared.answer_again(&decision, &item).await?;
                    let is_occurrence = matches!(item.what, Wanted::Occurrence(_));
                    let mut done = Done::unchanged(correlation, item, None);
                    if is_occurrence {
                        // This very commit was made, and its answer lost: the next one is waited for.
                        done.timers = timers;
                    }
                    return Ok(done);
                }
                // Another commit of this lane changed it.
                Outcome::Conflict { .. } => {}
                // It ends the lane where it is noticed.
                Outcome::Fenced { epoch } => {
                    return Err(Ended::Fenced { lane: shared.rows.lane.to_string(), epoch });
                }
            }
        }
    }
}

impl Done {
    fn unchanged(correlation: CorrelationId, item: Item, cached: Option<Cached>) -> Self {
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

/// What was kept back and may be given now.
fn next_held(record: Option<&Record>) -> Option<Wanted> {
    let record = record?;
    let may = !record.holds_back() && !record.held.is_empty() && !matches!(record.entry, Entry::Ended(_));
    may.then_some(Wanted::Held(record.held.first))
}

impl Shared {
    /// Reads a record.
    async fn load(&self, correlation: &CorrelationId) -> Result<Cached, Ended> {
        let found = self.rows.get(&Key::saga(correlation)).await?;
        let Some(found) = found else { return Ok(Cached { record: None, revision: 0 }) };
        let record = self.rows.decode(&found)?;
        Ok(Cached { record: Some(record), revision: found.revision })
    }

    /// What became of a commit, also where its first answer was lost and the next one says that the record has changed: nobody else
    /// writes the record meanwhile, so one that is as this commit makes it was made by it.
    async fn known(
        &self,
        correlation: &CorrelationId,
        change: &Change,
        outcome: Outcome,
    ) -> Result<Outcome, Ended> {
        let (Outcome::Conflict { .. }, Some(record)) = (&outcome, &change.record) else { return Ok(outcome) };
        let found = self.rows.get(&Key::saga(correlation)).await?;
        let ours = found.filter(|found| found.value == encode(record));
        Ok(ours.map_or(outcome, |found| Outcome::Committed(found.revision)))
    }

    /// Reads the events that a record says are kept.
    async fn kept(&self, correlation: &CorrelationId, record: Option<&Record>) -> Result<KeptEvents, Ended> {
        let kept = match record.map(|record| &record.entry) {
            Some(Entry::Live(instance)) => &instance.kept,
            Some(Entry::Awaited(awaited)) => &awaited.kept,
            Some(Entry::Ended(_)) | None => return Ok(KeptEvents::new()),
        };
        let keys: Vec<_> = kept.iter().map(|kept| Key::kept(correlation, kept.number)).collect();
        if keys.is_empty() {
            return Ok(KeptEvents::new());
        }
        let rows = self.rows.read(&keys).await?;
        let decode = |(number, row): (u64, Option<Versioned>)| {
            Some(row?).map(|row| Ok((number, self.rows.decode::<Input>(&row)?)))
        };
        kept.iter().map(|kept| kept.number).zip(rows).filter_map(decode).collect()
    }

    /// Does what needs no step; gives what it changes of timers, or nothing where a step is needed.
    async fn without_step(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        wanted: &Wanted,
    ) -> Result<Option<TimerDelta>, Ended> {
        let mut timers = TimerDelta::default();
        match wanted {
            Wanted::Retire(due) => {
                self.retire(correlation, current, *due).await?;
                timers.dropped.push((*due, super::timers::RETIRE.to_owned()));
            }
            Wanted::Occurrence(occurrence) if occurrence.start.is_none() => {
                timers = self.pass(occurrence).await?;
            }
            Wanted::Resume => {
                self.sweep(correlation, current).await?;
                timers.holds_back = current.record.as_ref().is_some_and(Record::holds_back);
            }
            _ => return Ok(None),
        }
        Ok(Some(timers))
    }

    /// Counts what was committed.
    fn note_commit(&self, decision: &Decision) {
        let metrics = &self.rows.around().metrics;
        let fate = &decision.change.fate;
        let is_timer = matches!(decision.input().map(|input| &input.what), Some(What::Timer { .. }));
        service::crash_point(match fate {
            _ if decision.is_of_redrive() => "redrive.committed",
            Fate::Dead(_) => "park.committed",
            _ if is_timer => "timer.committed",
            _ => "event.committed",
        });
        metrics.timers_fired.inc_by(u64::from(is_timer));
        self.count(outcome(fate));
        let is_dead = matches!(fate, Fate::Dead(_)) && decision.letter.is_none();
        let letters = decision.change.letters.len() as u64 + u64::from(is_dead);
        metrics.letters.add(&self.tenant, letters);
    }

    /// Decides what follows; nothing where what was wanted is not there any more.
    async fn decide(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        wanted: &Wanted,
    ) -> Result<Option<Decision>, Ended> {
        let decision = self.unweighed(correlation, current, wanted).await?;
        Ok(decision.map(|decision| decision.weighing(correlation, current, wanted)))
    }

    /// Decides what follows, however many bytes wait already.
    async fn unweighed(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        wanted: &Wanted,
    ) -> Result<Option<Decision>, Ended> {
        let record = current.record.as_ref();
        let (input, origin) = match wanted {
            Wanted::Input { input, origin, .. } => ((**input).clone(), *origin),
            Wanted::Answered { input, .. } => ((**input).clone(), Origin::Fresh),
            Wanted::Held(number) => {
                let row = self.rows.get(&Key::parked(correlation, *number)).await?;
                let Some(row) = row else { return Ok(None) };
                let origin = Origin::Held(*number);
                match self.rows.decode::<HeldRow>(&row)?.what {
                    HeldWhat::Input(input) => (*input, origin),
                    HeldWhat::Dead(dead) => return Ok(Some(Decision::bury(record, &dead, origin))),
                }
            }
            Wanted::Dead(dead) => return Ok(Some(Decision::bury(record, dead, Origin::Fresh))),
            Wanted::Word(asking) => return self.decide_word(correlation, current, asking).await.map(Some),
            Wanted::Occurrence(occurrence) => {
                let Some(input) = occurrence.input() else { return Ok(None) };
                (input, Origin::Fresh)
            }
            Wanted::Resume | Wanted::Retire(_) => return Ok(None),
        };
        if let Some(refusal) = asked(wanted).and_then(|asked| self.refusal(asked, record, &input)) {
            let change = Change::nothing(Fate::Refused(refusal), record.cloned());
            let what = Some(HeldWhat::Input(Box::new(input)));
            return Ok(Some(Decision { what, origin, change, letter: None }));
        }
        let Some(change) = self.apply(correlation, current, &input, origin).await? else {
            return Ok(None);
        };
        let what = Some(HeldWhat::Input(Box::new(input)));
        Ok(Some(Decision { what, origin, change, letter: None }))
    }

    /// Gives an input to an instance; nothing where its saga has no definition any more.
    pub(super) async fn apply(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        input: &Input,
        origin: Origin,
    ) -> Result<Option<Change>, Ended> {
        let record = current.record.as_ref();
        let kept = self.kept(correlation, record).await?;
        let whose = Whose { tenant: &self.tenant, correlation };
        if let (What::Verb { verb: Verb::Migrate, .. }, Some(record)) = (&input.what, record)
            && record.instance().is_some()
        {
            let versions = self.definitions.versions(&self.tenant, &self.saga);
            let change = step::migrate(&versions, whose, record, input, &kept);
            let record = Some(record);
            self.verify(Made { versions: &versions, whose, record, origin, kept: &kept, change: &change });
            return Ok(Some(change));
        }
        let pinned = record.and_then(Record::definition);
        let Some(saga) = self.definition(pinned).await? else { return Ok(None) };
        let change = step::apply(&saga, whose, record, input, origin, &kept);
        self.verify(Made { versions: &[saga], whose, record, origin, kept: &kept, change: &change });
        Ok(Some(change))
    }

    /// Why a request is refused whatever the definition says.
    fn refusal(&self, asked: &Asked, record: Option<&Record>, input: &Input) -> Option<Refusal> {
        let refuse = |reason: &str, message: String| Some(Refusal { reason: reason.to_owned(), message });
        let is_start = matches!(&input.what, What::Verb { verb: Verb::Start { .. }, .. });
        if is_start && self.definitions.in_force().saga(&self.tenant, &self.saga).is_none() {
            return refuse("SAGA_NOT_FOUND", format!("the saga {} is not in force", self.saga));
        }
        let revision = record.and_then(Summary::of)?.revision;
        if asked.expected_revision == 0 || asked.expected_revision == revision {
            return None;
        }
        let expected = asked.expected_revision;
        refuse("REVISION_MISMATCH", format!("its revision is {revision} by now, and not {expected}"))
    }

    /// The definition of this hash, or the one that is in force.
    async fn definition(&self, pinned: Option<BlobHash>) -> Result<Option<Arc<Saga>>, Ended> {
        let Some(hash) = pinned else {
            let in_force = self.definitions.in_force();
            return Ok(in_force.without_instance(&self.tenant, &self.saga).map(Arc::clone));
        };
        let mut pauses = Pauses::default();
        loop {
            match self.definitions.pinned_to(hash).await {
                Ok(saga) => return Ok(Some(saga)),
                Err(DefinitionError::Store(error)) => {
                    tracing::warn!(lane = %self.rows.lane, "{error}; it is asked again");
                    tokio::time::sleep(pauses.next()).await;
                }
                Err(error) => return Err(Ended::damaged(&self.rows.lane, error)),
            }
        }
    }

    /// Ends what needs no commit: what changes nothing, what is only asked, and what has to wait.
    async fn without_commit(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        decision: &Decision,
        item: &Item,
    ) -> Option<Done> {
        let change = &decision.change;
        let done = |cached: Option<Cached>| Done::unchanged(correlation.clone(), Item::nothing(), cached);
        if change.fate == Fate::NoRoom {
            // Also a letter that another lane has passed on, and has no more.
            return Some(Done { is_blocked: true, ..done(Some(current.clone())) });
        }
        if decision.letter.is_some() {
            return None;
        }
        let asked = asked(&item.what);
        if let Some(asked) = asked.filter(|asked| asked.dry_run) {
            self.answer(item, AnswerRow::of(change, &asked.request_hash).as_ref()).await;
            return Some(done(Some(current.clone())));
        }
        match &change.fate {
            Fate::Later(_) => {
                let later = match decision.input().map(|input| (&input.what, input.time)) {
                    Some((What::Timer { name, generation }, due)) => {
                        let (name, generation) = (name.clone(), *generation);
                        Some(DueRow { due, correlation: correlation.clone(), name, generation })
                    }
                    _ => None,
                };
                let mut done = done(Some(current.clone()));
                done.timers = TimerDelta { holds_back: true, later, ..TimerDelta::default() };
                done.follows = None;
                Some(done)
            }
            Fate::Ignored(_)
                if change.journal.is_empty()
                    && change.record == current.record
                    // Whoever asked is answered the same each time.
                    && asked.is_none()
                    && !matches!(item.what, Wanted::Answered { .. } | Wanted::Occurrence(_)) =>
            {
                Some(done(Some(current.clone())))
            }
            _ => None,
        }
    }

    /// Answers whoever asked.
    pub(super) async fn answer(&self, item: &Item, answer: Option<&AnswerRow>) {
        let (Some(asked), Some(answer)) = (asked(&item.what), answer) else { return };
        if let Some(to) = &asked.reply_to {
            answers::answer(self.rows.around(), to, answer).await;
        }
    }

    /// Answers whoever asked once more, with what was answered first.
    async fn answer_again(&self, decision: &Decision, item: &Item) -> Result<(), Ended> {
        if let Wanted::Word(asking) = &item.what {
            return self.answer_word_again(asking, decision).await;
        }
        let what = decision.input().map(|input| &input.what);
        let (Some(What::Verb { request, .. }), Some(asked)) = (what, asked(&item.what)) else {
            return Ok(());
        };
        let reused = |why| AnswerRow::reused(&asked.request_hash, why);
        let answer = match self.rows.get(&Key::request(request)).await? {
            Some(row) => {
                let answer: AnswerRow = self.rows.decode(&row)?;
                let is_it = answer.request_hash == asked.request_hash;
                if is_it { answer } else { reused("this request_id came with another body before") }
            }
            None => reused("this request_id was used more than a day ago, and its answer is gone"),
        };
        self.answer(item, Some(&answer)).await;
        Ok(())
    }

    /// Removes what is left of an instance that ended long ago, but for its tombstone. Where the lane had no owner for long, that is gone
    /// as well, and there may be another instance by now, which keeps what it has.
    async fn retire(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        due: Timestamp,
    ) -> Result<(), Ended> {
        let is_over = match current.record.as_ref().map(|record| &record.entry) {
            Some(Entry::Ended(tombstone)) => super::batch::retired_at(tombstone.ended) <= due,
            Some(Entry::Live(_) | Entry::Awaited(_)) => false,
            None => true,
        };
        let mut removed = 0;
        // Those that are counted come last.
        let ranges = [Key::journal_of(correlation), Key::parked_of(correlation), Key::kept_of(correlation)];
        for range in ranges.into_iter().filter(|_| is_over) {
            removed = self.rows.delete_all(range).await?;
        }
        let row = DueRow {
            due,
            correlation: correlation.clone(),
            name: super::timers::RETIRE.to_owned(),
            generation: 0,
        };
        self.rows.commit(Vec::new(), vec![Op::Delete(crate::lane::rows::row(&row.key()))]).await?;
        self.census.change(&census::retired(removed));
        Ok(())
    }

    /// Puts together what one commit has to make.
    fn commit_of(
        &self,
        correlation: &CorrelationId,
        current: &Cached,
        decision: &Decision,
        item: &Item,
        note: Option<Op>,
    ) -> Commit {
        let Decision { what, origin, change, letter } = decision;
        let mut commit = Commit::begin(correlation, current, change);
        let kept = letter.as_ref().and_then(|turn| turn.kept.as_ref());
        match what {
            Some(HeldWhat::Input(input)) => commit.count_once(correlation, input, *origin),
            Some(HeldWhat::Dead(dead)) if *origin == Origin::Fresh => {
                commit.count_message_once(correlation, &dead.raw.id, dead.raw.time);
            }
            Some(HeldWhat::Dead(_)) | None => {}
        }
        if !matches!((origin, &change.fate), (Origin::Letter(_), Fate::Dead(_))) {
            commit.take_input(correlation, *origin);
        }
        commit.put_input(correlation, what.as_ref(), kept, &change.fate);
        if let Wanted::Occurrence(occurrence) = &item.what {
            commit.put_next(occurrence);
        }
        if let Wanted::Answered { number, .. } = &item.what {
            commit.ops.push(Op::Delete(crate::lane::rows::row(&Key::outbox(*number))));
        }
        commit.put_change(self, correlation, current, change);
        commit.put_outgoing(self, correlation, current.record.as_ref(), change);
        if let Wanted::Word(asking) = &item.what {
            commit.put_word(self, correlation, asking, decision);
        } else {
            let answer = asked(&item.what).and_then(|asked| AnswerRow::of(change, &asked.request_hash));
            commit.put_answer(decision.input(), *origin, answer);
        }
        commit.ops.extend(note);
        commit
    }
}

impl Decision {
    /// A message is a dead letter.
    fn bury(record: Option<&Record>, dead: &DeadMessage, origin: Origin) -> Self {
        let change = step::bury(record, &dead.code, &dead.why, dead.parks, origin);
        let what = Some(HeldWhat::Dead(Box::new(dead.clone())));
        Self { what, origin, change, letter: None }
    }

    /// Counts the bytes of what waits behind a letter or a pause. A request for which there is no room is refused: whoever asks can ask
    /// again, and what waits for room would be in the way of other requests.
    fn weighing(mut self, correlation: &CorrelationId, current: &Cached, wanted: &Wanted) -> Self {
        let before = current.record.as_ref();
        let has_count = self.change.fate == Fate::NoRoom;
        let waits = matches!((&self.change.fate, self.origin), (Fate::Held(_), _) | (_, Origin::Held(_)));
        if let Some(what) = self.what.as_ref().filter(|_| waits) {
            let row = HeldRow { correlation: correlation.clone(), what: what.clone() };
            self.change = self.change.weighing(before, encode(&row).len() as u64);
        }
        if self.change.fate == Fate::NoRoom {
            let (reason, full) = match has_count {
                true => ("LIMIT_EXCEEDED", format!("{} inputs", step::HELD_MAX)),
                false => ("BYTES_EXCEEDED", format!("inputs of {} bytes", step::HELD_BYTES_MAX)),
            };
            let message = format!("{full} wait behind a dead letter or a pause already");
            if matches!(self.origin, Origin::Letter(_)) {
                // It stays the letter that it is.
                return Self::refused(current, "LIMIT_EXCEEDED", message);
            }
            if asked(wanted).is_none() {
                return self;
            }
            let refusal = Refusal { reason: reason.to_owned(), message };
            self.change = Change::nothing(Fate::Refused(refusal), before.cloned());
        }
        self
    }

    /// The input; nothing where what came is none.
    pub(super) fn input(&self) -> Option<&Input> {
        match &self.what {
            Some(HeldWhat::Input(input)) => Some(input),
            Some(HeldWhat::Dead(_)) | None => None,
        }
    }

    /// Whether it is one of a letter that is applied, or of what waited behind it.
    const fn is_of_redrive(&self) -> bool {
        matches!(self.origin, Origin::Held(_) | Origin::Letter(_)) || self.letter.is_some()
    }
}

pub(super) fn asked(wanted: &Wanted) -> Option<&Asked> {
    match wanted {
        Wanted::Input { asked, .. } => asked.as_ref(),
        Wanted::Held(_)
        | Wanted::Dead(_)
        | Wanted::Answered { .. }
        | Wanted::Occurrence(_)
        | Wanted::Word(_)
        | Wanted::Resume
        | Wanted::Retire(_) => None,
    }
}
