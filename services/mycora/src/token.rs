//! Tokens: how an actor shows who it is without a certificate.

use std::time::Duration;

use identity::token::{TOKEN_LIFETIME_MAX, audience};
use identity::{SigningKey, Token, TrustDomain};
use model::{ActorId, Timestamp};

/// The longest that a token counts.
pub const HOLDS_MAX: Duration = TOKEN_LIFETIME_MAX;

/// Signs tokens of one actor, for one coordinator.
#[derive(Debug, Clone)]
pub struct TokenSigner {
    key: SigningKey,
    actor: ActorId,
    trust_domain: TrustDomain,
}

impl TokenSigner {
    /// With the key that the actor is registered with.
    #[must_use]
    pub const fn new(key: SigningKey, actor: ActorId, trust_domain: TrustDomain) -> Self {
        Self { key, actor, trust_domain }
    }

    /// Returns the actor whose tokens the signer makes.
    #[must_use]
    pub const fn actor(&self) -> ActorId {
        self.actor
    }

    /// For whom they are.
    #[must_use]
    pub fn audience(&self) -> String {
        audience(&self.trust_domain)
    }

    /// Signs a fresh token, valid from `now` on.
    #[must_use]
    pub fn sign(&self, now: Timestamp, holds: Duration) -> String {
        Token::sign(&self.key, &self.trust_domain, self.actor, now, holds)
    }
}
