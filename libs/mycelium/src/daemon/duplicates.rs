//! Detects payloads that were handed over already: a payload that is pushed again has another id at the daemon, but the
//! same number at its sender.

use std::collections::HashMap;

use crate::bus::PublicKey;

use super::frame::BusMessageId;

/// How far behind the newest message of a lane another may be and still be recognized as new or repeated.
const WINDOW: u64 = 16 * 1024;
/// Lanes of one sender: it draws a new one when it starts, and after a long silence.
const LANES_MAX: usize = 4;
/// Senders, at most; the one that was silent for the longest is forgotten.
const SENDERS_MAX: usize = 2048;

/// Result of looking a message up among the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DuplicateCheck {
    New,
    Seen,
    /// Too far behind to decide.
    TooOld,
}

/// Numbers of received messages, in a bounded window for each sender.
#[derive(Debug, Default)]
pub(super) struct DuplicateFilter {
    senders: HashMap<PublicKey, SenderWindows>,
    clock: u64,
}

#[derive(Debug, Default)]
struct SenderWindows {
    /// The one that was used last comes last.
    lanes: Vec<ChannelWindow>,
    used: u64,
}

#[derive(Debug)]
struct ChannelWindow {
    id: u64,
    newest: u64,
    /// One bit for each of the last [`WINDOW`] numbers, by their remainder.
    bits: Box<[u64; (WINDOW / 64) as usize]>,
}

impl DuplicateFilter {
    /// Looks up whether a message came before.
    pub(super) fn look(&self, from: PublicKey, id: BusMessageId) -> DuplicateCheck {
        let lane =
            self.senders.get(&from).and_then(|sender| sender.lanes.iter().find(|lane| lane.id == id.channel));
        lane.map_or(DuplicateCheck::New, |lane| lane.look(id.count))
    }

    /// Notes that a message came.
    pub(super) fn note(&mut self, from: PublicKey, id: BusMessageId) {
        if !self.senders.contains_key(&from) && self.senders.len() >= SENDERS_MAX {
            let oldest = self.senders.iter().min_by_key(|(_, sender)| sender.used).map(|(key, _)| *key);
            oldest.and_then(|oldest| self.senders.remove(&oldest));
        }
        self.clock += 1;
        let sender = self.senders.entry(from).or_default();
        sender.used = self.clock;
        let mut lane = match sender.lanes.iter().position(|lane| lane.id == id.channel) {
            Some(place) => sender.lanes.remove(place),
            None => ChannelWindow { id: id.channel, newest: 0, bits: Box::new([0; (WINDOW / 64) as usize]) },
        };
        lane.note(id.count);
        sender.lanes.push(lane);
        if sender.lanes.len() > LANES_MAX {
            sender.lanes.remove(0);
        }
    }
}

impl ChannelWindow {
    fn look(&self, count: u64) -> DuplicateCheck {
        if count > self.newest {
            DuplicateCheck::New
        } else if self.newest - count >= WINDOW {
            DuplicateCheck::TooOld
        } else if self.bits[Self::word(count)] & Self::bit(count) != 0 {
            DuplicateCheck::Seen
        } else {
            DuplicateCheck::New
        }
    }

    fn note(&mut self, count: u64) {
        if count > self.newest {
            if count - self.newest >= WINDOW {
                self.bits.fill(0);
            } else {
                for between in self.newest + 1..count {
                    self.bits[Self::word(between)] &= !Self::bit(between);
                }
            }
            self.newest = count;
        }
        self.bits[Self::word(count)] |= Self::bit(count);
    }

    const fn word(count: u64) -> usize {
        ((count % WINDOW) / 64) as usize
    }

    const fn bit(count: u64) -> u64 {
        1 << (count % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    use proptest::prelude::*;

    fn key(n: u16) -> PublicKey {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_bytes(bytes)
    }

    proptest! {
        #[test]
        fn the_duplicate_filter_decides_like_a_set(counts in prop::collection::vec(1u64..200_000, 1..200)) {
            let (mut seen, mut set, mut newest) = (DuplicateFilter::default(), HashSet::new(), 0);
            for count in counts {
                let id = BusMessageId { channel: 1, count };
                let expected = match (set.contains(&count), newest >= count + WINDOW) {
                    (_, true) => DuplicateCheck::TooOld,
                    (true, _) => DuplicateCheck::Seen,
                    (false, _) => DuplicateCheck::New,
                };
                prop_assert_eq!(seen.look(key(1), id), expected);
                if expected == DuplicateCheck::New {
                    seen.note(key(1), id);
                    set.insert(count);
                    newest = newest.max(count);
                }
            }
        }
    }

    #[test]
    fn senders_and_lanes_do_not_mix_and_are_bounded() {
        let mut seen = DuplicateFilter::default();
        let id = |lane| BusMessageId { channel: lane, count: 1 };
        seen.note(key(1), id(1));
        assert_eq!(seen.look(key(1), id(1)), DuplicateCheck::Seen);
        assert_eq!(
            (seen.look(key(2), id(1)), seen.look(key(1), id(2))),
            (DuplicateCheck::New, DuplicateCheck::New)
        );
        for lane in 2..10 {
            seen.note(key(1), id(lane));
        }
        assert_eq!(
            (seen.look(key(1), id(1)), seen.look(key(1), id(9))),
            (DuplicateCheck::New, DuplicateCheck::Seen)
        );
        for sender in 2..5000 {
            seen.note(key(sender), id(1));
        }
        assert_eq!(seen.senders.len(), SENDERS_MAX);
        assert_eq!(
            (seen.look(key(1), id(9)), seen.look(key(4999), id(1))),
            (DuplicateCheck::New, DuplicateCheck::Seen)
        );
    }
}
