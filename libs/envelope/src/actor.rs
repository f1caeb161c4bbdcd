//! Statements that actors sign themselves: jobs and direct messages. A coordinator carries them, and cannot make them.
//!
//! Both are envelopes as JSON, by the key that the actor is registered with. What they hold is strict JSON: an unknown
//! field is refused, since the signer meant something by it.

mod direct_message;
mod job;

use std::time::Duration;

use identity::{SigningKey, VerifyingKey};
use model::{Timestamp, limits};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::statement::SKEW;
use crate::{Envelope, Refusal, cut, object};

pub use direct_message::{
    DIRECT_MESSAGE_TYPE, DirectMessageTerms, SignedDirectMessage, check_direct_message, sign_direct_message,
};
pub use job::{JOB_TYPE, JobTerms, SignedJob, check_job, check_terms, sign_job};

fn sign(payload_type: &str, what: &impl Serialize, key: &SigningKey) -> String {
    let payload = serde_json::to_vec(what).expect("texts and numbers are JSON");
    let envelope = Envelope::sign(payload_type, payload.into(), key).to_json();
    String::from_utf8_lossy(&envelope).into_owned()
}

/// Opens a signature and returns its signer and what was signed.
fn open<T: DeserializeOwned>(payload_type: &str, signature: &str) -> Result<(VerifyingKey, T), Refusal> {
    if signature.len() > limits::SIGNATURE_BYTES_MAX {
        let (len, max) = (signature.len(), limits::SIGNATURE_BYTES_MAX);
        return Err(Refusal::Malformed(format!("a signature has at most {max} bytes, this one has {len}")));
    }
    let envelope = Envelope::from_json(signature.as_bytes())?;
    let signer = envelope.signer(payload_type)?;
    Ok((signer, object(&envelope.payload)?))
}

/// Refuses an expired signature, and one that is to hold for longer than its kind may.
fn check_expiry(expires: Timestamp, longest: Duration, now: Timestamp) -> Result<(), Refusal> {
    if expires <= now {
        return Err(Refusal::Expired(expires));
    }
    if expires.since(now) > longest + SKEW {
        return Err(Refusal::BadTimes);
    }
    Ok(())
}

/// Refuses a field whose value differs from the signed one.
fn same<T: PartialEq>(field: &str, signed: &T, here: &T) -> Result<(), Refusal> {
    if signed == here { Ok(()) } else { Err(Refusal::OtherContent(cut(field))) }
}

#[cfg(test)]
mod tests;
