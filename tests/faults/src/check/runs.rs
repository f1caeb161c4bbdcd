//! Invariants of every execution, as the scripts themselves recorded it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Findings, jobs};
use crate::history::{History, Line, PlannedJob, Ran};

/// One execution: positions are those of lines, so that order is time.
#[derive(Debug)]
struct Span {
    attempt: u32,
    start: usize,
    end: Option<usize>,
}

/// I2, I3, I4, I10, I11 and I12 as far as scripts see them.
pub(super) fn check(history: &History, found: &mut Findings) {
    let planned = jobs(history);
    let spans = spans(history, &planned, found);
    let kills: Vec<usize> = positions(history, |line| matches!(line, Line::Killed));
    for (name, spans) in &spans {
        once_each(name, spans, found);
        in_order(name, spans, &kills, found);
        if let Some(job) = planned.get(name.as_str()) {
            within_tries(job, spans, found);
        }
    }
    after_dependencies(history, &spans, found);
    within_slots(history, &spans, found);
}

fn positions(history: &History, is: impl Fn(&Line) -> bool) -> Vec<usize> {
    history.witness.iter().enumerate().filter(|(_, line)| is(line)).map(|(at, _)| at).collect()
}

/// The executions of each job, in the order they began. What was never submitted breaks I12.
fn spans(
    history: &History,
    planned: &BTreeMap<&str, &PlannedJob>,
    found: &mut Findings,
) -> BTreeMap<String, Vec<Span>> {
    let mut spans: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    let is_known = |ran: &Ran, found: &mut Findings| {
        let known = planned.get(ran.job.as_str()).is_some_and(|job| job.token == ran.token);
        if !known {
            found.add(12, format!("a script ran as {} that is not the one that was submitted", ran.job));
        }
        known
    };
    for (at, line) in history.witness.iter().enumerate() {
        match line {
            Line::Start(ran) if is_known(ran, found) => {
                let span = Span { attempt: ran.attempt, start: at, end: None };
                spans.entry(ran.job.clone()).or_default().push(span);
            }
            Line::End(ran) if is_known(ran, found) => {
                let open = spans.entry(ran.job.clone()).or_default();
                let open = open.iter_mut().rfind(|span| span.attempt == ran.attempt && span.end.is_none());
                match open {
                    Some(span) => span.end = Some(at),
                    None => {
                        found.add(2, format!("{} attempt {} ended without a start", ran.job, ran.attempt))
                    }
                }
            }
            _ => {}
        }
    }
    spans
}

/// I4: an attempt begins once.
fn once_each(name: &str, spans: &[Span], found: &mut Findings) {
    let mut seen = BTreeSet::new();
    for span in spans {
        if !seen.insert(span.attempt) {
            found.add(4, format!("{name} attempt {} ran twice", span.attempt));
        }
    }
}

/// I3 and I11: no attempt begins before those before it are over.
fn in_order(name: &str, spans: &[Span], kills: &[usize], found: &mut Findings) {
    for (place, later) in spans.iter().enumerate() {
        for earlier in &spans[..place] {
            if later.attempt < earlier.attempt {
                let (late, early) = (later.attempt, earlier.attempt);
                found.add(3, format!("{name} attempt {late} began after attempt {early} had"));
            }
            let overlap = earlier.end.is_some_and(|end| end > later.start);
            let excused = kills.iter().any(|kill| (earlier.start..later.start).contains(kill));
            if overlap && !excused && earlier.attempt != later.attempt {
                let (early, late) = (earlier.attempt, later.attempt);
                found.add(11, format!("{name} attempts {early} and {late} overlap"));
            }
        }
    }
}

/// I10: what fails by itself is tried as often as it may be, and no more.
fn within_tries(job: &PlannedJob, spans: &[Span], found: &mut Findings) {
    let tries = spans.iter().filter(|span| span.end.is_some()).count();
    // A try whose report was lost with its instance counts as a loss, not as a try: those have budgets of their own.
    let most = job.retries as usize + 1 + LOSSES_MAX;
    if job.fails && tries > most {
        found.add(10, format!("{} failed {tries} times with {} retries", job.name, job.retries));
    }
}

/// Losses that a node survives at most: two deaths of an instance, four of a supervisor.
const LOSSES_MAX: usize = 6;

/// I4: a job begins after the ends of those before it.
fn after_dependencies(history: &History, spans: &BTreeMap<String, Vec<Span>>, found: &mut Findings) {
    for flow in history.planned.values() {
        for job in &flow.jobs {
            let Some(first) = spans.get(&job.name).and_then(|spans| spans.first()) else { continue };
            for before in job.depends.iter().filter_map(|place| flow.jobs.get(*place)) {
                let done = spans.get(&before.name).into_iter().flatten();
                if !done.filter_map(|span| span.end).any(|end| end < first.start) {
                    found.add(4, format!("{} began before {} had ended", job.name, before.name));
                }
            }
        }
    }
}

/// I10: no more scripts at once than there are places. Those that were cut off are not counted: their end was not observed.
fn within_slots(history: &History, spans: &BTreeMap<String, Vec<Span>>, found: &mut Findings) {
    let whole = || spans.values().flatten().filter_map(|span| span.end.map(|end| (span.start, end)));
    let (starts, ends): (BTreeSet<usize>, BTreeSet<usize>) =
        (whole().map(|(start, _)| start).collect(), whole().map(|(_, end)| end).collect());
    let mut running = 0_usize;
    for at in 0..history.witness.len() {
        running += usize::from(starts.contains(&at));
        running -= usize::from(ends.contains(&at));
        if running > history.slots {
            found.add(10, format!("{running} scripts ran at once in {} places", history.slots));
            return;
        }
    }
}
