//! Tokens of actors, as servers are shown them.
//!
//! A token is presented as it stands in the input, or made of the header and claims there and signed by the actor, by
//! another actor, or by a key of the actor that is no longer valid.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use identity::token::{self, TOKEN_LIFETIME_MAX, TOKEN_SKEW};
use identity::{ActorVerifyingKey, Token, TrustDomain};
use model::Timestamp;
use serde_json::Value;

use super::{NOW, with_another_character};
use crate::input::{Input, join};
use crate::keys::key;
use crate::{Target, Verdict, check_refusal};

/// The reader of tokens.
pub const TARGET: Target = Target { name: "token", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "{\"alg\":\"Ed25519\"}",
    "{\"alg\":\"EdDSA\",\"typ\":\"JWT\"}",
    "\"alg\"",
    "\"typ\"",
    "\"kid\"",
    "\"crit\"",
    "\"JWT\"",
    "\"none\"",
    "\"Ed25519\"",
    "\"EdDSA\"",
    "\"sub\"",
    "\"aud\"",
    "\"iat\"",
    "\"exp\"",
    "\"jti\"",
    "spiffe://example.org/actor/7",
    "spiffe://example.org",
    "/actor/",
    "1800000000",
    "1800000300",
    "null",
    "[]",
    "{}",
    ".",
    ",",
];

static TRUST_DOMAIN: LazyLock<TrustDomain> = LazyLock::new(|| "example.org".parse().expect("a trust domain"));

fn keys() -> [ActorVerifyingKey; 2] {
    let of = |number: usize, revoked_at| ActorVerifyingKey {
        key: key(number).verifying_key(),
        not_before: Timestamp::from_millis(1_700_000_000_000),
        revoked_at,
    };
    [of(0, None), of(1, Some(Timestamp::from_millis(1_750_000_000_000)))]
}

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let who = input.choice(6);
    let number = input.number();
    if who == 0 {
        return Verdict::of(&check(&String::from_utf8_lossy(input.rest())));
    }
    let (header, claims) = (input.part(), input.part());
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    // Mostly the actor; else a former key of its own, or another actor.
    let signer = match who {
        1 => 1,
        2 => 2,
        _ => 0,
    };
    let signature = URL_SAFE_NO_PAD.encode(key(signer).sign(signed.as_bytes()));
    let text = format!("{signed}.{signature}");
    let read = check(&text);
    if let Ok(token) = &read {
        for part in [header, claims] {
            assert!(part.trim_ascii_start().starts_with(b"{"), "a list was taken for an object");
        }
        assert_eq!(signer, 0, "what another key has signed was accepted");
        means_what_was_signed(token, claims);
        let changed = with_another_character(&text, number);
        assert!(check(&changed).is_err(), "{changed} is no other spelling of {text}");
    }
    Verdict::of(&read)
}

/// The token when it is accepted.
fn check(text: &str) -> Result<Token, ()> {
    // A refusal does not reveal what the token is proved with.
    let signature = text.rsplit('.').next().filter(|part| part.len() >= 80);
    let refused = |error: identity::TokenError| {
        check_refusal(&error.to_string(), 4096, signature.as_slice());
    };
    let token = Token::read(text, &TRUST_DOMAIN, NOW).map_err(refused)?;
    let keys = keys();
    match token.verify(&keys, NOW) {
        token::TokenVerdict::Good(key) => {
            assert_eq!(*key, keys[0], "another key counts");
            Ok(token)
        }
        token::TokenVerdict::Revoked | token::TokenVerdict::Refused => Err(()),
    }
}

fn means_what_was_signed(token: &Token, claims: &[u8]) {
    let claims: Value = serde_json::from_slice(claims).expect("it was read before");
    let (issued, expires) = (token.issued_at(), token.expires_at());
    assert_eq!(claims["sub"], format!("spiffe://example.org/actor/{}", token.actor()));
    assert_eq!(claims["aud"], "spiffe://example.org");
    assert_eq!(claims["jti"], token.id());
    assert_eq!(claims["iat"].as_u64().map(|secs| secs * 1000), Some(issued.as_millis()));
    assert_eq!(claims["exp"].as_u64().map(|secs| secs * 1000), Some(expires.as_millis()));
    assert_eq!(claims.as_object().map(|claims| claims.len()), Some(5));
    assert!(expires > issued && expires.since(issued) <= TOKEN_LIFETIME_MAX, "{issued} to {expires}");
    assert!(issued <= NOW + TOKEN_SKEW && NOW < expires + TOKEN_SKEW, "{issued} to {expires}");
    assert!((1..=64).contains(&token.id().len()) && token.id().bytes().all(|byte| byte.is_ascii_graphic()));
}

fn seeds() -> Vec<Vec<u8>> {
    let header = r#"{"alg":"Ed25519","typ":"JWT"}"#;
    let claims = |iat: u64, exp: u64| {
        format!(
            r#"{{"sub":"spiffe://example.org/actor/7","aud":"spiffe://example.org","iat":{iat},"exp":{exp},"jti":"a1"}}"#
        )
    };
    let (now, later) = (NOW.as_secs(), NOW.as_secs() + 300);
    let mut seeds: Vec<_> = (1..6).map(|who| join(&[who, 0, 9], &[header, &claims(now, later)])).collect();
    seeds.push(join(&[3, 0, 200], &[r#"{"alg":"EdDSA","kid":"k"}"#, &claims(now - 300, now)]));
    seeds.push(join(&[3, 1, 44], &[r#"{"alg":"none"}"#, &claims(now, later)]));
    // Lists, which some readers take for objects.
    let list = r#"["spiffe://example.org/actor/7","spiffe://example.org",1800000000,1800000300,"a1"]"#;
    seeds.push(join(&[3, 0, 9], &[header, list]));
    seeds.push(join(&[3, 0, 9], &[r#"["Ed25519",null,null]"#, &claims(now, later)]));
    // The named key must be the right one: that of actor 7, and one of another actor.
    for number in [0, 2] {
        let header = format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, key(number).verifying_key().thumbprint());
        seeds.push(join(&[3, 0, 9], &[&header, &claims(now, later)]));
    }
    let lifetime = TOKEN_LIFETIME_MAX;
    // Of the present: for a later or earlier reader it is too old, or too new.
    let text = Token::sign(key(0), &TRUST_DOMAIN, model::ActorId(7), NOW, lifetime);
    seeds.push(join(&[0, 0, 0], &[text]));
    seeds
}
