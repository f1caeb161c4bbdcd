//! Signed envelopes for the messages between coordinators and supervisors.
//!
//! - [`actor`]: what actors sign themselves, jobs and direct messages;
//! - [`dsse`]: signatures over exact bytes, with the kind of what is signed (DSSE 1.0);
//! - [`root_rotation`]: how a coordinator came from one root to the next ones;
//! - [`statement`]: what is signed around a payload: for whom it is, which one it is, how long it holds;
//! - [`certificate`]: a coordinator's root vouches for its gateways, and for the root after it;
//! - [`replay`]: envelopes that were received before are refused;
//! - [`conversation`]: two peers that exchange envelopes;
//! - [`files`]: keys and certificates in files.
//!
//! This crate neither waits nor opens a connection.
//!
//! A coordinator has a root key, which is kept apart and is its identity. Each gateway signs with a key of its own and
//! sends the root's certificate for it with every envelope, so that a receiver needs to know nothing but the root.
//! A supervisor has one key, and signs with that.

pub mod actor;
pub mod certificate;
pub mod conversation;
pub mod dsse;
pub mod files;
pub mod replay;
pub mod root_rotation;
pub mod statement;

pub use certificate::{GatewayCertificate, RootChange};
pub use conversation::{
    Conversation, EnvelopeSigner, OnRefusal, OverflowPolicy, ReplayWindowLimits, SuccessorCheck,
};
pub use dsse::Envelope;
pub use files::{NewRoot, SigningFiles, SigningFilesError, read_root_key};
pub use replay::ReplayWindow;
pub use root_rotation::RootChain;
pub use statement::{OpenedEnvelope, Sealer, open_envelope};

/// Why something signed is refused. The names are counted, and reported to the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The text is no envelope, or does not have the required form.
    #[error("not a valid envelope: {0}")]
    Malformed(String),
    /// The signature is over a payload of another type.
    #[error("the signed payload is of the unexpected type `{0}`")]
    OtherType(String),
    /// The signature does not fit.
    #[error("the signature does not match the signed content")]
    BadSignature,
    /// The key that signed has no root that vouches for it now.
    #[error("the certificate of the signing key is not valid: {0}")]
    BadCertificate(&'static str),
    /// The envelope is for another destination.
    #[error("the envelope is addressed to {to}, not to {own}")]
    WrongDestination {
        /// Destination that the envelope names.
        to: String,
        /// Names of the receiver.
        own: String,
    },
    /// The signer is not the one that this conversation is with.
    #[error("it is signed by {signer}, but only {known} is accepted here")]
    OtherSigner {
        /// The root behind the envelope.
        signer: String,
        /// The root that is known.
        known: String,
        /// True when the known root was silent for as long as any envelope holds, or the other root succeeds it.
        gone: bool,
    },
    /// The signer is not the actor that the statement claims.
    #[error("it is signed by {signer}, but claims to be from {claimed}")]
    OtherActor {
        /// The key that signed.
        signer: String,
        /// The key of the claimed actor.
        claimed: String,
    },
    /// The signature is over content that differs from the content here.
    #[error("`{0}` differs from what was signed")]
    OtherContent(String),
    /// The envelope's time is over.
    #[error("it expired at {}", .0.rfc3339())]
    Expired(model::Timestamp),
    /// The envelope is dated in the future, or is to hold longer than any may.
    #[error("its validity times are impossible: check the clocks of both machines")]
    BadTimes,
    /// The envelope was received before.
    #[error("it was already received")]
    Replayed,
    /// The replay window is full: further envelopes could not be told apart from repetitions.
    #[error("too many envelopes were received in a short time: try again later")]
    TooMuch,
}

/// Longest error text about something that cannot be read, in characters: parsers quote their input, however long it is.
const WHY_CHARS_MAX: usize = 300;

impl Refusal {
    /// Says why something cannot be read.
    pub(crate) fn malformed(why: impl std::fmt::Display) -> Self {
        Self::Malformed(cut(&why.to_string()))
    }

    /// Returns the refusal's name, for counters and answers.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "MALFORMED_ENVELOPE",
            Self::OtherType(_) => "OTHER_PAYLOAD_TYPE",
            Self::BadSignature | Self::OtherActor { .. } | Self::OtherContent(_) => "BAD_SIGNATURE",
            Self::BadCertificate(_) => "BAD_CERTIFICATE",
            Self::WrongDestination { .. } => "WRONG_DESTINATION",
            Self::OtherSigner { .. } => "UNKNOWN_SIGNER",
            Self::Expired(_) => "ENVELOPE_EXPIRED",
            Self::BadTimes => "BAD_TIMES",
            Self::Replayed => "REPLAYED",
            Self::TooMuch => "TOO_MUCH",
        }
    }

    /// Returns true for a refusal that is reported to the sender. Refusals that anybody can cause are not reported, nor are
    /// repetitions: the first copy was answered.
    #[must_use]
    pub const fn is_reported(&self) -> bool {
        matches!(
            self,
            Self::WrongDestination { .. }
                | Self::Expired(_)
                | Self::BadTimes
                | Self::BadCertificate(_)
                | Self::TooMuch
        )
    }
}

/// Cuts a text to the length that is reported.
fn cut(text: &str) -> String {
    text.chars().take(WHY_CHARS_MAX).collect()
}

/// Reads an object. A list is refused, though serde would read it as an object without names: other readers do not.
fn object<'a, T: serde::Deserialize<'a>>(json: &'a [u8]) -> Result<T, Refusal> {
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(Refusal::malformed("an object is expected"));
    }
    serde_json::from_slice(json).map_err(Refusal::malformed)
}
