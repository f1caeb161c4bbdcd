//! Census of a lane: its rows are counted when the lane is taken, and each commit adjusts the counts.

use std::ops::Range;

use model::{CorrelationId, SagaStatus};
use serde::Deserialize;
use store::{RowKey, VersionedValue};
use workflow::LaneRowKey;
use workflow::instance::CorrelationRecord;
use workflow::key::{RowKeyPart, StoreTable};
use workflow::step::{DeadLetter, InputDisposition, InputOrigin};

use super::CachedRecord;
use super::input_decision::InputDecision;
use super::timers::{RETIRE, TimerDelta, is_ours};
use crate::lane::LaneExit;
use crate::lane::rows::{LaneStore, rest};
use crate::metrics::{Census, CensusKind};

/// Parts of a dead letter that are read to count it.
#[derive(Deserialize)]
struct CountedLetter {
    letter: DeadLetter,
    #[serde(default)]
    correlation: Option<CorrelationId>,
}

/// Counts what a lane keeps, page by page.
pub(super) async fn take(rows: &LaneStore) -> Result<Census, LaneExit> {
    let mut census = Census::default();
    for status in SagaStatus::ALL.into_iter().filter(|status| !status.is_end()) {
        let what = CensusKind::instance(status);
        each(rows, LaneRowKey::by_status(status.as_str()), |_, _| census.add(what, 1)).await?;
    }
    each(rows, StoreTable::Due.range(), |key, _| match timer_of(key).as_deref() {
        Some(RETIRE) => census.add(CensusKind::Ended, 1),
        Some(name) if is_ours(name) => {}
        _ => census.add(CensusKind::Timers, 1),
    })
    .await?;
    each(rows, StoreTable::Kept.range(), |_, _| census.add(CensusKind::Kept, 1)).await?;
    let mut parking = Vec::new();
    let mut damaged = None;
    each(rows, StoreTable::Dead.range(), |_, row| {
        census.add(CensusKind::Letters, 1);
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
    census.add(CensusKind::ParkedKeys, parked(rows, &parking).await?);
    Ok(census)
}

/// Counts the dead letters of a lane of an effect.
pub(crate) async fn take_letters(rows: &LaneStore) -> Result<Census, LaneExit> {
    let mut census = Census::default();
    each(rows, StoreTable::Dead.range(), |_, _| census.add(CensusKind::Letters, 1)).await?;
    Ok(census)
}

/// Counts those of these letters that still park their correlations: another letter may have taken the place of one that parked.
async fn parked(rows: &LaneStore, letters: &[(CorrelationId, u64)]) -> Result<usize, LaneExit> {
    /// Records that are read at a time.
    const AT_ONCE: usize = 64;
    let mut parked = 0;
    for letters in letters.chunks(AT_ONCE) {
        let keys: Vec<_> = letters.iter().map(|(correlation, _)| LaneRowKey::saga(correlation)).collect();
        for ((_, number), found) in letters.iter().zip(rows.read(&keys).await?) {
            let Some(found) = found else { continue };
            parked += usize::from(rows.decode::<CorrelationRecord>(&found)?.parked_by == Some(*number));
        }
    }
    Ok(parked)
}

/// Passes each row of a range to `give`.
async fn each(
    rows: &LaneStore,
    mut range: Range<LaneRowKey>,
    mut give: impl FnMut(&RowKey, &VersionedValue),
) -> Result<(), LaneExit> {
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
    match LaneRowKey::of_store(key.to_string()).parts()?.pop()? {
        RowKeyPart::Text(name) => Some(name),
        RowKeyPart::Hash(_) => None,
    }
}

/// Returns the counts that a commit has changed.
pub(super) fn change(current: &CachedRecord, decision: &InputDecision, timers: &TimerDelta) -> Census {
    let (mut census, change) = (Census::default(), &decision.change);
    let (before, after) = (current.record.as_ref(), change.record.as_ref());
    let live = |record: Option<&CorrelationRecord>| {
        record.and_then(CorrelationRecord::instance).map(|instance| CensusKind::instance(instance.status))
    };
    if let Some(what) = live(before) {
        census.remove(what, 1);
    }
    if let Some(what) = live(after) {
        census.add(what, 1);
    }
    let is_parked =
        |record: Option<&CorrelationRecord>| record.is_some_and(|record| record.parked_by.is_some());
    census.remove(CensusKind::ParkedKeys, usize::from(is_parked(before)));
    census.add(CensusKind::ParkedKeys, usize::from(is_parked(after)));
    census.add(CensusKind::Kept, change.deferred.len());
    census.remove(CensusKind::Kept, change.removed.len());
    census.add(CensusKind::Letters, change.dead_letters.len());
    match (decision.origin, &change.fate) {
        // The dead letter stays one.
        (InputOrigin::Letter(_), InputDisposition::DeadLetter(_)) => {}
        (InputOrigin::Letter(_), _) => census.remove(CensusKind::Letters, 1),
        (InputOrigin::Fresh | InputOrigin::Held(_), InputDisposition::DeadLetter(_)) => {
            census.add(CensusKind::Letters, 1)
        }
        (InputOrigin::Fresh | InputOrigin::Held(_), _) => {}
    }
    let goes = decision.letter.as_ref().is_some_and(|turn| turn.goes.is_some());
    census.remove(CensusKind::Letters, usize::from(goes));
    count_timers(&mut census, timers);
    census
}

/// Returns the change when only the tombstone of an instance is left; `kept` is the number of kept events that were removed.
pub(super) fn retired(kept: usize) -> Census {
    let mut census = Census::default();
    census.remove(CensusKind::Ended, 1);
    census.remove(CensusKind::Kept, kept);
    census
}

/// Counts what a commit has changed of timers.
fn count_timers(census: &mut Census, timers: &TimerDelta) {
    let counted = |name: &str| match name {
        RETIRE => Some(CensusKind::Ended),
        name if is_ours(name) => None,
        _ => Some(CensusKind::Timers),
    };
    for what in timers.set.iter().filter_map(|timer| counted(&timer.name)) {
        census.add(what, 1);
    }
    for what in timers.dropped.iter().filter_map(|(_, name)| counted(name)) {
        census.remove(what, 1);
    }
}
