//! Statements that a coordinator's root key signs: which keys its gateways have, and which root comes after it.

use identity::{SigningKey, VerifyingKey};
use model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Envelope, Refusal, object};

/// Payload type of an envelope with a certificate.
const CERTIFICATE_TYPE: &str = "application/vnd.mycora.gateway-key+json";
/// Payload type of an envelope with a change of root.
const ROOT_CHANGE_TYPE: &str = "application/vnd.mycora.root-change+json";

/// A root vouches for a gateway's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayCertificate {
    /// Root that vouches for the key.
    pub root: VerifyingKey,
    /// Key of the gateway.
    pub key: VerifyingKey,
    /// From when on.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
}

/// A certificate that was read, and the JSON that it was read from: the same JSON need not be verified again.
#[derive(Debug, Clone)]
pub(crate) struct VerifiedCertificate {
    json: Box<str>,
    certificate: GatewayCertificate,
}

impl VerifiedCertificate {
    /// The certificate in `json`, which is `known`, or becomes so. Whether it holds now is another question.
    pub(crate) fn read(json: &str, known: &mut Option<Self>) -> Result<GatewayCertificate, Refusal> {
        if let Some(known) = known.as_ref().filter(|known| *known.json == *json) {
            return Ok(known.certificate);
        }
        let certificate = GatewayCertificate::read(&Envelope::from_json(json.as_bytes())?)?;
        *known = Some(Self { json: json.into(), certificate });
        Ok(certificate)
    }
}

#[derive(Serialize, Deserialize)]
struct CertificateText {
    key: String,
    not_before: u64,
    not_after: u64,
}

impl GatewayCertificate {
    /// Makes one.
    #[must_use]
    pub fn issue(
        root: &SigningKey,
        key: VerifyingKey,
        not_before: Timestamp,
        not_after: Timestamp,
    ) -> Envelope {
        let text = CertificateText {
            key: key.to_string(),
            not_before: not_before.as_millis(),
            not_after: not_after.as_millis(),
        };
        let payload = serde_json::to_vec(&text).expect("a certificate is JSON");
        Envelope::sign(CERTIFICATE_TYPE, payload.into(), root)
    }

    /// Reads a certificate; its root is its signer.
    ///
    /// # Errors
    /// What [`Envelope::signer`] says; [`Refusal::Malformed`].
    pub fn read(envelope: &Envelope) -> Result<Self, Refusal> {
        let root = envelope.signer(CERTIFICATE_TYPE)?;
        let text: CertificateText = object(&envelope.payload)?;
        let key = text.key.parse().map_err(|error| Refusal::Malformed(format!("certificate: {error}")))?;
        Ok(Self {
            root,
            key,
            not_before: Timestamp::from_millis(text.not_before),
            not_after: Timestamp::from_millis(text.not_after),
        })
    }

    /// Checks that the certificate is for this key, and holds now.
    ///
    /// # Errors
    /// [`Refusal::BadCertificate`].
    pub fn check(&self, key: VerifyingKey, now: Timestamp) -> Result<(), Refusal> {
        let refused = |why| Err(Refusal::BadCertificate(why));
        if self.key != key {
            return refused("it is for another key");
        }
        if now + crate::statement::SKEW < self.not_before {
            return refused("its time has not come");
        }
        if now >= self.not_after {
            return refused("its time is over");
        }
        Ok(())
    }
}

/// Announcement that a coordinator has another root from now on. The old root signs it, so that peers of the old one accept the
/// new one; the new root signs the same, which proves that its key is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootChange {
    /// The root before.
    pub old: VerifyingKey,
    /// The root from now on.
    pub new: VerifyingKey,
}

#[derive(Serialize, Deserialize)]
struct RootChangeText {
    old: String,
    new: String,
    /// Proof that the new root signs the same: an envelope as JSON, by the new root, of this text without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proof: Option<Box<serde_json::value::RawValue>>,
}

impl RootChange {
    /// Makes one.
    #[must_use]
    pub fn announce(old: &SigningKey, new: &SigningKey) -> Envelope {
        let mut text = RootChangeText {
            old: old.verifying_key().to_string(),
            new: new.verifying_key().to_string(),
            proof: None,
        };
        let json = |text: &RootChangeText| serde_json::to_vec(text).expect("a change is JSON").into();
        let proof = Envelope::sign(ROOT_CHANGE_TYPE, json(&text), new).to_json();
        let proof = String::from_utf8_lossy(&proof).into_owned();
        text.proof =
            Some(serde_json::value::RawValue::from_string(proof).expect("an envelope is written as JSON"));
        Envelope::sign(ROOT_CHANGE_TYPE, json(&text), old)
    }

    /// Reads one.
    ///
    /// # Errors
    /// What [`Envelope::signer`] says; [`Refusal::Malformed`]; [`Refusal::BadSignature`] when one of the two keys has not
    /// signed.
    pub fn read(envelope: &Envelope) -> Result<Self, Refusal> {
        let old = envelope.signer(ROOT_CHANGE_TYPE)?;
        let parse = |bytes| object::<RootChangeText>(bytes);
        let text = parse(&envelope.payload)?;
        let proof = text.proof.as_ref().ok_or(Refusal::BadSignature)?;
        let proof = Envelope::from_json(proof.get().as_bytes())?;
        let new = proof.signer(ROOT_CHANGE_TYPE)?;
        let proven = parse(&proof.payload)?;
        let names = (old.to_string(), new.to_string());
        if (text.old, text.new) != names || (proven.old, proven.new) != names {
            return Err(Refusal::BadSignature);
        }
        Ok(Self { old, new })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_roots_have_to_sign_a_change() {
        let (old, new, thief) = (SigningKey::generate(), SigningKey::generate(), SigningKey::generate());
        let change = RootChange::announce(&old, &new);
        let read = RootChange::read(&change).expect("signed by both");
        assert_eq!(read, RootChange { old: old.verifying_key(), new: new.verifying_key() });
        // The old root alone names a key that it does not hold.
        let text = RootChangeText {
            old: old.verifying_key().to_string(),
            new: new.verifying_key().to_string(),
            proof: None,
        };
        let json = serde_json::to_vec(&text).expect("JSON");
        let alone = Envelope::sign(ROOT_CHANGE_TYPE, json.into(), &old);
        assert_eq!(RootChange::read(&alone), Err(Refusal::BadSignature));
        // A thief takes over a change that was announced for another root.
        let stolen = Envelope::sign(ROOT_CHANGE_TYPE, change.payload, &thief);
        assert_eq!(RootChange::read(&stolen), Err(Refusal::BadSignature));
    }
}
