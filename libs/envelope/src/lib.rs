//! Signed envelopes for the messages between coordinators and supervisors.
//!
//! - [`actor`]: what actors sign themselves, jobs and direct messages;
//! - [`dsse`]: signatures over exact bytes, with the kind of what is signed (DSSE 1.0);
//! - [`root_rotation`]: how a coordinator came from one root to the next ones;
//! - [`statement`]: what is signed around a payload: for whom it is, which one it is, how long it holds;
//! - [`certificate`]: a coordinator's root vouches for its gateways, and for the root after it;
//! - [`replay`]: what was heard already is not heard again;
//! - [`conversation`]: two sides that speak to each other;
//! - [`files`]: keys and certificates in files.
//!
//! Nothing here waits or opens a connection.
//!
//! A coordinator has a root key, which is kept apart and is its identity. Each gateway signs with a key of its own and
//! shows the root's certificate for it with everything that it says, so that whoever hears it needs nothing but the
//! root. A supervisor has one key, and signs with that.

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

/// Why something signed is not taken. The names are counted, and told to who said it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The text is no envelope, or does not have the required form.
    #[error("it is no envelope: {0}")]
    Malformed(String),
    /// The signature is over a payload of another type.
    #[error("`{0}` was signed, which is something else")]
    OtherType(String),
    /// The signature does not fit.
    #[error("the signature does not fit what is signed")]
    BadSignature,
    /// The key that signed has no root that vouches for it now.
    #[error("the certificate of the key that signed it does not hold: {0}")]
    BadCertificate(&'static str),
    /// The envelope is for another destination.
    #[error("it is for {to}, not for {own}")]
    WrongDestination {
        /// Destination that the envelope names.
        to: String,
        /// Names of the receiver.
        own: String,
    },
    /// The signer is not the one that is listened to here.
    #[error("{signer} has signed it, and {known} is listened to here")]
    OtherSigner {
        /// The root behind what was said.
        signer: String,
        /// The root that is known.
        known: String,
        /// True when that root was not heard for as long as anything holds, or the other one comes after it.
        gone: bool,
    },
    /// The signer is not the actor that the statement is said to be of.
    #[error("{signer} has signed it, and {claimed} is who it is said to be of")]
    OtherActor {
        /// The key that signed.
        signer: String,
        /// The key of whom it is said to be.
        claimed: String,
    },
    /// The signature is over other content than is here.
    #[error("another `{0}` was signed than is here")]
    OtherContent(String),
    /// The envelope's time is over.
    #[error("it held until {}", .0.rfc3339())]
    Expired(model::Timestamp),
    /// The envelope is of a time that has not come, or is to hold longer than anything may.
    #[error("it claims times that cannot be: look at the clocks of both machines")]
    BadTimes,
    /// The envelope was heard before.
    #[error("it was heard before")]
    Replayed,
    /// So much was heard that no more can be told apart from what comes again.
    #[error("too much is being said at once")]
    TooMuch,
}

/// Characters of what is told of something that cannot be read: readers repeat what stands there, however long it is.
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

    /// Returns true for a refusal that is reported to the sender. Not for what anybody may send, and not for a repetition:
    /// that would be an answer to what was answered.
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

/// Cuts a text to the length that is told.
fn cut(text: &str) -> String {
    text.chars().take(WHY_CHARS_MAX).collect()
}

/// Reads an object. A list, which would be taken for an object without names, is none: nobody else reads it so.
fn object<'a, T: serde::Deserialize<'a>>(json: &'a [u8]) -> Result<T, Refusal> {
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(Refusal::malformed("an object is expected"));
    }
    serde_json::from_slice(json).map_err(Refusal::malformed)
}
