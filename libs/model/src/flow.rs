//! Flows: one run of a graph of jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{
    ActorId, ContextId, Epoch, FlowId, FlowUid, Generation, JobId, OwnerId, ParseIdError, Revision,
};
use crate::limits;
use crate::name::Name;
use crate::node::NodeSpec;
use crate::rerun::Rerun;
use crate::time::Timestamp;
use crate::trace_parent::TraceParent;

/// Environment variables, sorted by name.
pub type EnvVars = BTreeMap<String, String>;

/// Result of a node or a flow: keys and texts.
///
/// In Redis every value is a text. Readers of results (`$MYCORA_INPUTS`, expressions) treat a text that is `true`, `false`,
/// an array or an object as that value, and a number according to [`is_number`].
pub type ResultMap = BTreeMap<String, String>;

/// Returns true if a text survives being read as a number: an integer of 64 bits or a float whose written form is exactly
/// this text. A version `1.10` or a hash `12e10` is therefore not a number.
#[must_use]
pub fn is_number(text: &str) -> bool {
    if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return false;
    }
    if let Ok(integer) = text.parse::<i64>() {
        return integer.to_string() == text;
    }
    // Not parsed by serde_json, which may be off in the last digit.
    let float = text.parse::<f64>().ok().and_then(|number| serde_json::to_string(&number).ok());
    float.is_some_and(|written| written == text)
}

/// Where a flow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowStatus {
    /// Waits for a start, while nodes are being added.
    Created,
    /// Running.
    Started,
    /// Ended well.
    Finished,
    /// Ended with a failure that counts.
    Error,
    /// Ended on request.
    Cancelled,
}

impl FlowStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Created, Self::Started, Self::Finished, Self::Error, Self::Cancelled];

    /// Returns the status as stored in Redis.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the status as people see it, in the words of jobs.
    #[must_use]
    pub const fn display_name(self) -> &'static str {
        match self {
            Self::Started => "running",
            Self::Finished => "completed",
            Self::Error => "failed",
            status => status.as_str(),
        }
    }

    /// Returns true if the flow has ended.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Finished | Self::Error | Self::Cancelled)
    }
}

impl fmt::Display for FlowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for FlowStatus {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| ParseIdError { kind: "flow status", text: text.chars().take(80).collect() })
    }
}

/// A flow as requested.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowSpec {
    /// Name of the flow, for people.
    pub name: Name,
    /// Variables for every job.
    pub env_vars: EnvVars,
    /// The first failure that counts cancels everything that has not ended.
    pub fail_fast: bool,
    /// Seconds from the start on after which it fails.
    pub deadline_secs: Option<u32>,
    /// Seconds until a cancelled attempt is closed without confirmation.
    pub cancel_timeout_secs: u32,
    /// Nodes of the flow, in the order they were given.
    pub nodes: Vec<NodeSpec>,
}

impl FlowSpec {
    /// A flow of this name without nodes, with default settings.
    #[must_use]
    pub const fn new(name: Name) -> Self {
        Self {
            name,
            env_vars: EnvVars::new(),
            fail_fast: false,
            deadline_secs: None,
            cancel_timeout_secs: limits::CANCEL_TIMEOUT_SECS,
            nodes: Vec::new(),
        }
    }
}

/// One run of a graph of jobs. Its nodes are kept beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Number of the flow within the context.
    pub id: FlowId,
    /// Distinguishes it from an earlier flow of the same number.
    pub uid: FlowUid,
    /// Name of the flow, for people.
    pub name: Name,
    /// Actor that owns the flow.
    pub caller_id: ActorId,
    /// Where it runs.
    pub context_id: ContextId,
    /// The jobs of its nodes, in the order they were given.
    pub jobs: Vec<JobId>,
    /// Variables for every job.
    pub env_vars: EnvVars,
    /// Results of the nodes that nothing depends on, as `<node>.<key>`; filled when it ends.
    pub result: ResultMap,
    /// The result was larger than its limit and is incomplete.
    pub result_truncated: bool,
    /// The first failure that counts cancels everything that has not ended.
    pub fail_fast: bool,
    /// When it fails unless it has ended.
    pub deadline: Option<Timestamp>,
    /// When its cancellation was requested.
    pub cancel_requested_time: Option<Timestamp>,
    /// Seconds until a cancelled attempt is closed without confirmation.
    pub cancel_timeout_secs: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Where it stands.
    pub status: FlowStatus,
    /// How often it was run.
    pub generation: Generation,
    /// Nodes chosen when the flow was last run again.
    pub rerun: Option<Rerun>,
    /// The change counter at its last change.
    pub revision: Revision,
    /// The scheduler replica that may change it.
    pub owner: Option<OwnerId>,
    /// Raised with each owner.
    pub epoch: Epoch,
    /// Seconds between asking a script to end and ending it, since the flow is being cancelled.
    pub cancel_grace_secs: u32,
    /// Trace context of the call that created the flow, or last ran it again; `None` where that call is in no trace.
    pub trace: Option<TraceParent>,
}

impl Flow {
    /// A new flow: empty, with no changes yet.
    #[must_use]
    pub fn new(
        id: FlowId,
        uid: FlowUid,
        name: Name,
        context_id: ContextId,
        caller_id: ActorId,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            uid,
            name,
            caller_id,
            context_id,
            jobs: Vec::new(),
            env_vars: EnvVars::new(),
            result: ResultMap::new(),
            result_truncated: false,
            fail_fast: false,
            deadline: None,
            cancel_requested_time: None,
            cancel_timeout_secs: limits::CANCEL_TIMEOUT_SECS,
            created_at: now,
            updated_at: now,
            status: FlowStatus::Created,
            generation: Generation(1),
            rerun: None,
            revision: Revision(0),
            owner: None,
            epoch: Epoch(0),
            cancel_grace_secs: 0,
            trace: None,
        }
    }

    /// A flow as requested. Its nodes are stored separately; its deadline is set when it starts.
    #[must_use]
    pub fn of(
        spec: &FlowSpec,
        id: FlowId,
        uid: FlowUid,
        context_id: ContextId,
        caller_id: ActorId,
        now: Timestamp,
    ) -> Self {
        // Without `..`, a new field of the specification does not compile until it is handled here.
        let FlowSpec { name, env_vars, fail_fast, deadline_secs: _, cancel_timeout_secs, nodes: _ } = spec;
        Self {
            env_vars: env_vars.clone(),
            fail_fast: *fail_fast,
            cancel_timeout_secs: *cancel_timeout_secs,
            ..Self::new(id, uid, name.clone(), context_id, caller_id, now)
        }
    }
}
