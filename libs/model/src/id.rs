//! Typed identifiers. A bare number or string never names an object, so that
//! a caller cannot be swapped for a job.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Error of parsing the text of an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {kind}")]
pub struct ParseIdError {
    /// The kind of identifier that was expected.
    pub kind: &'static str,
    /// The text as it came in, shortened to 80 characters.
    pub text: String,
}

impl ParseIdError {
    pub(crate) fn new(kind: &'static str, text: &str) -> Self {
        Self { kind, text: text.chars().take(80).collect() }
    }
}

/// Writes and reads types as their texts, in JSON and wherever else serde does.
macro_rules! serde_as_text {
    ($($name:ident)*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(crate) use serde_as_text;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self).map_err(|_| ParseIdError::new($kind, text))
            }
        }
    };
}

number_id!(
    /// An actor: a principal with a public key. Global, never inside a context.
    ActorId, u32, "actor id"
);
number_id!(
    /// A context, that is a tenant. Meaningful only at its own coordinator.
    ContextId, u32, "context id"
);
number_id!(
    /// A flow within its context. May be used again after the flow was deleted.
    FlowId, u32, "flow id"
);
number_id!(
    /// A job, and the node that carries it, within its flow's caller.
    JobId, u32, "job id"
);
number_id!(
    /// A message within its caller.
    MessageId, u32, "message id"
);
number_id!(
    /// A runner record within its context.
    RunnerId, u32, "runner id"
);
number_id!(
    /// One try of a node, counted from 1 and never restarting.
    Attempt, u32, "attempt"
);
number_id!(
    /// How often a flow was run; 1 at first.
    Generation, u32, "generation"
);
number_id!(
    /// The context's change counter at the moment of a change.
    Revision, u64, "revision"
);
number_id!(
    /// Raised whenever a flow gets a new owner. Fences the former one.
    Epoch, u64, "epoch"
);

/// 128 random bits, written as 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(u128);

impl Uid {
    /// Draws a new one from the operating system's generator.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Builds one from known bits; for tests and for decoding.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uid {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let canonical =
            text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !canonical {
            return Err(ParseIdError::new("uid (32 lower-case hex digits)", text));
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ParseIdError::new("uid", text))
    }
}

macro_rules! uid_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uid);

        impl $name {
            /// Draws a new one from the operating system's generator.
            #[must_use]
            pub fn random() -> Self {
                Self(Uid::random())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        serde_as_text!($name);
    };
}

uid_type!(
    /// The name by which other machines know a context. Made with it, never reused.
    ContextUid
);
uid_type!(
    /// Tells two flows apart that had the same id one after the other.
    FlowUid
);
uid_type!(
    /// One start of a scheduler replica; the fence on what it owns.
    OwnerId
);

/// Names one attempt of one node everywhere, for ever:
/// `<context uid>-<flow uid>-<job>-<attempt>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The context the job runs for.
    pub context: ContextUid,
    /// The flow it belongs to.
    pub flow: FlowUid,
    /// The node of that flow.
    pub job: JobId,
    /// Which try of the node this is.
    pub attempt: Attempt,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.context, self.flow, self.job, self.attempt)
    }
}

impl FromStr for JobKey {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let mut part = || parts.next().ok_or_else(|| ParseIdError::new("job key", text));
        let key = Self {
            context: part()?.parse()?,
            flow: part()?.parse()?,
            job: part()?.parse()?,
            attempt: part()?.parse()?,
        };
        // `01` and `+1` parse as numbers but are not the one spelling of a key.
        if parts.next().is_some() || key.to_string() != text {
            return Err(ParseIdError::new("job key", text));
        }
        Ok(key)
    }
}

serde_as_text!(JobKey);

/// The SHA-256 of a blob's bytes, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    /// Hashes `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_parts(&[bytes])
    }

    /// Hashes `parts` as if they were one behind the other.
    #[must_use]
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// The hash itself.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BlobHash {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdError::new("blob hash (SHA-256, 64 lower-case hex digits)", text);
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(error());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| error())?;
        Ok(Self(bytes))
    }
}

serde_as_text!(BlobHash);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn job_keys_round_trip(a: u128, b: u128, job: u32, attempt: u32) {
            let key = JobKey {
                context: ContextUid(Uid::from_bits(a)),
                flow: FlowUid(Uid::from_bits(b)),
                job: JobId(job),
                attempt: Attempt(attempt),
            };
            prop_assert_eq!(key.to_string().parse::<JobKey>(), Ok(key));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            if let Ok(key) = text.parse::<JobKey>() {
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }

    #[test]
    fn a_key_has_one_spelling() {
        let uid = "0".repeat(32);
        assert!(format!("{uid}-{uid}-1-1").parse::<JobKey>().is_ok());
        for tail in ["01-1", "1-+1", "1-1-1", "1", "-1-1"] {
            assert!(format!("{uid}-{uid}-{tail}").parse::<JobKey>().is_err(), "{tail}");
        }
    }
}
