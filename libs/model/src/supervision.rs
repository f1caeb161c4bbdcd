//! Protocol between coordinators and supervisors: the parameters and results of its methods.

use serde::{Deserialize, Serialize};

use crate::execution::{AttemptEnd, EndedProcess, NodeReport, ReportKind};
use crate::id::{BlobHash, ContextId, ContextUid, FlowId, JobKey};
use crate::time::Timestamp;

/// The methods, by the names they travel under.
pub mod method {
    /// To a supervisor: [`super::InfoRequest`] → [`crate::Presence`].
    pub const SUPERVISOR_INFO: &str = "supervisor.info";
    /// To a coordinator: [`crate::Presence`], as a notification.
    pub const SUPERVISOR_PRESENCE: &str = "supervisor.presence";
    /// To a supervisor: [`crate::Execution`] → [`super::JobAccepted`].
    pub const JOB_RUN: &str = "job.run";
    /// To a supervisor: [`super::JobStop`] → [`super::JobStopped`].
    pub const JOB_STOP: &str = "job.stop";
    /// To a supervisor: [`super::JobQuery`] → [`super::JobStatus`].
    pub const JOB_STATUS: &str = "job.status";
    /// To a supervisor: [`super::JobsForget`] → nothing of interest.
    pub const JOBS_FORGET: &str = "jobs.forget";
    /// To a supervisor: [`super::JobQuery`] → [`super::JobResult`].
    pub const JOB_RESULT: &str = "job.result";
    /// To a supervisor: [`super::JobLogs`] → [`super::JobLogPiece`].
    pub const JOB_LOGS: &str = "job.logs";
    /// To a coordinator: [`super::JobEvent`] → nothing of interest.
    pub const JOB_EVENT: &str = "job.event";
    /// To a supervisor: [`super::ContextDrop`] → nothing of interest.
    pub const CONTEXT_DROP: &str = "context.drop";
    /// To a supervisor: [`super::CoordinatorSucceed`] → [`super::CoordinatorSucceeded`].
    pub const COORDINATOR_SUCCEED: &str = "coordinator.succeed";
    /// To a coordinator: [`super::BlobGet`] → [`super::BlobPiece`].
    pub const BLOB_GET: &str = "blob.get";
    /// To a coordinator: [`super::BlobPut`] → nothing of interest.
    pub const BLOB_PUT: &str = "blob.put";
    /// To another coordinator: [`crate::DirectMessage`] → [`crate::DirectMessageAccepted`].
    pub const MESSAGE_DELIVER: &str = "message.deliver";
}

/// The topic under which coordinators are spoken to on a bus.
pub const COORDINATOR_TOPIC: &str = "coordinator.rpc";
/// The topic of requests to supervisors, unless their record names another.
pub const SUPERVISOR_TOPIC: &str = "supervisor.rpc";

/// The topic of requests between coordinators. Not [`COORDINATOR_TOPIC`]: one node may carry a supervisor and a
/// coordinator, and every sender under that topic is a supervisor.
pub const GATEWAY_TOPIC: &str = "gateway.rpc";

/// Attempts that one [`JobsForget`] names at most.
pub const JOBS_FORGET_MAX: usize = 500;

/// Asks who a supervisor is, and introduces the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InfoRequest {}

/// The supervisor has the job in its queue, now or since before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobAccepted {
    /// Always true: a refusal is an error.
    pub accepted: bool,
    /// The supervisor's own name.
    pub supervisor: String,
}

/// Asks to stop an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStop {
    /// Which.
    pub job_key: JobKey,
    /// Seconds between asking the script to end and ending it.
    pub grace_secs: u32,
}

/// Result of asking to stop an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStopped {
    /// The attempt does not run, and will not.
    pub stopped: bool,
    /// State of the attempt: `unknown`, `stopped`, `stopping`, or how it had ended before.
    pub state: String,
    /// Processes that had to be killed beside the attempt's own, once it has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndedProcess>,
}

/// The state of a stopped attempt that the supervisor had never seen, and will refuse from now on.
pub const STATE_UNKNOWN: &str = "unknown";
/// The state of an attempt that waits in a queue.
pub const STATE_QUEUED: &str = "queued";
/// The state of an attempt that an instance runs.
pub const STATE_STARTED: &str = "started";
/// The state of an attempt that was handed back unstarted.
pub const STATE_RETURNED: &str = "returned";

/// Releases attempts whose flow is gone: attempts that have ended are forgotten, others continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsForget {
    /// Which; all of one context, and at most [`JOBS_FORGET_MAX`].
    pub job_keys: Vec<JobKey>,
}

/// Asks where an attempt stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobQuery {
    /// Which.
    pub job_key: JobKey,
}

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// `unknown`, `queued`, `started`, `returned`, or how it ended.
    pub state: String,
    /// The instance that has, or had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// When an instance began, by the supervisor's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<AttemptEnd>>,
}

/// How an attempt ended. A query for an attempt that the supervisor does not know (any more) is refused instead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// `queued`, `started`, `returned`, or how it ended.
    pub state: String,
    /// How it ended; absent while it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<AttemptEnd>>,
}

/// Asks for a piece of what an attempt printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLogs {
    /// Which.
    pub job_key: JobKey,
    /// From this byte on.
    #[serde(default)]
    pub offset: u64,
    /// At most this many bytes; 0, and more than [`crate::limits::LOG_PIECE_BYTES_MAX`], is that many.
    #[serde(default)]
    pub limit: u32,
}

/// A piece of what an attempt printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLogPiece {
    /// Offset of its first byte: the requested one, or that of the next character.
    pub offset: u64,
    /// Text that was printed; empty at the end.
    pub text: String,
    /// Where the next piece begins.
    pub next_offset: u64,
    /// How many bytes were printed so far.
    pub size: u64,
    /// No output follows this piece, now or later.
    pub complete: bool,
}

/// Where a job came from, as its coordinator numbers things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptOrigin {
    /// The context.
    pub context_id: ContextId,
    /// The flow.
    pub flow_id: FlowId,
}

/// Something that happened to an attempt. Repeated until it is acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    /// Which attempt.
    pub job_key: JobKey,
    /// Where it came from.
    pub origin: AttemptOrigin,
    /// Counts the attempt's events from 1.
    pub seq: u64,
    /// Event that is reported.
    pub event: JobEventKind,
}

/// The kinds of [`JobEvent`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum JobEventKind {
    /// An instance started it.
    Started {
        /// `<type>:<group>:<n>`.
        instance: String,
        /// By the supervisor's clock.
        time: Timestamp,
    },
    /// The attempt printed something.
    Log(JobOutput),
    /// The attempt ended.
    Ended(Box<AttemptEnd>),
    /// The attempt was handed back unstarted.
    Returned,
}

/// A piece of an attempt's output, as an event carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutput {
    /// How many bytes were printed before it.
    pub offset: u64,
    /// Text that was printed; bytes that are not UTF-8 were replaced.
    pub text: String,
    /// When the first of it was printed, by the machine's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
}

impl JobEvent {
    /// Converts the event to a report for the scheduler; a piece of output is no report.
    ///
    /// # Errors
    /// Returns the piece of output if this is one.
    pub fn into_report(self) -> Result<NodeReport, JobOutput> {
        let Self { job_key, origin: AttemptOrigin { context_id, flow_id }, seq: _, event } = self;
        let kind = match event {
            JobEventKind::Started { instance, time } => ReportKind::Started { instance, time },
            JobEventKind::Ended(end) => ReportKind::Ended(end),
            JobEventKind::Returned => ReportKind::Returned,
            JobEventKind::Log(output) => return Err(output),
        };
        Ok(NodeReport { job_key, context_id, flow_id, source: None, kind })
    }
}

/// Asks to forget a context and everything of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextDrop {
    /// Which.
    pub context_uid: ContextUid,
}

/// Announces a coordinator's new root: the one that signed this. Contexts bound to its earlier roots are rebound to it from
/// now on, and the earlier roots are refused. Idempotent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorSucceed {
    /// The root changes that lead to it, oldest first: each an envelope as JSON, signed by the root before it and the one
    /// after.
    pub changes: Vec<String>,
}

/// Confirms that everything bound to earlier roots is bound to the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorSucceeded {
    /// Contexts that were, and are passed on now; 0 when nothing was bound, or all was passed on before.
    pub contexts: u64,
}

/// Asks for a piece of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobGet {
    /// The attempt that needs it.
    pub job_key: JobKey,
    /// Context of the attempt, as the coordinator numbered it.
    pub context_id: ContextId,
    /// Which blob.
    pub sha256: BlobHash,
    /// From this byte on; a multiple of the chunk size.
    pub offset: u64,
}

/// A piece of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobPiece {
    /// In base64.
    pub data: String,
    /// How many bytes the whole has.
    pub size: u64,
}

/// A piece of an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobPut {
    /// The attempt that made it.
    pub job_key: JobKey,
    /// Context of the attempt, as the coordinator numbered it.
    pub context_id: ContextId,
    /// Hash of the whole output.
    pub sha256: BlobHash,
    /// How many bytes the whole has.
    pub size: u64,
    /// Where the piece begins; a multiple of the chunk size.
    pub offset: u64,
    /// In base64.
    pub data: String,
}

/// An empty answer, which only confirms the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EmptyResult {}
