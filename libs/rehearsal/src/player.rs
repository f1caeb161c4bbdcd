//! One run of a scenario, in virtual time.
//!
//! The player replaces the service around the pure core: the store's knowledge of seen events, held inputs, dead letters,
//! timers that fire when due, and providers that answer. At the same moment, answers come first, then the inputs of the
//! scenario, then timers, which wait for their sources in a service as well.

mod answers;
mod display;
mod inputs;

use std::collections::{BTreeMap, BTreeSet};

use model::{CommandId, Timestamp};
use serde::Serialize;
use workflow::Json;
use workflow::definition::Saga;
use workflow::input::{CommandOutcome, CommandResult, InstanceInput, InstanceInputKind, Verb};
use workflow::instance::{CommandPurpose, CorrelationEntry, CorrelationRecord};
use workflow::replay;
use workflow::step::{DeferredEvents, InstanceIdentity, JournalRow};

use crate::invariants::InvariantChecker;
use crate::scenario::{Scenario, Stimulus};
use crate::variation::{DuplicateMode, Variation};

/// Inputs of one run. A saga that sets a timer whenever one fires would never end.
pub const INPUTS_MAX: usize = 10_000;

/// Name of an input of a run, by which another run of the same scenario finds it again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunInputKey {
    /// The one with this number that the scenario gives.
    Given(usize),
    /// The end of the work with this number.
    Result(usize),
    /// A timer.
    Timer {
        /// Name of the timer.
        name: String,
        /// Number of timers of the instance that had been set when it was.
        generation: u64,
    },
    /// One that a variation adds.
    Added,
}

/// A piece of work that was ordered.
#[derive(Debug, Clone)]
pub struct RunWork {
    /// Id of the command that orders the work.
    pub command: CommandId,
    /// Name of the work: an effect, the type of a command, or an effect that is cancelled.
    pub name: String,
    /// True when it calls an effect off.
    pub is_cancel: bool,
    /// True for an effect, false for a command.
    pub is_effect: bool,
    /// Input of an effect, or payload of a command.
    pub input: Json,
    /// The aggregate of a command, as type and id.
    pub aggregate: Option<(String, String)>,
    /// Purpose: a step, its compensation, or the step behind the last one.
    pub purpose: CommandPurpose,
    /// The input that caused it.
    pub cause: RunInputKey,
}

/// An input that was given to the instance.
#[derive(Debug, Clone)]
pub struct RunInput {
    /// Name of the input.
    pub key: RunInputKey,
    /// The input, in short.
    pub shown: String,
    /// True for an event of an aggregate.
    pub is_event: bool,
}

/// A line of the story.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunTimelineEntry {
    /// Milliseconds since the beginning.
    pub at_ms: u64,
    /// The input.
    pub input: String,
    /// Fate of the input.
    pub fate: String,
    /// Where the instance stands since; empty where there is none.
    pub status: String,
    /// The step that it is at since.
    pub step: String,
    /// Work that was ordered.
    pub work: Vec<String>,
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct ScenarioRun {
    /// The story.
    pub timeline: Vec<RunTimelineEntry>,
    /// Inputs that the instance was given, in order.
    pub inputs: Vec<RunInput>,
    /// Work that was ordered, in order.
    pub work: Vec<RunWork>,
    /// Timers that were set, and by which input.
    pub timers: Vec<(String, u64, RunInputKey)>,
    /// The record at the end.
    pub record: Option<CorrelationRecord>,
    /// The state at the end.
    pub state: Option<Json>,
    /// The journal.
    pub journal: Vec<JournalRow>,
    /// Codes of dead letters, and why.
    pub dead_letters: Vec<(String, String)>,
    /// Types of events that were ignored.
    pub ignored: Vec<String>,
    /// Parts of the scenario that are missing, or are given in vain.
    pub problems: Vec<String>,
    /// Laws that do not hold.
    pub broken: Vec<String>,
    /// Effects that nothing answers, which succeeded without a result.
    pub guessed: BTreeSet<String>,
    /// Duration in milliseconds of its own time.
    pub lasted_ms: u64,
}

impl ScenarioRun {
    /// Where the instance stands at the end, for people.
    #[must_use]
    pub fn end_status(&self) -> &'static str {
        match self.record.as_ref().map(|record| &record.entry) {
            Some(CorrelationEntry::Live(instance)) => match instance.status {
                model::SagaStatus::Running => "waiting",
                status => status.as_str(),
            },
            Some(CorrelationEntry::Ended(tombstone)) => tombstone.status.as_str(),
            Some(CorrelationEntry::Awaited(_)) | None => "none",
        }
    }
}

/// Plays a scenario, with one variation.
#[must_use]
pub fn play(scenario: &Scenario, variation: &Variation) -> ScenarioRun {
    let mut stage = ScenarioPlayer::new(scenario, variation);
    stage.give_all();
    stage.run();
    stage.finish()
}

/// Something that is going to happen.
#[derive(Debug, Clone)]
struct ScheduledInput {
    at: u64,
    /// Answers come before inputs of the scenario at the same moment.
    class: u8,
    order: usize,
    key: RunInputKey,
    what: ScheduledInputKind,
}

#[derive(Debug, Clone)]
enum ScheduledInputKind {
    Given(usize),
    Result(CommandResult),
}

/// The next thing that happens.
enum NextInput {
    Pending(usize),
    Timer { due: u64, name: String, generation: u64 },
}

/// One run while it is played.
struct ScenarioPlayer<'a> {
    scenario: &'a Scenario,
    variation: &'a Variation,
    /// Milliseconds since 1970.
    now: u64,
    pending: Vec<ScheduledInput>,
    order: usize,
    record: Option<CorrelationRecord>,
    kept: DeferredEvents,
    held: BTreeMap<u64, InstanceInput>,
    /// Events that count once.
    seen: BTreeSet<[u8; 32]>,
    /// Timers that wait for held inputs.
    later: BTreeSet<(String, u64)>,
    /// Count of the orders of each effect and command.
    counts: BTreeMap<String, usize>,
    /// Work that never gets a reply, and whether it may be cancelled.
    open: BTreeMap<CommandId, bool>,
    given: BTreeSet<RunInputKey>,
    /// The input that a variation repeats at the end.
    again: Option<(RunInputKey, InstanceInput)>,
    laws: InvariantChecker,
    run: ScenarioRun,
}

impl<'a> ScenarioPlayer<'a> {
    fn new(scenario: &'a Scenario, variation: &'a Variation) -> Self {
        let mut laws = InvariantChecker::default();
        laws.expect_dead_letters(scenario.expectations.letters.iter().map(String::as_str));
        Self {
            scenario,
            variation,
            now: scenario.begin.as_millis(),
            pending: Vec::new(),
            order: 0,
            record: None,
            kept: DeferredEvents::new(),
            held: BTreeMap::new(),
            seen: BTreeSet::new(),
            later: BTreeSet::new(),
            counts: BTreeMap::new(),
            open: BTreeMap::new(),
            given: BTreeSet::new(),
            again: None,
            laws,
            run: ScenarioRun::default(),
        }
    }

    fn identity(&self) -> InstanceIdentity<'a> {
        InstanceIdentity { tenant: &self.scenario.tenant, correlation: &self.scenario.correlation }
    }

    /// The version that the instance is of, or starts on.
    fn saga(&self) -> &'a Saga {
        let pinned = self.record.as_ref().and_then(CorrelationRecord::definition);
        pinned.and_then(|hash| self.scenario.version(hash)).unwrap_or(&self.scenario.saga)
    }

    /// Milliseconds since the beginning.
    fn elapsed(&self) -> u64 {
        self.now.saturating_sub(self.scenario.begin.as_millis())
    }

    /// Schedules every input of the scenario.
    fn give_all(&mut self) {
        for (at, given) in self.scenario.stimuli.iter().enumerate() {
            let time = (self.scenario.begin + given.at).as_millis();
            self.put(time, 1, RunInputKey::Given(at), ScheduledInputKind::Given(at));
        }
    }

    fn put(&mut self, at: u64, class: u8, key: RunInputKey, what: ScheduledInputKind) {
        self.order += 1;
        self.pending.push(ScheduledInput { at, class, order: self.order, key, what });
    }

    fn run(&mut self) {
        let until = self.scenario.until.map(|until| (self.scenario.begin + until).as_millis());
        loop {
            if self.run.inputs.len() >= INPUTS_MAX {
                self.run.problems.push(format!("the scenario does not end within {INPUTS_MAX} inputs"));
                return;
            }
            let Some(next) = self.next() else {
                // Nothing happens by itself any more.
                match self.again.take() {
                    Some((key, input)) => self.feed(key, input),
                    None => return,
                }
                continue;
            };
            let at = match &next {
                NextInput::Pending(at) => self.pending.get(*at).map_or(0, |pending| pending.at),
                NextInput::Timer { due, .. } => *due,
            };
            if until.is_some_and(|until| at > until) {
                return;
            }
            self.now = self.now.max(at);
            match next {
                NextInput::Pending(at) => {
                    let pending = self.pending.swap_remove(at);
                    self.happen(pending);
                }
                NextInput::Timer { due, name, generation } => {
                    let key = RunInputKey::Timer { name: name.clone(), generation };
                    let what = InstanceInputKind::Timer { name, generation };
                    self.feed(key, InstanceInput { time: Timestamp::from_millis(due), what });
                }
            }
        }
    }

    /// Finds what happens next.
    fn next(&self) -> Option<NextInput> {
        let timer = self.next_timer();
        if let (Variation::TimerFirst { name, generation }, Some(_)) = (self.variation, &timer)
            && self.timers().iter().any(|(_, known, number)| known == name && number == generation)
        {
            return timer.map(|(due, name, generation)| NextInput::Timer { due, name, generation });
        }
        let withheld = match self.variation {
            Variation::Swapped { first, second } if !self.given.contains(second) => Some(first),
            _ => None,
        };
        let pending = |is_withheld: bool| {
            let open = self.pending.iter().enumerate();
            let open = open.filter(move |(_, pending)| (Some(&pending.key) == withheld) == is_withheld);
            open.min_by_key(|(_, pending)| (pending.at, pending.class, pending.order))
        };
        match (pending(false), timer) {
            (Some((at, pending)), Some((due, ..))) if pending.at <= due => Some(NextInput::Pending(at)),
            (_, Some((due, name, generation))) => Some(NextInput::Timer { due, name, generation }),
            (Some((at, _)), None) => Some(NextInput::Pending(at)),
            // The input that was to overtake it does not come without it, so the withheld one follows now.
            (None, None) => pending(true).map(|(at, _)| NextInput::Pending(at)),
        }
    }

    fn next_timer(&self) -> Option<(u64, String, u64)> {
        let waits =
            |(_, name, generation): &(u64, String, u64)| self.later.contains(&(name.clone(), *generation));
        self.timers().into_iter().filter(|timer| !waits(timer)).min()
    }

    /// The timers that are set.
    fn timers(&self) -> Vec<(u64, String, u64)> {
        match self.record.as_ref().map(|record| &record.entry) {
            Some(CorrelationEntry::Live(instance)) => {
                let timers = instance.timers.iter();
                timers
                    .map(|(name, timer)| (timer.due.as_millis(), name.to_string(), timer.generation))
                    .collect()
            }
            Some(CorrelationEntry::Awaited(awaited)) if !awaited.kept.is_empty() => {
                let timer = &awaited.timer;
                vec![(timer.due.as_millis(), workflow::step::AWAITED.to_owned(), timer.generation)]
            }
            _ => Vec::new(),
        }
    }

    fn happen(&mut self, pending: ScheduledInput) {
        let time = Timestamp::from_millis(self.now);
        match pending.what {
            ScheduledInputKind::Result(result) => {
                self.open.remove(&result.command);
                self.feed(pending.key, InstanceInput { time, what: InstanceInputKind::Result(result) });
            }
            ScheduledInputKind::Given(at) => {
                let Some(given) = self.scenario.stimuli.get(at) else { return };
                match &given.what {
                    Stimulus::Event { kind, aggregate, body } => {
                        self.event(pending.key.clone(), kind, aggregate, body, at);
                        if let Variation::Duplicated { key, how: DuplicateMode::UnderAnotherId } =
                            self.variation
                            && *key == pending.key
                        {
                            let body = under_another_id(body);
                            self.event(RunInputKey::Added, kind, aggregate, &body, at);
                        }
                    }
                    Stimulus::Verb { verb, .. } => {
                        let what = InstanceInputKind::Verb {
                            request: format!("request-{}", at + 1),
                            verb: verb.clone(),
                        };
                        self.feed(pending.key, InstanceInput { time, what });
                    }
                }
            }
        }
    }

    /// Gives an input, and what the variation adds to it.
    fn feed(&mut self, key: RunInputKey, input: InstanceInput) {
        self.take(&key, &input);
        match self.variation {
            Variation::Duplicated { key: repeated, how } if *repeated == key => match how {
                DuplicateMode::AtOnce => self.take(&RunInputKey::Added, &input),
                DuplicateMode::AtTheEnd => self.again = Some((RunInputKey::Added, input)),
                DuplicateMode::UnderAnotherId => {}
            },
            Variation::Cancelled { behind } if *behind == key => {
                let verb = Verb::Cancel { reason: "cancelled by the rehearsal".to_owned() };
                let what = InstanceInputKind::Verb { request: "rehearsal".to_owned(), verb };
                self.take(
                    &RunInputKey::Added,
                    &InstanceInput { time: Timestamp::from_millis(self.now), what },
                );
            }
            _ => {}
        }
        self.given.insert(key);
    }

    /// Looks at how it ended.
    fn finish(mut self) -> ScenarioRun {
        self.laws.conclude(self.saga(), self.record.as_ref());
        if !self.run.journal.is_empty() {
            let find = |hash| self.scenario.version(hash).cloned();
            let chain = self.record.as_ref().and_then(replay::chain);
            match replay::replay(find, self.identity(), &self.run.journal) {
                Ok(again) if again.as_ref().and_then(replay::chain) == chain => {}
                Ok(_) => self.laws.record_violation("its journal, run again, ends otherwise"),
                Err(difference) => {
                    self.laws.record_violation(format!("its journal, run again, differs: {difference}"))
                }
            }
        }
        self.run.lasted_ms = self.elapsed();
        self.run.state = match self.record.as_ref().map(|record| &record.entry) {
            Some(CorrelationEntry::Live(instance)) => Some(instance.state.clone()),
            _ => self.run.journal.last().and_then(|row| row.state.clone()),
        };
        self.run.record = self.record;
        self.run.broken = self.laws.into_violations();
        self.run
    }
}

fn under_another_id(body: &Json) -> Json {
    let Json::Map(fields) = body else { return body.clone() };
    let mut fields = fields.clone();
    let id = fields.get("event_id").and_then(Json::as_text).unwrap_or_default();
    fields.insert("event_id".to_owned(), Json::text(format_args!("{id} again")));
    Json::Map(fields)
}

/// Makes the result of a command.
fn result(
    command: CommandId,
    outcome: CommandOutcome,
    payload: Json,
    may_have_happened: bool,
) -> CommandResult {
    CommandResult { command, outcome, may_have_happened, payload }
}
