//! `job:<caller>:<id>`
//!
//! `script` holds the text itself, or `sha256:<hash>` of the blob that holds it; in the second case there
//! is a field `script_size`.

use model::job::BlobRef;
use model::{ActorId, ContextId, FlowId, FlowNode, JobId, JobSpec, NodePolicy, ScriptSource, Timestamp};

use super::{FieldWriter, MalformedRecord, RecordFields};

/// Fields read to get the specification back.
pub(crate) const READ: [&str; 7] =
    ["script_type", "script", "script_size", "env_vars", "files", "outputs", "signature"];

/// Where a job belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobScope {
    /// Actor that the job belongs to.
    pub(crate) caller: ActorId,
    /// Context that the job runs in.
    pub(crate) context: ContextId,
    /// Flow that the job belongs to.
    pub(crate) flow: Option<FlowId>,
}

/// The status of a job that belongs to no flow.
const CREATED: &str = "created";

/// A job as it is kept.
#[derive(Debug, Clone)]
pub(crate) struct StoredJob {
    /// Id of the job among those of its caller.
    pub(crate) id: JobId,
    /// Where it belongs.
    pub(crate) place: JobScope,
    /// Specification of the job.
    pub(crate) spec: JobSpec,
    /// Status of the job, as old readers see it.
    pub(crate) status: String,
    /// Result of the job, as JSON; empty before its end.
    pub(crate) result: String,
    /// When it was made.
    pub(crate) created_at: Timestamp,
    /// When it last changed.
    pub(crate) updated_at: Timestamp,
}

impl StoredJob {
    /// About how large it is on the wire.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes_besides_script()
            + match &self.spec.script {
                ScriptSource::Inline(text) => text.len(),
                ScriptSource::Blob(_) => 0,
            }
    }

    /// Approximate bytes of the job in a listing, where long scripts are named by their hashes.
    pub(crate) fn listed_bytes(&self) -> usize {
        self.bytes_besides_script() + proto::convert::job::LISTED_SCRIPT_BYTES_MAX
    }

    fn bytes_besides_script(&self) -> usize {
        let JobSpec { env_vars, files, outputs, signature, .. } = &self.spec;
        let env: usize = env_vars.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let files: usize = files.keys().map(|name| name.len() + 96).sum();
        let outputs: usize = outputs.iter().map(|name| name.len() + 4).sum();
        256 + env + files + outputs + signature.as_ref().map_or(0, String::len) + self.result.len()
    }
}

/// Fields written for a node that was just made.
pub(crate) fn write(place: JobScope, node: &FlowNode, spec: &JobSpec, now: Timestamp) -> FieldWriter {
    let mut written = FieldWriter::default();
    written.text("id", node.job_id);
    write_spec(&mut written, place, spec, now);
    written
        .text("timeout", node.policy.timeout)
        .text("retries", node.policy.retries)
        .json("prerequisites", &node.prerequisites)
        .json("depends", &node.depends)
        .text("status", node.state.job_status());
    written
}

/// Fields written for a job that belongs to no flow, but for its number.
pub(crate) fn write_alone(place: JobScope, spec: &JobSpec, now: Timestamp) -> FieldWriter {
    let defaults = NodePolicy::default();
    let mut written = FieldWriter::default();
    write_spec(&mut written, place, spec, now);
    written
        .text("timeout", defaults.timeout)
        .text("retries", defaults.retries)
        .text("prerequisites", "[]")
        .text("depends", "[]")
        .text("status", CREATED);
    written
}

fn write_spec(written: &mut FieldWriter, place: JobScope, spec: &JobSpec, now: Timestamp) {
    let JobScope { caller, context, flow } = place;
    let JobSpec { script_type, script, env_vars, files, outputs, signature } = spec;
    written.text("caller_id", caller).text("context_id", context).optional("flow_id", flow);
    match script {
        ScriptSource::Inline(text) => written.text("script", text),
        ScriptSource::Blob(blob) => {
            written.text("script", format_args!("sha256:{}", blob.sha256)).text("script_size", blob.size)
        }
    };
    written
        .text("script_type", script_type)
        .json("env_vars", env_vars)
        .json("files", files)
        .json("outputs", outputs)
        .text("result", "{}")
        .text("signature", signature.as_deref().unwrap_or_default())
        .text("created_at", now)
        .text("updated_at", now);
}

/// The whole job in these fields.
pub(crate) fn read_stored(mut fields: RecordFields) -> Result<StoredJob, MalformedRecord> {
    let place = JobScope {
        caller: fields.parse("caller_id")?,
        context: fields.parse("context_id")?,
        flow: fields.optional("flow_id")?,
    };
    let (id, created_at, updated_at) =
        (fields.parse("id")?, fields.parse("created_at")?, fields.parse("updated_at")?);
    let (status, result) = (fields.text("status"), fields.text("result"));
    let has_ended = status == "finished" || status == "error";
    let result = if has_ended { result } else { String::new() };
    Ok(StoredJob { id, place, spec: read(fields)?, status, result, created_at, updated_at })
}

/// The specification in these fields.
pub(crate) fn read(mut fields: RecordFields) -> Result<JobSpec, MalformedRecord> {
    let script = fields.text("script");
    let script = match fields.optional("script_size")? {
        None => ScriptSource::Inline(script),
        Some(size) => {
            let hash = script.strip_prefix("sha256:").unwrap_or_default();
            let sha256 = hash.parse().map_err(|error| fields.bad("script", error))?;
            ScriptSource::Blob(BlobRef { sha256, size })
        }
    };
    Ok(JobSpec {
        script_type: fields.parse("script_type")?,
        script,
        env_vars: fields.json("env_vars")?,
        files: fields.json("files")?,
        outputs: fields.json("outputs")?,
        signature: fields.optional("signature")?,
    })
}
