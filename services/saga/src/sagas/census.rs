//! Census of a lane: what it keeps is counted when the lane is taken, and each commit says what it has changed of that.

use std::ops::Range;

use model::{CorrelationId, SagaStatus};
use serde::Deserialize;
use store::{RowKey, Versioned};
use workflow::Key;
use workflow::instance::Record;
use workflow::key::{Part, Table};
use workflow::step::{Fate, Letter, Origin};

use super::Cached;
use super::timers::{RETIRE, TimerDelta, is_ours};
use super::work::Decision;
use crate::lane::Ended;
use crate::lane::rows::{Rows, rest};
use crate::metrics::{Census, Counted};

/// What is read of a dead letter that is counted.
#[derive(Deserialize)]
struct CountedLetter {
    letter: Letter,
    #[serde(default)]
    correlation: Option<CorrelationId>,
}

/// Counts what a lane keeps, page by page.
pub(super) async fn take(rows: &Rows) -> Result<Census, Ended> {
    let mut census = Census::default();
    for status in SagaStatus::ALL.into_iter().filter(|status| !status.is_end()) {
        let what = Counted::instance(status);
        each(rows, Key::by_status(status.as_str()), |_, _| census.add(what, 1)).await?;
    }
    each(rows, Table::Due.range(), |key, _| match timer_of(key).as_deref() {
        Some(RETIRE) => census.add(Counted::Ended, 1),
        Some(name) if is_ours(name) => {}
        _ => census.add(Counted::Timers, 1),
    })
    .await?;
    each(rows, Table::Kept.range(), |_, _| census.add(Counted::Kept, 1)).await?;
    let mut parking = Vec::new();
    let mut damaged = None;
    each(rows, Table::Dead.range(), |_, row| {
        census.add(Counted::Letters, 1);
        match rows.decode::<CountedLetter>(row) {
            Ok(CountedLetter { letter, correlation: Some(correlation) }) if letter.parks => {
                parking.push((correlation, letter.number));
            }
            Ok(_) => {}
            Err(ended) => damaged = Some(ended),
        }
    })
    .await?;
    if let Some(ended) = damaged {
        return Err(ended);
    }
    census.add(Counted::ParkedKeys, parked(rows, &parking).await?);
    Ok(census)
}

/// Counts the dead letters of a lane of an effect.
pub(crate) async fn take_letters(rows: &Rows) -> Result<Census, Ended> {
    let mut census = Census::default();
    each(rows, Table::Dead.range(), |_, _| census.add(Counted::Letters, 1)).await?;
    Ok(census)
}

/// Counts those of these letters that stand in front of their correlations: one that was applied or left out may have been replaced.
async fn parked(rows: &Rows, letters: &[(CorrelationId, u64)]) -> Result<usize, Ended> {
    /// Records that are read at a time.
    const AT_ONCE: usize = 64;
    let mut parked = 0;
    for letters in letters.chunks(AT_ONCE) {
        let keys: Vec<_> = letters.iter().map(|(correlation, _)| Key::saga(correlation)).collect();
        for ((_, number), found) in letters.iter().zip(rows.read(&keys).await?) {
            let Some(found) = found else { continue };
            parked += usize::from(rows.decode::<Record>(&found)?.parked_by == Some(*number));
        }
    }
    Ok(parked)
}

/// Gives each row of a range.
async fn each(
    rows: &Rows,
    mut range: Range<Key>,
    mut give: impl FnMut(&RowKey, &Versioned),
) -> Result<(), Ended> {
    loop {
        let page = rows.page(&range).await?;
        page.rows.iter().for_each(|(key, row)| give(key, row));
        match rest(&page) {
            Some(rest) => range.start = rest,
            None => return Ok(()),
        }
    }
}

/// Name of the timer that a row is of.
fn timer_of(key: &RowKey) -> Option<String> {
    match Key::of_store(key.to_string()).parts()?.pop()? {
        Part::Text(name) => Some(name),
        Part::Hash(_) => None,
    }
}

/// What a commit has changed.
pub(super) fn change(current: &Cached, decision: &Decision, timers: &TimerDelta) -> Census {
    let (mut census, change) = (Census::default(), &decision.change);
    let (before, after) = (current.record.as_ref(), change.record.as_ref());
    let live = |record: Option<&Record>| {
        record.and_then(Record::instance).map(|instance| Counted::instance(instance.status))
    };
    if let Some(what) = live(before) {
        census.remove(what, 1);
    }
    if let Some(what) = live(after) {
        census.add(what, 1);
    }
    let is_parked = |record: Option<&Record>| record.is_some_and(|record| record.parked_by.is_some());
    census.remove(Counted::ParkedKeys, usize::from(is_parked(before)));
    census.add(Counted::ParkedKeys, usize::from(is_parked(after)));
    census.add(Counted::Kept, change.kept.len());
    census.remove(Counted::Kept, change.taken.len());
    census.add(Counted::Letters, change.letters.len());
    match (decision.origin, &change.fate) {
        // It stays the letter that it was.
        (Origin::Letter(_), Fate::Dead(_)) => {}
        (Origin::Letter(_), _) => census.remove(Counted::Letters, 1),
        (Origin::Fresh | Origin::Held(_), Fate::Dead(_)) => census.add(Counted::Letters, 1),
        (Origin::Fresh | Origin::Held(_), _) => {}
    }
    let goes = decision.letter.as_ref().is_some_and(|turn| turn.goes.is_some());
    census.remove(Counted::Letters, usize::from(goes));
    count_timers(&mut census, timers);
    census
}

/// What is left of an instance that is nothing but its tombstone from now on: so many events that were kept went with the rest.
pub(super) fn retired(kept: usize) -> Census {
    let mut census = Census::default();
    census.remove(Counted::Ended, 1);
    census.remove(Counted::Kept, kept);
    census
}

/// Counts what a commit has changed of timers.
fn count_timers(census: &mut Census, timers: &TimerDelta) {
    let counted = |name: &str| match name {
        RETIRE => Some(Counted::Ended),
        name if is_ours(name) => None,
        _ => Some(Counted::Timers),
    };
    for what in timers.set.iter().filter_map(|timer| counted(&timer.name)) {
        census.add(what, 1);
    }
    for what in timers.dropped.iter().filter_map(|(_, name)| counted(name)) {
        census.remove(what, 1);
    }
}
