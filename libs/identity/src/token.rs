//! Tokens with which actors show who they are: small texts that an actor's key signs, for a few minutes.
//!
//! A token is a compact JWS (RFC 7515) whose only algorithm is Ed25519, and whose claims are exactly `sub`, `aud`,
//! `iat`, `exp` and `jti`. Everything else is refused: a token has one meaning to every reader, or none.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::limits::ACTOR_KEYS_MAX;
use model::{ActorId, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::signing_key::{BadVerifyingKey, SigningKey, VerifyingKey};
use crate::spiffe::{Identity, SpiffeId, TrustDomain};

/// A token is at most this long.
pub const TOKEN_BYTES_MAX: usize = 2048;
/// From `iat` to `exp`, at the longest.
pub const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(300);
/// How far the clocks of the two sides may be apart.
pub const TOKEN_SKEW: Duration = Duration::from_secs(30);
/// Characters of `jti`.
const TOKEN_ID_CHARS_MAX: usize = 64;
/// How long a thumbprint is that was hashed with SHA-256.
const THUMBPRINT_BYTES: usize = 32;

/// A public key of an actor and when it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActorVerifyingKey {
    /// The key.
    pub key: VerifyingKey,
    /// Beginning of the key's validity: tokens that were signed before are refused.
    pub not_before: Timestamp,
    /// End of the key's validity: tokens that are shown from then on are refused; absent while no end is set.
    pub revoked_at: Option<Timestamp>,
}

impl ActorVerifyingKey {
    /// Returns true when something that was signed at `signed_at` counts at `now`. The signer's clock may be behind.
    #[must_use]
    pub fn is_in_force(&self, signed_at: Timestamp, now: Timestamp) -> bool {
        signed_at + TOKEN_SKEW >= self.not_before && self.revoked_at.is_none_or(|end| now < end)
    }
}

impl TryFrom<&model::actor::ActorKey> for ActorVerifyingKey {
    type Error = BadVerifyingKey;

    fn try_from(kept: &model::actor::ActorKey) -> Result<Self, BadVerifyingKey> {
        let model::actor::ActorKey { key, not_before, revoked_at } = kept;
        Ok(Self { key: key.parse()?, not_before: *not_before, revoked_at: *revoked_at })
    }
}

/// A token that was read and not yet believed: [`Token::verify`] says whether to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    actor: ActorId,
    id: String,
    /// The thumbprint of the key that the token names as its signer.
    key_id: Option<String>,
    issued_at: Timestamp,
    expires_at: Timestamp,
    /// Signed part of the token: the first two parts and the dot between them.
    signed: String,
    signature: Vec<u8>,
}

/// Purpose of a token. One for another purpose is refused: nothing that was signed has two meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenPurpose {
    /// To show who calls.
    Call,
    /// To prove possession of a key ([`crate::key_proof`]).
    KeyProof,
}

impl TokenPurpose {
    const fn typ(self) -> &'static str {
        match self {
            Self::Call => "JWT",
            Self::KeyProof => "key-proof+jwt",
        }
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    typ: Option<String>,
    /// Says nothing that we would believe: only which key has to have signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kid: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    sub: String,
    aud: String,
    iat: u64,
    exp: u64,
    jti: String,
}

impl Token {
    /// Makes a token with which `actor` shows itself to the servers of `trust_domain`, from `now` on for `lifetime`, which
    /// is cut to whole seconds and to [`TOKEN_LIFETIME_MAX`].
    #[must_use]
    pub fn sign(
        key: &SigningKey,
        trust_domain: &TrustDomain,
        actor: ActorId,
        now: Timestamp,
        lifetime: Duration,
    ) -> String {
        Self::sign_for(TokenPurpose::Call, key, trust_domain, actor, now, lifetime)
    }

    pub(crate) fn sign_for(
        purpose: TokenPurpose,
        key: &SigningKey,
        trust_domain: &TrustDomain,
        actor: ActorId,
        now: Timestamp,
        lifetime: Duration,
    ) -> String {
        let kid = Some(key.verifying_key().thumbprint());
        let header = Header { alg: "Ed25519".to_owned(), typ: Some(purpose.typ().to_owned()), kid };
        let claims = Claims {
            sub: SpiffeId::new(trust_domain.clone(), Identity::Actor(actor)).to_string(),
            aud: audience(trust_domain),
            iat: now.as_secs(),
            exp: now.as_secs() + lifetime.min(TOKEN_LIFETIME_MAX).as_secs(),
            jti: hex::encode(rand::random::<[u8; 16]>()),
        };
        let part = |json: serde_json::Result<Vec<u8>>| {
            URL_SAFE_NO_PAD.encode(json.expect("texts and numbers are JSON"))
        };
        let signed = format!("{}.{}", part(serde_json::to_vec(&header)), part(serde_json::to_vec(&claims)));
        let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    /// Reads a token that was shown to a server of `ours`, and checks everything but the signature.
    ///
    /// # Errors
    /// When it has another form, is for another audience, or is not in force at `now`.
    pub fn read(text: &str, ours: &TrustDomain, now: Timestamp) -> Result<Self, TokenError> {
        Self::read_for(TokenPurpose::Call, text, ours, now)
    }

    pub(crate) fn read_for(
        purpose: TokenPurpose,
        text: &str,
        ours: &TrustDomain,
        now: Timestamp,
    ) -> Result<Self, TokenError> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong(text.len()));
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenError::Form)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Form)?;
        let header: Header = part(header, "header")?;
        if !matches!(header.alg.as_str(), "Ed25519" | "EdDSA") {
            return Err(TokenError::Algorithm);
        }
        // Those that show who calls need not say so.
        if header.typ.map_or(purpose != TokenPurpose::Call, |typ| typ != purpose.typ()) {
            return Err(TokenError::Type { ours: purpose.typ() });
        }
        let claims: Claims = part(claims, "claims")?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Form)?;
        let (issued_at, expires_at) = times(&claims, now)?;
        if claims.aud != audience(ours) {
            return Err(TokenError::Audience { ours: audience(ours) });
        }
        let subject: SpiffeId = claims.sub.parse().map_err(|_| TokenError::Subject)?;
        let Identity::Actor(actor) = subject.identity else { return Err(TokenError::Subject) };
        if subject.trust_domain != *ours {
            return Err(TokenError::Subject);
        }
        let has_id = (1..=TOKEN_ID_CHARS_MAX).contains(&claims.jti.len())
            && claims.jti.bytes().all(|byte| byte.is_ascii_graphic());
        if !has_id {
            return Err(TokenError::Id);
        }
        let (id, signed) = (claims.jti, signed.to_owned());
        // A `kid` of another form is the caller's own, and names no key here.
        let key_id = header.kid.filter(|kid| is_thumbprint(kid));
        Ok(Self { actor, id, key_id, issued_at, expires_at, signed, signature })
    }

    /// Finds the actor's key that has signed the token.
    ///
    /// Tokens are easily made up, and each signature that is tried costs: the key that the token names is tried and no
    /// other, or else those that count now, the newest first, of which there are [`ACTOR_KEYS_MAX`] at most.
    #[must_use]
    pub fn verify<'k>(&self, keys: &'k [ActorVerifyingKey], now: Timestamp) -> TokenVerdict<'k> {
        self.verify_by(keys, now, |key| key.verifies(self.signed.as_bytes(), &self.signature))
    }

    fn verify_by<'k>(
        &self,
        keys: &'k [ActorVerifyingKey],
        now: Timestamp,
        has_signed: impl Fn(&VerifyingKey) -> bool,
    ) -> TokenVerdict<'k> {
        let counts = |key: &&ActorVerifyingKey| key.is_in_force(self.issued_at, now);
        let Some(named) = &self.key_id else {
            let tried = keys.iter().rev().filter(counts).take(ACTOR_KEYS_MAX);
            let signer = tried.into_iter().find(|key| has_signed(&key.key));
            return signer.map_or(TokenVerdict::Refused, TokenVerdict::Good);
        };
        // One that was given up and taken again stands there twice.
        let mut named = keys.iter().filter(|key| key.key.thumbprint() == *named).peekable();
        if !named.peek().is_some_and(|key| has_signed(&key.key)) {
            return TokenVerdict::Refused;
        }
        named.find(counts).map_or(TokenVerdict::Revoked, TokenVerdict::Good)
    }

    /// Returns the actor of the token.
    #[must_use]
    pub const fn actor(&self) -> ActorId {
        self.actor
    }

    /// Returns the id of the token, unique among the tokens of this actor.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// When it was made, by the clock of its maker.
    #[must_use]
    pub const fn issued_at(&self) -> Timestamp {
        self.issued_at
    }

    /// When it ends.
    #[must_use]
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

fn is_thumbprint(text: &str) -> bool {
    URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| bytes.len() == THUMBPRINT_BYTES)
}

/// Verdict of an actor's keys on a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenVerdict<'k> {
    /// The named key has signed the token, and counts.
    Good(&'k ActorVerifyingKey),
    /// The key that the token names has signed it and does not count, or did not yet.
    Revoked,
    /// None that was tried has signed it.
    Refused,
}

/// Returns the `aud` of a token for the servers of this trust domain.
#[must_use]
pub fn audience(trust_domain: &TrustDomain) -> String {
    format!("spiffe://{trust_domain}")
}

fn part<T: DeserializeOwned>(text: &str, name: &'static str) -> Result<T, TokenError> {
    let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Form)?;
    // A list is refused, though serde would read it as an object without names: other readers do not.
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(TokenError::Part { name, message: "it is no object".to_owned() });
    }
    serde_json::from_slice(&json).map_err(|error| TokenError::Part { name, message: error.to_string() })
}

fn times(claims: &Claims, now: Timestamp) -> Result<(Timestamp, Timestamp), TokenError> {
    // Beyond this a number of seconds is no moment that milliseconds could count.
    let moment = |secs: u64| secs.checked_mul(1000).map(Timestamp::from_millis).ok_or(TokenError::Lifetime);
    let (issued_at, expires_at) = (moment(claims.iat)?, moment(claims.exp)?);
    if claims.exp <= claims.iat || claims.exp - claims.iat > TOKEN_LIFETIME_MAX.as_secs() {
        return Err(TokenError::Lifetime);
    }
    if issued_at > now + TOKEN_SKEW {
        return Err(TokenError::NotYet);
    }
    if now >= expires_at + TOKEN_SKEW {
        return Err(TokenError::Expired);
    }
    Ok((issued_at, expires_at))
}

/// Why a token is refused, independent of its signer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than any that is made properly.
    #[error("it has {0} bytes, at most {TOKEN_BYTES_MAX} are read")]
    TooLong(usize),
    /// No three parts in base64url.
    #[error("it is no compact JWS: three parts in base64url without padding, with dots between them")]
    Form,
    /// A part is other JSON than expected.
    #[error("its {name} cannot be used: {message}")]
    Part {
        /// `header` or `claims`.
        name: &'static str,
        /// Message of the reader.
        message: String,
    },
    /// Not Ed25519.
    #[error("its `alg` has to be Ed25519 (or EdDSA, its older name)")]
    Algorithm,
    /// The token is for another purpose.
    #[error("its `typ` has to be {ours}")]
    Type {
        /// Value that `typ` would have to have.
        ours: &'static str,
    },
    /// The token was made for other servers.
    #[error("its `aud` has to be {ours}")]
    Audience {
        /// Value that `aud` would have to have.
        ours: String,
    },
    /// The subject is none that may have a token.
    #[error("its `sub` has to be spiffe://<trust domain of this server>/actor/<id>")]
    Subject,
    /// No span of time, or a longer one than allowed.
    #[error("its `exp` has to be after `iat`, by at most {} s", TOKEN_LIFETIME_MAX.as_secs())]
    Lifetime,
    /// The token's time begins later.
    #[error("its `iat` is in the future: is the clock right?")]
    NotYet,
    /// The token's time is over.
    #[error("it has expired: make a new one (`mycora token`)")]
    Expired,
    /// No id that makes it unique.
    #[error("its `jti` has to be 1 to {TOKEN_ID_CHARS_MAX} visible ASCII characters")]
    Id,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_763_690_000_000);
    const SECS: u64 = 1_763_690_000;
    const ALICE: ActorId = ActorId(7);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn ours() -> TrustDomain {
        TrustDomain::default()
    }

    fn read(text: &str) -> Result<Token, TokenError> {
        Token::read(text, &ours(), NOW)
    }

    /// A token of these parts, with a good signature.
    fn made(key: &SigningKey, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn claims(iat: u64, exp: u64) -> String {
        format!(
            r#"{{"sub":"spiffe://mycora/actor/7","aud":"spiffe://mycora","iat":{iat},"exp":{exp},"jti":"x"}}"#
        )
    }

    const HEADER: &str = r#"{"alg":"EdDSA"}"#;

    #[test]
    fn what_was_signed_is_read_and_believed() {
        let key = SigningKey::generate();
        let text = Token::sign(&key, &ours(), ALICE, NOW, secs(60));
        let token = read(&text).expect("its own");
        assert_eq!((token.actor(), token.issued_at(), token.expires_at()), (ALICE, NOW, NOW + secs(60)));
        assert_eq!(token.id().len(), 32);
        assert_ne!(
            token.id(),
            read(&Token::sign(&key, &ours(), ALICE, NOW, secs(60))).expect("another").id()
        );
        let kept = ActorVerifyingKey { key: key.verifying_key(), not_before: NOW, revoked_at: None };
        assert_eq!(token.verify(&[kept], NOW), TokenVerdict::Good(&kept));
        assert_eq!(token.verify(&[], NOW), TokenVerdict::Refused);
        let long = read(&Token::sign(&key, &ours(), ALICE, NOW, secs(3600))).expect("cut");
        assert_eq!(long.expires_at(), NOW + TOKEN_LIFETIME_MAX);
    }

    #[test]
    fn keys_count_within_their_time() {
        let key = SigningKey::generate();
        let token = read(&Token::sign(&key, &ours(), ALICE, NOW, secs(60))).expect("its own");
        let at =
            |not_before, revoked_at| ActorVerifyingKey { key: key.verifying_key(), not_before, revoked_at };
        // The signer's clock may be behind.
        let (soon, late) = (at(NOW + secs(30), None), at(NOW + secs(31), None));
        assert_eq!(token.verify(&[soon], NOW), TokenVerdict::Good(&soon));
        assert_eq!(token.verify(&[late], NOW), TokenVerdict::Revoked);
        let ends = at(NOW, Some(NOW + secs(1)));
        assert_eq!(token.verify(&[ends], NOW), TokenVerdict::Good(&ends));
        assert_eq!(token.verify(&[ends], NOW + secs(1)), TokenVerdict::Revoked);
        // One that was given up and taken again.
        assert_eq!(token.verify(&[at(NOW, Some(NOW)), soon], NOW), TokenVerdict::Good(&soon));
        let other = ActorVerifyingKey { key: SigningKey::generate().verifying_key(), ..soon };
        assert_eq!(token.verify(&[other], NOW), TokenVerdict::Refused);
    }

    /// A token of `key` with this header, and how many signatures it costs to judge it by these keys.
    fn cost(text: &str, keys: &[ActorVerifyingKey]) -> (bool, usize) {
        let (token, tried) = (read(text).expect("good"), std::cell::Cell::new(0));
        let verdict = token.verify_by(keys, NOW, |key| {
            tried.set(tried.get() + 1);
            key.verifies(token.signed.as_bytes(), &token.signature)
        });
        assert_eq!(verdict, token.verify(keys, NOW));
        (matches!(verdict, TokenVerdict::Good(_)), tried.get())
    }

    #[test]
    fn what_anybody_can_make_up_costs_little() {
        let signers: Vec<_> = (0..64).map(|_| SigningKey::generate()).collect();
        let kept = |key: &SigningKey, revoked_at| ActorVerifyingKey {
            key: key.verifying_key(),
            not_before: NOW,
            revoked_at,
        };
        // As an actor has them at the most: all but the last few are over.
        let in_force = 64 - ACTOR_KEYS_MAX;
        let keys: Vec<_> = signers
            .iter()
            .enumerate()
            .map(|(place, key)| kept(key, (place < in_force).then_some(NOW)))
            .collect();
        let named = |key: &SigningKey, named: &SigningKey| {
            let header = format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, named.verifying_key().thumbprint());
            made(key, &header, &claims(SECS, SECS + 60))
        };
        let unnamed = |key: &SigningKey| made(key, HEADER, &claims(SECS, SECS + 60));
        let stranger = SigningKey::generate();
        assert_eq!(cost(&named(&stranger, &stranger), &keys), (false, 0), "no key of the actor");
        assert_eq!(cost(&named(&stranger, &signers[9]), &keys), (false, 1), "a forgery");
        assert_eq!(cost(&named(&signers[63], &signers[9]), &keys), (false, 1), "the key is the one named");
        assert_eq!(cost(&named(&signers[in_force], &signers[in_force]), &keys), (true, 1));
        assert_eq!(cost(&unnamed(&stranger), &keys), (false, ACTOR_KEYS_MAX));
        assert_eq!(cost(&unnamed(&signers[63]), &keys), (true, 1), "the newest first");
        assert_eq!(cost(&unnamed(&signers[in_force]), &keys), (true, ACTOR_KEYS_MAX));
        assert_eq!(cost(&unnamed(&signers[9]), &keys), (false, ACTOR_KEYS_MAX), "not tried");
        // Also where more are in force than there should be.
        let all: Vec<_> = signers.iter().map(|key| kept(key, None)).collect();
        assert_eq!(cost(&unnamed(&stranger), &all).1, ACTOR_KEYS_MAX);
        let own = |kid: &str| {
            made(&signers[63], &format!(r#"{{"alg":"EdDSA","kid":"{kid}"}}"#), &claims(SECS, SECS + 60))
        };
        assert_eq!(cost(&own("key-1"), &keys), (true, 1), "somebody's own name for a key");
    }

    #[test]
    fn times_have_bounds() {
        let key = SigningKey::generate();
        let at = |iat, exp| read(&made(&key, HEADER, &claims(iat, exp))).map(drop);
        assert_eq!(at(SECS + 30, SECS + 60), Ok(()));
        assert_eq!(at(SECS + 31, SECS + 60), Err(TokenError::NotYet));
        assert_eq!(at(SECS - 100, SECS - 29), Ok(()));
        assert_eq!(at(SECS - 100, SECS - 30), Err(TokenError::Expired));
        assert_eq!(at(SECS, SECS + 300), Ok(()));
        for (iat, exp) in
            [(SECS, SECS), (SECS, SECS + 301), (SECS, SECS - 1), (SECS, u64::MAX), (u64::MAX, 1)]
        {
            assert_eq!(at(iat, exp), Err(TokenError::Lifetime), "{iat} {exp}");
        }
    }

    #[test]
    fn a_token_header_with_another_algorithm_or_extension_is_refused() {
        let key = SigningKey::generate();
        let with = |header: &str| read(&made(&key, header, &claims(SECS, SECS + 60))).map(drop);
        for good in [
            HEADER,
            r#"{"alg":"Ed25519"}"#,
            r#"{"typ":"JWT","alg":"Ed25519"}"#,
            r#"{"alg":"EdDSA","kid":"whatever"}"#,
        ] {
            assert_eq!(with(good), Ok(()), "{good}");
        }
        for bad in [
            r#"{"alg":"none"}"#,
            r#"{"alg":"HS256"}"#,
            r#"{"alg":"eddsa"}"#,
            r#"{"alg":"EdDSA","typ":"at+jwt"}"#,
            r#"{"alg":"EdDSA","crit":["exp"],"exp":1}"#,
            r#"{"alg":"EdDSA","jwk":{}}"#,
            r#"{"alg":"EdDSA","alg":"EdDSA"}"#,
            r#"{"alg":["EdDSA"]}"#,
            r#"{"alg":"EdDSA"} x"#,
            "{}",
            "[]",
            "",
        ] {
            assert!(with(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn claims_have_one_meaning() {
        let key = SigningKey::generate();
        let whole = claims(SECS, SECS + 60);
        let with = |claims: &str| read(&made(&key, HEADER, claims)).map(drop);
        assert_eq!(with(&whole), Ok(()));
        for (from, to) in [
            ("actor/7", "actor/07"),
            ("actor/7", "actor/0"),
            ("actor/7", "admin"),
            ("actor/7", "service/storage"),
            ("//mycora/actor", "//other/actor"),
            (r#""aud":"spiffe://mycora""#, r#""aud":"spiffe://other""#),
            (r#""aud":"spiffe://mycora""#, r#""aud":["spiffe://mycora"]"#),
            (r#""jti":"x""#, r#""jti":"""#),
            (r#""jti":"x""#, r#""jti":"x y""#),
            (r#""jti":"x""#, r#""jti":"x","jti":"x""#),
            (r#""jti":"x""#, r#""jti":"x","nbf":0"#),
            (r#","jti":"x""#, ""),
            ("1763690060", "1763690060.0"),
            ("1763690060", "-1"),
            ("1763690060", "\"1763690060\""),
        ] {
            let changed = whole.replacen(from, to, 1);
            assert_ne!(changed, whole, "{from}");
            assert!(with(&changed).is_err(), "{changed}");
        }
        assert!(with(&whole.replace("\"x\"", &format!("\"{}\"", "x".repeat(65)))).is_err());
    }

    #[test]
    fn a_token_has_one_spelling() {
        let key = SigningKey::generate();
        let kept = ActorVerifyingKey { key: key.verifying_key(), not_before: NOW, revoked_at: None };
        let text = Token::sign(&key, &ours(), ALICE, NOW, secs(60));
        for other in [
            format!("{text}="),
            format!("{text}."),
            format!(".{text}"),
            text.replace('.', ".."),
            text.replace('.', ""),
        ] {
            assert!(read(&other).is_err(), "{other}");
        }
        assert!(matches!(read(&"a".repeat(TOKEN_BYTES_MAX + 1)), Err(TokenError::TooLong(_))));
        // Every single character counts.
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            let believed =
                read(&changed).is_ok_and(|token| token.verify(&[kept], NOW) != TokenVerdict::Refused);
            assert!(!believed, "{at}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC{0,200}|[A-Za-z0-9_-]{0,80}\\.[A-Za-z0-9_-]{0,80}\\.[A-Za-z0-9_-]{0,90}") {
            let _ = read(&text);
        }

        #[test]
        fn parts_never_panic(header in "\\PC{0,60}", claims in "\\PC{0,120}", iat: u64, exp: u64) {
            let key = SigningKey::generate();
            let _ = read(&made(&key, &header, &claims));
            let _ = read(&made(&key, HEADER, &self::claims(iat, exp)));
        }
    }
}
