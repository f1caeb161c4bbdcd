//! Proof of possession of a key: shown by an actor that gives itself another one.
//!
//! An actor is identified by its key, and public keys are public: an actor that could register another's key would be
//! taken for that one. So the new key signs the id of the actor that it is to belong to.
//!
//! A proof has the form of a token ([`crate::token`]), with a type of its own, `key-proof+jwt`, and the claims of one: for
//! which actor (`sub`), at which coordinator (`aud`), and for some minutes. A proof does not authenticate a call, and no token is a
//! proof.

use model::{ActorId, Timestamp};

use crate::signing_key::{SigningKey, VerifyingKey};
use crate::spiffe::TrustDomain;
use crate::token::{ActorVerifyingKey, TOKEN_LIFETIME_MAX, Token, TokenError, TokenPurpose, TokenVerdict};

/// Shows that `actor` of the coordinator of `trust_domain` has this key, from `now` on for five minutes.
#[must_use]
pub fn sign(key: &SigningKey, trust_domain: &TrustDomain, actor: ActorId, now: Timestamp) -> String {
    Token::sign_for(TokenPurpose::KeyProof, key, trust_domain, actor, now, TOKEN_LIFETIME_MAX)
}

/// Checks that the holder of this key has shown at `now` that it is to be the actor's.
///
/// # Errors
/// When it has not.
pub fn check(
    proof: &str,
    key: VerifyingKey,
    trust_domain: &TrustDomain,
    actor: ActorId,
    now: Timestamp,
) -> Result<(), KeyProofError> {
    let read =
        Token::read_for(TokenPurpose::KeyProof, proof, trust_domain, now).map_err(KeyProofError::Unusable)?;
    if read.actor() != actor {
        return Err(KeyProofError::Actor(read.actor()));
    }
    // Not in force yet: the proof is what puts it in force.
    let new = ActorVerifyingKey { key, not_before: Timestamp::default(), revoked_at: None };
    match read.verify(&[new], now) {
        TokenVerdict::Good(_) => Ok(()),
        TokenVerdict::Revoked | TokenVerdict::Refused => Err(KeyProofError::Key),
    }
}

/// Why a proof shows nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyProofError {
    /// The proof has another form, is for another coordinator, or its time is over.
    #[error("the proof cannot be used: {0}")]
    Unusable(TokenError),
    /// The proof was made for another actor.
    #[error("the proof is for actor {0}")]
    Actor(ActorId),
    /// Another key has signed it, or none.
    #[error("the new key has not signed the proof")]
    Key,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_763_690_000_000);
    const ALICE: ActorId = ActorId(7);

    fn ours() -> TrustDomain {
        TrustDomain::default()
    }

    #[test]
    fn only_the_holder_of_a_key_shows_that_it_is_its_own() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let proof = sign(&key, &ours(), ALICE, NOW);
        let judge = |proof: &str, key: &SigningKey, domain: &TrustDomain, actor, now| {
            check(proof, key.verifying_key(), domain, actor, now)
        };
        assert_eq!(judge(&proof, &key, &ours(), ALICE, NOW), Ok(()));
        assert_eq!(judge(&proof, &other, &ours(), ALICE, NOW), Err(KeyProofError::Key));
        assert_eq!(judge(&proof, &key, &ours(), ActorId(8), NOW), Err(KeyProofError::Actor(ALICE)));
        let elsewhere = "elsewhere".parse().expect("a trust domain");
        let unusable = |result| matches!(result, Err(KeyProofError::Unusable(_)));
        assert!(unusable(judge(&proof, &key, &elsewhere, ALICE, NOW)));
        assert!(unusable(judge(&proof, &key, &ours(), ALICE, NOW + Duration::from_secs(330))));
        assert!(unusable(judge("", &key, &ours(), ALICE, NOW)));
    }

    #[test]
    fn tokens_are_no_proofs_and_proofs_no_tokens() {
        let key = SigningKey::generate();
        let token = Token::sign(&key, &ours(), ALICE, NOW, Duration::from_secs(60));
        let refused = check(&token, key.verifying_key(), &ours(), ALICE, NOW);
        assert_eq!(refused, Err(KeyProofError::Unusable(TokenError::Type { ours: "key-proof+jwt" })));
        let proof = sign(&key, &ours(), ALICE, NOW);
        assert_eq!(Token::read(&proof, &ours(), NOW), Err(TokenError::Type { ours: "JWT" }));
    }
}
