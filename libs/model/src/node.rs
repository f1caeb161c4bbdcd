//! Flow nodes: a job's place in a flow, and where it stands.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::flow::ResultMap;
use crate::id::{Attempt, Generation, JobId, ParseIdError, RunnerId};
use crate::isolation::Isolation;
use crate::job::{BlobRef, JobSpec};
use crate::limits;
use crate::name::Name;
use crate::prerequisite::Prerequisite;
use crate::reason::Reason;
use crate::time::Timestamp;

/// State of a node. `flow::transition` defines the legal transitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Waits for what comes before it.
    Pending,
    /// May run as soon as a runner is available.
    Ready,
    /// On its way to a supervisor, or in its queue.
    Dispatched,
    /// An instance executes it.
    Running,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Ended on request.
    Cancelled,
    /// Will not run in this generation.
    Skipped,
}

impl NodeState {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Ready,
        Self::Dispatched,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Skipped,
    ];

    /// Returns the state as stored in Redis.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ready => "ready",
            Self::Dispatched => "dispatched",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
        }
    }

    /// Returns the state as people see it: DISPATCHED reads `queued`, since nothing executes the node yet.
    #[must_use]
    pub const fn display_name(self) -> &'static str {
        if matches!(self, Self::Dispatched) { "queued" } else { self.as_str() }
    }

    /// Returns true if the node has ended in this generation.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Skipped)
    }

    /// Returns the state as old readers find it in `job:*`'s field `status`.
    #[must_use]
    pub const fn job_status(self) -> &'static str {
        match self {
            Self::Pending | Self::Ready => "waiting_for_prerequisites",
            Self::Dispatched => "dispatched",
            Self::Running => "started",
            Self::Completed => "finished",
            Self::Failed | Self::Cancelled | Self::Skipped => "error",
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for NodeState {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| ParseIdError { kind: "node state", text: text.chars().take(80).collect() })
    }
}

/// Which ends of the nodes before it let a node run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RunIf {
    /// All completed.
    #[default]
    AllSucceeded,
    /// At least one completed, none failed.
    NoneFailed,
    /// All ended, in any way.
    AllDone,
    /// At least one failed, or was skipped because of a failure further up.
    AnyFailed,
}

impl RunIf {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::AllSucceeded, Self::NoneFailed, Self::AllDone, Self::AnyFailed];

    /// Returns the condition as written in flow files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllSucceeded => "ALL_SUCCEEDED",
            Self::NoneFailed => "NONE_FAILED",
            Self::AllDone => "ALL_DONE",
            Self::AnyFailed => "ANY_FAILED",
        }
    }
}

/// Where a node wants to run. All empty: any live runner that offers the type.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeTarget {
    /// The only runner record that may be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerId>,
    /// Group whose instances alone may be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// The only instance of the group that may be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<u32>,
    /// Runners that carry all of these labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// How long to wait between tries: full jitter below
/// `min(initial * multiplier^tries, max)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BackoffPolicy {
    /// Seconds before the second try, at most.
    pub initial_secs: f64,
    /// Factor between one wait and the next.
    pub multiplier: f64,
    /// Seconds a wait never exceeds.
    pub max_secs: f64,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self { initial_secs: 1.0, multiplier: 2.0, max_secs: 60.0 }
    }
}

impl BackoffPolicy {
    /// The wait after `tries` counted tries; `jitter` is drawn from 0.0..1.0.
    #[must_use]
    pub fn delay(&self, tries: u32, jitter: f64) -> Duration {
        let exponent = i32::try_from(tries.min(64)).unwrap_or(64);
        let bound = (self.initial_secs * self.multiplier.powi(exponent)).min(self.max_secs);
        Duration::from_secs_f64((bound * jitter).clamp(0.0, f64::from(limits::TIMEOUT_SECS_MAX)))
    }
}

/// Policy of a node's tries and times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePolicy {
    /// Tries after the first.
    pub retries: u32,
    /// The wait between them.
    pub backoff: BackoffPolicy,
    /// Exit codes after which it is not tried again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub no_retry_exit_codes: Vec<i32>,
    /// Run time in seconds, 0 for no limit.
    pub timeout: u32,
    /// Ready to started in seconds, 0 for no limit.
    pub timeout_queue: u32,
    /// Dispatched to accepted in seconds, 0 for no limit.
    pub timeout_ack: u32,
    /// Dispatched to ended in seconds, 0 for no limit.
    pub timeout_result: u32,
    /// 0 (first) to 2.
    pub priority: u8,
    /// The isolation that it needs at least.
    #[serde(skip_serializing_if = "Isolation::is_basic")]
    pub isolation: Isolation,
    /// Allows the job to use the network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub network: bool,
    /// Lost attempts that are followed by another one. They use up no retries.
    pub losses: u32,
    /// The wait after a lost attempt, by the losses before it.
    #[serde(skip_serializing_if = "is_default")]
    pub loss_backoff: BackoffPolicy,
    /// Allows a rerun when it is not known how far an attempt came. Otherwise the first loss ends the node.
    #[serde(skip_serializing_if = "bool::clone")]
    pub idempotent: bool,
}

impl NodePolicy {
    /// Returns true if attempts of the node overtake all others of its context at a supervisor. Only admins may request
    /// that.
    #[must_use]
    pub const fn goes_first(&self) -> bool {
        self.priority == 0
    }

    /// Maximum number of lost attempts that another one follows: none for a job that must not run twice.
    #[must_use]
    pub const fn losses_allowed(&self) -> u32 {
        if self.idempotent { self.losses } else { 0 }
    }
}

impl Default for NodePolicy {
    fn default() -> Self {
        Self {
            retries: 0,
            backoff: BackoffPolicy::default(),
            no_retry_exit_codes: Vec::new(),
            timeout: limits::TIMEOUT_SECS_DEFAULT,
            timeout_queue: 0,
            timeout_ack: limits::TIMEOUT_ACK_SECS_DEFAULT,
            timeout_result: 0,
            priority: 1,
            isolation: Isolation::Basic,
            network: false,
            losses: limits::LOSSES_DEFAULT,
            loss_backoff: BackoffPolicy::default(),
            idempotent: true,
        }
    }
}

/// A node as requested: the part that never changes while the flow runs.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSpec {
    /// The name within the flow.
    pub name: Name,
    /// Names of the nodes before it.
    pub depends: Vec<Name>,
    /// Which of their ends let it run.
    pub run_if: RunIf,
    /// Keeps the node's failure from failing the flow.
    pub allow_failure: bool,
    /// Where it wants to run.
    pub target: NodeTarget,
    /// Tries and time.
    pub policy: NodePolicy,
    /// Conditions outside the flow.
    pub prerequisites: Vec<Prerequisite>,
    /// An expression over upstream results that lets it run.
    pub when: Option<String>,
    /// Job to execute.
    pub job: JobSpec,
}

impl NodeSpec {
    /// A node that asks for nothing special.
    #[must_use]
    pub fn new(name: Name, job: JobSpec) -> Self {
        Self {
            name,
            depends: Vec::new(),
            run_if: RunIf::default(),
            allow_failure: false,
            target: NodeTarget::default(),
            policy: NodePolicy::default(),
            prerequisites: Vec::new(),
            when: None,
            job,
        }
    }
}

/// A node as it is kept: the persisted graph is the set of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowNode {
    /// The job it carries; its number within the flow.
    pub job_id: JobId,
    /// The name within the flow.
    pub name: Name,
    /// The nodes before it.
    #[serde(default, alias = "dependends")]
    pub depends: Vec<JobId>,
    /// The names of the nodes before it, while the flow is being filled: `depends` follows when it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_named: Vec<Name>,
    /// Conditions outside the flow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites: Vec<Prerequisite>,
    /// The prerequisites that were met at the last check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites_met: Vec<Prerequisite>,
    /// Which ends of `depends` let it run.
    #[serde(default)]
    pub run_if: RunIf,
    /// An expression over upstream results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Keeps the node's failure from failing the flow.
    #[serde(default)]
    pub allow_failure: bool,
    /// Where it wants to run.
    #[serde(default)]
    pub target: NodeTarget,
    /// Tries and time.
    #[serde(default)]
    pub policy: NodePolicy,
    /// The current attempt, from 1 on.
    pub attempt: Attempt,
    /// Attempts of this generation that count against `retries`, the current one not included.
    #[serde(default)]
    pub tries: u32,
    /// Attempts of this generation whose instance vanished.
    #[serde(default, skip_serializing_if = "is_default")]
    pub deaths: u32,
    /// Attempts of this generation that ended with their supervisor or with a drain.
    #[serde(default, skip_serializing_if = "is_default")]
    pub losses: u32,
    /// How often it was run.
    pub generation: Generation,
    /// Where it stands.
    pub state: NodeState,
    /// Why, when there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When its cancellation was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_time: Option<Timestamp>,
    /// Set when the attempt was closed as cancelled without the supervisor's confirmation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// When its attempt was given up for `reason`. Nothing follows before the supervisor has
    /// confirmed that it ended, or the flow's `cancel_timeout` has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expired_time: Option<Timestamp>,
    /// READY, but not to be dispatched before this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_time: Option<Timestamp>,
    /// When it became READY, in this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_time: Option<Timestamp>,
    /// When the message that carries it was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_time: Option<Timestamp>,
    /// When the script started, by the supervisor's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// When the attempt ended, by the clock of the service that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Timestamp>,
    /// The runner record it was dispatched to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerId>,
    /// The supervisor that accepted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<String>,
    /// The instance that ran it, as `<type>:<group>:<n>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Result that the node gave.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub result: ResultMap,
    /// The files it made that are kept, by relative path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, BlobRef>,
    /// How many bytes the attempt printed: where its log ends, once it has ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_bytes: u64,
    /// How the script ended; absent when it was not the script that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The message that carried the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_key: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl FlowNode {
    /// A node that waits, in its first generation and before its first attempt.
    #[must_use]
    pub fn new(job_id: JobId, spec: &NodeSpec, depends: Vec<JobId>) -> Self {
        Self {
            job_id,
            name: spec.name.clone(),
            depends,
            depends_named: Vec::new(),
            prerequisites: spec.prerequisites.clone(),
            prerequisites_met: Vec::new(),
            run_if: spec.run_if,
            when: spec.when.clone(),
            allow_failure: spec.allow_failure,
            target: spec.target.clone(),
            policy: spec.policy.clone(),
            attempt: Attempt(1),
            tries: 0,
            deaths: 0,
            losses: 0,
            generation: Generation(1),
            state: NodeState::Pending,
            reason: None,
            cancel_requested_time: None,
            unconfirmed: false,
            expired_time: None,
            not_before_time: None,
            ready_time: None,
            dispatch_time: None,
            start_time: None,
            end_time: None,
            runner: None,
            supervisor: None,
            instance: None,
            result: ResultMap::new(),
            outputs: BTreeMap::new(),
            output_bytes: 0,
            exit_code: None,
            message_key: None,
        }
    }

    /// Raises its job id, and those of the nodes before it, by this much, for a flow whose ids start elsewhere.
    pub fn renumber(&mut self, by: u32) {
        for JobId(id) in std::iter::once(&mut self.job_id).chain(&mut self.depends) {
            *id = id.saturating_add(by);
        }
    }
}
