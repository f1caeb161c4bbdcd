//! Actors: who may ask for something.

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::id::{ActorId, ContextId, Revision};
use crate::time::Timestamp;

/// A principal with a public key. Global, that is not inside a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Its number at this coordinator.
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
    /// The change counter at its last change.
    pub revision: Revision,
}

/// Whether this is how a public key is written, an actor's as well as a coordinator's, a supervisor's and a node's: 64
/// lower-case hex digits. Whether they stand for a point of the curve is another question.
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
    use super::is_key;

    #[test]
    fn keys_have_one_spelling() {
        assert!(is_key(&"0a".repeat(32)));
        for other in [String::new(), "0a".repeat(31), "0a".repeat(33), "0A".repeat(32), "0g".repeat(32)] {
            assert!(!is_key(&other), "{other}");
        }
    }
}
