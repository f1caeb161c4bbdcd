//! Reports of this storage's own changes to the reader of their context's stream, which saves it reading them back.
//!
//! A change that is under way holds a [`ChangeReporter`]. Its hint may arrive before its answer. The reader therefore waits for the
//! changes that were under way when a hint arrived. It reads the stream only if they have ended without reporting that change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use kv::Value;

use crate::error::Result;
use crate::store::lock;
use crate::watch::events::{EventEntry, EventPosition, TailerWakeup};

/// Maximum number of changes that wait for one before them that is not reported yet.
const AHEAD_MAX: usize = 256;
/// Maximum size of their events in bytes, not counting the last change.
const AHEAD_BYTES: usize = 4 * 1024 * 1024;

/// Change as its script reports it: the entries that it wrote, and the position after which it wrote them.
#[derive(Debug)]
pub(crate) struct ReportedChange {
    behind: EventPosition,
    entries: Vec<EventEntry>,
}

impl ReportedChange {
    /// Parses a script's answer: the id and the random bits of the last entry before its own, then the ids and events of its entries.
    /// Nothing when the script wrote none, or there was none before.
    ///
    /// # Errors
    /// When the answer has another form.
    pub(crate) fn read(answer: Value, bits: u64) -> Result<Option<Self>> {
        let mut parts = answer.array()?.into_iter();
        let (Some(id), Some(before)) = (parts.next(), parts.next()) else { return Ok(None) };
        let (id, before) = (id.text()?, before.text()?);
        if id.is_empty() {
            return Ok(None);
        }
        let behind = EventPosition::of_entry(&id, &before)?;
        let mut entries = Vec::new();
        while let (Some(id), Some(event)) = (parts.next(), parts.next()) {
            entries.push(EventEntry::of(&id.text()?, bits, event.bytes()?)?);
        }
        Ok((!entries.is_empty()).then_some(Self { behind, entries }))
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(EventEntry::bytes).sum()
    }
}

/// Reported changes that are not sent yet, by the positions after which they were written.
#[derive(Debug, Default)]
pub(crate) struct ChangeReorderBuffer {
    changes: BTreeMap<(u64, u32), ReportedChange>,
    /// Two changes were reported after one position: one of them is of another stream.
    is_doubtful: bool,
}

/// Entries that directly follow a position.
#[derive(Debug)]
pub(crate) struct ContiguousEvents {
    /// Reported entries in the stream's order, without a gap.
    pub(crate) entries: Vec<EventEntry>,
    /// The stream must be read: it may have been replaced, or more is missing than the buffer keeps.
    pub(crate) is_doubtful: bool,
}

impl ChangeReorderBuffer {
    /// Adds reported changes.
    pub(crate) fn extend(&mut self, changes: Vec<ReportedChange>) {
        for change in changes {
            let other = self.changes.insert((change.behind.revision, change.behind.n), change);
            self.is_doubtful |= other.is_some();
        }
    }

    /// Takes the entries that follow a position without a gap. Entries before it are dropped.
    pub(crate) fn after(&mut self, mut at: EventPosition) -> ContiguousEvents {
        let mut following =
            ContiguousEvents { entries: Vec::new(), is_doubtful: std::mem::take(&mut self.is_doubtful) };
        while let Some(first) = self.changes.first_entry() {
            let change = first.get();
            let last = change.entries.last().map(|last| last.position);
            let is_new = last.is_some_and(|last| last.is_after(at));
            if is_new && change.behind.is_after(at) {
                break;
            }
            // The same position belongs to another change.
            following.is_doubtful |= last.is_some_and(|last| !is_new && last != at && !at.is_after(last));
            let change = first.remove();
            if is_new && change.behind == at {
                following.entries.extend(change.entries);
                at = following.entries.last().map_or(at, |last| last.position);
            } else if is_new {
                // The change was written after an unknown entry, or the position is within a change.
                following.is_doubtful = true;
            }
        }
        let bytes = || self.changes.values().map(ReportedChange::bytes).sum::<usize>();
        if self.changes.len() > AHEAD_MAX || self.changes.len() > 1 && bytes() > AHEAD_BYTES {
            self.changes.clear();
            following.is_doubtful = true;
        }
        following
    }

    /// The greatest change that waits; 0 for none.
    pub(crate) fn greatest(&self) -> u64 {
        let last = self.changes.values().next_back().and_then(|change| change.entries.last());
        last.map_or(0, |last| last.position.revision)
    }

    /// Empties the buffer.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Channel on which changes of one context report the entries that they wrote.
#[derive(Debug, Default)]
pub(crate) struct ChangeFeed(Mutex<ChangeFeedState>);

#[derive(Debug, Default)]
struct ChangeFeedState {
    /// Wakes the reader of the stream; nothing while there is none.
    reader: Option<Arc<TailerWakeup>>,
    /// How many changes have begun.
    begun: u64,
    /// Changes that have not ended, by number.
    open: BTreeSet<u64>,
    /// Reports that the reader has not taken yet.
    reported: Vec<ReportedChange>,
}

impl ChangeFeed {
    /// Registers the reader of the stream; `wake` wakes it.
    pub(crate) fn listen(&self, wake: Arc<TailerWakeup>) {
        lock(&self.0).reader = Some(wake);
    }

    /// Removes the reader.
    pub(crate) fn leave(&self) {
        let mut state = lock(&self.0);
        state.reader = None;
        state.reported = Vec::new();
    }

    /// Begins a change; returns nothing while the stream has no reader.
    pub(crate) fn begin(&self) -> Option<ChangeReporter<'_>> {
        let mut state = lock(&self.0);
        state.reader.as_ref()?;
        let number = state.begun;
        state.begun += 1;
        state.open.insert(number);
        Some(ChangeReporter { feed: self, number })
    }

    /// Makes the reader check whether the stream is still the one that it has read.
    pub(crate) fn doubt(&self) {
        if let Some(reader) = &lock(&self.0).reader {
            reader.miss();
        }
    }

    /// Takes the changes that were reported since the last call.
    pub(crate) fn take(&self) -> Vec<ReportedChange> {
        std::mem::take(&mut lock(&self.0).reported)
    }

    /// How many changes have begun.
    pub(crate) fn begun(&self) -> u64 {
        lock(&self.0).begun
    }

    /// Returns true if one of the first `first` changes has not ended.
    pub(crate) fn is_open(&self, first: u64) -> bool {
        lock(&self.0).open.first().is_some_and(|number| *number < first)
    }
}

/// A change that is under way. Its end wakes the reader, whatever its outcome.
#[derive(Debug)]
pub(crate) struct ChangeReporter<'a> {
    feed: &'a ChangeFeed,
    number: u64,
}

impl ChangeReporter<'_> {
    /// Reports the entries that the change wrote.
    pub(crate) fn report(self, change: ReportedChange) {
        let mut state = lock(&self.feed.0);
        if state.reader.is_some() {
            state.reported.push(change);
        }
        // Dropping `self` takes the lock again.
        drop(state);
    }
}

impl Drop for ChangeReporter<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.feed.0);
        state.open.remove(&self.number);
        if let Some(reader) = &state.reader {
            reader.notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"kind":"node","flow_id":1}"#;

    fn at(revision: u64, n: u32, bits: u64) -> EventPosition {
        EventPosition { revision, n, bits }
    }

    /// Report of a change with these bits that wrote `count` entries.
    fn reported(behind: EventPosition, revision: u64, count: u32, bits: u64) -> ReportedChange {
        let text = |text: String| Value::Bytes(text.into_bytes());
        let mut parts = vec![text(behind.entry_id()), text(format!("{:016x}", behind.bits))];
        for n in 1..=count {
            parts.extend([text(format!("{revision}-{n}")), text(EVENT.to_owned())]);
        }
        ReportedChange::read(Value::Array(parts), bits).expect("as scripts say it").expect("something")
    }

    fn places(following: &ContiguousEvents) -> Vec<(u64, u32)> {
        following.entries.iter().map(|entry| (entry.position.revision, entry.position.n)).collect()
    }

    #[test]
    fn events_are_held_back_until_their_predecessor_is_read() {
        let mut ahead = ChangeReorderBuffer::default();
        let here = at(3, 1, 7);
        // 4 belongs to another storage and is unknown so far; 6 has reported nothing.
        ahead.extend(vec![
            reported(at(7, 2, 11), 8, 1, 12),
            reported(at(5, 1, 10), 7, 2, 11),
            reported(at(4, 1, 9), 5, 1, 10),
        ]);
        assert_eq!(places(&ahead.after(here)), []);
        let following = ahead.after(at(4, 1, 9));
        assert_eq!(places(&following), [(5, 1), (7, 1), (7, 2), (8, 1)]);
        assert!(!following.is_doubtful);
        assert_eq!(places(&ahead.after(at(4, 1, 9))), [], "once");
    }

    #[test]
    fn events_that_were_read_already_are_not_returned_again() {
        let mut ahead = ChangeReorderBuffer::default();
        ahead.extend(vec![reported(at(3, 1, 7), 4, 2, 8), reported(at(4, 2, 8), 5, 1, 9)]);
        let following = ahead.after(at(4, 2, 8));
        assert_eq!((places(&following), following.is_doubtful), (vec![(5, 1)], false));
    }

    #[test]
    fn what_another_stream_had_is_doubted() {
        // The change before it was lost, and another one has its number.
        let mut ahead = ChangeReorderBuffer::default();
        ahead.extend(vec![reported(at(9, 1, 1), 10, 1, 2)]);
        let following = ahead.after(at(9, 1, 77));
        assert_eq!((places(&following), following.is_doubtful), (Vec::new(), true));
        // The place that was read was lost.
        ahead.extend(vec![reported(at(9, 1, 77), 10, 1, 2)]);
        assert!(ahead.after(at(9, 1, 1)).is_doubtful);
        // Another change has its number, and was read.
        ahead.extend(vec![reported(at(9, 1, 77), 10, 1, 2)]);
        let following = ahead.after(at(10, 1, 3));
        assert_eq!((places(&following), following.is_doubtful), (Vec::new(), true));
        // Two changes were written after one position.
        ahead.extend(vec![reported(at(9, 1, 77), 10, 1, 2), reported(at(9, 1, 77), 10, 1, 3)]);
        assert!(ahead.after(at(8, 1, 1)).is_doubtful);
        ahead.clear();
        // Half of the change was read.
        ahead.extend(vec![reported(at(9, 1, 77), 10, 3, 2)]);
        let following = ahead.after(at(10, 2, 2));
        assert_eq!((places(&following), following.is_doubtful), (Vec::new(), true));
        assert!(!ahead.after(at(10, 2, 2)).is_doubtful, "it is forgotten");
    }

    #[test]
    fn what_waits_has_bounds() {
        let mut ahead = ChangeReorderBuffer::default();
        for revision in 10..10 + AHEAD_MAX as u64 {
            ahead.extend(vec![reported(at(revision, 1, 1), revision + 1, 1, 1)]);
            assert!(!ahead.after(at(3, 1, 1)).is_doubtful);
        }
        ahead.extend(vec![reported(at(5, 1, 1), 6, 1, 1)]);
        assert!(ahead.after(at(3, 1, 1)).is_doubtful);
    }

    #[test]
    fn a_change_wakes_the_reader_however_it_ends() {
        let feed = ChangeFeed::default();
        assert!(feed.begin().is_none(), "nobody reads");
        let wake = Arc::new(TailerWakeup::default());
        feed.listen(Arc::clone(&wake));
        let (first, second) = (feed.begin().expect("a reader"), feed.begin().expect("a reader"));
        let begun = feed.begun();
        let third = feed.begin().expect("a reader");
        second.report(reported(at(1, 1, 1), 2, 1, 2));
        assert!(feed.is_open(begun));
        drop(first);
        assert!(!feed.is_open(begun), "the third has begun later");
        assert_eq!(feed.take().len(), 1);
        feed.leave();
        third.report(reported(at(1, 1, 1), 2, 1, 2));
        assert!(feed.take().is_empty());
    }
}
