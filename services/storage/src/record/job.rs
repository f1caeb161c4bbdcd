//! `job:<caller>:<id>`
//!
//! `script` holds the text itself, or `sha256:<hash>` of the blob that holds it; in the second case there
//! is a field `script_size`.

use model::job::BlobRef;
use model::{ActorId, ContextId, FlowId, FlowNode, JobSpec, ScriptSource, Timestamp};

use super::{BadRecord, Fields, Written};

/// What is read to get the specification back.
pub(crate) const READ: [&str; 7] =
    ["script_type", "script", "script_size", "env_vars", "files", "outputs", "signature"];

/// Where a job belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Whose it is.
    pub(crate) caller: ActorId,
    /// Where it runs.
    pub(crate) context: ContextId,
    /// The flow it belongs to.
    pub(crate) flow: FlowId,
}

/// What is written for a node that was just made.
pub(crate) fn write(place: Place, node: &FlowNode, spec: &JobSpec, now: Timestamp) -> Written {
    let JobSpec { script_type, script, env_vars, files, outputs, signature } = spec;
    let mut written = Written::default();
    written
        .text("id", node.job_id)
        .text("caller_id", place.caller)
        .text("context_id", place.context)
        .text("flow_id", place.flow);
    match script {
        ScriptSource::Inline(text) => written.text("script", text),
        ScriptSource::Blob(blob) => {
            written.text("script", format_args!("sha256:{}", blob.sha256)).text("script_size", blob.size)
        }
    };
    written
        .text("script_type", script_type)
        .text("timeout", node.policy.timeout)
        .text("retries", node.policy.retries)
        .json("env_vars", env_vars)
        .json("files", files)
        .json("outputs", outputs)
        .text("result", "{}")
        .json("prerequisites", &node.prerequisites)
        .json("depends", &node.depends)
        .text("signature", signature.as_deref().unwrap_or_default())
        .text("created_at", now)
        .text("updated_at", now)
        .text("status", node.state.job_status());
    written
}

/// The specification in these fields.
pub(crate) fn read(mut fields: Fields) -> Result<JobSpec, BadRecord> {
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
