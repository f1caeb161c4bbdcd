//! Last events that a tailer has read: a subscriber that joins at one of them gets the later ones without a read from Redis.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::watch::events::{EventEntry, EventPosition, WatchSubject};

/// Maximum size in bytes of the events of any context, not counting the last one.
const OWN_BYTES: usize = 256 * 1024;
/// Bytes that are borrowed at a time beyond that.
const STEP: usize = 256 * 1024;
/// Maximum that one context borrows, enough for ten thousand of its flows to begin and be watched at once.
const BORROWED_MAX: usize = 16 * 1024 * 1024;
/// Maximum that all contexts borrow together.
const LENT_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of entries that a joining subscriber gets: one that has missed more reads them in parts.
const RETURNED_MAX: usize = 1024;

/// Bytes that are lent to the events of contexts. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventMemoryPool(Arc<AtomicUsize>);

impl EventMemoryPool {
    fn lend(&self) -> bool {
        let more = |lent| Some(lent + STEP).filter(|lent| *lent <= LENT_MAX);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The end of a context's stream, without a gap.
#[derive(Debug, Default)]
pub(crate) struct RecentEvents {
    entries: VecDeque<EventEntry>,
    bytes: usize,
    lender: EventMemoryPool,
    borrowed: usize,
}

impl RecentEvents {
    /// Creates an empty cache; memory beyond its own is borrowed from `lender`.
    pub(crate) fn new(lender: EventMemoryPool) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, lender, borrowed: 0 }
    }

    /// Appends the entries that follow.
    pub(crate) fn extend(&mut self, entries: &[EventEntry]) {
        for entry in entries {
            self.bytes += entry.bytes();
            self.entries.push_back(entry.clone());
            while self.entries.len() > 1 && self.bytes > OWN_BYTES + self.borrowed {
                if !self.borrow() {
                    self.bytes -= self.entries.pop_front().map_or(0, |first| first.bytes());
                }
            }
        }
    }

    fn borrow(&mut self) -> bool {
        let more = self.borrowed < BORROWED_MAX && self.lender.lend();
        self.borrowed += if more { STEP } else { 0 };
        more
    }

    /// Where the stream ends.
    pub(crate) fn last(&self) -> Option<EventPosition> {
        self.entries.back().map(|entry| entry.position)
    }

    /// Returns a subject's events after a position; `None` when the position is not among them, or they are many.
    pub(crate) fn after(
        &self,
        position: EventPosition,
        wanted: Option<WatchSubject>,
    ) -> Option<Vec<EventEntry>> {
        let at = self.entries.partition_point(|entry| position.is_after(entry.position));
        if self.entries.get(at)?.position != position {
            return None;
        }
        let missed = self.entries.range(at + 1..).filter(|entry| entry.is_for(wanted));
        let missed: Vec<EventEntry> = missed.take(RETURNED_MAX + 1).cloned().collect();
        Some(missed).filter(|missed| missed.len() <= RETURNED_MAX)
    }

    /// Empties the cache, since the stream was replaced.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.lender.clone());
    }
}

impl Drop for RecentEvents {
    fn drop(&mut self) {
        self.lender.0.fetch_sub(self.borrowed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::FlowId;

    use super::*;

    fn entry(revision: u64, flow: u32, bytes: usize) -> EventEntry {
        EventEntry {
            position: EventPosition { revision, n: 1, bits: revision * 7 },
            event: Bytes::from(vec![b'x'; bytes]),
            subject: Some(WatchSubject::Flow(FlowId(flow))),
            is_flow: false,
            is_context: false,
        }
    }

    fn revisions(entries: &[EventEntry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.position.revision).collect()
    }

    #[test]
    fn events_after_a_known_position_are_returned() {
        let mut recent = RecentEvents::default();
        assert_eq!(recent.last(), None);
        recent.extend(&[entry(3, 1, 10), entry(5, 2, 10), entry(6, 1, 10)]);
        let at = |revision| EventPosition { revision, n: 1, bits: revision * 7 };
        let after = |position, wanted| recent.after(position, wanted).map(|entries| revisions(&entries));
        assert_eq!(after(at(3), None), Some(vec![5, 6]));
        assert_eq!(after(at(3), Some(WatchSubject::Flow(FlowId(1)))), Some(vec![6]));
        assert_eq!(after(at(6), None), Some(Vec::new()));
        // One of before, one between, one to come, and one of another stream.
        for unknown in
            [at(1), at(4), at(7), EventPosition { bits: 1, ..at(5) }, EventPosition { n: 2, ..at(5) }]
        {
            assert_eq!(after(unknown, None), None, "{unknown}");
        }
        recent.clear();
        assert_eq!(recent.after(at(6), None), None);
    }

    #[test]
    fn a_watch_that_missed_much_is_sent_to_read() {
        let mut recent = RecentEvents::default();
        for revision in 0..2000 {
            recent.extend(&[entry(revision, u32::from(revision > 1000), 10)]);
        }
        let count = |revision: u64, wanted| {
            let position = EventPosition { revision, n: 1, bits: revision * 7 };
            recent.after(position, wanted).map(|entries| entries.len())
        };
        assert_eq!(count(0, Some(WatchSubject::Flow(FlowId(1)))), Some(999));
        assert_eq!((count(1999 - 1024, None), count(1998 - 1024, None)), (Some(1024), None));
    }

    #[test]
    fn holds_its_own_and_what_is_lent() {
        let lender = EventMemoryPool::default();
        let lent = || lender.0.load(Ordering::Relaxed);
        let big = |revision| entry(revision, 1, 100_000);
        let mut many: Vec<RecentEvents> = (0..5).map(|_| RecentEvents::new(lender.clone())).collect();
        for recent in &mut many {
            for revision in 0..400 {
                recent.extend(&[big(revision)]);
                assert!(recent.bytes <= OWN_BYTES + recent.borrowed, "{}", recent.bytes);
            }
        }
        // Four have borrowed all that there is; the last has its own.
        assert_eq!(
            many.iter().map(|recent| recent.borrowed).collect::<Vec<_>>(),
            [BORROWED_MAX, BORROWED_MAX, BORROWED_MAX, BORROWED_MAX, 0]
        );
        assert_eq!((lent(), many[4].entries.len()), (LENT_MAX, 2));
        many[0].clear();
        assert_eq!(lent(), LENT_MAX - BORROWED_MAX);
        many[4].extend(&[big(500), big(501)]);
        assert_eq!(many[4].entries.len(), 4);
        // The last one is there, whatever it has.
        many[4].extend(&[entry(3000, 1, 2 * LENT_MAX)]);
        assert_eq!(many[4].entries.len(), 1);
        drop(many);
        assert_eq!(lent(), 0);
    }
}
