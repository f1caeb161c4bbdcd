//! Changes of root that follow each other, and single ones whose text stands in the input.

use ::envelope::{Envelope, RootChain, RootChange};
use bytes::Bytes;

use crate::input::{Input, join};
use crate::keys::{COUNT, key};
use crate::{Target, Verdict, check_refusal};

/// The reader of successions.
pub const TARGET: Target = Target { name: "succession", run, seeds, dictionary: DICTIONARY };

/// Payload type of an envelope with a change of root.
const TYPE: &str = "application/vnd.mycora.root-change+json";
/// Changes of one input. Each costs six operations with keys.
const CHANGES_MAX: usize = 6;
const DICTIONARY: &[&str] = &[
    "\"old\":\"",
    "\"new\":\"",
    "\"proof\":@",
    "\"proof\":",
    "\0\u{1}",
    "\u{1}\u{2}",
    "null",
    "{}",
    "@",
    ",",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let envelopes = match input.choice(2) {
        0 => announced(input.rest()),
        _ => written(input),
    };
    let read = RootChain::read(&envelopes);
    match &read {
        Err(refusal) => check_refusal(&refusal.to_string(), 1024, &[&key(0).to_pem(), &key(1).to_pem()]),
        Ok(succession) => {
            assert_eq!(succession.retired_roots().len(), envelopes.len());
            let mut roots = succession.retired_roots().to_vec();
            roots.push(succession.current_root());
            for (pair, envelope) in roots.windows(2).zip(&envelopes) {
                let change = RootChange { old: pair[0], new: pair[1] };
                assert_eq!(RootChange::read(envelope), Ok(change));
                assert_ne!(change.old, change.new, "nobody comes after itself");
            }
            let silent = Envelope { signature: Bytes::new(), ..envelopes[0].clone() };
            assert!(RootChange::read(&silent).is_err(), "nobody has signed it");
        }
    }
    Verdict::of(&read)
}

/// Two bytes for each change: from which root to which.
fn announced(pairs: &[u8]) -> Vec<Envelope> {
    let change = |pair: &[u8]| RootChange::announce(key(pair[0].into()), key(pair[1].into()));
    pairs.chunks_exact(2).take(CHANGES_MAX).map(change).collect()
}

/// A change whose text, and whose proof's text, stand in the input; in it `@` is the proof.
fn written(mut input: Input<'_>) -> Vec<Envelope> {
    let (old, new) = (key(input.byte().into()), key(input.byte().into()));
    let (text, proof) = (input.part(), input.part());
    let proof = Envelope::sign(TYPE, Bytes::copy_from_slice(proof), new).to_json();
    let mut payload = Vec::new();
    for byte in text {
        match byte {
            b'@' => payload.extend_from_slice(&proof),
            other => payload.push(*other),
        }
    }
    vec![Envelope::sign(TYPE, payload.into(), old)]
}

fn seeds() -> Vec<Vec<u8>> {
    let chain: Vec<u8> = (0..COUNT as u8 - 1).flat_map(|i| [i, i + 1]).collect();
    let names =
        |old, new| format!(r#""old":"{}","new":"{}""#, key(old).verifying_key(), key(new).verifying_key());
    let written = |old, new| {
        let names = names(old, new);
        [format!("{{{names},\"proof\":@}}"), format!("{{{names}}}")]
    };
    vec![
        join(&[0], &[chain]),
        join(&[0], &[[0, 1]]),
        join(&[0], &[[0, 1, 1, 2, 2, 0]]),
        join(&[0], &[[0, 0]]),
        join(&[0], &[[0, 1, 2, 3]]),
        join(&[1, 0, 1], &written(0, 1)),
        join(&[1, 0, 2], &written(0, 1)),
        join(&[1, 1, 1], &written(1, 1)),
    ]
}
