//! Execution of one attempt, as it is sent to a supervisor, and the reports that come back.

mod head;
mod record;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::address_range::AddressRange;
use crate::flow::{EnvVars, ResultMap};
use crate::id::{ActorId, ContextId, FlowId, JobKey};
use crate::isolation::Isolation;
use crate::job::{BlobRef, ScriptSource};
use crate::limits;
use crate::name::Name;
use crate::reason::{Reason, ReasonCode};
use crate::script_type::ScriptType;
use crate::time::Timestamp;

pub use self::head::{ExecutionHead, JsonCursor};
pub use self::record::ExecutionRecord;

/// Bytes that an attempt needs: by hash, and inline where they are small enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSource {
    /// Hash and size that the bytes must have.
    #[serde(flatten)]
    pub blob: BlobRef,
    /// The bytes in base64; absent when they must be fetched with `blob.get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
}

/// One attempt of one node, with everything that its execution needs.
///
/// This is the body of `job.run`, and what a message's `nodes` lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Execution {
    /// Names the attempt for ever.
    pub job_key: JobKey,
    /// The context at its own coordinator: informational, echoed in events.
    pub context_id: ContextId,
    /// The flow at its own coordinator: informational, echoed in events.
    pub flow_id: FlowId,
    /// Actor that owns the flow.
    pub caller_id: ActorId,
    /// The flow's name, for `${{ flow.name }}`.
    pub flow_name: Name,
    /// The node's name.
    pub node: Name,
    /// Type of the script, which selects its executor.
    pub script_type: ScriptType,
    /// Text of the script, or its blob.
    pub script: ScriptSource,
    /// The flow's and the job's variables, before rendering.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_vars: EnvVars,
    /// Own files and those its dependencies made, by relative path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileSource>,
    /// Files it makes that are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Results of its completed dependencies, and the keys it refers to of other completed ancestors. A reference to a node
    /// that is missing here is empty, while a key that a node here did not give is an error.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<Name, ResultMap>,
    /// Run time in seconds, 0 for no limit.
    pub timeout_secs: u32,
    /// 0 (first) to 2.
    pub priority: u8,
    /// The group it must run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// The instance it must run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u32>,
    /// The isolation that it needs at least.
    #[serde(default, skip_serializing_if = "Isolation::is_basic")]
    pub isolation: Isolation,
    /// Allows the job to use the network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network: bool,
    /// The actor's signature over the job, if it made one: an envelope as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// W3C trace context that the attempt belongs to: of the step that dispatched it where the scheduler has a collector, otherwise of the
    /// submission. The last field of the JSON: [`TraceParent::of_execution`](crate::TraceParent::of_execution) reads it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Execution {
    /// An attempt that demands nothing but that its script runs, outside of any flow: context, flow and actor are 0, the priority is 1,
    /// there are no variables, no files and no time limit.
    #[must_use]
    pub const fn of_script(
        job_key: JobKey,
        flow_name: Name,
        node: Name,
        script_type: ScriptType,
        script: ScriptSource,
    ) -> Self {
        Self {
            job_key,
            context_id: ContextId(0),
            flow_id: FlowId(0),
            caller_id: ActorId(0),
            flow_name,
            node,
            script_type,
            script,
            env_vars: EnvVars::new(),
            files: BTreeMap::new(),
            outputs: Vec::new(),
            inputs: BTreeMap::new(),
            timeout_secs: 0,
            priority: 1,
            group: None,
            instance: None,
            isolation: Isolation::Basic,
            network: false,
            signature: None,
            traceparent: None,
        }
    }
}

/// Grants that the policy of a supervisor gives a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Grants {
    /// Allows the network, if the job requests it.
    pub network: bool,
    /// The isolation that it gets at least.
    pub isolation: Isolation,
    /// Memory of everything that it starts, together.
    pub memory_bytes: u64,
    /// Processes and threads that it may have at once.
    pub processes: u32,
    /// Bytes that the job's directory may hold.
    pub disk_bytes: u64,
    /// Bytes that its context may hold on this machine: directories of running jobs, and the data kept between them.
    pub context_disk_bytes: u64,
    /// Hosts that the functions of `sal` may reach; `*` is any.
    pub hosts: Vec<String>,
    /// Inner addresses that a job with the network may reach nevertheless: those of this machine, link-local ones, metadata
    /// services.
    pub addresses: Vec<AddressRange>,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            network: true,
            isolation: Isolation::Basic,
            memory_bytes: limits::JOB_MEMORY_BYTES_DEFAULT,
            processes: limits::JOB_PROCESSES_DEFAULT,
            disk_bytes: limits::JOB_DISK_BYTES_DEFAULT,
            context_disk_bytes: limits::CONTEXT_DISK_BYTES_DEFAULT,
            hosts: Vec::new(),
            addresses: Vec::new(),
        }
    }
}

/// Report on an attempt, from its supervisor or from a service on the way to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Which attempt.
    pub job_key: JobKey,
    /// The context, as the coordinator numbered it.
    pub context_id: ContextId,
    /// The flow, as the coordinator numbered it.
    pub flow_id: FlowId,
    /// Supervisor that reported it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ReportSource>,
    /// Event that is reported.
    pub kind: ReportKind,
}

/// Address of a supervisor that reported an attempt: the attempt can be stopped there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSource {
    /// Where it is reached, as in a runner record.
    pub address: String,
    /// The topic its requests travel under.
    pub topic: String,
}

/// The kinds of [`NodeReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ReportKind {
    /// The supervisor has it in its queue.
    Accepted {
        /// The supervisor's name.
        supervisor: String,
    },
    /// An instance started it.
    Started {
        /// `<type>:<group>:<n>`.
        instance: String,
        /// By the supervisor's clock.
        time: Timestamp,
    },
    /// The attempt ended.
    Ended(Box<AttemptEnd>),
    /// The attempt was handed back unstarted.
    Returned,
    /// The supervisor was queried, and does not know the attempt (any more).
    Unknown,
    /// The attempt could not be accepted, or not be delivered.
    Rejected {
        /// Why.
        reason: Reason,
        /// Another attempt cannot help.
        lasting: bool,
        /// Counts against `retries`: a delivery that failed does, a full queue does not.
        counts: bool,
    },
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// The kind of end.
    pub outcome: Outcome,
    /// The script's exit code, when there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why, when it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Result that the attempt gave. Only of a success.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub result: ResultMap,
    /// The files it made that are kept. Only of a success.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, BlobRef>,
    /// How many bytes it printed and were kept: where its log ends.
    #[serde(default)]
    pub output_bytes: u64,
    /// Processes that had to be killed when the attempt ended, its own process not included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndedProcess>,
    /// `<type>:<group>:<n>`; absent when no instance had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// When the script started; absent when it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// When it ended.
    pub end_time: Timestamp,
}

impl AttemptEnd {
    /// Returns true if nothing of the script ran because a disk had no room: no try of its node.
    #[must_use]
    pub fn is_disk_full_before_start(&self) -> bool {
        let for_want_of_disk = self.reason.as_ref().is_some_and(|reason| reason.code == ReasonCode::DiskFull);
        for_want_of_disk
            && self.outcome == Outcome::Failed
            && self.exit_code.is_none()
            && self.start_time.is_none()
    }

    /// How an attempt ends that no instance had.
    #[must_use]
    pub const fn unstarted(outcome: Outcome, reason: Option<Reason>, end_time: Timestamp) -> Self {
        Self {
            outcome,
            exit_code: None,
            reason,
            result: BTreeMap::new(),
            outputs: BTreeMap::new(),
            output_bytes: 0,
            ended: Vec::new(),
            instance: None,
            start_time: None,
            end_time,
        }
    }

    /// Describes the processes that had to be killed besides the script's own; `None` when there were none.
    #[must_use]
    pub fn killed(&self) -> Option<String> {
        let named: Vec<_> =
            self.ended.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
        (!named.is_empty()).then(|| format!("also killed what it had left running: {}", named.join(", ")))
    }
}

/// A process that was killed because its attempt was over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedProcess {
    /// Process id.
    pub pid: u32,
    /// The name of its program, as the kernel keeps it.
    pub name: String,
}

/// The kinds of end that an attempt can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Exit code 0, and everything it promised is there.
    Succeeded,
    /// Any other end of its own.
    Failed,
    /// The attempt ran longer than its `timeout`.
    TimedOut,
    /// The attempt was stopped on request.
    Stopped,
    /// The attempt's instance vanished.
    Lost,
}
