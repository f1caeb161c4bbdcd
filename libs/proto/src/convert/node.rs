//! Flow nodes and their changes.

use model::job::BlobRef;
use model::{FlowNode, NodeEvent, Reason, Target};

use crate::convert::{enums, time};
use crate::v1;

/// To the wire.
#[must_use]
pub fn to_wire(node: &FlowNode) -> v1::FlowNode {
    let FlowNode {
        job_id,
        name,
        depends,
        depends_named: _,
        prerequisites,
        prerequisites_met,
        run_if,
        when,
        allow_failure,
        target,
        policy,
        attempt,
        tries,
        generation,
        state,
        reason,
        cancel_requested_time,
        unconfirmed,
        expired_time,
        not_before_time,
        ready_time,
        dispatch_time,
        start_time,
        end_time,
        runner,
        supervisor,
        instance,
        result,
        outputs,
        output_bytes,
        exit_code,
        message_key,
    } = node;
    v1::FlowNode {
        job_id: job_id.0,
        name: name.to_string(),
        depends: depends.iter().map(|id| id.0).collect(),
        run_if: enums::run_if_to_wire(*run_if).into(),
        allow_failure: *allow_failure,
        target: Some(target_to_wire(target)),
        policy: Some(policy_to_wire(policy)),
        attempt: attempt.0,
        tries: *tries,
        generation: generation.0,
        state: enums::node_state_to_wire(*state).into(),
        reason: reason.as_ref().map(reason_to_wire),
        cancel_requested_time: cancel_requested_time.map(time::to_wire),
        unconfirmed: *unconfirmed,
        not_before_time: not_before_time.map(time::to_wire),
        ready_time: ready_time.map(time::to_wire),
        dispatch_time: dispatch_time.map(time::to_wire),
        start_time: start_time.map(time::to_wire),
        end_time: end_time.map(time::to_wire),
        runner_id: runner.map_or(0, |id| id.0),
        supervisor: supervisor.clone().unwrap_or_default(),
        instance: instance.clone().unwrap_or_default(),
        result: result.clone(),
        outputs: outputs.iter().map(|(name, blob)| (name.clone(), blob_to_wire(blob))).collect(),
        output_bytes: *output_bytes,
        exit_code: *exit_code,
        message_key: message_key.clone().unwrap_or_default(),
        prerequisites: prerequisites.iter().map(ToString::to_string).collect(),
        prerequisites_met: prerequisites_met.iter().map(ToString::to_string).collect(),
        when: when.clone().unwrap_or_default(),
        expire_time: expired_time.map(time::to_wire),
    }
}

/// A change to the wire.
#[must_use]
pub fn change_to_wire(event: &NodeEvent) -> v1::NodeChange {
    let NodeEvent { flow_id: _, job_id, state, attempt, reason, exit_code, instance, time: at } = event;
    v1::NodeChange {
        job_id: job_id.0,
        state: enums::node_state_to_wire(*state).into(),
        attempt: attempt.0,
        reason: reason.as_ref().map(reason_to_wire),
        exit_code: *exit_code,
        instance: instance.clone().unwrap_or_default(),
        time: Some(time::to_wire(*at)),
    }
}

/// A reason to the wire.
#[must_use]
pub fn reason_to_wire(reason: &Reason) -> v1::Reason {
    v1::Reason { code: reason.code.as_str().to_owned(), detail: reason.detail.clone() }
}

/// A blob's name to the wire.
#[must_use]
pub fn blob_to_wire(blob: &BlobRef) -> v1::BlobRef {
    v1::BlobRef { sha256: blob.sha256.to_string(), size: blob.size }
}

/// A target to the wire.
#[must_use]
pub fn target_to_wire(target: &Target) -> v1::Target {
    let Target { runner, group, instance, labels } = target;
    v1::Target {
        runner_id: runner.map_or(0, |id| id.0),
        group: group.as_ref().map(ToString::to_string).unwrap_or_default(),
        instance: *instance,
        labels: labels.clone(),
    }
}

/// A policy to the wire.
#[must_use]
pub fn policy_to_wire(policy: &model::NodePolicy) -> v1::NodePolicy {
    let model::NodePolicy {
        retries,
        backoff,
        no_retry_exit_codes,
        timeout,
        timeout_queue,
        timeout_ack,
        timeout_result,
        priority,
        isolation,
        network,
    } = policy;
    v1::NodePolicy {
        retries: *retries,
        backoff: Some(v1::Backoff {
            initial_secs: backoff.initial_secs,
            multiplier: backoff.multiplier,
            max_secs: backoff.max_secs,
        }),
        no_retry_exit_codes: no_retry_exit_codes.clone(),
        timeout_secs: Some(*timeout),
        timeout_queue_secs: *timeout_queue,
        timeout_ack_secs: Some(*timeout_ack),
        timeout_result_secs: *timeout_result,
        priority: Some(u32::from(*priority)),
        isolation: enums::isolation_to_wire(*isolation).into(),
        network: *network,
    }
}
