//! Tokens with which actors show who they are: small texts that an actor's key signs, for a few minutes.
//!
//! A token is a compact JWS (RFC 7515) whose only algorithm is Ed25519, and whose claims are exactly `sub`, `aud`,
//! `iat`, `exp` and `jti`. Everything else is refused: a token has one meaning to every reader, or none.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
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

/// A public key of an actor and when it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActorKey {
    /// The key.
    pub key: VerifyingKey,
    /// What was signed before is refused.
    pub not_before: Timestamp,
    /// What is shown from then on is refused; absent while no end is set.
    pub revoked_at: Option<Timestamp>,
}

impl ActorKey {
    /// Whether something that was signed at `signed_at` counts at `now`. The signer's clock may be behind.
    #[must_use]
    pub fn counts(&self, signed_at: Timestamp, now: Timestamp) -> bool {
        signed_at + TOKEN_SKEW >= self.not_before && self.revoked_at.is_none_or(|end| now < end)
    }
}

impl TryFrom<&model::actor::ActorKey> for ActorKey {
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
    issued_at: Timestamp,
    expires_at: Timestamp,
    /// What is signed: the first two parts and the dot between them.
    signed: String,
    signature: Vec<u8>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    typ: Option<String>,
    /// Says nothing that we would believe.
    #[serde(default, skip_serializing)]
    #[expect(dead_code, reason = "allowed, and never looked at")]
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
        let header = Header { alg: "Ed25519".to_owned(), typ: Some("JWT".to_owned()), kid: None };
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

    /// Reads a token that was shown to a server of `ours`, and judges everything but the signature.
    ///
    /// # Errors
    /// When it has another form, is for somebody else, or is not in force at `now`.
    pub fn read(text: &str, ours: &TrustDomain, now: Timestamp) -> Result<Self, TokenError> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong(text.len()));
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenError::Form)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Form)?;
        let header: Header = part(header, "header")?;
        if !matches!(header.alg.as_str(), "Ed25519" | "EdDSA") {
            return Err(TokenError::Algorithm);
        }
        if header.typ.is_some_and(|typ| typ != "JWT") {
            return Err(TokenError::Type);
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
        Ok(Self { actor, id, issued_at, expires_at, signed, signature })
    }

    /// Whether one of the actor's keys has signed it, and which: the one that counts where there are several.
    #[must_use]
    pub fn verify<'k>(&self, keys: &'k [ActorKey], now: Timestamp) -> Verdict<'k> {
        let mut verdict = Verdict::Refused;
        for key in keys.iter().filter(|key| key.key.verifies(self.signed.as_bytes(), &self.signature)) {
            if key.counts(self.issued_at, now) {
                return Verdict::Good(key);
            }
            verdict = Verdict::Revoked;
        }
        verdict
    }

    /// The actor that it speaks for.
    #[must_use]
    pub const fn actor(&self) -> ActorId {
        self.actor
    }

    /// What tells it from every other token of this actor.
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

/// What an actor's keys say to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'k> {
    /// This one has signed it, and counts.
    Good(&'k ActorKey),
    /// One has signed it that does not count, or did not yet.
    Revoked,
    /// None has signed it.
    Refused,
}

/// What a token for the servers of this trust domain has as `aud`.
#[must_use]
pub fn audience(trust_domain: &TrustDomain) -> String {
    format!("spiffe://{trust_domain}")
}

fn part<T: DeserializeOwned>(text: &str, name: &'static str) -> Result<T, TokenError> {
    let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Form)?;
    // A list would be taken for an object without names; nobody else reads it so.
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

/// Why a token is refused, whoever signed it.
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
        /// What the reader said.
        message: String,
    },
    /// Not Ed25519.
    #[error("its `alg` has to be Ed25519 (or EdDSA, its older name)")]
    Algorithm,
    /// Not a JWT.
    #[error("its `typ` has to be JWT, or absent")]
    Type,
    /// It was made for others.
    #[error("its `aud` has to be {ours}")]
    Audience {
        /// What it would have to be.
        ours: String,
    },
    /// It speaks for nobody who may have a token.
    #[error("its `sub` has to be spiffe://<trust domain of this server>/actor/<id>")]
    Subject,
    /// No span of time, or a longer one than allowed.
    #[error("its `exp` has to be after `iat`, by at most {} s", TOKEN_LIFETIME_MAX.as_secs())]
    Lifetime,
    /// It begins later.
    #[error("its `iat` is in the future: is the clock right?")]
    NotYet,
    /// It is over.
    #[error("it has expired: make a new one (`mycora token`)")]
    Expired,
    /// Nothing to tell it from others.
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
        let kept = ActorKey { key: key.verifying_key(), not_before: NOW, revoked_at: None };
        assert_eq!(token.verify(&[kept], NOW), Verdict::Good(&kept));
        assert_eq!(token.verify(&[], NOW), Verdict::Refused);
        let long = read(&Token::sign(&key, &ours(), ALICE, NOW, secs(3600))).expect("cut");
        assert_eq!(long.expires_at(), NOW + TOKEN_LIFETIME_MAX);
    }

    #[test]
    fn keys_count_within_their_time() {
        let key = SigningKey::generate();
        let token = read(&Token::sign(&key, &ours(), ALICE, NOW, secs(60))).expect("its own");
        let at = |not_before, revoked_at| ActorKey { key: key.verifying_key(), not_before, revoked_at };
        // The signer's clock may be behind.
        let (soon, late) = (at(NOW + secs(30), None), at(NOW + secs(31), None));
        assert_eq!(token.verify(&[soon], NOW), Verdict::Good(&soon));
        assert_eq!(token.verify(&[late], NOW), Verdict::Revoked);
        let ends = at(NOW, Some(NOW + secs(1)));
        assert_eq!(token.verify(&[ends], NOW), Verdict::Good(&ends));
        assert_eq!(token.verify(&[ends], NOW + secs(1)), Verdict::Revoked);
        // One that was given up and taken again.
        assert_eq!(token.verify(&[at(NOW, Some(NOW)), soon], NOW), Verdict::Good(&soon));
        let other = ActorKey { key: SigningKey::generate().verifying_key(), ..soon };
        assert_eq!(token.verify(&[other], NOW), Verdict::Refused);
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
    fn headers_say_nothing_else() {
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
        let kept = ActorKey { key: key.verifying_key(), not_before: NOW, revoked_at: None };
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
        // Every single letter counts.
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            let believed = read(&changed).is_ok_and(|token| token.verify(&[kept], NOW) != Verdict::Refused);
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
