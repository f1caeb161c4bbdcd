//! `flow:<id>`
//!
//! Besides what every reader may rely on it has `result_truncated`, and for this service alone
//! `node_count`, `first_job_id`, `deadline_secs`, `rerun` (what was chosen when it was last run again),
//! `cancel_grace_secs`, `counted` (1 while it is one of those that have not ended), `message` (the key, without a tag, of the
//! message that it was made of; empty for most), `last_commit` (the owner's last change, which fences) with `last_commit_revision`,
//! `traceparent` where the call that created the flow, or last ran it again, is in a trace, and `deleting` while the flow is being
//! removed.

use model::{Flow, FlowStatus, JobId, TraceParent, limits};

use super::{FieldWriter, MalformedRecord, RecordFields};
use crate::flows::lifecycle::NewFlow;
use crate::messages::message_holds::message_key;

/// Fields read of a flow: all but the list of its jobs, whose ids are consecutive from `first_job_id`. The last two may be long.
pub(crate) const READ: [&str; 27] = [
    "id",
    "uid",
    "name",
    "caller_id",
    "context_id",
    "result_truncated",
    "fail_fast",
    "deadline",
    "cancel_requested_time",
    "cancel_timeout",
    "created_at",
    "updated_at",
    "status",
    "generation",
    "revision",
    "owner",
    "epoch",
    "node_count",
    "first_job_id",
    "deadline_secs",
    "deleting",
    "rerun",
    "cancel_grace_secs",
    "traceparent",
    "last_commit",
    "env_vars",
    "result",
];

/// How many of the fields are read when variables and result are not requested.
pub(crate) const READ_IN_SHORT: usize = READ.len() - 2;

/// A flow with what only this service needs to know.
#[derive(Debug, Clone)]
pub(crate) struct StoredFlow {
    /// The flow; its list of jobs is empty.
    pub(crate) flow: Flow,
    /// How many nodes it has or is to have.
    pub(crate) node_count: u32,
    /// First of its jobs, whose ids are consecutive.
    pub(crate) first_job: JobId,
    /// The last step that was applied, or the change of owner.
    pub(crate) last_commit: String,
}

impl StoredFlow {
    /// The ids of all its jobs, in their order. The last one may be the greatest that there is.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> + use<> {
        let first = self.first_job.0;
        let all = (0..self.node_count).take(limits::FLOW_NODES_MAX);
        all.map_while(move |n| first.checked_add(n)).map(JobId)
    }
}

/// Fields written when a flow is created, but for the revisions and the first job's id.
pub(crate) fn write(flow: &Flow, new: &NewFlow, last_commit: &str) -> FieldWriter {
    let Flow {
        id,
        uid,
        name,
        caller_id,
        context_id,
        jobs,
        env_vars,
        result,
        result_truncated,
        fail_fast,
        deadline,
        cancel_requested_time,
        cancel_timeout_secs,
        created_at,
        updated_at,
        status,
        generation,
        revision: _,
        rerun,
        owner,
        epoch,
        cancel_grace_secs,
        trace,
    } = flow;
    let mut written = FieldWriter::default();
    written
        .text("id", id)
        .text("uid", uid)
        .text("name", name)
        .text("caller_id", caller_id)
        .text("context_id", context_id)
        .json("jobs", jobs)
        .json("env_vars", env_vars)
        .json("result", result)
        .text("result_truncated", result_truncated)
        .text("fail_fast", fail_fast)
        .optional("deadline", *deadline)
        .optional("cancel_requested_time", *cancel_requested_time)
        .text("cancel_timeout", cancel_timeout_secs)
        .text("created_at", created_at)
        .text("updated_at", updated_at)
        .text("status", status)
        .text("generation", generation)
        .optional("owner", *owner)
        .text("epoch", epoch)
        .text("node_count", new.node_count)
        .optional("deadline_secs", new.spec.deadline_secs)
        .optional("message", new.message.map(message_key))
        .text("cancel_grace_secs", cancel_grace_secs)
        .text("last_commit", last_commit);
    match rerun {
        Some(rerun) => written.json("rerun", rerun),
        None => written.text("rerun", ""),
    };
    // Most flows are in no trace, and need no room for one.
    if let Some(trace) = trace {
        written.text("traceparent", trace);
    }
    written
}

/// The flow in these fields; nothing when it is being removed.
pub(crate) fn read(fields: &mut RecordFields) -> Result<Option<StoredFlow>, MalformedRecord> {
    if fields.flag("deleting") {
        return Ok(None);
    }
    read_any(fields).map(Some)
}

/// The flow in these fields, also while it is being removed.
pub(crate) fn read_any(fields: &mut RecordFields) -> Result<StoredFlow, MalformedRecord> {
    let flow = Flow {
        id: fields.parse("id")?,
        uid: fields.parse("uid")?,
        name: fields.parse("name")?,
        caller_id: fields.parse("caller_id")?,
        context_id: fields.parse("context_id")?,
        jobs: Vec::new(),
        env_vars: fields.json("env_vars")?,
        result: fields.json("result")?,
        result_truncated: fields.flag("result_truncated"),
        fail_fast: fields.flag("fail_fast"),
        deadline: fields.optional("deadline")?,
        cancel_requested_time: fields.optional("cancel_requested_time")?,
        cancel_timeout_secs: fields.parse("cancel_timeout")?,
        created_at: fields.parse("created_at")?,
        updated_at: fields.parse("updated_at")?,
        status: fields.parse::<FlowStatus>("status")?,
        generation: fields.parse("generation")?,
        revision: fields.parse("revision")?,
        owner: fields.optional("owner")?,
        epoch: fields.parse("epoch")?,
        rerun: fields.json("rerun")?,
        cancel_grace_secs: fields.optional("cancel_grace_secs")?.unwrap_or_default(),
        // A text that is no trace context costs the trace, not the flow.
        trace: TraceParent::read(&fields.text("traceparent")),
    };
    Ok(StoredFlow {
        flow,
        node_count: fields.parse("node_count")?,
        first_job: fields.parse("first_job_id")?,
        last_commit: fields.text("last_commit"),
    })
}
