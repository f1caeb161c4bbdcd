//! The names of sagas and effects, of whom they belong to, and of one run of them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A tenant, in characters.
const TENANT_CHARS_MAX: usize = 64;
/// The name of a saga or an effect, in characters.
const SAGA_NAME_CHARS_MAX: usize = 63;
/// A correlation, in bytes.
const CORRELATION_BYTES_MAX: usize = 256;

/// Why a text is no name of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SagaNameError {
    /// The text has no characters.
    #[error("the {kind} must not be empty")]
    Empty {
        /// Kind of name that was parsed.
        kind: &'static str,
    },
    /// The text is longer than its limit.
    #[error("the {kind} has {length} {unit}, at most {most} are allowed")]
    TooLong {
        /// Kind of name that was parsed.
        kind: &'static str,
        /// Unit of the length.
        unit: &'static str,
        /// Length of the text.
        length: usize,
        /// The limit.
        most: usize,
    },
    /// The text contains a character that is not allowed.
    #[error("the {kind} is made of {made_of}, not {found:?}")]
    Character {
        /// Kind of name that was parsed.
        kind: &'static str,
        /// Characters that the name may contain.
        made_of: &'static str,
        /// The first that is something else.
        found: char,
    },
}

/// Tenant that owns sagas and effects: 1 to 64 characters of `[A-Za-z0-9_-]`. Cheap to clone.
///
/// Where there are no tenants it is [`TenantId::single`], which has no text and which no text can be parsed into.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// The only one there is, where there are no tenants.
    #[must_use]
    pub fn single() -> Self {
        Self(Arc::from(""))
    }

    /// Returns true where there are no tenants.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for TenantId {
    type Err = SagaNameError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kind = "tenant";
        check(kind, text, TENANT_CHARS_MAX)?;
        let made_of = "A-Z a-z 0-9 _ and -";
        let strange = text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')));
        strange.map_or(Ok(Self(text.into())), |found| Err(SagaNameError::Character { kind, made_of, found }))
    }
}

macro_rules! definition_name {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl FromStr for $name {
            type Err = SagaNameError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                definition_name($kind, text).map(Self)
            }
        }
    };
}

definition_name!(
    /// A saga's name: a letter, then at most 62 of `[A-Za-z0-9-]`. Cheap to clone.
    SagaName, "name of a saga"
);
definition_name!(
    /// An effect's name: a letter, then at most 62 of `[A-Za-z0-9-]`. Cheap to clone.
    EffectName, "name of an effect"
);
definition_name!(
    /// Name of a step within its saga: a letter, then at most 62 of `[A-Za-z0-9-]`. Cheap to clone.
    StepName, "name of a step"
);
definition_name!(
    /// Name of a timer within its saga: a letter, then at most 62 of `[A-Za-z0-9-]`. Cheap to clone.
    TimerName, "name of a timer"
);

/// Correlation id that all events of one run of a saga share: 1 to 256 bytes of any text. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CorrelationId(Arc<str>);

impl FromStr for CorrelationId {
    type Err = SagaNameError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kind = "correlation";
        if text.is_empty() {
            return Err(SagaNameError::Empty { kind });
        }
        let (length, most) = (text.len(), CORRELATION_BYTES_MAX);
        if length > most {
            return Err(SagaNameError::TooLong { kind, unit: "bytes", length, most });
        }
        Ok(Self(text.into()))
    }
}

macro_rules! texts {
    ($($name:ident)*) => {$(
        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

texts!(TenantId SagaName EffectName StepName TimerName CorrelationId);

crate::id::serde_as_text!(SagaName EffectName StepName TimerName CorrelationId CommandId SagaStatus EffectState);

/// A piece of work that a saga has ordered: a UUID, written as `018f4d2e-7a1b-7c3d-8e4f-0123456789ab`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(u128);

impl CommandId {
    /// From the bits of the UUID.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits of the UUID.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The time that the id names: that of the input which ordered the work.
    #[must_use]
    pub const fn time(self) -> crate::Timestamp {
        // 48 bits are left.
        crate::Timestamp::from_millis((self.0 >> 80) as u64)
    }
}

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_u128(self.0).fmt(f)
    }
}

impl FromStr for CommandId {
    type Err = crate::id::ParseIdError;
    /// Accepts only the canonical form: ids are compared as texts, so each must have only one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = uuid::Uuid::try_parse(text).map(|id| Self(id.as_u128())).ok();
        found
            .filter(|id| id.to_string() == text)
            .ok_or_else(|| crate::id::ParseIdError::new("command id", text))
    }
}

macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* } ends: $($end:ident)|+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// The name in stores, answers and `specs/`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// Returns true for a final state.
            #[must_use]
            pub const fn is_end(self) -> bool {
                matches!(self, $(Self::$end)|+)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = crate::id::ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.into_iter().find(|known| known.as_str() == text);
                found.ok_or_else(|| crate::id::ParseIdError::new(stringify!($name), text))
            }
        }
    };
}

states!(
    /// Where an instance of a saga stands.
    SagaStatus {
        /// The instance goes from step to step.
        Running = "running",
        /// The instance undoes its completed steps, backwards.
        Compensating = "compensating",
        /// A step that may not fail has failed permanently: a person has to look.
        Stuck = "stuck",
        /// The instance has done what it was for.
        Completed = "completed",
        /// The instance ended otherwise, as its definition specifies.
        Failed = "failed",
        /// Everything that was done is undone.
        Compensated = "compensated",
        /// A person ended the instance where it stood.
        Killed = "killed",
    }
    ends: Completed | Failed | Compensated | Killed
);

states!(
    /// Where a call of an effect stands.
    EffectState {
        /// The call's command has come.
        Accepted = "accepted",
        /// The call is about to be made, is in progress, or was made.
        Calling = "calling",
        /// The call will be retried.
        Backoff = "backoff",
        /// The call's answer comes later.
        Waiting = "waiting",
        /// The call may have happened.
        Unknown = "unknown",
        /// A person has to decide whether it happened.
        Manual = "manual",
        /// The call succeeded.
        Succeeded = "succeeded",
        /// The call failed permanently.
        Failed = "failed",
        /// The call took too long.
        TimedOut = "timed_out",
        /// The call is no longer wanted.
        Cancelled = "cancelled",
    }
    ends: Succeeded | Failed | TimedOut | Cancelled
);

fn definition_name(kind: &'static str, text: &str) -> Result<Arc<str>, SagaNameError> {
    check(kind, text, SAGA_NAME_CHARS_MAX)?;
    let made_of = "A-Z a-z 0-9 and -, with a letter first";
    let mut strange = text.chars().filter(|c| !(c.is_ascii_alphanumeric() || *c == '-'));
    let first = text.chars().next().filter(|c| !c.is_ascii_alphabetic());
    match strange.next().or(first) {
        Some(found) => Err(SagaNameError::Character { kind, made_of, found }),
        None => Ok(text.into()),
    }
}

fn check(kind: &'static str, text: &str, most: usize) -> Result<(), SagaNameError> {
    let length = text.chars().count();
    if length == 0 {
        return Err(SagaNameError::Empty { kind });
    }
    if length > most {
        return Err(SagaNameError::TooLong { kind, unit: "characters", length, most });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_token_wherever_they_stand() {
        for good in ["a", "order-fulfilment", "A1", &"x".repeat(63)] {
            assert_eq!(good.parse::<SagaName>().expect(good).as_str(), good);
            assert_eq!(good.parse::<EffectName>().expect(good).to_string(), good);
        }
        for (wrong, why) in [
            ("", "must not be empty"),
            ("a_b", "not '_'"),
            ("a.b", "not '.'"),
            ("1a", "not '1'"),
            ("-a", "not '-'"),
            ("ä", "not 'ä'"),
            ("a b", "not ' '"),
            (&"x".repeat(64), "has 64 characters, at most 63"),
        ] {
            let refused = wrong.parse::<SagaName>().expect_err(wrong).to_string();
            assert!(refused.contains(why) && refused.contains("name of a saga"), "{refused}");
        }
    }

    #[test]
    fn a_tenant_has_a_text_unless_there_are_none() {
        for good in ["7", "acme-corp", "a_b", &"x".repeat(64)] {
            let tenant: TenantId = good.parse().expect(good);
            assert!(!tenant.is_single() && tenant.as_str() == good);
        }
        for wrong in ["", "a.b", "*", ">", "a b", "a:b", "{a}", "é", &"x".repeat(65)] {
            assert!(wrong.parse::<TenantId>().is_err(), "{wrong}");
        }
        assert!(TenantId::single().is_single());
    }

    #[test]
    fn a_correlation_is_any_short_text() {
        for good in ["order-1", "a:b.c*>%{}\0é", &"x".repeat(256)] {
            assert_eq!(good.parse::<CorrelationId>().expect(good).as_str(), good);
        }
        assert!("".parse::<CorrelationId>().is_err());
        let refused = "é".repeat(129).parse::<CorrelationId>().expect_err("too long").to_string();
        assert_eq!(refused, "the correlation has 258 bytes, at most 256 are allowed");
    }

    #[test]
    fn states_are_read_as_they_are_written() {
        for status in SagaStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        for state in EffectState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("Running".parse::<SagaStatus>().is_err() && "".parse::<EffectState>().is_err());
    }

    #[test]
    fn a_command_id_has_one_form() {
        let id = CommandId::from_bits(0x018f_4d2e_7a1b_7c3d_8e4f_0123_4567_89ab);
        let form = "018f4d2e-7a1b-7c3d-8e4f-0123456789ab";
        assert_eq!((id.to_string().as_str(), form.parse()), (form, Ok(id)));
        for wrong in [
            "",
            "018F4D2E-7A1B-7C3D-8E4F-0123456789AB",
            "018f4d2e7a1b7c3d8e4f0123456789ab",
            "018f4d2e-7a1b-7c3d-8e4f-0123456789a",
            "+18f4d2e-7a1b-7c3d-8e4f-0123456789ab",
        ] {
            assert!(wrong.parse::<CommandId>().is_err(), "{wrong}");
        }
    }
}
