//! Record of the job that an actor's signature belongs to, in a supervisor's Redis.

use std::fmt;

use model::actor::is_key;
use model::id::Uid;

use crate::supervisor::NONCE;

/// Which of an actor's signatures over jobs: written `<key>:<nonce>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActorNonce {
    /// The key that signed: 64 lower-case hex digits.
    pub signer: String,
    /// Which signature of it.
    pub nonce: Uid,
}

impl ActorNonce {
    /// Undoes `Display`; nothing for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (signer, nonce) = text.split_once(':')?;
        is_key(signer).then_some(Self { signer: signer.to_owned(), nonce: nonce.parse().ok()? })
    }
}

impl fmt::Display for ActorNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.signer, self.nonce)
    }
}

/// String: the job that a signature of an actor belongs to, `<flow uid>-<job>`.
#[must_use]
pub fn nonce_owner(nonce: &ActorNonce) -> String {
    format!("{NONCE}{nonce}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_one_spelling() {
        let nonce = ActorNonce { signer: "0f".repeat(32), nonce: Uid::from_bits(7) };
        assert_eq!(ActorNonce::parse(&nonce.to_string()), Some(nonce));
        for (signer, nonce) in [
            ("0F".repeat(32), "0".repeat(32)),
            ("0f".repeat(31), "0".repeat(32)),
            ("0f".repeat(32), "0".into()),
        ] {
            assert_eq!(ActorNonce::parse(&format!("{signer}:{nonce}")), None);
        }
    }
}
