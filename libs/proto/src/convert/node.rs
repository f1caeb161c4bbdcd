//! Flow nodes and their changes.

use model::job::BlobRef;
use model::{
    Attempt, BackoffPolicy, ContextUid, FlowNode, FlowUid, JobId, JobKey, NodeEvent, NodeTarget, Reason,
};

use crate::convert::{enums, time};
use crate::v1;

/// Where nodes are, in names that are never used again: what the keys of their attempts begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobKeyPrefix {
    /// Where the flow runs.
    pub context: ContextUid,
    /// The flow.
    pub flow: FlowUid,
}

impl JobKeyPrefix {
    /// The key of an attempt.
    #[must_use]
    pub const fn job_key(&self, job: JobId, attempt: Attempt) -> JobKey {
        JobKey { context: self.context, flow: self.flow, job, attempt }
    }
}

/// To the wire, with the key of its attempt when it was ever dispatched, and the names of the nodes before it.
#[must_use]
pub fn to_wire(node: &FlowNode, home: JobKeyPrefix, depends_names: Vec<String>) -> v1::FlowNode {
    let was_dispatched = node.attempt.0 > 1 || node.dispatch_time.is_some();
    let job_key = was_dispatched.then(|| home.job_key(node.job_id, node.attempt).to_string());
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
        deaths,
        losses,
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
        depends_names,
        run_if: enums::run_if_to_wire(*run_if).into(),
        allow_failure: *allow_failure,
        target: Some(target_to_wire(target)),
        policy: Some(policy_to_wire(policy)),
        attempt: attempt.0,
        tries: *tries,
        deaths: *deaths,
        losses: *losses,
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
        job_key: job_key.unwrap_or_default(),
    }
}

/// A change to the wire.
#[must_use]
pub fn change_to_wire(event: &NodeEvent) -> v1::NodeChange {
    let NodeEvent {
        flow_id: _,
        job_id,
        name,
        state,
        attempt,
        reason,
        exit_code,
        instance,
        tries,
        deaths,
        losses,
        time: at,
    } = event;
    v1::NodeChange {
        job_id: job_id.0,
        state: enums::node_state_to_wire(*state).into(),
        attempt: attempt.0,
        reason: reason.as_ref().map(reason_to_wire),
        exit_code: *exit_code,
        instance: instance.clone().unwrap_or_default(),
        time: Some(time::to_wire(*at)),
        tries: *tries,
        deaths: *deaths,
        losses: *losses,
        name: name.as_ref().map(ToString::to_string).unwrap_or_default(),
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
pub fn target_to_wire(target: &NodeTarget) -> v1::Target {
    let NodeTarget { runner, group, instance, labels } = target;
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
        losses,
        loss_backoff,
        idempotent,
    } = policy;
    v1::NodePolicy {
        retries: *retries,
        backoff: Some(backoff_to_wire(backoff)),
        no_retry_exit_codes: no_retry_exit_codes.clone(),
        timeout_secs: Some(*timeout),
        timeout_queue_secs: *timeout_queue,
        timeout_ack_secs: Some(*timeout_ack),
        timeout_result_secs: *timeout_result,
        priority: Some(u32::from(*priority)),
        isolation: enums::isolation_to_wire(*isolation).into(),
        network: *network,
        losses: Some(*losses),
        loss_backoff: Some(backoff_to_wire(loss_backoff)),
        idempotent: Some(*idempotent),
    }
}

const fn backoff_to_wire(backoff: &BackoffPolicy) -> v1::Backoff {
    let BackoffPolicy { initial_secs, multiplier, max_secs } = *backoff;
    v1::Backoff { initial_secs, multiplier, max_secs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;
    use model::{Generation, JobSpec, NodeSpec, NodeState, ScriptType, Timestamp};

    fn node() -> FlowNode {
        let job = JobSpec::inline(ScriptType::Shell, "true");
        let spec = NodeSpec::new("a".parse().expect("a name"), job);
        FlowNode::new(JobId(7), &spec, Vec::new())
    }

    #[test]
    fn an_attempt_is_named_from_the_first_dispatch_on() {
        let (context, flow) = (ContextUid(Uid::from_bits(10)), FlowUid(Uid::from_bits(11)));
        let key = |node: &FlowNode| to_wire(node, JobKeyPrefix { context, flow }, Vec::new()).job_key;
        let mut node = node();
        assert_eq!(key(&node), "");
        node.dispatch_time = Some(Timestamp::from_millis(1));
        node.state = NodeState::Dispatched;
        assert_eq!(key(&node), format!("{context}-{flow}-7-1"));
        // It waits to be run again: the attempt before this one has a key.
        node.attempt = Attempt(2);
        (node.dispatch_time, node.generation) = (None, Generation(2));
        assert_eq!(key(&node).parse(), Ok(JobKey { context, flow, job: JobId(7), attempt: Attempt(2) }));
    }
}
