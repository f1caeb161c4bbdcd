//! What coordinators and supervisors say to each other, signed.
//!
//! - [`actor`]: what actors sign themselves, jobs and letters;
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
    /// It is not what it has to be.
    #[error("it is no envelope: {0}")]
    Malformed(String),
    /// It is something else that was signed.
    #[error("`{0}` was signed, which is something else")]
    OtherType(String),
    /// The signature does not fit.
    #[error("the signature does not fit what is signed")]
    BadSignature,
    /// The key that signed has no root that vouches for it now.
    #[error("the certificate of the key that signed it does not hold: {0}")]
    BadCertificate(&'static str),
    /// It is for somebody else.
    #[error("it is for {to}, not for {own}")]
    WrongDestination {
        /// For whom.
        to: String,
        /// Who heard it.
        own: String,
    },
    /// Somebody else speaks here.
    #[error("{signer} has signed it, and {known} is listened to here")]
    OtherSigner {
        /// The root behind what was said.
        signer: String,
        /// The root that is known.
        known: String,
        /// That root was not heard for as long as anything holds, or the other one comes after it.
        gone: bool,
    },
    /// Somebody else than the actor whose it is said to be has signed it.
    #[error("{signer} has signed it, and {claimed} is who it is said to be of")]
    OtherActor {
        /// The key that signed.
        signer: String,
        /// The key of whom it is said to be.
        claimed: String,
    },
    /// It was signed, but not as it is here.
    #[error("another `{0}` was signed than is here")]
    OtherContent(String),
    /// It holds no more.
    #[error("it held until {}", .0.rfc3339())]
    Expired(model::Timestamp),
    /// It is of a time that has not come, or is to hold longer than anything may.
    #[error("it claims times that cannot be: look at the clocks of both machines")]
    BadTimes,
    /// It was heard before.
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

    /// Its name, for counters and answers.
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

    /// Whether its sender is told. Not of what may come from anybody, and not of what was heard before: that would be an
    /// answer to what was answered.
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

/// As much of a text as is told.
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
