//! How much an actor and a context may have, and what is kept of what has ended. The defaults are limits of the whole; operators change them with flags.
//!
//! Amounts are counted by the script that changes them, next to what it reads anyway: in `ids` of the context, or as
//! the size of the set that lists everything of the kind.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use model::{ContextRetention, limits};

/// Delay before a retry where room becomes free by itself.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Delay before a retry where room becomes free by the sweep of unreferenced blobs.
const RETRY_AFTER_BLOBS: Duration = Duration::from_secs(60);

/// Remedy for amounts that are kept within bounds by removal.
const OLDEST_GO: &str = "the oldest go by themselves";

macro_rules! quotas {
    ($($(#[$doc:meta])* $quota:ident = ($name:literal, $default:ident, $remedy:expr, $retry:expr)),+ $(,)?) => {
        /// One of the amounts that are bounded.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Quota {
            $($(#[$doc])* $quota),+
        }

        impl Quota {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$quota),+];

            /// Name of the quota, as `/info` shows it and flags set it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$quota => $name),+ }
            }

            const fn default(self) -> u64 {
                match self { $(Self::$quota => limits::$default as u64),+ }
            }

            /// Advice on how to make room.
            pub(crate) const fn remedy(self) -> &'static str {
                match self { $(Self::$quota => $remedy),+ }
            }

            /// Delay before a retry, for amounts that shrink by themselves; none where something has to be deleted.
            pub(crate) const fn retry_after(self) -> Option<Duration> {
                match self { $(Self::$quota => $retry),+ }
            }
        }
    };
}

quotas! {
    /// Contexts that an actor created.
    ActorContexts = ("actor_contexts_max", ACTOR_CONTEXTS_MAX, "delete one of them first", None),
    /// Bytes of blobs in the contexts that an actor created.
    ActorBlobBytes = (
        "actor_blob_bytes_max",
        ACTOR_BLOB_BYTES_MAX,
        "delete flows, jobs or contexts of this context's creator; unreferenced blobs go after a while",
        Some(RETRY_AFTER_BLOBS)
    ),
    /// Flows that are kept.
    ContextFlows = ("context_flows_max", CONTEXT_FLOWS_MAX, "delete some that have ended", None),
    /// Flows created each second.
    ContextFlowsPerSec =
        ("context_flows_per_sec", CONTEXT_FLOWS_PER_SEC, "submit more slowly", Some(RETRY_AFTER)),
    /// Flows that have not ended.
    ContextFlowsOpen =
        ("context_flows_open_max", CONTEXT_FLOWS_OPEN_MAX, "flows that end make room", Some(RETRY_AFTER)),
    /// Their nodes.
    ContextJobsOpen =
        ("context_jobs_open_max", CONTEXT_JOBS_OPEN_MAX, "flows that end make room", Some(RETRY_AFTER)),
    /// Jobs that belong to no flow.
    ContextJobsKept = ("context_jobs_kept_max", CONTEXT_JOBS_KEPT_MAX, "delete some of them first", None),
    /// Bytes of blobs.
    ContextBlobBytes = (
        "context_blob_bytes_max",
        CONTEXT_BLOB_BYTES_MAX,
        "delete flows or jobs; unreferenced blobs go after a while",
        Some(RETRY_AFTER_BLOBS)
    ),
    /// Runner records.
    ContextRunners = ("context_runners_max", CONTEXT_RUNNERS_MAX, "delete some of them first", None),
    /// Seconds for which ended flows are kept. Never refused: what is older goes.
    EndedFlowKeep = ("ended_flow_keep_secs", ENDED_FLOW_KEEP_SECS, OLDEST_GO, None),
    /// Ended flows that are kept. Never refused: the oldest go.
    EndedFlows = ("ended_flows_max", ENDED_FLOWS_MAX, OLDEST_GO, None),
    /// Bytes of ended flows. Never refused: the oldest go.
    EndedFlowBytes = ("ended_flow_bytes_max", ENDED_FLOW_BYTES_MAX, OLDEST_GO, None),
    /// Seconds for which finished messages are kept. Never refused: what is older goes.
    MessageKeep = ("message_keep_secs", MESSAGE_KEEP_SECS, OLDEST_GO, None),
    /// Seconds for which events are kept. Never refused: what is older goes.
    EventsKeep = ("events_keep_secs", EVENTS_KEEP_SECS, OLDEST_GO, None),
    /// Deleted runner records that are still kept.
    ContextRunnersDeleted = (
        "context_runners_deleted_max",
        CONTEXT_RUNNERS_DELETED_MAX,
        "each goes some days after it was deleted",
        None
    ),
}

/// How much of each there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageQuotas([u64; Quota::ALL.len()]);

impl Default for StorageQuotas {
    fn default() -> Self {
        let mut values = [0; Quota::ALL.len()];
        for quota in Quota::ALL {
            values[*quota as usize] = quota.default();
        }
        Self(values)
    }
}

impl StorageQuotas {
    /// Applies `settings` to the defaults; of two settings for the same quota, the last one counts.
    #[must_use]
    pub fn with(settings: &[QuotaSetting]) -> Self {
        let mut quotas = Self::default();
        for setting in settings {
            quotas.0[setting.quota as usize] = setting.value;
        }
        quotas
    }

    /// Returns the limit of a quota.
    #[must_use]
    pub const fn of(&self, quota: Quota) -> u64 {
        self.0[quota as usize]
    }

    /// Bounds of what a context keeps of what has ended, at most.
    #[must_use]
    pub const fn retention(&self) -> ContextRetention {
        ContextRetention {
            ended_flow_keep_secs: self.of(Quota::EndedFlowKeep),
            ended_flows_max: self.of(Quota::EndedFlows),
            ended_flow_bytes_max: self.of(Quota::EndedFlowBytes),
            message_keep_secs: self.of(Quota::MessageKeep),
            messages_done_max: limits::MESSAGES_DONE_MAX as u64,
            events_keep_secs: self.of(Quota::EventsKeep),
        }
    }

    /// All of them by name, for `/info`.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Quota::ALL.iter().map(|quota| (quota.name(), self.of(*quota)))
    }
}

/// `NAME=VALUE`, as a flag says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaSetting {
    quota: Quota,
    value: u64,
}

impl QuotaSetting {
    /// Sets one of them.
    #[must_use]
    pub const fn new(quota: Quota, value: u64) -> Self {
        Self { quota, value }
    }
}

impl FromStr for QuotaSetting {
    type Err = InvalidQuotaSetting;

    fn from_str(text: &str) -> Result<Self, InvalidQuotaSetting> {
        let (name, value) = text.split_once('=').ok_or(InvalidQuotaSetting)?;
        let quota = Quota::ALL.iter().find(|quota| quota.name() == name.trim()).ok_or(InvalidQuotaSetting)?;
        let value = value.trim().parse().map_err(|_| InvalidQuotaSetting)?;
        Ok(Self { quota: *quota, value })
    }
}

/// A text that sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidQuotaSetting;

impl fmt::Display for InvalidQuotaSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Quota::ALL.iter().map(|quota| quota.name()).collect();
        write!(f, "write NAME=NUMBER; there are {}", names.join(", "))
    }
}

impl std::error::Error for InvalidQuotaSetting {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quota_is_a_limit_of_the_whole() {
        for (name, value) in StorageQuotas::default().named() {
            assert!(limits::TABLE.contains(&(name, value)), "{name} = {value}");
        }
    }

    #[test]
    fn a_setting_names_a_quota_and_a_number() {
        let settings = ["actor_contexts_max=3", "context_flows_max = 7", "actor_contexts_max=5"];
        let settings: Vec<QuotaSetting> = settings.iter().map(|text| text.parse().expect("good")).collect();
        let quotas = StorageQuotas::with(&settings);
        assert_eq!(quotas.of(Quota::ActorContexts), 5);
        assert_eq!(quotas.of(Quota::ContextFlows), 7);
        assert_eq!(quotas.of(Quota::ContextRunners), limits::CONTEXT_RUNNERS_MAX);
        for text in ["actor_contexts_max", "nothing=1", "actor_contexts_max=-1", "=", ""] {
            assert_eq!(text.parse::<QuotaSetting>(), Err(InvalidQuotaSetting), "{text}");
        }
    }
}
