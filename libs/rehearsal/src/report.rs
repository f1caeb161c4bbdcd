//! Reports of rehearsals, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use workflow::Json;
use workflow::instance::{CommandPurpose, CorrelationEntry, encode};
use workflow::replay;

use crate::player::{RunTimelineEntry, RunWork, ScenarioRun, play};
use crate::scenario::{ExpectedStatus, ExpectedWork, Scenario, ScenarioExpectations};
use crate::variation::Variation;

/// Variations of one scenario.
pub const VARIATIONS_MAX: usize = 50_000;
/// Maximum number of failed variations in a report.
const FAILURES_MAX: usize = 20;

/// Report of one scenario.
#[derive(Debug, Serialize)]
pub struct ScenarioReport {
    /// Name of the scenario.
    pub name: String,
    /// True when everything is as expected.
    pub passed: bool,
    /// Where the instance stands at the end.
    pub end: &'static str,
    /// Duration in milliseconds of its own time.
    pub lasted_ms: u64,
    /// Expectations that are not met.
    pub mismatches: Vec<Mismatch>,
    /// Missing answers, inputs given in vain, and laws that do not hold.
    pub problems: Vec<String>,
    /// The story.
    pub timeline: Vec<RunTimelineEntry>,
    /// Report of everything that can go wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variations: Option<VariationsReport>,
}

/// Something that is not as expected.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Name of the expectation.
    pub what: String,
    /// Value that the scenario expects.
    pub expected: String,
    /// Value that there is.
    pub found: String,
}

/// Report of everything that can go wrong in a scenario.
#[derive(Debug, Default, Serialize)]
pub struct VariationsReport {
    /// Number of variations that were played.
    pub played: usize,
    /// Number of ends by status; `waiting` for those that wait.
    pub ends: BTreeMap<&'static str, usize>,
    /// Number of variations that failed.
    pub failed: usize,
    /// The first that failed.
    pub failures: Vec<VariationFailure>,
    /// Effects that no scenario answers, which succeeded without a result.
    pub guessed: BTreeSet<String>,
}

/// A variation in which something does not hold.
#[derive(Debug, Serialize)]
pub struct VariationFailure {
    /// Description of the variation.
    pub variation: String,
    /// Laws that do not hold.
    pub broken: Vec<String>,
    /// The story.
    pub timeline: Vec<RunTimelineEntry>,
}

/// Plays a scenario, and, if requested, every fault that can occur in it.
#[must_use]
pub fn rehearse(scenario: &Scenario, is_exhaustive: bool) -> ScenarioReport {
    let run = play(scenario, &Variation::None);
    let mismatches = compare(&scenario.expectations, scenario.begin.as_millis(), &run);
    let mut problems = run.problems.clone();
    problems.extend(run.broken.iter().cloned());
    let variations = (is_exhaustive && scenario.is_exhaustive).then(|| vary(scenario, &run));
    let is_good = variations.as_ref().is_none_or(|variations| variations.failed == 0);
    ScenarioReport {
        name: scenario.name.clone(),
        passed: mismatches.is_empty() && problems.is_empty() && is_good,
        end: run.end_status(),
        lasted_ms: run.lasted_ms,
        mismatches,
        problems,
        timeline: run.timeline,
        variations,
    }
}

fn vary(scenario: &Scenario, base: &ScenarioRun) -> VariationsReport {
    let mut report = VariationsReport::default();
    for variation in Variation::all(base).into_iter().take(VARIATIONS_MAX) {
        let mut run = play(scenario, &variation);
        if variation.has_same_end() && !ends_alike(base, &run) {
            run.broken.push("what comes twice does not count once: it ends otherwise".to_owned());
        }
        report.played += 1;
        *report.ends.entry(run.end_status()).or_default() += 1;
        report.guessed.append(&mut run.guessed);
        if run.broken.is_empty() {
            continue;
        }
        report.failed += 1;
        if report.failures.len() < FAILURES_MAX {
            let (variation, broken) = (variation.describe(base), run.broken);
            report.failures.push(VariationFailure { variation, broken, timeline: run.timeline });
        }
    }
    report
}

/// Returns whether two runs agree in everything except the number of messages.
fn ends_alike(base: &ScenarioRun, run: &ScenarioRun) -> bool {
    let chain = |run: &ScenarioRun| run.record.as_ref().and_then(replay::chain);
    let ids = |run: &ScenarioRun| run.work.iter().map(|work| work.command).collect::<Vec<_>>();
    let row = |run: &ScenarioRun| run.journal.last().map(encode);
    chain(base) == chain(run) && ids(base) == ids(run) && row(base) == row(run)
}

/// Compares a run with the expectations.
fn compare(expected: &ScenarioExpectations, begin: u64, run: &ScenarioRun) -> Vec<Mismatch> {
    let mut list = Mismatches::default();
    let entry = run.record.as_ref().map(|record| &record.entry);
    let (status, step, reason) = match entry {
        Some(CorrelationEntry::Live(instance)) => {
            let reason = instance.stuck.as_ref().map(|stuck| stuck.why.clone());
            (
                ExpectedStatus::Status(instance.status),
                Some(&instance.step),
                reason.or(instance.reason.clone()),
            )
        }
        Some(CorrelationEntry::Ended(tombstone)) => {
            (ExpectedStatus::Status(tombstone.status), Some(&tombstone.step), tombstone.reason.clone())
        }
        Some(CorrelationEntry::Awaited(_)) | None => (ExpectedStatus::None, None, None),
    };
    let nothing = || "nothing".to_owned();
    if let Some(expected) = expected.status {
        list.texts("status", expected.as_str(), status.as_str());
    }
    if let Some(expected) = &expected.step {
        list.texts("step", expected.as_str(), step.map_or("nothing", |step| step.as_str()));
    }
    if let Some(expected) = &expected.reason {
        list.texts("reason", expected, &reason.unwrap_or_else(nothing));
    }
    if let Some(expected) = expected.is_paused {
        let found = run.record.as_ref().is_some_and(|record| record.is_paused);
        list.texts("paused", &expected.to_string(), &found.to_string());
    }
    for (field, value) in &expected.state {
        let found = run.state.as_ref().and_then(|state| state.get(field)).unwrap_or(&Json::Null);
        if !contains(found, value) {
            list.texts(&format!("state.{field}"), &value.to_string(), &found.to_string());
        }
    }
    let is_undoing = |work: &&RunWork| matches!(work.purpose, CommandPurpose::Undo | CommandPurpose::Tidy);
    if let Some(expected) = &expected.work {
        list.works("work", expected, &run.work.iter().collect::<Vec<_>>());
    }
    if let Some(expected) = &expected.compensations {
        list.works("compensations", expected, &run.work.iter().filter(is_undoing).collect::<Vec<_>>());
    }
    if let Some(expected) = &expected.timers {
        let expected = expected.iter().map(|(name, after)| timer(name, after.as_millis()));
        let found = match entry {
            Some(CorrelationEntry::Live(instance)) => instance.timers.iter().collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        let found = found
            .into_iter()
            .map(|(name, set)| timer(name.as_str(), set.due.as_millis().saturating_sub(begin).into()));
        list.lists("timers", &expected.collect::<Vec<_>>(), &found.collect::<Vec<_>>());
    }
    let letters: Vec<_> = run.dead_letters.iter().map(|(code, _)| code.clone()).collect();
    if expected.letters != letters {
        let found = run.dead_letters.iter().map(|(code, why)| format!("{code} ({why})"));
        list.lists("letters", &expected.letters, &found.collect::<Vec<_>>());
    }
    if let Some(expected) = &expected.ignored {
        list.lists("ignored", expected, &run.ignored);
    }
    list.0
}

/// A timer and when it fires, for people.
fn timer(name: &str, millis: u128) -> String {
    format!("{name} at {}", length(u64::try_from(millis).unwrap_or(u64::MAX)))
}

/// A length of time, in the largest unit of which it is a whole number.
#[must_use]
pub fn length(millis: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let unit = UNITS.iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{millis}ms"), |(unit, name)| format!("{}{name}", millis / unit))
}

/// Returns whether a value has everything that another one has. Objects may have more fields.
fn contains(found: &Json, expected: &Json) -> bool {
    match (found, expected) {
        (Json::Map(found), Json::Map(expected)) => {
            expected.iter().all(|(key, value)| found.get(key).is_some_and(|found| contains(found, value)))
        }
        _ => found == expected,
    }
}

#[derive(Default)]
struct Mismatches(Vec<Mismatch>);

impl Mismatches {
    fn texts(&mut self, what: &str, expected: &str, found: &str) {
        if expected != found {
            let (what, expected, found) = (what.to_owned(), expected.to_owned(), found.to_owned());
            self.0.push(Mismatch { what, expected, found });
        }
    }

    fn lists(&mut self, what: &str, expected: &[String], found: &[String]) {
        self.texts(what, &listed(expected), &listed(found));
    }

    fn works(&mut self, what: &str, expected: &[ExpectedWork], found: &[&RunWork]) {
        let fits = expected.len() == found.len()
            && expected.iter().zip(found).all(|(expected, found)| expected.is(found));
        if !fits {
            let expected: Vec<_> = expected.iter().map(ExpectedWork::shown).collect();
            let found: Vec<_> = found.iter().map(|work| shown(work)).collect();
            let (expected, found) = (listed(&expected), listed(&found));
            self.0.push(Mismatch { what: what.to_owned(), expected, found });
        }
    }
}

fn listed(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

fn shown(work: &RunWork) -> String {
    if work.is_cancel {
        return format!("cancel {}", work.name);
    }
    let aggregate = work.aggregate.as_ref().map(|(kind, id)| format!(" for {kind}/{id}"));
    format!("{}{} {}", work.name, aggregate.unwrap_or_default(), work.input)
}

impl ExpectedWork {
    fn is(&self, work: &RunWork) -> bool {
        let (aggregate, id) = &self.aggregate;
        let has = |expected: &Option<String>, found: Option<&String>| {
            expected.as_ref().is_none_or(|expected| Some(expected) == found)
        };
        self.name == work.name
            && self.is_cancel == work.is_cancel
            && self.input.as_ref().is_none_or(|input| contains(&work.input, input))
            && has(aggregate, work.aggregate.as_ref().map(|(kind, _)| kind))
            && has(id, work.aggregate.as_ref().map(|(_, id)| id))
    }

    fn shown(&self) -> String {
        let cancel = if self.is_cancel { "cancel " } else { "" };
        let input = self.input.as_ref().map(|input| format!(" {input}")).unwrap_or_default();
        let aggregate = match &self.aggregate {
            (None, None) => String::new(),
            (kind, id) => {
                let part = |text: &Option<String>| text.clone().unwrap_or_else(|| "*".to_owned());
                format!(" for {}/{}", part(kind), part(id))
            }
        };
        format!("{cancel}{}{aggregate}{input}", self.name)
    }
}
