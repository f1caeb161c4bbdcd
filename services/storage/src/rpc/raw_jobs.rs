//! Jobs that were pushed to Redis, as the submission that a router asks a scheduler for.

use model::{ContextId, FlowSpec, JobSpec, NodeSpec, ScriptSource};
use proto::convert::enums::{run_if_to_wire, script_type_to_wire};
use proto::convert::node::{blob_to_wire, policy_to_wire, target_to_wire};
use proto::internal::v1::RawJobs;
use proto::v1;

use crate::record::message;

/// The flow that is asked for. The message's key, and when it was taken up, make asking again the same request: its program
/// may remove it, and use the key for another one.
pub(super) fn to_wire(jobs: message::RawJobs, context: ContextId, message_key: &str) -> RawJobs {
    let message::RawJobs { caller, flow, bytes: _, taken_revision } = jobs;
    let request_id = match taken_revision.as_str() {
        "" => message_key.to_owned(),
        revision => format!("{message_key}@{revision}"),
    };
    let submit = v1::SubmitFlowRequest {
        request_id,
        context_id: context.0,
        flow_id: 0,
        caller_id: caller.0,
        flow: Some(flow_to_wire(flow)),
    };
    RawJobs { caller_id: caller.0, submit: Some(submit) }
}

fn flow_to_wire(flow: FlowSpec) -> v1::FlowSpec {
    let FlowSpec { name, env_vars, fail_fast, deadline_secs, cancel_timeout_secs, nodes } = flow;
    v1::FlowSpec {
        name: name.to_string(),
        env_vars,
        fail_fast,
        deadline_secs: deadline_secs.unwrap_or_default(),
        cancel_timeout_secs,
        nodes: nodes.into_iter().map(node_to_wire).collect(),
    }
}

fn node_to_wire(node: NodeSpec) -> v1::NodeSpec {
    let NodeSpec { name, depends, run_if, allow_failure, target, policy, prerequisites, when, job } = node;
    v1::NodeSpec {
        name: name.to_string(),
        depends: depends.iter().map(ToString::to_string).collect(),
        run_if: run_if_to_wire(run_if).into(),
        allow_failure,
        target: Some(target_to_wire(&target)),
        policy: Some(policy_to_wire(&policy)),
        job: Some(job_to_wire(job)),
        prerequisites: prerequisites.iter().map(ToString::to_string).collect(),
        when: when.unwrap_or_default(),
        created_job_id: 0,
    }
}

fn job_to_wire(job: JobSpec) -> v1::JobSpec {
    let JobSpec { script_type, script, env_vars, files, outputs, signature } = job;
    let source = match script {
        ScriptSource::Inline(text) => v1::script::Source::Text(text),
        ScriptSource::Blob(blob) => v1::script::Source::Blob(blob_to_wire(&blob)),
    };
    v1::JobSpec {
        script_type: script_type_to_wire(script_type).into(),
        script: Some(v1::Script { source: Some(source) }),
        env_vars,
        files: files.into_iter().map(|(path, blob)| (path, blob_to_wire(&blob))).collect(),
        outputs,
        signature: signature.unwrap_or_default(),
    }
}
