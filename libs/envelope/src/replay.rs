//! Window of envelopes that were already received.

use std::collections::BTreeSet;

use model::Timestamp;

use crate::{OpenedEnvelope, Refusal};

/// Root of an envelope, and its id.
type ReplayKey = ([u8; 32], u128);

/// Remembers received envelopes for as long as they hold, up to a number of them.
///
/// The window is in memory only: the requests that it protects have to be idempotent across restarts on their own, as jobs are by
/// their keys and stops by their marks.
#[derive(Debug)]
pub struct ReplayWindow {
    /// Ordered by expiry. The expiry is signed as well, so that a repetition has the same key.
    admitted: BTreeSet<(Timestamp, ReplayKey)>,
    capacity: usize,
}

impl ReplayWindow {
    /// Makes a window for this many envelopes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { admitted: BTreeSet::new(), capacity }
    }

    /// Returns true when nothing that the window remembers holds any more.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.holds_until().is_none_or(|until| until <= now)
    }

    /// When the last remembered envelope expires; none while the window is empty.
    #[must_use]
    pub fn holds_until(&self) -> Option<Timestamp> {
        self.admitted.last().map(|(over, _)| *over)
    }

    /// Forgets the envelope that expires first.
    pub fn evict_oldest(&mut self) {
        self.admitted.pop_first();
    }

    /// Admits an envelope that was not received before.
    ///
    /// # Errors
    /// [`Refusal::Replayed`]; [`Refusal::TooMuch`] when no more can be remembered, which passes.
    pub fn admit(&mut self, opened: &OpenedEnvelope, now: Timestamp) -> Result<(), Refusal> {
        while self.admitted.first().is_some_and(|(over, _)| *over <= now) {
            self.admitted.pop_first();
        }
        let key = (opened.expires, (*opened.signer.as_bytes(), opened.id.bits()));
        if self.admitted.contains(&key) {
            return Err(Refusal::Replayed);
        }
        if self.admitted.len() >= self.capacity {
            return Err(Refusal::TooMuch);
        }
        self.admitted.insert(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Sealer, open_envelope};
    use identity::SigningKey;

    #[test]
    fn an_envelope_is_admitted_once_while_it_is_valid() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let minute = Duration::from_secs(60);
        let own = SigningKey::generate().verifying_key().to_string();
        let one = Sealer::of_root(SigningKey::generate());
        let say = || {
            let envelope = one.seal(&own, b"{}", now, minute).expect("JSON");
            open_envelope(&envelope, std::slice::from_ref(&own), now).expect("for us")
        };
        let mut window = ReplayWindow::new(2);
        let (first, second, third) = (say(), say(), say());
        assert_eq!(window.admit(&first, now), Ok(()));
        assert_eq!(window.admit(&first, now), Err(Refusal::Replayed));
        assert_eq!(window.admit(&second, now), Ok(()));
        assert_eq!(window.admit(&third, now), Err(Refusal::TooMuch));
        assert_eq!(window.admit(&first, now), Err(Refusal::Replayed), "also when it is full");
        assert_eq!(window.admit(&third, now + minute), Ok(()), "the others hold no more");
        assert_eq!(window.admitted.len(), 1);
    }
}
