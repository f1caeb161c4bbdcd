//! Joins the parts of long messages.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use crate::bus::PublicKey;

use super::frame::{BusMessageId, MESSAGE_BYTES_MAX};

/// Messages of one sender that may wait for parts.
const OPEN_PER_SENDER: usize = 4;
/// Bytes of all that wait for parts.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Time without a further part after which a message is forgotten; its sender starts over.
const PATIENCE: Duration = Duration::from_secs(120);

/// Result of adding a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReassemblyResult {
    /// Other parts are missing.
    Incomplete,
    /// The message, with this part.
    Complete(Bytes),
    /// There is no room now.
    Full,
}

/// Messages that wait for parts.
#[derive(Debug, Default)]
pub(super) struct Reassembler {
    open: HashMap<(PublicKey, BusMessageId), PartialMessage>,
    bytes: usize,
}

#[derive(Debug)]
struct PartialMessage {
    parts: Vec<Option<Bytes>>,
    bytes: usize,
    touched: Instant,
}

impl Reassembler {
    /// Returns true when this part would complete the message.
    pub(super) fn completes(&self, from: PublicKey, id: BusMessageId, part: u16) -> bool {
        self.open.get(&(from, id)).is_some_and(|partial| {
            let missing =
                |(place, slot): (usize, &Option<Bytes>)| slot.is_none() && place != usize::from(part);
            !partial.parts.iter().enumerate().any(missing)
        })
    }

    /// Takes a part.
    pub(super) fn add(
        &mut self,
        from: PublicKey,
        id: BusMessageId,
        (part, parts): (u16, u16),
        data: Bytes,
        now: Instant,
    ) -> ReassemblyResult {
        self.forget_old(now);
        let place = (from, id);
        if !self.open.contains_key(&place) {
            let of_sender = self.open.keys().filter(|(sender, _)| *sender == from).count();
            if of_sender >= OPEN_PER_SENDER {
                return ReassemblyResult::Full;
            }
        }
        if self.bytes + data.len() > BYTES_MAX {
            return ReassemblyResult::Full;
        }
        let partial = self.open.entry(place).or_insert_with(|| PartialMessage {
            parts: vec![None; usize::from(parts)],
            bytes: 0,
            touched: now,
        });
        partial.touched = now;
        if let Some(slot) = partial.parts.get_mut(usize::from(part)).filter(|slot| slot.is_none()) {
            partial.bytes += data.len();
            self.bytes += data.len();
            *slot = Some(data);
        }
        if partial.bytes > MESSAGE_BYTES_MAX || partial.parts.iter().any(Option::is_none) {
            return ReassemblyResult::Incomplete;
        }
        self.take(place).map_or(ReassemblyResult::Incomplete, |partial| {
            let mut whole = BytesMut::with_capacity(partial.bytes);
            partial.parts.iter().flatten().for_each(|part| whole.extend_from_slice(part));
            ReassemblyResult::Complete(whole.freeze())
        })
    }

    fn forget_old(&mut self, now: Instant) {
        let old = self.open.iter().filter(|(_, partial)| now.duration_since(partial.touched) > PATIENCE);
        for place in old.map(|(place, _)| *place).collect::<Vec<_>>() {
            self.take(place);
        }
    }

    fn take(&mut self, place: (PublicKey, BusMessageId)) -> Option<PartialMessage> {
        let partial = self.open.remove(&place)?;
        self.bytes -= partial.bytes;
        Some(partial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: PublicKey = PublicKey::from_bytes([1; 32]);

    fn id(count: u64) -> BusMessageId {
        BusMessageId { channel: 1, count }
    }

    #[tokio::test]
    async fn parts_in_any_order_make_the_message() {
        let (mut joiner, now) = (Reassembler::default(), Instant::now());
        let parts = [(2, "c"), (0, "a"), (2, "x"), (1, "b")];
        let mut last = ReassemblyResult::Full;
        for (part, data) in parts {
            assert_eq!(joiner.completes(ME, id(1), part), part == 1);
            last = joiner.add(ME, id(1), (part, 3), Bytes::from(data), now);
        }
        assert_eq!(last, ReassemblyResult::Complete(Bytes::from("abc")));
        assert!(joiner.open.is_empty() && joiner.bytes == 0);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_forgotten() {
        let (mut joiner, now) = (Reassembler::default(), Instant::now());
        let other = PublicKey::from_bytes([2; 32]);
        for count in 0..OPEN_PER_SENDER as u64 {
            assert_eq!(
                joiner.add(ME, id(count), (0, 2), Bytes::from("a"), now),
                ReassemblyResult::Incomplete
            );
        }
        assert_eq!(joiner.add(ME, id(9), (0, 2), Bytes::from("a"), now), ReassemblyResult::Full);
        assert_eq!(joiner.add(other, id(9), (0, 2), Bytes::from("a"), now), ReassemblyResult::Incomplete);
        let later = now + PATIENCE + Duration::from_secs(1);
        assert_eq!(joiner.add(ME, id(9), (0, 2), Bytes::from("a"), later), ReassemblyResult::Incomplete);
        assert_eq!((joiner.open.len(), joiner.bytes), (1, 1));
        joiner.bytes = BYTES_MAX;
        assert_eq!(joiner.add(ME, id(9), (1, 2), Bytes::from("b"), later), ReassemblyResult::Full);
    }
}
