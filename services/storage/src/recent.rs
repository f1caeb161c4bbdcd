//! The last events that a tailer has read: who joins at one of them is told what came since without asking Redis.

use std::collections::VecDeque;

use crate::events::{Entry, Position, Subject};

/// How many are kept.
const ENTRIES_MAX: usize = 512;
/// How many bytes they have at most, the last one apart.
const BYTES_MAX: usize = 256 * 1024;

/// The end of a context's stream, without a gap.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl Recent {
    /// Takes up what follows.
    pub(crate) fn extend(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.bytes += entry.bytes();
            self.entries.push_back(entry.clone());
            while self.entries.len() > 1 && (self.entries.len() > ENTRIES_MAX || self.bytes > BYTES_MAX) {
                self.bytes -= self.entries.pop_front().map_or(0, |first| first.bytes());
            }
        }
    }

    /// Where the stream ends.
    pub(crate) fn last(&self) -> Option<Position> {
        self.entries.back().map(|entry| entry.position)
    }

    /// What came after a position for whoever watches this; nothing when the position is not among them.
    pub(crate) fn after(&self, position: Position, wanted: Option<Subject>) -> Option<Vec<Entry>> {
        let at = self.entries.partition_point(|entry| position.is_after(entry.position));
        (self.entries.get(at)?.position == position)
            .then(|| self.entries.range(at + 1..).filter(|entry| entry.is_for(wanted)).cloned().collect())
    }

    /// Forgets all of it: the stream is another one.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::FlowId;

    use super::*;

    fn entry(revision: u64, flow: u32, bytes: usize) -> Entry {
        Entry {
            position: Position { revision, n: 1, bits: revision * 7 },
            event: Bytes::from(vec![b'x'; bytes]),
            subject: Some(Subject::Flow(FlowId(flow))),
            is_flow: false,
            is_context: false,
        }
    }

    fn revisions(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.position.revision).collect()
    }

    #[test]
    fn tells_what_came_after_a_position_that_it_knows() {
        let mut recent = Recent::default();
        assert_eq!(recent.last(), None);
        recent.extend(&[entry(3, 1, 10), entry(5, 2, 10), entry(6, 1, 10)]);
        let at = |revision| Position { revision, n: 1, bits: revision * 7 };
        let told = |position, wanted| recent.after(position, wanted).map(|entries| revisions(&entries));
        assert_eq!(told(at(3), None), Some(vec![5, 6]));
        assert_eq!(told(at(3), Some(Subject::Flow(FlowId(1)))), Some(vec![6]));
        assert_eq!(told(at(6), None), Some(Vec::new()));
        // One of before, one between, one to come, and one of another stream.
        for unknown in [at(1), at(4), at(7), Position { bits: 1, ..at(5) }, Position { n: 2, ..at(5) }] {
            assert_eq!(told(unknown, None), None, "{unknown}");
        }
        recent.clear();
        assert_eq!(recent.after(at(6), None), None);
    }

    #[test]
    fn is_bounded_by_entries_and_by_bytes() {
        let mut recent = Recent::default();
        for revision in 0..2000 {
            recent.extend(&[entry(revision, 1, 10)]);
        }
        assert_eq!(
            (recent.entries.len(), recent.last().map(|last| last.revision)),
            (ENTRIES_MAX, Some(1999))
        );
        for revision in 2000..2010 {
            recent.extend(&[entry(revision, 1, 100_000)]);
            assert!(recent.bytes <= BYTES_MAX, "{}", recent.bytes);
        }
        assert_eq!(recent.entries.len(), 2);
        // The last one is there, whatever it has.
        recent.extend(&[entry(3000, 1, 2 * BYTES_MAX)]);
        assert_eq!(recent.entries.len(), 1);
        recent.extend(&[entry(3001, 1, 10)]);
        assert_eq!((recent.entries.len(), recent.bytes), (1, entry(3001, 1, 10).bytes()));
    }
}
