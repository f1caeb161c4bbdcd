//! Envelopes in both forms: JSON, as a bus carries them, and protobuf, as a stream does.

use ::envelope::{Envelope, Refusal};
use bytes::Bytes;
use prost::Message as _;
use proto::convert::envelope::{from_wire, to_wire};
use proto::v1;

use crate::input::{Input, join};
use crate::keys::key;
use crate::{Target, Verdict, check_refusal};

/// The reader of envelopes.
pub const TARGET: Target = Target { name: "envelope", run, seeds, dictionary: DICTIONARY };

const TYPE: &str = "application/vnd.test+json";
const DICTIONARY: &[&str] = &[
    "{\"payloadType\":\"",
    "\"payload\":\"",
    "\"signatures\":[",
    "{\"keyid\":\"",
    "\"sig\":\"",
    "\"}]}",
    "application/vnd.test+json",
    "application/vnd.mycora.rpc+json",
    "\"payloadType\"",
    "\"payload\"",
    "\"signatures\"",
    "\"keyid\"",
    "\"sig\"",
    "null",
    "[]",
    "{}",
    "==",
    "=",
    "\\u0041",
    " ",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    match input.choice(4) {
        0 => Verdict::of(&read(Envelope::from_json(input.rest()))),
        1 => {
            let Ok(wire) = v1::Envelope::decode(input.rest()) else { return Verdict::Refused };
            Verdict::of(&read(from_wire(wire)))
        }
        way => changed(way == 2, input),
    }
}

/// A good envelope in one of its forms, with some bytes of it replaced.
fn changed(is_json: bool, mut input: Input<'_>) -> Verdict {
    let (at, payload) = (usize::from(input.number()), Bytes::copy_from_slice(input.part()));
    let good = Envelope::sign(TYPE, payload, key(0));
    let form = if is_json { good.to_json().to_vec() } else { to_wire(good.clone()).encode_to_vec() };
    let (mut form, at, new) = (form.clone(), at % (form.len() + 1), input.rest());
    drop(form.splice(at..(at + new.len()).min(form.len()), new.iter().copied()));
    let again = if is_json {
        read(Envelope::from_json(&form))
    } else {
        let Ok(wire) = v1::Envelope::decode(form.as_slice()) else { return Verdict::Refused };
        read(from_wire(wire))
    };
    if let Ok(again) = &again {
        assert_eq!(*again, good, "something else is held to be signed");
    } else {
        assert!(!new.is_empty(), "what was signed is refused");
    }
    Verdict::of(&again)
}

/// The envelope when its signature fits.
fn read(envelope: Result<Envelope, Refusal>) -> Result<Envelope, ()> {
    let refused = |refusal: Refusal| check_refusal(&refusal.to_string(), 512, &[]);
    let envelope = envelope.map_err(refused)?;
    assert_eq!(Envelope::from_json(&envelope.to_json()).as_ref(), Ok(&envelope), "JSON changes it");
    assert_eq!(from_wire(to_wire(envelope.clone())).as_ref(), Ok(&envelope), "a stream changes it");
    let signer = envelope.signer(TYPE).map_err(refused)?;
    assert_eq!(signer.to_string(), envelope.key_id, "somebody else has signed it");
    Ok(envelope)
}

fn seeds() -> Vec<Vec<u8>> {
    let good = Envelope::sign(TYPE, Bytes::from_static(b"{\"a\":1}"), key(0));
    vec![
        join(&[0], &[good.to_json()]),
        join(&[1], &[to_wire(good).encode_to_vec()]),
        join(&[2, 0, 0], &["{}", ""]),
        join(&[2, 0, 40], &["{}", "A"]),
        join(&[3, 0, 0], &["{}", ""]),
        join(&[3, 0, 60], &["{\"n\":7}", "B"]),
        join(&[0], &[r#"{"payloadType":"application/vnd.test+json","payload":"e30=","signatures":[]}"#]),
    ]
}
