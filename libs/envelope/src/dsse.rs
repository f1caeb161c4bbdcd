//! Signatures over exact bytes: Dead Simple Signing Envelope 1.0.
//!
//! The signature is not over the JSON around the bytes, but over the bytes with their type before them. So nothing needs a
//! canonical form, and nothing that was signed as one type can be presented as another.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use identity::{SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::{Refusal, object};

/// The length of a key as its hex digits.
const KEY_ID_BYTES: usize = 64;

/// Bytes, what they are, and who has signed them.
///
/// On a bus it travels as JSON, `{"payloadType", "payload", "signatures": [{"keyid", "sig"}]}` with base64; the key's
/// id is the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Type of the bytes.
    pub payload_type: String,
    /// The bytes.
    pub payload: Bytes,
    /// The key that claims to have signed them, as its 64 hex digits.
    pub key_id: String,
    /// Signature of that key.
    pub signature: Bytes,
}

/// Key that was read from its hex digits.
#[derive(Debug)]
pub(crate) struct ReadKey {
    id: String,
    key: VerifyingKey,
}

/// The envelope as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EnvelopeText {
    payload_type: String,
    payload: String,
    signatures: Vec<SignatureText>,
}

#[derive(Serialize, Deserialize)]
struct SignatureText {
    keyid: String,
    sig: String,
}

impl Envelope {
    /// Signs bytes as what they are.
    #[must_use]
    pub fn sign(payload_type: &str, payload: Bytes, key: &SigningKey) -> Self {
        let signature = key.sign(&encoded(payload_type, &payload));
        Self {
            payload_type: payload_type.to_owned(),
            payload,
            key_id: key.verifying_key().to_string(),
            signature: Bytes::copy_from_slice(&signature),
        }
    }

    /// Makes an envelope without a signature, for a way that says who speaks.
    pub(crate) fn unsigned(payload_type: &str, payload: Bytes, key: VerifyingKey) -> Self {
        let (payload_type, key_id) = (payload_type.to_owned(), key.to_string());
        Self { payload_type, payload, key_id, signature: Bytes::new() }
    }

    /// The key that it says has signed it, unproved. With the last key as a cache: reading one is work on its curve.
    pub(crate) fn claimed(
        &self,
        payload_type: &str,
        known: &mut Option<ReadKey>,
    ) -> Result<VerifyingKey, Refusal> {
        if self.payload_type != payload_type {
            return Err(Refusal::OtherType(self.payload_type.chars().take(80).collect()));
        }
        match known {
            Some(read) if read.id == self.key_id => Ok(read.key),
            _ => {
                let key = self.key_id.parse().map_err(|_| Refusal::BadSignature)?;
                *known = Some(ReadKey { id: self.key_id.clone(), key });
                Ok(key)
            }
        }
    }

    /// The key that has signed it, when it is of this type. Who that key belongs to is another question.
    ///
    /// # Errors
    /// [`Refusal::OtherType`], [`Refusal::BadSignature`].
    pub fn signer(&self, payload_type: &str) -> Result<VerifyingKey, Refusal> {
        self.signer_with_cached(payload_type, &mut None)
    }

    /// Like [`Envelope::signer`], with the last key as a cache.
    pub(crate) fn signer_with_cached(
        &self,
        payload_type: &str,
        known: &mut Option<ReadKey>,
    ) -> Result<VerifyingKey, Refusal> {
        let key = self.claimed(payload_type, known)?;
        match key.verifies(&encoded(payload_type, &self.payload), &self.signature) {
            true => Ok(key),
            false => Err(Refusal::BadSignature),
        }
    }

    /// From its parts, as a stream carries them.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] when it has no signature, or several: exactly one is required.
    pub fn from_parts(
        payload_type: String,
        payload: Bytes,
        signatures: Vec<(String, Bytes)>,
    ) -> Result<Self, Refusal> {
        let count = signatures.len();
        match <[(String, Bytes); 1]>::try_from(signatures) {
            Ok([(key_id, signature)]) => Ok(Self { payload_type, payload, key_id, signature }),
            Err(_) => Err(Refusal::Malformed(format!("it has {count} signatures, not one"))),
        }
    }

    /// Encodes the envelope as JSON, for a bus.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        let text = EnvelopeText {
            payload_type: self.payload_type.clone(),
            payload: STANDARD.encode(&self.payload),
            signatures: vec![SignatureText {
                keyid: self.key_id.clone(),
                sig: STANDARD.encode(&self.signature),
            }],
        };
        serde_json::to_vec(&text).expect("texts are JSON").into()
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], also when it has no signature, or several: exactly one is required.
    pub fn from_json(json: &[u8]) -> Result<Self, Refusal> {
        let text: EnvelopeText = object(json)?;
        let decode = |text: &str| STANDARD.decode(text).map(Bytes::from).map_err(Refusal::malformed);
        let signatures = text.signatures.iter().map(|one| Ok((one.keyid.clone(), decode(&one.sig)?)));
        let signatures = signatures.collect::<Result<_, Refusal>>()?;
        Self::from_parts(text.payload_type, decode(&text.payload)?, signatures)
    }
}

/// An envelope without a signature, for a way within one program: the key that speaks, and the bytes.
impl Envelope {
    /// Encodes the envelope as its key id, which has [`KEY_ID_BYTES`], and behind it the bytes as they are.
    pub(crate) fn to_bare(&self) -> Bytes {
        [self.key_id.as_bytes(), &self.payload].concat().into()
    }

    /// Undoes [`Envelope::to_bare`].
    ///
    /// # Errors
    /// [`Refusal::Malformed`] when it is too short, or does not begin with a key id.
    pub(crate) fn from_bare(payload_type: &str, bare: &Bytes) -> Result<Self, Refusal> {
        let key_id = bare.get(..KEY_ID_BYTES).and_then(|text| std::str::from_utf8(text).ok());
        let key_id = key_id.ok_or_else(|| Refusal::Malformed("it does not begin with a key".to_owned()))?;
        Ok(Self {
            payload_type: payload_type.to_owned(),
            payload: bare.slice(KEY_ID_BYTES..),
            key_id: key_id.to_owned(),
            signature: Bytes::new(),
        })
    }
}

/// Encodes the bytes that are signed: `DSSEv1`, and the type and the bytes each behind its length.
fn encoded(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TYPE: &str = "application/vnd.test+json";

    #[test]
    fn the_encoding_is_that_of_the_example_in_the_standard() {
        // The example of the protocol, version 1.0.
        let bytes = encoded("http://example.com/HelloWorld", b"hello world");
        assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn nothing_of_it_can_be_changed() {
        let key = SigningKey::generate();
        let envelope = Envelope::sign(TYPE, Bytes::from_static(b"{}"), &key);
        assert_eq!(Envelope::from_json(&envelope.to_json()), Ok(envelope.clone()));
        assert_eq!(envelope.signer(TYPE), Ok(key.verifying_key()));
        assert!(matches!(envelope.signer("other"), Err(Refusal::OtherType(_))));
        let changed = [
            Envelope { payload: Bytes::from_static(b"[]"), ..envelope.clone() },
            Envelope { signature: Bytes::from_static(&[0; 64]), ..envelope.clone() },
            Envelope { signature: Bytes::new(), ..envelope.clone() },
            Envelope { key_id: SigningKey::generate().verifying_key().to_string(), ..envelope.clone() },
            Envelope { key_id: "me".into(), ..envelope },
        ];
        for envelope in changed {
            assert_eq!(envelope.signer(TYPE), Err(Refusal::BadSignature), "{envelope:?}");
        }
    }

    #[test]
    fn an_envelope_needs_exactly_one_signature() {
        for signatures in ["[]", r#"[{"keyid":"a","sig":""},{"keyid":"a","sig":""}]"#] {
            let json = format!(r#"{{"payloadType":"t","payload":"","signatures":{signatures}}}"#);
            assert!(matches!(Envelope::from_json(json.as_bytes()), Err(Refusal::Malformed(_))));
        }
    }

    #[test]
    fn a_refusal_is_short_for_any_input() {
        let json = format!(r#"{{"payloadType":"t","payload":"","signatures":"{}"}}"#, "x".repeat(100_000));
        let refusal = Envelope::from_json(json.as_bytes()).expect_err("no list").to_string();
        assert!(refusal.len() < 400, "{} bytes", refusal.len());
    }

    #[test]
    fn a_list_is_no_envelope() {
        let json = format!(r#"["{TYPE}","e30=",[{{"keyid":"a","sig":""}}]]"#);
        assert!(matches!(Envelope::from_json(json.as_bytes()), Err(Refusal::Malformed(_))));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            prop_assert!(Envelope::from_json(text.as_bytes()).is_err());
        }
    }
}
