//! Why something ended, was refused, or waits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::ParseIdError;

/// Why a node is where it is; a code for programs and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The kind of reason.
    pub code: ReasonCode,
    /// The detail for people, without secrets. May be empty.
    pub detail: String,
}

impl Reason {
    /// Pairs a code with what happened.
    #[must_use]
    pub fn new(code: ReasonCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            f.write_str(self.code.as_str())
        } else {
            write!(f, "{}: {}", self.code.as_str(), self.detail)
        }
    }
}

impl FromStr for Reason {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (code, detail) = text.split_once(": ").unwrap_or((text, ""));
        Ok(Self { code: code.parse()?, detail: detail.to_owned() })
    }
}

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! reason_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)?) => {
        /// The kinds of [`Reason`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ReasonCode {
            $($(#[$doc])* $name),+
        }

        impl ReasonCode {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// In `UPPER_SNAKE`, as it stands in records and answers.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// Place of the code in [`ReasonCode::ALL`], for tables with a row for each code.
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

reason_codes! {
    /// PENDING: everything before it has ended, and a prerequisite is not met yet.
    Waiting = "WAITING",
    /// A prerequisite can never be met.
    PrerequisiteImpossible = "PREREQUISITE_IMPOSSIBLE",
    /// The node's `when` cannot be evaluated.
    WhenFailed = "WHEN_FAILED",
    /// READY, but no live runner takes it.
    NoLiveRunner = "NO_LIVE_RUNNER",
    /// READY again, and waits for its back-off to pass.
    BackingOff = "BACKING_OFF",
    /// The script ended with another exit code than 0.
    ExitCode = "EXIT_CODE",
    /// The script ran longer than its `timeout`.
    Timeout = "TIMEOUT",
    /// The attempt's end did not arrive in time.
    TimeoutResult = "TIMEOUT_RESULT",
    /// No supervisor accepted it in time.
    TimeoutAck = "TIMEOUT_ACK",
    /// The job did not start in time.
    TimeoutQueue = "TIMEOUT_QUEUE",
    /// The flow's deadline passed.
    Deadline = "DEADLINE",
    /// The instance that ran it vanished.
    InstanceLost = "INSTANCE_LOST",
    /// The supervisor that held it vanished.
    SupervisorLost = "SUPERVISOR_LOST",
    /// The instance that ran it was drained and ended before the script did.
    Drained = "DRAINED",
    /// The instance that ran it vanished as often as a node may lose it in one generation.
    Quarantined = "QUARANTINED",
    /// The job was stopped at the supervisor.
    Stopped = "STOPPED",
    /// The message that carried it could not be delivered.
    Undeliverable = "UNDELIVERABLE",
    /// The supervisor refused it.
    Refused = "REFUSED",
    /// The supervisor was sent it and gave an unreadable answer: it is unknown whether it ran.
    Unknown = "UNKNOWN",
    /// A drained instance handed it back unstarted.
    Returned = "RETURNED",
    /// The script could not be started, or what it left could not be read.
    RuntimeError = "RUNTIME_ERROR",
    /// A reference names a key that an upstream node did not give.
    MissingResult = "MISSING_RESULT",
    /// The rendered environment is beyond its limit.
    EnvTooLarge = "ENV_TOO_LARGE",
    /// The upstream results are beyond their limit.
    InputsTooLarge = "INPUTS_TOO_LARGE",
    /// The node's own result is beyond its limit.
    ResultTooLarge = "RESULT_TOO_LARGE",
    /// A file that it needs is not there any more.
    BlobMissing = "BLOB_MISSING",
    /// The job demands more isolation than there is, or a layer of it could not be put around it.
    IsolationUnavailable = "ISOLATION_UNAVAILABLE",
    /// The job requests the network, and the supervisor's policy refuses it.
    NetworkRefused = "NETWORK_REFUSED",
    /// The supervisor's policy does not take it: for its context, its coordinator, its type or who signed it.
    PolicyRefused = "POLICY_REFUSED",
    /// The actor's signature does not fit the job, is over, or belongs to another job.
    SignatureRefused = "SIGNATURE_REFUSED",
    /// The job was killed since it used more memory than it may.
    OutOfMemory = "OUT_OF_MEMORY",
    /// The job's directory holds more than it may.
    QuotaExceeded = "QUOTA_EXCEEDED",
    /// A disk had no room for what the runner has to write. Where nothing of the script ran it is tried again, uncounted.
    DiskFull = "DISK_FULL",
    /// A node before it failed, or was skipped for this reason.
    UpstreamFailed = "UPSTREAM_FAILED",
    /// The nodes before this one ended such that its `run_if` or its `when` is false.
    ConditionNotMet = "CONDITION_NOT_MET",
    /// The flow was cancelled.
    FlowCancelled = "FLOW_CANCELLED",
    /// The node was cancelled.
    NodeCancelled = "NODE_CANCELLED",
    /// Another node failed in a flow with `fail_fast`.
    FailFast = "FAIL_FAST",
}

impl FromStr for ReasonCode {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| ParseIdError { kind: "reason", text: text.chars().take(80).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_its_place_among_all() {
        for (place, code) in ReasonCode::ALL.iter().enumerate() {
            assert_eq!(code.index(), place, "{code:?}");
        }
    }
}
