//! Ids of inputs, and of the work that they cause.
//!
//! Repeated work must have the same id. An id of work is therefore derived from its cause, never from chance, nor from the
//! order in which inputs happened to arrive.

use model::{CommandId, CorrelationId, SagaName, TenantId, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Builder;

/// Idempotency key of an input: an instance applies inputs of one id once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputId {
    /// An event with its own id.
    Event(String),
    /// An event without one: its sequence in its stream, and the incarnation of that stream.
    Message {
        /// When the stream was made, in milliseconds since 1970.
        incarnation: u64,
        /// Sequence of the message in the stream.
        sequence: u64,
    },
    /// The result of a command.
    Result(CommandId),
    /// A timer that fired.
    Timer {
        /// Name of the timer.
        name: String,
        /// How often it had been set.
        generation: u64,
    },
    /// A request of an operator or a client, by its id.
    Verb(String),
}

impl InputId {
    /// The name as bytes which no other input shares: 32 of them.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = LengthPrefixedHash::default();
        match self {
            Self::Event(id) => hash.add(b"event").add(id.as_bytes()),
            Self::Message { incarnation, sequence } => {
                hash.add(b"message").add(&incarnation.to_be_bytes()).add(&sequence.to_be_bytes())
            }
            Self::Result(command) => hash.add(b"result").add(&command.bits().to_be_bytes()),
            Self::Timer { name, generation } => {
                hash.add(b"timer").add(name.as_bytes()).add(&generation.to_be_bytes())
            }
            Self::Verb(request) => hash.add(b"verb").add(request.as_bytes()),
        };
        hash.end()
    }
}

/// Cause of work: one input of one run of an instance.
#[derive(Debug, Clone, Copy)]
pub struct WorkSource<'a> {
    /// Tenant that owns the instance.
    pub tenant: &'a TenantId,
    /// Saga of the instance.
    pub saga: &'a SagaName,
    /// Correlation of the instance.
    pub correlation: &'a CorrelationId,
    /// How many instances of this correlation there were before it.
    pub run: u64,
    /// The input.
    pub input: &'a InputId,
    /// When the input happened, as far as instances are concerned.
    pub time: Timestamp,
}

impl WorkSource<'_> {
    /// The id of a piece of work: a UUID of version 7, whose time is the input's. `ordinal` is its place among what this
    /// input causes, in the order of the manifest.
    #[must_use]
    pub fn command(&self, ordinal: u32) -> CommandId {
        let mut hash = LengthPrefixedHash::default();
        hash.add(b"work")
            .add(self.tenant.as_str().as_bytes())
            .add(self.saga.as_str().as_bytes())
            .add(self.correlation.as_str().as_bytes())
            .add(&self.run.to_be_bytes())
            .add(&self.input.digest())
            .add(&ordinal.to_be_bytes());
        let mut random = [0; 10];
        random.copy_from_slice(&hash.end()[..10]);
        let id = Builder::from_unix_timestamp_millis(self.time.as_millis(), &random).into_uuid();
        CommandId::from_bits(id.as_u128())
    }
}

/// A hash over parts, each with its length, so that no two lists of parts are the same bytes.
#[derive(Default)]
struct LengthPrefixedHash(Sha256);

impl LengthPrefixedHash {
    fn add(&mut self, part: &[u8]) -> &mut Self {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
        self
    }

    fn end(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn command(input: &InputId, correlation: &str, run: u64, ordinal: u32, millis: u64) -> CommandId {
        let (tenant, saga) = ("acme".parse().expect("a tenant"), "order".parse().expect("a name"));
        let (correlation, time) =
            (correlation.parse().expect("a correlation"), Timestamp::from_millis(millis));
        let source = WorkSource { tenant: &tenant, saga: &saga, correlation: &correlation, run, input, time };
        source.command(ordinal)
    }

    #[test]
    fn ids_of_work_are_for_ever() {
        let input = InputId::Event("e-1".to_owned());
        // What is in stores and streams already was asked for under this id.
        let id = command(&input, "c", 0, 0, 1_700_000_000_000);
        assert_eq!(id.to_string(), "018bcfe5-6800-751b-8c5e-11be58818d21");
    }

    #[test]
    fn another_cause_is_another_id_with_the_time_of_its_input() {
        let event = |id: &str| InputId::Event(id.to_owned());
        let timer = |name: &str, generation| InputId::Timer { name: name.to_owned(), generation };
        let inputs = [
            event("1"),
            event("11"),
            InputId::Verb("1".to_owned()),
            InputId::Message { incarnation: 1, sequence: 1 },
            InputId::Message { incarnation: 1, sequence: 2 },
            InputId::Result(CommandId::from_bits(1)),
            timer("1", 1),
            timer("1", 2),
            timer("11", 1),
        ];
        let digests: BTreeSet<_> = inputs.iter().map(InputId::digest).collect();
        assert_eq!(digests.len(), inputs.len());
        let causes = [("c", 0, 0), ("c", 0, 1), ("c", 1, 0), ("cc", 0, 0)];
        let ids: BTreeSet<_> = inputs
            .iter()
            .flat_map(|input| {
                causes.map(|(correlation, run, place)| command(input, correlation, run, place, 9))
            })
            .collect();
        assert_eq!(ids.len(), inputs.len() * causes.len());
        for id in ids {
            let id = uuid::Uuid::from_u128(id.bits());
            assert_eq!((id.get_version_num(), id.as_u128() >> 80), (7, 9));
        }
    }
}
