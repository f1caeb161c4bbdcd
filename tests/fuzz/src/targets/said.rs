//! Statements that one side of a conversation receives, in an envelope of a root or of a gateway that a root certified.
//!
//! The statement stands in the input and is signed here. In it `@` is the certificate of the gateway, whose text stands in
//! the input as well and is signed by the root, or by another key.

use std::sync::Arc;

use ::envelope::statement::{LIFETIME_MAX, PAYLOAD_TYPE};
use ::envelope::{Conversation, Envelope, EnvelopeSigner, Refusal, Sealer, open_envelope};
use bytes::Bytes;

use super::NOW;
use crate::input::{Input, join};
use crate::keys::key;
use crate::{Target, Verdict, check_refusal};

/// The reader of statements.
pub const TARGET: Target = Target { name: "said", run, seeds, dictionary: DICTIONARY };

/// Payload type of an envelope with a gateway's certificate.
const CERTIFICATE_TYPE: &str = "application/vnd.mycora.gateway-key+json";
const DICTIONARY: &[&str] = &[
    "\"to\":\"",
    "\"id\":\"",
    "\"issued\":",
    "\"expires\":",
    "\"certificate\":@",
    "\"body\":",
    "\"key\":\"",
    "\"not_before\":",
    "\"not_after\":",
    "1800000000000",
    "1800000060000",
    "00000000000000000000000000000007",
    "0000000000000000000000000000000A",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"supervisor.info\"}",
    "null",
    "[]",
    "{}",
    "@",
    ",",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let way = input.byte();
    let (statement, certificate) = (input.part(), input.part());
    // Bit by bit: by a gateway or a root, whose certificate another key has signed, of another type.
    let signer = if way & 1 == 0 { key(0) } else { key(1) };
    let voucher = if way & 2 == 0 { key(0) } else { key(3) };
    let payload_type = if way & 4 == 0 { PAYLOAD_TYPE } else { CERTIFICATE_TYPE };
    let certificate = Envelope::sign(CERTIFICATE_TYPE, Bytes::copy_from_slice(certificate), voucher);
    let mut payload = Vec::with_capacity(statement.len());
    for byte in statement {
        match byte {
            b'@' => payload.extend_from_slice(&certificate.to_json()),
            other => payload.push(*other),
        }
    }
    let envelope = Envelope::sign(payload_type, payload.clone().into(), signer);
    let own = key(2).verifying_key().to_string();
    let opened = match open_envelope(&envelope, std::slice::from_ref(&own), NOW) {
        Ok(opened) => opened,
        Err(refusal) => {
            check_refusal(&refusal.to_string(), 512, &[&key(2).to_pem()]);
            assert!(
                !in_conversation(&own).is_ok_and(|here| here.verify(&envelope, NOW).is_ok()),
                "{refusal}"
            );
            return Verdict::Refused;
        }
    };
    assert_eq!(payload_type, PAYLOAD_TYPE, "something else was signed");
    assert_eq!(opened.signer, signer.verifying_key());
    assert!(
        [signer, voucher].iter().any(|root| root.verifying_key() == opened.root),
        "nobody vouches for it"
    );
    assert!(opened.expires > NOW && opened.expires.since(NOW) <= LIFETIME_MAX + ::envelope::statement::SKEW);
    assert!(payload.windows(opened.body.len().max(1)).any(|part| part == opened.body), "the body is another");
    let here = in_conversation(&own).expect("a name");
    assert_eq!(here.verify(&envelope, NOW).as_ref(), Ok(&opened.body), "the first time");
    assert_eq!(here.verify(&envelope, NOW), Err(Refusal::Replayed), "the second time");
    let silent = Envelope { signature: Bytes::new(), ..envelope };
    assert_eq!(open_envelope(&silent, &[own], NOW), Err(Refusal::BadSignature));
    Verdict::Accepted
}

/// A conversation with whichever peer sends first, before any message.
fn in_conversation(own: &str) -> Result<Conversation, Refusal> {
    let envelope_signer = EnvelopeSigner::new(Sealer::of_root(key(2).clone()), vec![own.to_owned()]);
    Ok(Conversation::new(envelope_signer, Arc::new(|_| {})))
}

fn seeds() -> Vec<Vec<u8>> {
    let own = key(2).verifying_key();
    let times = r#""issued":1800000000000,"expires":1800000060000"#;
    let body = r#""body":{"jsonrpc":"2.0","id":1,"method":"supervisor.info"}"#;
    let id = r#""id":"00000000000000000000000000000007""#;
    let certificate = |not_after: u64| {
        let key = key(1).verifying_key();
        format!(r#"{{"key":"{key}","not_before":1700000000000,"not_after":{not_after}}}"#)
    };
    let root = format!(r#"{{"to":"{own}",{id},{times},{body}}}"#);
    let gateway = format!(r#"{{"to":"{own}",{id},{times},"certificate":@,{body}}}"#);
    let mut seeds = vec![
        join(&[0], &[root.clone(), String::new()]),
        join(&[1], &[root.clone(), String::new()]),
        join(&[4], &[root.replace("18000000", "17000000"), String::new()]),
        join(&[0], &[root.replace("1800000060000", "1900000000000"), String::new()]),
    ];
    for way in [1, 0, 3, 5] {
        seeds.push(join(&[way], &[gateway.clone(), certificate(1_900_000_000_000)]));
    }
    seeds.push(join(&[1], &[gateway, certificate(1_750_000_000_000)]));
    seeds
}
