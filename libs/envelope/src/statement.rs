//! Statement that is signed around a payload, and the conditions under which it is accepted.

use std::time::Duration;

use bytes::Bytes;
use identity::{SigningKey, VerifyingKey};
use model::Timestamp;
use model::id::Uid;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::certificate::VerifiedCertificate;
use crate::dsse::ReadKey;
use crate::{Envelope, GatewayCertificate, Refusal, object};

/// Payload type of an envelope with a statement.
pub const PAYLOAD_TYPE: &str = "application/vnd.mycora.rpc+json";
/// Longest time for which a statement may hold.
pub const LIFETIME_MAX: Duration = Duration::from_secs(600);
/// By how much the clocks of two machines may differ.
pub const SKEW: Duration = mycelium::CLOCK_SKEW;

/// Statement that is signed.
#[derive(Serialize, Deserialize)]
struct EnvelopeStatement<'a> {
    /// The receiver's key, as its hex digits: of its node, or the one that it signs with.
    to: String,
    /// Id of the statement.
    id: String,
    /// When the statement was made, in milliseconds since 1970.
    issued: u64,
    /// Until when the statement holds, in milliseconds since 1970.
    expires: u64,
    /// The certificate of the key that signs, where that is not its own root: an envelope as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    certificate: Option<&'a RawValue>,
    /// The payload: JSON-RPC 2.0.
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Proof of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SenderProof {
    /// A signature.
    #[default]
    Signature,
    /// The channel that the envelope comes over: both sides are one program.
    Transport,
}

/// Makes envelopes with one key.
#[derive(Debug, Clone)]
pub struct Sealer {
    key: SigningKey,
    root: VerifyingKey,
    certificate: Option<Box<RawValue>>,
}

impl Sealer {
    /// With a key that is its own root: a supervisor's.
    #[must_use]
    pub fn of_root(key: SigningKey) -> Self {
        Self { root: key.verifying_key(), key, certificate: None }
    }

    /// With a key that a root vouches for: a gateway's.
    ///
    /// # Errors
    /// [`Refusal::BadCertificate`] when the certificate is for another key; others when it is none.
    pub fn certified(key: SigningKey, certificate: &Envelope) -> Result<Self, Refusal> {
        let GatewayCertificate { root, key: certified, .. } = GatewayCertificate::read(certificate)?;
        if certified != key.verifying_key() {
            return Err(Refusal::BadCertificate("it is for another key"));
        }
        let json = String::from_utf8_lossy(&certificate.to_json()).into_owned();
        let certificate = RawValue::from_string(json).expect("an envelope is written as JSON");
        Ok(Self { key, root, certificate: Some(certificate) })
    }

    /// The key that stands for the sender: the root behind the signing key, or the signing key itself.
    #[must_use]
    pub const fn root(&self) -> VerifyingKey {
        self.root
    }

    /// The key that signs.
    #[must_use]
    pub fn key(&self) -> VerifyingKey {
        self.key.verifying_key()
    }

    /// Seals `body`, which has to be JSON, for the holder of the key `to`. The envelope holds for `lifetime`, at most
    /// [`LIFETIME_MAX`].
    ///
    /// # Errors
    /// [`Refusal::Malformed`] when the body is no JSON.
    pub fn seal(
        &self,
        to: &str,
        body: &[u8],
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Envelope, Refusal> {
        self.seal_by(SenderProof::Signature, to, body, now, lifetime)
    }

    /// Seals a body with a proof of its sender, or without.
    pub(crate) fn seal_by(
        &self,
        proof: SenderProof,
        to: &str,
        body: &[u8],
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Envelope, Refusal> {
        let body = serde_json::from_slice::<&RawValue>(body).map_err(Refusal::malformed)?;
        let statement = EnvelopeStatement {
            to: to.to_owned(),
            id: Uid::random().to_string(),
            issued: now.as_millis(),
            expires: (now + lifetime.min(LIFETIME_MAX)).as_millis(),
            certificate: self.certificate.as_deref(),
            body,
        };
        let payload = serde_json::to_vec(&statement).expect("a statement is JSON");
        Ok(match proof {
            SenderProof::Signature => Envelope::sign(PAYLOAD_TYPE, payload.into(), &self.key),
            SenderProof::Transport => Envelope::unsigned(PAYLOAD_TYPE, payload.into(), self.key()),
        })
    }
}

/// Content of a checked envelope, and its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedEnvelope {
    /// The key that signed it.
    pub signer: VerifyingKey,
    /// The key that stands for the sender: the root behind the signer, or the signer.
    pub root: VerifyingKey,
    /// Id of the statement.
    pub id: Uid,
    /// Until when it holds.
    pub expires: Timestamp,
    /// The payload, byte for byte as it was sealed.
    pub body: Bytes,
}

/// Opens an envelope that is addressed to one of the keys in `own`. The caller has to check whether it is a repetition, and
/// whether its root is an accepted one.
///
/// # Errors
/// Any [`Refusal`] but [`Refusal::Replayed`] and [`Refusal::TooMuch`].
pub fn open_envelope(envelope: &Envelope, own: &[String], now: Timestamp) -> Result<OpenedEnvelope, Refusal> {
    open_with_cached(SenderProof::Signature, envelope, own, now, &mut ShownKeys::default())
}

/// Key and certificate that a sender showed last: mostly it shows the same again.
#[derive(Debug, Default)]
pub(crate) struct ShownKeys {
    signer: Option<ReadKey>,
    certificate: Option<VerifiedCertificate>,
}

/// Opens an envelope, with what its sender showed last as a cache.
pub(crate) fn open_with_cached(
    proof: SenderProof,
    envelope: &Envelope,
    own: &[String],
    now: Timestamp,
    shown: &mut ShownKeys,
) -> Result<OpenedEnvelope, Refusal> {
    let signer = match proof {
        SenderProof::Signature => envelope.signer_with_cached(PAYLOAD_TYPE, &mut shown.signer)?,
        SenderProof::Transport => envelope.claimed(PAYLOAD_TYPE, &mut shown.signer)?,
    };
    let statement: EnvelopeStatement<'_> = object(&envelope.payload)?;
    if !own.contains(&statement.to) {
        let to = statement.to.chars().take(64).collect();
        return Err(Refusal::WrongDestination { to, own: own.join(" or ") });
    }
    let (issued, expires) =
        (Timestamp::from_millis(statement.issued), Timestamp::from_millis(statement.expires));
    if expires <= now {
        return Err(Refusal::Expired(expires));
    }
    if issued > now + SKEW || expires.since(issued) > LIFETIME_MAX {
        return Err(Refusal::BadTimes);
    }
    let root = match statement.certificate {
        None => signer,
        Some(json) => {
            let certificate = VerifiedCertificate::read(json.get(), &mut shown.certificate)?;
            certificate.check(signer, now)?;
            certificate.root
        }
    };
    let id = statement.id.parse().map_err(|_| Refusal::Malformed("`id` is not 32 hex digits".to_owned()))?;
    let body = Bytes::copy_from_slice(statement.body.get().as_bytes());
    Ok(OpenedEnvelope { signer, root, id, expires, body })
}

/// Returns the body of an envelope, whether or not the envelope is acceptable.
pub(crate) fn body(envelope: &Envelope) -> Option<Bytes> {
    let statement: EnvelopeStatement<'_> = object(&envelope.payload).ok()?;
    Some(Bytes::copy_from_slice(statement.body.get().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const MINUTE: Duration = Duration::from_secs(60);

    fn gateway() -> (SigningKey, Sealer) {
        let (root, key) = (SigningKey::generate(), SigningKey::generate());
        let certificate = GatewayCertificate::issue(&root, key.verifying_key(), NOW, NOW + MINUTE);
        let sealer = Sealer::certified(key, &certificate).expect("its own certificate");
        (root, sealer)
    }

    #[test]
    fn a_sealed_body_opens_byte_for_byte_with_its_signer() {
        let (root, gateway) = gateway();
        let own = SigningKey::generate().verifying_key().to_string();
        let body = br#"{"jsonrpc":"2.0", "id":1,"method":"m"}"#;
        let envelope = gateway.seal(&own, body, NOW, MINUTE).expect("JSON");
        let envelope = Envelope::from_json(&envelope.to_json()).expect("an envelope");
        let opened = open_envelope(&envelope, std::slice::from_ref(&own), NOW).expect("for us");
        assert_eq!(opened.body, body[..], "to the byte");
        assert_eq!((opened.signer, opened.root), (gateway.key(), root.verifying_key()));
        let names = ["a node's".to_owned(), own.clone()];
        assert!(open_envelope(&envelope, &names, NOW).is_ok(), "by any name");
        assert!(matches!(gateway.seal(&own, b"{", NOW, MINUTE), Err(Refusal::Malformed(_))));
    }

    #[test]
    fn supervisors_are_their_own_roots() {
        let supervisor = Sealer::of_root(SigningKey::generate());
        let own = SigningKey::generate().verifying_key().to_string();
        let envelope = supervisor.seal(&own, b"{}", NOW, MINUTE).expect("JSON");
        assert_eq!(
            open_envelope(&envelope, std::slice::from_ref(&own), NOW).expect("for us").root,
            supervisor.key()
        );
    }

    #[test]
    fn who_it_is_not_for_does_not_hear_it() {
        let (_, gateway) = gateway();
        let [one, other] = [(); 2].map(|()| SigningKey::generate().verifying_key().to_string());
        let envelope = gateway.seal(&one, b"{}", NOW, MINUTE).expect("JSON");
        let refusal = open_envelope(&envelope, &[other], NOW).expect_err("for the other");
        assert_eq!(refusal.code(), "WRONG_DESTINATION");
    }

    #[test]
    fn it_holds_for_its_time() {
        let supervisor = Sealer::of_root(SigningKey::generate());
        let own = SigningKey::generate().verifying_key().to_string();
        let code = |lifetime, at: Timestamp| {
            let envelope = supervisor.seal(&own, b"{}", NOW, lifetime).expect("JSON");
            open_envelope(&envelope, std::slice::from_ref(&own), at)
                .err()
                .map_or("heard", |refusal| refusal.code())
        };
        assert_eq!(code(MINUTE, NOW), "heard");
        assert_eq!(code(MINUTE, NOW + MINUTE), "ENVELOPE_EXPIRED");
        assert_eq!(code(LIFETIME_MAX * 2, NOW + LIFETIME_MAX), "ENVELOPE_EXPIRED", "nothing holds longer");
        let before = |by: Duration| {
            Timestamp::from_millis(NOW.as_millis() - u64::try_from(by.as_millis()).expect("short"))
        };
        assert_eq!(code(MINUTE, before(SKEW)), "heard", "their clock may be ahead");
        assert_eq!(code(MINUTE, before(SKEW * 2)), "BAD_TIMES");
    }

    #[test]
    fn a_certificate_is_for_one_key_and_its_time() {
        let own = SigningKey::generate().verifying_key().to_string();
        let (_, gateway) = gateway();
        let envelope = gateway.seal(&own, b"{}", NOW + MINUTE, MINUTE).expect("JSON");
        let refusal = open_envelope(&envelope, std::slice::from_ref(&own), NOW + MINUTE)
            .expect_err("its certificate is over");
        assert_eq!(refusal.code(), "BAD_CERTIFICATE");
        // A thief who has seen the certificate of another key.
        let thief = Sealer { key: SigningKey::generate(), ..gateway };
        let envelope = thief.seal(&own, b"{}", NOW, MINUTE).expect("JSON");
        assert_eq!(
            open_envelope(&envelope, std::slice::from_ref(&own), NOW).expect_err("not its own").code(),
            "BAD_CERTIFICATE"
        );
    }

    #[test]
    fn an_envelope_of_another_payload_type_is_refused() {
        let root = SigningKey::generate();
        let own = SigningKey::generate().verifying_key();
        let certificate = GatewayCertificate::issue(&root, own, NOW, NOW + MINUTE);
        assert_eq!(
            open_envelope(&certificate, &[own.to_string()], NOW).expect_err("a certificate").code(),
            "OTHER_PAYLOAD_TYPE"
        );
    }
}
