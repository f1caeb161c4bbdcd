//! Every Redis key name, and nothing else: builders, and parsers that undo them.
//!
//! No other crate writes a key by hand. [`context`] has the coordinator's keys in
//! both layouts, [`supervisor`] those of a supervisor's own Redis, [`legacy`] what else old workers know there, [`nonce`]
//! what it remembers of signatures.

pub mod context;
pub mod legacy;
pub mod nonce;
pub mod supervisor;

#[cfg(test)]
mod samples;
mod suffix;

pub use context::{ContextKey, ContextKeys, GlobalKey, GlobalKeys, RedisType};
pub use legacy::{LegacyJob, LegacyName, LegacyQueue};
pub use nonce::ActorNonce;
pub use supervisor::{ControlScope, InstanceRef, SupervisorKey, WorkQueue};

use std::fmt;
use std::str::FromStr;

use model::id::ParseIdError;
use model::{ContextId, FlowId, FlowUid};

/// How the contexts are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// Context *n* in Redis database *n*; global keys in database 0.
    #[default]
    Database,
    /// Everything in database 0, under `{<context>}:`, so that a context is one slot of a cluster.
    HashTag,
}

impl Layout {
    /// The name in configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::HashTag => "hash-tag",
        }
    }

    /// The database that holds a context's keys. Context 0 stands for global keys.
    #[must_use]
    pub const fn database(self, context: ContextId) -> u32 {
        match self {
            Self::Database => context.0,
            Self::HashTag => 0,
        }
    }

    /// Returns the tag that keeps a context's keys on one node of a cluster: what stands between the braces.
    /// Empty in a layout without tags.
    #[must_use]
    pub fn tag(self, context: ContextId) -> String {
        match self {
            Self::Database => String::new(),
            Self::HashTag => context.to_string(),
        }
    }

    /// The channel on which a context's changes are hinted at. A hint may be lost;
    /// the context's `events` stream is the truth.
    ///
    /// The name carries the tag in both layouts, since channels are not kept apart by database.
    #[must_use]
    pub fn hint_channel(self, context: ContextId) -> String {
        format!("{{{context}}}:hint")
    }

    /// The pattern that all hint channels match.
    #[must_use]
    pub const fn hint_pattern(self) -> &'static str {
        "{*}:hint"
    }

    /// Returns the context whose changes a hint on `channel` announces.
    #[must_use]
    pub fn parse_hint_channel(self, channel: &str) -> Option<ContextId> {
        suffix::number(channel.strip_prefix('{')?.strip_suffix("}:hint")?).map(ContextId)
    }

    fn prefix(self, context: ContextId) -> String {
        match self {
            Self::Database => String::new(),
            Self::HashTag => format!("{{{context}}}:"),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Layout {
    type Err = UnknownLayout;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "database" => Ok(Self::Database),
            "hash-tag" => Ok(Self::HashTag),
            other => Err(UnknownLayout(other.chars().take(80).collect())),
        }
    }
}

/// No layout has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownLayout(pub String);

impl fmt::Display for UnknownLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a layout; there are database and hash-tag", self.0)
    }
}

impl std::error::Error for UnknownLayout {}

/// A flow as the sets of a context name it: `<id>-<uid>`, so that a later flow of the same number is
/// another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowRef {
    /// Number of the flow.
    pub id: FlowId,
    /// Uid of the flow.
    pub uid: FlowUid,
}

impl fmt::Display for FlowRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.id, self.uid)
    }
}

impl FromStr for FlowRef {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (id, uid) = text.split_once('-')?;
            Some(Self { id: suffix::exact(id)?, uid: suffix::exact(uid)? })
        };
        parse().ok_or_else(|| ParseIdError { kind: "flow", text: text.chars().take(80).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_one_spelling() {
        let text = "7-0123456789abcdef0123456789abcdef";
        let flow: FlowRef = text.parse().expect("well-formed");
        assert_eq!((flow.id, flow.to_string()), (FlowId(7), text.to_owned()));
        for bad in
            ["7", "07-0123456789abcdef0123456789abcdef", "7-0123", "-1-0123456789abcdef0123456789abcdef"]
        {
            assert!(bad.parse::<FlowRef>().is_err(), "{bad}");
        }
    }

    #[test]
    fn databases_and_hints() {
        assert_eq!(Layout::Database.database(ContextId(7)), 7);
        assert_eq!(Layout::HashTag.database(ContextId(7)), 0);
        assert_eq!(Layout::Database.tag(ContextId(7)), "");
        assert_eq!(Layout::HashTag.tag(ContextId(7)), "7");
        for layout in [Layout::Database, Layout::HashTag] {
            let channel = layout.hint_channel(ContextId(7));
            assert_eq!(channel, "{7}:hint");
            assert_eq!(layout.parse_hint_channel(&channel), Some(ContextId(7)));
            assert_eq!(layout.as_str().parse(), Ok(layout));
        }
        assert_eq!(Layout::Database.parse_hint_channel("{07}:hint"), None);
        assert!("cluster".parse::<Layout>().is_err());
    }
}
