//! Envelopes, as a stream carries them.

use envelope::{Envelope, Refusal};

use crate::v1;

/// Reads one; its signature is not looked at yet.
///
/// # Errors
/// [`Refusal::Malformed`] when it has no signature, or several.
pub fn from_wire(envelope: v1::Envelope) -> Result<Envelope, Refusal> {
    let v1::Envelope { payload_type, payload, signatures } = envelope;
    let signatures = signatures.into_iter().map(|v1::Signature { keyid, sig }| (keyid, sig)).collect();
    Envelope::from_parts(payload_type, payload, signatures)
}

/// Writes one.
#[must_use]
pub fn to_wire(envelope: Envelope) -> v1::Envelope {
    let Envelope { payload_type, payload, key_id, signature } = envelope;
    v1::Envelope { payload_type, payload, signatures: vec![v1::Signature { keyid: key_id, sig: signature }] }
}
