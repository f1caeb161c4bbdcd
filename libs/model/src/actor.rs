//! Actors: who may ask for something.

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::id::{ActorId, ContextId, Revision};
use crate::time::Timestamp;

/// A principal with a public key. Global, that is not inside a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Number of the actor at this coordinator.
    pub id: ActorId,
    /// The Ed25519 key in force, 64 lower-case hex digits.
    pub pubkey: String,
    /// Where messages to it can be delivered.
    pub address: Vec<Address>,
    /// Every key it has or had, oldest first.
    pub keys: Vec<ActorKey>,
    /// Where chat and mail to it land unless they name a context.
    pub home_context: Option<ContextId>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Client certificates that were issued before this moment do not count; absent: all do.
    pub certificates_not_before: Option<Timestamp>,
    /// When it was removed. Its number is never reused, so the remaining record only shows that it was removed.
    pub deleted_at: Option<Timestamp>,
    /// The change counter at its last change.
    pub revision: Revision,
}

impl Actor {
    /// Replaces the key in force, from now on. Former keys remain valid until `former_until`, or until their own end if
    /// that is sooner.
    pub fn rotate(&mut self, key: String, now: Timestamp, former_until: Timestamp) {
        for former in &mut self.keys {
            if former.revoked_at.is_none_or(|end| end > former_until) {
                former.revoked_at = Some(former_until);
            }
        }
        self.keys.push(ActorKey { key: key.clone(), not_before: now, revoked_at: None });
        self.pubkey = key;
    }

    /// The keys by which it signs at this moment, the one in force first; former keys count until their end.
    #[must_use]
    pub fn keys_at(&self, at: Timestamp) -> Vec<&str> {
        let counting = self.keys.iter().filter(|key| key.is_in_force(at));
        let mut keys: Vec<&str> = counting.map(|key| key.key.as_str()).collect();
        keys.reverse();
        keys
    }
}

impl ActorKey {
    /// Returns true if the key counts at this moment.
    #[must_use]
    pub fn is_in_force(&self, at: Timestamp) -> bool {
        self.not_before <= at && self.revoked_at.is_none_or(|end| at < end)
    }

    /// Returns true if the key has expired.
    #[must_use]
    pub fn is_over(&self, at: Timestamp) -> bool {
        self.revoked_at.is_some_and(|end| end <= at)
    }
}

/// Returns true for the written form of a public key, be it an actor's, a coordinator's, a supervisor's or a node's:
/// 64 lower-case hex digits. Does not check that they stand for a point of the curve.
#[must_use]
pub fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// One key of an actor and when it counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorKey {
    /// 64 lower-case hex digits.
    pub key: String,
    /// Signatures before this moment are refused.
    pub not_before: Timestamp,
    /// Signatures from this moment on are refused; absent while it is in force.
    pub revoked_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::{Actor, ActorKey, is_key};
    use crate::id::{ActorId, Revision};
    use crate::time::Timestamp;

    fn secs(secs: u64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    #[test]
    fn a_key_counts_from_its_beginning_to_its_end() {
        let key = ActorKey { key: String::new(), not_before: secs(10), revoked_at: Some(secs(20)) };
        let counts: Vec<bool> = [9, 10, 19, 20].map(|at| key.is_in_force(secs(at))).into();
        assert_eq!(counts, [false, true, true, false]);
        assert!(!key.is_over(secs(19)) && key.is_over(secs(20)));
    }

    #[test]
    fn former_keys_end_and_never_later_than_they_would() {
        let mut actor = Actor {
            id: ActorId(1),
            pubkey: "a".to_owned(),
            address: Vec::new(),
            keys: vec![ActorKey { key: "a".to_owned(), not_before: secs(1), revoked_at: None }],
            home_context: None,
            created_at: secs(1),
            updated_at: secs(1),
            certificates_not_before: None,
            deleted_at: None,
            revision: Revision(1),
        };
        actor.rotate("b".to_owned(), secs(10), secs(100));
        actor.rotate("c".to_owned(), secs(20), secs(200));
        let ends: Vec<_> = actor.keys.iter().map(|key| key.revoked_at).collect();
        assert_eq!(ends, [Some(secs(100)), Some(secs(200)), None]);
        actor.rotate("d".to_owned(), secs(30), secs(30));
        let in_force: Vec<&str> =
            actor.keys.iter().filter(|key| key.is_in_force(secs(30))).map(|key| key.key.as_str()).collect();
        assert_eq!((in_force, actor.pubkey.as_str()), (vec!["d"], "d"), "at once");
    }

    #[test]
    fn keys_have_one_spelling() {
        assert!(is_key(&"0a".repeat(32)));
        for other in [String::new(), "0a".repeat(31), "0a".repeat(33), "0A".repeat(32), "0g".repeat(32)] {
            assert!(!is_key(&other), "{other}");
        }
    }
}
