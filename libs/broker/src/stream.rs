//! Streams, as they are wanted and as they are.

use std::fmt;
use std::time::Duration;

use crate::SettingDifference;

/// Maximum number of consumers of our streams. Without a setting, servers since 2.12 allow 1,000.
const CONSUMERS_MAX: i64 = 100_000;
/// Time for which our streams recognize messages by their ids.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$choice_doc:meta])* $choice:ident = $text:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$choice_doc])* $choice,)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$choice => $text,)*
                })
            }
        }
    )*};
}

choices! {
    /// Rule by which a stream forgets messages.
    StreamRetention {
        /// At its limits.
        Limits = "limits",
        /// Once every consumer has acknowledged.
        Interest = "interest",
        /// Once any consumer has acknowledged.
        WorkQueue = "workqueue",
    }
    /// Place where a stream keeps messages.
    StreamStorage {
        /// On disk.
        File = "file",
        /// In memory, until the server ends.
        Memory = "memory",
    }
    /// Behavior of a full stream.
    StreamDiscard {
        /// Forgets the oldest.
        Old = "old",
        /// Refuses new ones.
        New = "new",
    }
}

/// Settings of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSettings {
    /// Subjects of the messages that it keeps.
    pub subjects: Vec<String>,
    /// Rule by which it forgets messages.
    pub retention: StreamRetention,
    /// Place where it keeps them.
    pub storage: StreamStorage,
    /// Behavior of the stream when it is full.
    pub discard: StreamDiscard,
    /// Time for which it recognizes messages by their ids.
    pub duplicate_window: Duration,
    /// Time for which it keeps messages; zero for ever.
    pub max_age: Duration,
    /// Maximum number of consumers; −1 for as many as the server allows.
    pub max_consumers: i64,
    /// Number of servers that have it.
    pub replicas: usize,
}

/// Settings that are wanted of a stream; those that are `None` do not matter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamSpec {
    /// Name of the stream.
    pub name: String,
    /// Subjects of the messages that it keeps, in any order.
    pub subjects: Option<Vec<String>>,
    /// Rule by which it forgets messages.
    pub retention: Option<StreamRetention>,
    /// Place where it keeps them.
    pub storage: Option<StreamStorage>,
    /// Behavior of the stream when it is full.
    pub discard: Option<StreamDiscard>,
    /// Time for which it recognizes messages by their ids.
    pub duplicate_window: Option<Duration>,
    /// Time for which it keeps messages; zero for ever.
    pub max_age: Option<Duration>,
    /// Maximum number of consumers.
    pub max_consumers: Option<i64>,
    /// Number of servers that have it.
    pub replicas: Option<usize>,
}

impl StreamSpec {
    /// Specifies one of our streams: on disk, with limits only, refusing messages beyond them.
    #[must_use]
    pub fn managed(name: &str, subjects: &[&str], max_age: Duration) -> Self {
        Self {
            name: name.to_owned(),
            subjects: Some(subjects.iter().map(|subject| (*subject).to_owned()).collect()),
            retention: Some(StreamRetention::Limits),
            storage: Some(StreamStorage::File),
            discard: Some(StreamDiscard::New),
            duplicate_window: Some(DUPLICATE_WINDOW),
            max_age: Some(max_age),
            max_consumers: Some(CONSUMERS_MAX),
            replicas: Some(1),
        }
    }

    /// Settings with which the stream is created: those specified, and our defaults for the others.
    pub(crate) fn settings(&self) -> StreamSettings {
        StreamSettings {
            subjects: self.subjects.clone().unwrap_or_else(|| vec![self.name.clone()]),
            retention: self.retention.unwrap_or(StreamRetention::Limits),
            storage: self.storage.unwrap_or(StreamStorage::File),
            discard: self.discard.unwrap_or(StreamDiscard::New),
            duplicate_window: self.duplicate_window.unwrap_or(DUPLICATE_WINDOW),
            max_age: self.max_age.unwrap_or_default(),
            max_consumers: self.max_consumers.unwrap_or(CONSUMERS_MAX),
            replicas: self.replicas.unwrap_or(1),
        }
    }

    /// Lists which of these settings differ from the specified ones.
    #[must_use]
    pub fn differences(&self, found: &StreamSettings) -> Vec<SettingDifference> {
        let sorted = |subjects: &[String]| {
            let mut subjects = subjects.to_vec();
            subjects.sort();
            subjects.join(", ")
        };
        let text = |value: Option<&dyn fmt::Display>| value.map(ToString::to_string);
        let span = |value: Option<Duration>| value.map(|value| format!("{value:?}"));
        let fields = [
            ("subjects", self.subjects.as_deref().map(sorted), sorted(&found.subjects)),
            ("retention", text(self.retention.as_ref().map(|it| it as _)), found.retention.to_string()),
            ("storage", text(self.storage.as_ref().map(|it| it as _)), found.storage.to_string()),
            ("discard", text(self.discard.as_ref().map(|it| it as _)), found.discard.to_string()),
            ("duplicate_window", span(self.duplicate_window), format!("{:?}", found.duplicate_window)),
            ("max_age", span(self.max_age), format!("{:?}", found.max_age)),
            (
                "max_consumers",
                text(self.max_consumers.as_ref().map(|it| it as _)),
                found.max_consumers.to_string(),
            ),
            ("num_replicas", text(self.replicas.as_ref().map(|it| it as _)), found.replicas.to_string()),
        ];
        let differs = |(field, wanted, found): (&str, Option<String>, String)| {
            let wanted = wanted.filter(|wanted| *wanted != found)?;
            Some(SettingDifference { stream: self.name.clone(), field: field.to_owned(), wanted, found })
        };
        fields.into_iter().filter_map(differs).collect()
    }
}

/// A stream as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// Time of its creation, in milliseconds since 1970: another stream of the same name has another incarnation.
    pub incarnation: u64,
    /// The first sequence that it still has; one more than the last when it is empty.
    pub first_sequence: u64,
    /// The last sequence that it has given; 0 at first.
    pub last_sequence: u64,
    /// Number of its messages.
    pub messages: u64,
    /// Number of its consumers.
    pub consumers: usize,
    /// Settings of the stream.
    pub settings: StreamSettings,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_compared_and_named() {
        let wanted = StreamSpec::managed("S", &["b.*", "a.*"], Duration::from_secs(7 * 86_400));
        let mut found = wanted.settings();
        found.subjects.reverse();
        assert_eq!(wanted.differences(&found), []);
        let found = StreamSettings {
            subjects: vec!["a.*".to_owned()],
            retention: StreamRetention::WorkQueue,
            storage: StreamStorage::Memory,
            discard: StreamDiscard::Old,
            duplicate_window: Duration::from_secs(60),
            max_age: Duration::ZERO,
            max_consumers: -1,
            replicas: 3,
        };
        let differences = wanted.differences(&found);
        let shown: Vec<_> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "S: subjects is a.*, wanted is a.*, b.*",
                "S: retention is workqueue, wanted is limits",
                "S: storage is memory, wanted is file",
                "S: discard is old, wanted is new",
                "S: duplicate_window is 60s, wanted is 120s",
                "S: max_age is 0ns, wanted is 604800s",
                "S: max_consumers is -1, wanted is 100000",
                "S: num_replicas is 3, wanted is 1",
            ]
        );
        // What does not matter is not compared.
        assert_eq!(StreamSpec { name: "S".to_owned(), ..StreamSpec::default() }.differences(&found), []);
    }
}
