//! Window of envelopes that were heard already.

use std::collections::BTreeSet;

use model::Timestamp;

use crate::{OpenedEnvelope, Refusal};

/// Root of an envelope, and its id.
type ReplayKey = ([u8; 32], u128);

/// Remembers what was heard for as long as it holds, up to a number of things.
///
/// It lives in memory: what it protects has to be idempotent over restarts by itself, as jobs are by their keys and
/// stops by their marks.
#[derive(Debug)]
pub struct ReplayWindow {
    /// In the order of their ends. Those are signed as well, so that what is said again is found under the same one.
    heard: BTreeSet<(Timestamp, ReplayKey)>,
    capacity: usize,
}

impl ReplayWindow {
    /// Remembers up to this many things.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { heard: BTreeSet::new(), capacity }
    }

    /// Returns true when nothing that the window remembers holds any more.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.holds_until().is_none_or(|until| until <= now)
    }

    /// Until when something that it remembers holds; nothing while it remembers nothing.
    #[must_use]
    pub fn holds_until(&self) -> Option<Timestamp> {
        self.heard.last().map(|(over, _)| *over)
    }

    /// Forgets what is over first.
    pub fn evict_oldest(&mut self) {
        self.heard.pop_first();
    }

    /// Lets something through that was not heard before.
    ///
    /// # Errors
    /// [`Refusal::Replayed`]; [`Refusal::TooMuch`] when no more can be remembered, which passes.
    pub fn admit(&mut self, heard: &OpenedEnvelope, now: Timestamp) -> Result<(), Refusal> {
        while self.heard.first().is_some_and(|(over, _)| *over <= now) {
            self.heard.pop_first();
        }
        let said = (heard.expires, (*heard.signer.as_bytes(), heard.id.bits()));
        if self.heard.contains(&said) {
            return Err(Refusal::Replayed);
        }
        if self.heard.len() >= self.capacity {
            return Err(Refusal::TooMuch);
        }
        self.heard.insert(said);
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
    fn nothing_is_heard_twice_while_it_holds() {
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
        assert_eq!(window.heard.len(), 1);
    }
}
