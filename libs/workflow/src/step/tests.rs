//! Sagas from their manifests to their ends, with a stand-in for everything around them.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{BlobHash, CommandId, CorrelationId, SagaStatus, TenantId, Timestamp};

use crate::Json;

use super::*;
use crate::InputId;
use crate::input::{CommandOutcome, CommandResult};
use crate::instance::{decode, encode};
use crate::manifest::{ManifestDefinition, read};
use crate::replay::{ComputedTransition, ReplayDifference, chain, replay, verify_transition};

mod compensation;
mod golden;
mod journeys;
mod limits;
mod operators;
mod random;

/// The definitions of a manifest, those that are sagas.
fn sagas(text: &str) -> Vec<Arc<Saga>> {
    let documents = read("test.yaml", text).unwrap_or_else(|problems| panic!("{problems}"));
    let sagas = documents.into_iter().filter_map(|document| match document.definition {
        ManifestDefinition::Saga(saga) => Some(saga),
        ManifestDefinition::Provider(_) => None,
    });
    sagas.collect()
}

fn saga(text: &str) -> Arc<Saga> {
    sagas(text).remove(0)
}

fn json(text: &str) -> Json {
    crate::json::read(text.as_bytes(), 100_000).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// One correlation, with everything that is kept of it.
struct InstanceHarness {
    saga: Arc<Saga>,
    definitions: BTreeMap<BlobHash, Arc<Saga>>,
    tenant: TenantId,
    correlation: CorrelationId,
    record: Option<CorrelationRecord>,
    kept: DeferredEvents,
    held: BTreeMap<u64, InstanceInput>,
    letters: BTreeMap<u64, (DeadLetter, InstanceInput)>,
    journal: Vec<JournalRow>,
    /// Everything that was ordered, in order.
    ordered: Vec<WorkItem>,
    now: u64,
}

impl InstanceHarness {
    fn new(saga: &Arc<Saga>) -> Self {
        Self {
            saga: Arc::clone(saga),
            definitions: BTreeMap::from([(saga.hash, Arc::clone(saga))]),
            tenant: "acme".parse().expect("a tenant"),
            correlation: "c-1".parse().expect("a correlation"),
            record: None,
            kept: DeferredEvents::new(),
            held: BTreeMap::new(),
            letters: BTreeMap::new(),
            journal: Vec::new(),
            ordered: Vec::new(),
            now: 1_700_000_000_000,
        }
    }

    fn of(text: &str) -> Self {
        Self::new(&saga(text))
    }

    fn give(&mut self, input: &InstanceInput, origin: InputOrigin) -> InputDisposition {
        let whose = InstanceIdentity { tenant: &self.tenant, correlation: &self.correlation };
        let (versions, change) = match (&input.what, &self.record) {
            (InstanceInputKind::Verb { verb: Verb::Migrate, .. }, Some(record)) => {
                let mut versions: Vec<_> = self.definitions.values().map(Arc::clone).collect();
                versions.sort_by_key(|saga| std::cmp::Reverse(saga.version));
                let change = migrate(&versions, whose, record, input, &self.kept);
                (versions, change)
            }
            (_, record) => {
                let pinned =
                    record.as_ref().and_then(CorrelationRecord::definition).unwrap_or(self.saga.hash);
                let saga = &self.definitions[&pinned];
                let change = apply(saga, whose, record.as_ref(), input, origin, &self.kept);
                (vec![Arc::clone(saga)], change)
            }
        };
        let (record, kept) = (self.record.as_ref(), &self.kept);
        let made = ComputedTransition { versions: &versions, whose, record, origin, kept, change: &change };
        assert_eq!(verify_transition(made), Ok(!change.journal.is_empty()), "it comes to the same once more");
        self.commit(input, origin, change)
    }

    fn commit(
        &mut self,
        input: &InstanceInput,
        origin: InputOrigin,
        change: SagaTransition,
    ) -> InputDisposition {
        let before = self.record.take();
        let waits =
            matches!((&change.fate, origin), (InputDisposition::Held(_), _) | (_, InputOrigin::Held(_)));
        let change =
            if waits { change.weighing(before.as_ref(), encode(input).len() as u64) } else { change };
        for number in &change.removed {
            assert!(self.kept.remove(number).is_some(), "{number} was not kept");
        }
        for (number, input) in change.deferred.clone() {
            assert!(self.kept.insert(number, input).is_none(), "{number} is kept twice");
        }
        if let InputOrigin::Held(number) = origin
            && change.record.as_ref().is_some_and(|record| record.held.first > number)
        {
            self.held.remove(&number);
        }
        if let InputOrigin::Letter(number) = origin {
            self.letters.remove(&number);
        }
        match &change.fate {
            InputDisposition::Held(number) => assert!(self.held.insert(*number, input.clone()).is_none()),
            InputDisposition::DeadLetter(letter) => {
                drop(self.letters.insert(letter.number, (letter.clone(), input.clone())))
            }
            _ => {}
        }
        for (letter, input) in change.dead_letters.clone() {
            assert!(self.letters.insert(letter.number, (letter, input)).is_none());
        }
        let revision = before.as_ref().and_then(chain).map_or(0, |(revision, _)| revision);
        for (row, expected) in change.journal.iter().zip(revision + 1..) {
            assert_eq!(row.revision, expected, "a row for each revision");
        }
        let ids: Vec<_> = change.journal.iter().flat_map(|row| row.work.clone()).collect();
        assert_eq!(ids, change.work.iter().map(|item| item.command).collect::<Vec<_>>());
        self.journal.extend(change.journal.clone());
        self.ordered.extend(change.work.clone());
        // Everything comes back from a store as it went there.
        self.record =
            change.record.as_ref().map(|record| decode(&encode(record)).expect("as it was written"));
        assert_eq!(self.record, change.record);
        for row in &change.journal {
            assert_eq!(decode::<JournalRow>(&encode(row)).as_ref(), Ok(row));
        }
        change.fate
    }

    /// Gives what was held back, once nothing holds it back any more.
    fn drain(&mut self) {
        while let Some(record) = &self.record
            && !record.holds_back()
            && !record.held.is_empty()
            && record.instance().is_some()
        {
            let number = record.held.first;
            let input = self.held[&number].clone();
            self.give(&input, InputOrigin::Held(number));
        }
    }

    fn event(&mut self, id: &str, kind: &str, data: &str) -> InputDisposition {
        self.give(&self.event_input(id, kind, data), InputOrigin::Fresh)
    }

    fn event_input(&self, id: &str, kind: &str, data: &str) -> InstanceInput {
        let event =
            DomainEvent { id: InputId::Event(id.to_owned()), ..DomainEvent::sent(id, kind, json(data)) };
        InstanceInput { time: Timestamp::from_millis(self.now), what: InstanceInputKind::Event(event) }
    }

    fn verb(&mut self, request: &str, verb: Verb) -> InputDisposition {
        let what = InstanceInputKind::Verb { request: request.to_owned(), verb };
        let fate =
            self.give(&InstanceInput { time: Timestamp::from_millis(self.now), what }, InputOrigin::Fresh);
        self.drain();
        fate
    }

    fn result(&mut self, command: CommandId, outcome: CommandOutcome, payload: &str) -> InputDisposition {
        let may_have_happened = matches!(outcome, CommandOutcome::Unknown);
        let result = CommandResult { command, outcome, may_have_happened, payload: json(payload) };
        let input =
            InstanceInput { time: Timestamp::from_millis(self.now), what: InstanceInputKind::Result(result) };
        self.give(&input, InputOrigin::Fresh)
    }

    /// Alters the change that an event makes, and tells what making it again says of that.
    fn differs(
        &self,
        input: &InstanceInput,
        alter: impl FnOnce(&mut SagaTransition),
    ) -> Result<bool, ReplayDifference> {
        let whose = InstanceIdentity { tenant: &self.tenant, correlation: &self.correlation };
        let (record, origin, kept) = (self.record.as_ref(), InputOrigin::Fresh, &self.kept);
        let mut change = apply(&self.saga, whose, record, input, origin, kept);
        alter(&mut change);
        let versions = std::slice::from_ref(&self.saga);
        verify_transition(ComputedTransition { versions, whose, record, origin, kept, change: &change })
    }

    /// The command that is open for a branch.
    fn open(&self, branch: &str) -> CommandId {
        let open = self.instance().open.iter().find(|(_, open)| open.branch.as_str() == branch);
        *open.unwrap_or_else(|| panic!("nothing is open for {branch}: {:?}", self.instance().open)).0
    }

    fn succeed(&mut self, branch: &str, payload: &str) -> InputDisposition {
        self.result(self.open(branch), CommandOutcome::Succeeded, payload)
    }

    fn fail(&mut self, branch: &str, payload: &str) -> InputDisposition {
        self.result(self.open(branch), CommandOutcome::Failed, payload)
    }

    /// Fires what is due until then; gives how many were.
    fn sleep_until(&mut self, millis: u64) -> usize {
        let mut fired = 0;
        while let Some((due, name, generation)) = self.next_timer().filter(|(due, ..)| *due <= millis) {
            self.now = self.now.max(due);
            let input = InstanceInput {
                time: Timestamp::from_millis(due),
                what: InstanceInputKind::Timer { name: name.clone(), generation },
            };
            if matches!(self.give(&input, InputOrigin::Fresh), InputDisposition::Later(_)) {
                break;
            }
            fired += 1;
        }
        self.now = self.now.max(millis);
        fired
    }

    fn next_timer(&self) -> Option<(u64, String, u64)> {
        let timers = timers::of(self.record.as_ref()?);
        timers
            .into_iter()
            .map(|(name, timer)| (timer.due.as_millis(), name.to_owned(), timer.generation))
            .min()
    }

    fn instance(&self) -> &SagaInstance {
        self.record.as_ref().and_then(CorrelationRecord::instance).expect("an instance")
    }

    fn status(&self) -> SagaStatus {
        match &self.record.as_ref().expect("a record").entry {
            CorrelationEntry::Live(instance) => instance.status,
            CorrelationEntry::Ended(tombstone) => tombstone.status,
            CorrelationEntry::Awaited(_) => panic!("it has not started"),
        }
    }

    fn step(&self) -> &str {
        self.instance().step.as_str()
    }

    /// Lists the work that was ordered, in short: `effect`, `Command`, or `-effect` for a cancelled effect.
    fn orders(&self) -> Vec<String> {
        let short = |item: &WorkItem| match &item.what {
            WorkPayload::Effect { effect, .. } => effect.to_string(),
            WorkPayload::Command { kind, .. } => kind.clone(),
            WorkPayload::Cancel { effect, .. } => format!("-{effect}"),
        };
        self.ordered.iter().map(short).collect()
    }

    /// Runs the journal again.
    fn assert_replays(&self) {
        let whose = InstanceIdentity { tenant: &self.tenant, correlation: &self.correlation };
        let find = |hash| self.definitions.get(&hash).cloned();
        let again = replay(find, whose, &self.journal).expect("the same");
        let (again, record) = (again.as_ref().and_then(chain), self.record.as_ref().and_then(chain));
        assert_eq!(again, record);
        assert!(again.is_some());
    }
}
