//! Inputs that other parties send to a flow: signals, cancellations, reports. Storage persists each one
//! before the owner acts on it.

use std::collections::BTreeSet;

use model::execution::Outcome;
use model::limits::{RESULT_BYTES_MAX, SIGNAL_PAYLOAD_BYTES_MAX, STOP_GRACE_SECS};
use model::{
    ActorId, AttemptEnd, FlowInput, FlowNode, FlowStatus, JobKey, NodeReport, NodeState, Prerequisite,
    Reason, ReasonCode, ReportKind, SignalName, Timestamp, Violations,
};
use proto::convert::{self, enums};
use proto::internal::v1::{self as internal, FlowPurpose};
use proto::required;
use proto::v1::{CancelFlowRequest, CancelNodeRequest, Flow, SignalFlowRequest, UpdateNodeStatusRequest};
use tonic::Status;

use crate::changes::idempotency::{RequestFingerprint, hash_of};
use crate::clients::FlowStoreClient;
use crate::error::{bad_store, wrong_state};
use crate::views::reader::FlowReader;

/// Keeps a signal; true when it had been given before.
///
/// # Errors
/// INVALID_ARGUMENT with everything that is wrong, also of a signal that no node waits for; else what storage answers.
pub async fn signal(
    store: FlowStoreClient,
    actor: ActorId,
    request: SignalFlowRequest,
) -> Result<bool, Status> {
    let request_hash = hash_of(&SignalFlowRequest { request_id: String::new(), ..request.clone() });
    let mut violations = required::missing(&request);
    let SignalFlowRequest { request_id, context_id, flow_id, name, payload } = request;
    let fingerprint = RequestFingerprint::parse(&request_id, request_hash, &mut violations);
    let name = violations.take("name", name.parse());
    if payload.len() > SIGNAL_PAYLOAD_BYTES_MAX {
        let (max, found) = (SIGNAL_PAYLOAD_BYTES_MAX, payload.len());
        violations.add("payload", format!("a payload has at most {max} bytes, this one has {found}"));
    }
    let name = violations.into_result(name).map_err(rpc::Error::invalid)?;
    let mut reader = FlowReader::new(store, actor, context_id, flow_id);
    if !fingerprint.was_done(&mut reader.store, actor, context_id).await? {
        check_awaited(&mut reader, &name).await?;
    }
    let input = FlowInput::Signal { name };
    let push = push(&input, actor, (context_id, flow_id), fingerprint)?;
    let answer = reader.store.push_input(internal::PushInputRequest { payload, ..push }).await?;
    Ok(answer.into_inner().unchanged)
}

/// Refuses a signal that no node of the flow waits for: a misspelt one would be kept, and the flow would wait for ever.
async fn check_awaited(reader: &mut FlowReader, name: &SignalName) -> Result<(), Status> {
    let record = reader.record_for(FlowPurpose::Signal).await?;
    let flow = record.flow.ok_or_else(|| bad_store("a flow without its record"))?;
    if enums::flow_status_from_wire(flow.status) == Some(FlowStatus::Created) {
        // Nodes that wait for the signal may still be added.
        return Ok(());
    }
    // One more than the message names, to know whether there are more.
    let mut awaited = BTreeSet::new();
    let mut last = None;
    while let Some(page) = reader.nodes(last.as_ref()).await? {
        for prerequisite in page.nodes.iter().flat_map(|node| &node.prerequisites) {
            let Prerequisite::Signal(signal) = prerequisite else { continue };
            if signal == name {
                return Ok(());
            }
            awaited.insert(signal.clone());
            if awaited.len() > SIGNALS_NAMED_MAX + 1 {
                awaited.pop_last();
            }
        }
        last = Some(page);
    }
    Err(not_awaited(name, &awaited, flow.id))
}

/// INVALID_ARGUMENT, with the signals that nodes wait for.
fn not_awaited(name: &SignalName, awaited: &BTreeSet<SignalName>, flow: u32) -> Status {
    let named: Vec<_> = awaited.iter().take(SIGNALS_NAMED_MAX).map(|signal| format!("`{signal}`")).collect();
    let more = if awaited.len() > SIGNALS_NAMED_MAX { " and others" } else { "" };
    let there_are = match named.as_slice() {
        [] => "its jobs wait for no signals".to_owned(),
        names => format!("its jobs wait for {}{more}", names.join(", ")),
    };
    let mut violations = Violations::new();
    violations.add("name", format!("no job of flow {flow} waits for the signal `{name}`; {there_are}"));
    rpc::Error::invalid(violations).into()
}

/// Stores the cancellation of a flow; returns the flow.
///
/// # Errors
/// What storage answers.
pub async fn cancel_flow(
    mut store: FlowStoreClient,
    actor: ActorId,
    request: CancelFlowRequest,
) -> Result<Flow, Status> {
    let request_hash = hash_of(&CancelFlowRequest { request_id: String::new(), ..request.clone() });
    let mut violations = required::missing(&request);
    let CancelFlowRequest { request_id, context_id, flow_id, grace_secs } = request;
    let fingerprint = RequestFingerprint::parse(&request_id, request_hash, &mut violations);
    violations.into_result(Some(())).map_err(rpc::Error::invalid)?;
    let input = FlowInput::Cancel { grace_secs: grace_secs.unwrap_or(STOP_GRACE_SECS) };
    let push = push(&input, actor, (context_id, flow_id), fingerprint)?;
    let record = store.push_input(push).await?.into_inner().flow;
    record.and_then(|record| record.flow).ok_or_else(|| bad_store("a flow without its record"))
}

/// Stores the cancellation of one node. Storage decides whether the node has ended, in which case nothing changes. It remembers
/// the request either way.
///
/// # Errors
/// NOT_FOUND for an unknown node, else what storage answers.
pub async fn cancel_node(
    store: FlowStoreClient,
    actor: ActorId,
    request: CancelNodeRequest,
) -> Result<(), Status> {
    let request_hash = hash_of(&CancelNodeRequest { request_id: String::new(), ..request.clone() });
    let mut violations = required::missing(&request);
    let CancelNodeRequest { request_id, context_id, flow_id, node } = request;
    let fingerprint = RequestFingerprint::parse(&request_id, request_hash, &mut violations);
    violations.into_result(Some(())).map_err(rpc::Error::invalid)?;
    let mut reader = FlowReader::new(store, actor, context_id, flow_id);
    if fingerprint.was_done(&mut reader.store, actor, context_id).await? {
        return Ok(());
    }
    reader.record_for(FlowPurpose::CancelNode).await?;
    let input = FlowInput::CancelNode { job_id: reader.node(&node).await?.job_id };
    let push = push(&input, actor, (context_id, flow_id), fingerprint)?;
    reader.store.push_input(push).await?;
    Ok(())
}

/// Stores the report of an actor that executes a node by other means.
///
/// # Errors
/// INVALID_ARGUMENT with everything that is wrong, NOT_FOUND for an unknown node, FAILED_PRECONDITION
/// when the attempt is not under way, else what storage answers.
pub async fn update_node(
    store: FlowStoreClient,
    actor: ActorId,
    request: UpdateNodeStatusRequest,
) -> Result<(), Status> {
    let request_hash = hash_of(&UpdateNodeStatusRequest { request_id: String::new(), ..request.clone() });
    let (context_id, flow_id) = (request.context_id, request.flow_id);
    let mut violations = required::missing(&request);
    let fingerprint = RequestFingerprint::parse(&request.request_id, request_hash, &mut violations);
    let kind = report_kind(&request, Timestamp::now(), violations)?;
    let mut reader = FlowReader::new(store, actor, context_id, flow_id);
    if fingerprint.was_done(&mut reader.store, actor, context_id).await? {
        return Ok(());
    }
    let record = reader.record_for(FlowPurpose::ReportNode).await?;
    let node = reader.node(&request.node).await?;
    check_under_way(&node, request.attempt)?;
    let convert::flow::OwnedFlowRecord { flow, context_uid, .. } =
        convert::flow::from_record(record).map_err(bad_store)?;
    let report = NodeReport {
        job_key: JobKey { context: context_uid, flow: flow.uid, job: node.job_id, attempt: node.attempt },
        context_id: flow.context_id,
        flow_id: flow.id,
        source: None,
        kind,
    };
    let push = push(&FlowInput::Report(report), actor, (context_id, flow_id), fingerprint)?;
    reader.store.push_input(push).await?;
    Ok(())
}

fn push(
    input: &FlowInput,
    actor: ActorId,
    (context_id, flow_id): (u32, u32),
    fingerprint: RequestFingerprint,
) -> Result<internal::PushInputRequest, Status> {
    Ok(internal::PushInputRequest {
        request_id: fingerprint.id,
        request_hash: fingerprint.hash,
        context_id,
        flow_id,
        on_behalf_of: actor.0,
        input_json: serde_json::to_vec(input).map_err(bad_store)?.into(),
        payload: String::new(),
    })
}

fn check_under_way(node: &FlowNode, attempt: u32) -> Result<(), Status> {
    let under_way = matches!(node.state, NodeState::Dispatched | NodeState::Running);
    if under_way && node.attempt.0 == attempt {
        return Ok(());
    }
    let FlowNode { name, state, attempt: current, .. } = node;
    let state = state.display_name();
    let message = format!("attempt {attempt} of `{name}` is not under way: it is {state}, attempt {current}");
    Err(wrong_state(rpc::RpcReason::NodeNotRunning, message))
}

/// Reads the report about the node, unless something about it or about the rest of the request is wrong.
fn report_kind(
    request: &UpdateNodeStatusRequest,
    now: Timestamp,
    mut violations: Violations,
) -> Result<ReportKind, rpc::Error> {
    let UpdateNodeStatusRequest { state, result, exit_code, detail, instance, .. } = request;
    let state = enums::node_state_from_wire(*state);
    let ends = matches!(state, Some(NodeState::Completed | NodeState::Failed));
    if !ends && state != Some(NodeState::Running) {
        violations.add("state", "give NODE_STATE_RUNNING, NODE_STATE_COMPLETED or NODE_STATE_FAILED");
    }
    if !result.is_empty() && state != Some(NodeState::Completed) {
        violations.add("result", "a result is given with NODE_STATE_COMPLETED only");
    }
    let bytes: usize = result.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > RESULT_BYTES_MAX {
        violations
            .add("result", format!("a result has at most {RESULT_BYTES_MAX} bytes, this one has {bytes}"));
    }
    if !detail.is_empty() && state != Some(NodeState::Failed) {
        violations.add("detail", "a detail is given with NODE_STATE_FAILED only");
    }
    if detail.len() > DETAIL_BYTES_MAX || instance.len() > DETAIL_BYTES_MAX {
        violations.add("detail", format!("detail and instance have at most {DETAIL_BYTES_MAX} bytes"));
    }
    if !violations.is_empty() {
        return Err(rpc::Error::invalid(violations));
    }
    if !ends {
        return Ok(ReportKind::Started { instance: instance.clone(), time: now });
    }
    let succeeded = state == Some(NodeState::Completed);
    let why = match exit_code {
        _ if succeeded => None,
        Some(code) if detail.is_empty() => {
            Some(Reason::new(ReasonCode::ExitCode, format!("exit code {code}")))
        }
        Some(_) => Some(Reason::new(ReasonCode::ExitCode, detail.clone())),
        None => Some(Reason::new(ReasonCode::RuntimeError, detail.clone())),
    };
    Ok(ReportKind::Ended(Box::new(AttemptEnd {
        outcome: if succeeded { Outcome::Succeeded } else { Outcome::Failed },
        exit_code: *exit_code,
        reason: why,
        result: result.clone(),
        outputs: std::collections::BTreeMap::new(),
        output_bytes: 0,
        ended: Vec::new(),
        instance: (!instance.is_empty()).then(|| instance.clone()),
        start_time: None,
        end_time: now,
    })))
}

/// Signals that one refusal names.
const SIGNALS_NAMED_MAX: usize = 10;
/// Texts for people that travel with a report.
const DETAIL_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_nothing_waits_for_is_refused_with_those_there_are() {
        let names = |count: usize| -> BTreeSet<SignalName> {
            (0..count).map(|i| format!("s{i:02}").parse().expect("a name")).collect()
        };
        let name = "aprove".parse().expect("a name");
        for (count, expected) in [
            (0, "no job of flow 7 waits for the signal `aprove`; its jobs wait for no signals"),
            (2, "no job of flow 7 waits for the signal `aprove`; its jobs wait for `s00`, `s01`"),
            (11, "`s08`, `s09` and others"),
        ] {
            let status = not_awaited(&name, &names(count), 7);
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            let view = rpc::ErrorView::from(&status);
            assert!(view.violations.iter().any(|wrong| wrong.description.ends_with(expected)), "{view:?}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let request = |state: NodeState| UpdateNodeStatusRequest {
            state: enums::node_state_to_wire(state).into(),
            ..Default::default()
        };
        let now = Timestamp::default();
        let mut failed = request(NodeState::Failed);
        failed.exit_code = Some(3);
        let none = Violations::new;
        match report_kind(&failed, now, none()).expect("well-formed") {
            ReportKind::Ended(end) => {
                assert_eq!(end.outcome, Outcome::Failed);
                assert_eq!(end.reason.expect("there is one").to_string(), "EXIT_CODE: exit code 3");
            }
            other => panic!("{other:?}"),
        }
        failed.result = [("k".to_owned(), "v".to_owned())].into();
        assert!(report_kind(&failed, now, none()).is_err());
        assert!(report_kind(&request(NodeState::Skipped), now, none()).is_err());
        let running = request(NodeState::Running);
        assert!(matches!(report_kind(&running, now, none()), Ok(ReportKind::Started { .. })));
    }
}
