//! Invariants of the changes that watchers were sent.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use crate::history::{Change, History, Watch, rank};

/// I2, I6 and I8.
pub(super) fn check(history: &History, found: &mut Findings) {
    for watch in &history.watches {
        no_gap_no_duplicate(watch, found);
        as_it_may_go(watch, found);
        to_the_end(watch, history, found);
    }
    same_for_all_watchers(history, found);
}

fn who(watch: &Watch) -> String {
    format!("{} of flow {}", watch.watcher, watch.flow)
}

/// I8: over all its streams a watcher gets what one stream would have reported.
fn no_gap_no_duplicate(watch: &Watch, found: &mut Findings) {
    if let Some(why) = &watch.refused {
        found.add(8, format!("{}: a position was refused: {why}", who(watch)));
    }
    let mut seen = BTreeSet::new();
    for change in &watch.reported {
        if !seen.insert(&change.position) {
            found.add(8, format!("{} was told {change:?} twice", who(watch)));
        }
    }
    let shown = shown_already(watch);
    let happened = &watch.replayed[shown..];
    // Changes not yet reported when everything ended are no gap.
    let whole = watch.status.is_some();
    let happened = if whole { happened } else { &happened[..happened.len().min(watch.reported.len())] };
    if watch.reported != happened {
        let differ = watch.reported.iter().zip(happened).take_while(|(reported, is)| reported == is).count();
        let (reported, is) = (watch.reported.get(differ), happened.get(differ));
        let counts = format!("{} changes and {} happened", watch.reported.len(), happened.len());
        found
            .add(8, format!("{} was told {counts}; number {differ} is {reported:?}, not {is:?}", who(watch)));
    }
}

/// How many of the changes behind a snapshot the snapshot shows: those before the first that was reported, as far as it does.
fn shown_already(watch: &Watch) -> usize {
    let shows = |change: &Change| {
        let mut nodes = watch.snapshot.iter().filter(|(job_id, ..)| *job_id == change.job_id);
        nodes.any(|(_, state, attempt)| (*attempt, rank(*state)) >= (change.attempt, rank(change.state)))
    };
    let is_first = |change: &Change| watch.reported.first() == Some(change);
    watch.replayed.iter().take_while(|change| !is_first(change) && shows(change)).count()
}

/// I8: two watchers of a flow get the same from where the later one began.
fn same_for_all_watchers(history: &History, found: &mut Findings) {
    let mut by_flow: BTreeMap<u32, Vec<&Watch>> = BTreeMap::new();
    for watch in history.watches.iter().filter(|watch| watch.status.is_some()) {
        by_flow.entry(watch.flow).or_default().push(watch);
    }
    for watches in by_flow.values() {
        for (one, other) in watches.iter().zip(watches.iter().skip(1)) {
            let (long, short) =
                if one.reported.len() >= other.reported.len() { (one, other) } else { (other, one) };
            if !long.reported.ends_with(&short.reported) {
                found.add(8, format!("{} and {} were told different things", who(one), who(other)));
            }
        }
    }
}

/// I8: a flow's watchers get its end, and the last report of a node is its final state.
fn to_the_end(watch: &Watch, history: &History, found: &mut Findings) {
    let Some(flow) = history.flows.iter().find(|flow| flow.id == watch.flow && flow.has_ended) else {
        return;
    };
    if watch.status.is_none() {
        found.add(8, format!("{} was not told of its end", who(watch)));
        return;
    }
    for node in &flow.nodes {
        let last = watch.replayed.iter().rfind(|change| change.job_id == node.job_id);
        if let Some(last) = last
            && (last.state, last.attempt) != (node.state, node.attempt)
        {
            found.add(8, format!("{} was told {last:?} last; it is {node:?}", who(watch)));
        }
    }
}

/// I2 and I6: a node goes forward, and has one end. An owner that was taken over would lead it back, or end it again.
fn as_it_may_go(watch: &Watch, found: &mut Findings) {
    let mut last: BTreeMap<u32, &Change> = BTreeMap::new();
    for change in &watch.replayed {
        if let Some(before) = last.insert(change.job_id, change) {
            if before.state.is_end() && change.state.is_end() {
                found.add(2, format!("{}: a second end: {before:?}, {change:?}", who(watch)));
            } else if !may_follow(before, change) {
                found.add(6, format!("{}: {change:?} after {before:?}", who(watch)));
            }
        }
    }
}

/// Returns true if a node may change so. A change of the reason alone keeps the state.
fn may_follow(before: &Change, after: &Change) -> bool {
    match after.attempt.cmp(&before.attempt) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => rank(before.state) <= rank(after.state) && !before.state.is_end(),
        // Whatever was under way is closed with it.
        std::cmp::Ordering::Greater => !before.state.is_end(),
    }
}
