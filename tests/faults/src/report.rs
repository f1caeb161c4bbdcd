//! Reports of runs, for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::run::Outcome;
use crate::schedule::Kind;

/// One line for a run.
#[must_use]
pub fn line(outcome: &Outcome) -> String {
    let history = &outcome.history;
    let resumed: u32 = history.watches.iter().map(|watch| watch.resumed).sum();
    format!(
        "{} seed {}: {} faults, {} flows, {} watches resumed {resumed} times, {} lines of the witness, {} fell by themselves{}, \
         {} panics, {} violations",
        outcome.plan.form.as_str(),
        outcome.plan.seed,
        outcome.recoveries.len(),
        history.flows.len(),
        history.watches.len(),
        history.witness.len(),
        outcome.fallen.len(),
        named(&outcome.fallen),
        outcome.panics().len(),
        outcome.violations.len(),
    )
}

fn named(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

/// How long it took to come back, by form and kind.
#[must_use]
pub fn recoveries(outcomes: &[Outcome]) -> String {
    let mut times: BTreeMap<(&str, Kind), Vec<Duration>> = BTreeMap::new();
    for outcome in outcomes {
        for recovery in &outcome.recoveries {
            let kind = (outcome.plan.form.as_str(), recovery.fault.kind);
            times.entry(kind).or_default().push(recovery.whole);
        }
    }
    let mut text = format!("{:<10} {:<22} {:>5} {:>9} {:>9}\n", "form", "fault", "count", "median", "most");
    for ((form, kind), mut times) in times {
        times.sort_unstable();
        let (median, most) = (times[times.len() / 2].as_secs_f64(), times[times.len() - 1].as_secs_f64());
        let _ = writeln!(
            text,
            "{form:<10} {:<22} {:>5} {median:>7.2} s {most:>7.2} s",
            kind.as_str(),
            times.len()
        );
    }
    text
}

/// Lists the causes of broken calls and streams with their counts; nothing that people need when all is well.
#[must_use]
pub fn breaks(outcomes: &[Outcome]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (why, count) in outcomes.iter().flat_map(Outcome::breaks) {
        *counts.entry(why).or_default() += count;
    }
    counts.into_iter().fold(String::new(), |mut text, (why, count)| {
        let _ = writeln!(text, "{count:>6}  {why}");
        text
    })
}

/// Every violation with what leads to it: how to have it again, and where its history is.
#[must_use]
pub fn violations(outcome: &Outcome) -> String {
    let mut text = String::new();
    for violation in &outcome.violations {
        let _ = writeln!(text, "  {violation}");
    }
    for line in outcome.panics() {
        let _ = writeln!(text, "  {line}");
    }
    let kinds: Vec<&str> = outcome.plan.kinds.iter().map(|kind| kind.as_str()).collect();
    let kinds =
        if kinds.is_empty() { String::new() } else { format!("MYCORA_FAULTS_KINDS='{}' ", kinds.join(",")) };
    let _ = writeln!(
        text,
        "again: {kinds}MYCORA_FAULTS_SEEDS={} MYCORA_FAULTS_FORMS={} MYCORA_FAULTS_COUNT={} make faults",
        outcome.plan.seed,
        outcome.plan.form.as_str(),
        outcome.plan.faults
    );
    text
}
