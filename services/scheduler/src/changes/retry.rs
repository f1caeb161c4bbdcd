//! Running an ended flow again, all of it or in part.

use std::collections::BTreeMap;

use flow::plan::Plan;
use flow::rerun;
use model::flow::EnvVars;
use model::{ActorId, FlowNode, Rerun, Timestamp, Violations};
use proto::convert;
use proto::internal::v1::{self as internal, FlowPurpose};
use proto::required;
use proto::v1::{RetryFlowRequest, RetryFlowResponse, RetryScope};
use tonic::Status;

use crate::changes::creation::traceparent;
use crate::changes::idempotency::{RequestFingerprint, hash_of};
use crate::changes::signatures::{self, JobSigningContext};
use crate::changes::submit::log_start;
use crate::clients::FlowStoreClient;
use crate::error::{bad_store, wrong_state};
use crate::loader::{self, StartedFlow};
use crate::views::reader::FlowReader;

/// Names that an answer lists.
const NAMES_MAX: usize = 1000;

/// Runs a flow again, or says what would run. Storage notifies the flow's owner. A repeated request
/// answers with the flow as it is, and with what its last run has restarted.
///
/// Not cancel safe: run it in a task of its own.
///
/// # Errors
/// INVALID_ARGUMENT with everything that is wrong, ABORTED when the flow is at another revision than the expected one,
/// FAILED_PRECONDITION when it has not ended or nothing would run, else what storage answers.
pub async fn retry(
    mut store: FlowStoreClient,
    actor: ActorId,
    request: RetryFlowRequest,
) -> Result<RetryFlowResponse, Status> {
    let body = RetryFlowRequest { request_id: String::new(), ..request.clone() };
    let mut violations = required::missing(&request);
    let RetryFlowRequest { request_id, context_id, flow_id, dry_run, expected_revision, .. } = request;
    let unsigned = RetryFlowRequest { signatures: BTreeMap::new(), ..body.clone() };
    let is_named = violations.is_empty();
    let fingerprint = RequestFingerprint::parse(&request_id, hash_of(&unsigned), &mut violations);
    if !is_named {
        return Err(rpc::Error::invalid(violations).into());
    }
    FlowReader::new(store.clone(), actor, context_id, flow_id).record_for(FlowPurpose::Retry).await?;
    let load = internal::LoadFlowRequest { context_id, flow_id, on_behalf_of: actor.0 };
    let flow = loader::collect(store.load_flow(load).await?.into_inner()).await?;
    if !dry_run && fingerprint.was_done(&mut store, actor, context_id).await? {
        return Ok(summary(&flow, &begun_anew(&flow)?));
    }
    // The same request may arrive concurrently and win. The flow then runs already, and only storage can tell.
    let knows_better = !dry_run && !fingerprint.id.is_empty();
    if !knows_better && expected_revision != 0 && flow.flow.revision.0 != expected_revision {
        let message = format!("flow {flow_id} is at revision {}", flow.flow.revision);
        return Err(
            rpc::Error::new(rpc::ErrorKind::Aborted, rpc::RpcReason::RevisionMismatch, message).into()
        );
    }
    if !knows_better && !flow.flow.status.is_end() {
        let message = format!("flow {flow_id} is {}: cancel it first, or wait for its end", flow.flow.status);
        return Err(wrong_state(rpc::RpcReason::FlowNotEnded, message));
    }
    let (rerun, env_vars) = choose(&flow, &body, &mut violations);
    let nodes = flow.nodes.iter().map(|stored| (&stored.node, &*stored.job));
    let plan = violations.absorb(Plan::of_stored(&env_vars, nodes));
    let (rerun, plan) = violations.into_result(rerun.zip(plan)).map_err(rpc::Error::invalid)?;
    let stored: Vec<&model::FlowNode> = flow.nodes.iter().map(|stored| &stored.node).collect();
    let again = rerun::select(plan.graph(), &stored, &rerun);
    let mut answer = summary(&flow, &again);
    if dry_run {
        return Ok(answer);
    }
    if answer.run_again_count == 0 && flow.flow.status.is_end() {
        let message = format!("nothing of flow {flow_id} failed; run all of it, or from a node on");
        return Err(wrong_state(rpc::RpcReason::NothingToRetry, message));
    }
    let signatures = signatures(&mut store, actor, &flow, (&again, &env_vars), &body).await?;
    let restart = internal::RestartFlowRequest {
        request_id: fingerprint.id,
        request_hash: fingerprint.hash,
        context_id,
        flow_id,
        flow_uid: flow.flow.uid.to_string(),
        on_behalf_of: actor.0,
        rerun_json: serde_json::to_string(&rerun).map_err(bad_store)?,
        env_vars,
        generation: flow.flow.generation.0,
        signatures,
        expected_revision,
        traceparent: traceparent(),
    };
    let internal::RestartFlowResponse { flow: record, restarted } =
        store.restart_flow(restart).await?.into_inner();
    answer.flow = record.and_then(|record| record.flow);
    if let Some(flow) = answer.flow.as_ref().filter(|_| restarted) {
        log_start(flow);
    }
    Ok(answer)
}

/// Signatures from now on of the jobs that are run `again`.
async fn signatures(
    store: &mut FlowStoreClient,
    actor: ActorId,
    flow: &StartedFlow,
    (again, env_vars): (&[bool], &EnvVars),
    request: &RetryFlowRequest,
) -> Result<BTreeMap<u32, String>, Status> {
    let caller = flow.flow.caller_id;
    let kept = flow.nodes.iter().zip(again).filter(|(_, again)| **again).map(|(stored, _)| stored);
    let keys = if request.signatures.is_empty() && !signatures::any_kept(kept) {
        Vec::new()
    } else {
        signatures::signer(store, actor, request.context_id, caller).await?.1
    };
    let place = JobSigningContext { context_uid: flow.context_uid, caller, keys: &keys, env_vars };
    let checked = signatures::for_rerun(&flow.nodes, again, &request.signatures, place, Timestamp::now());
    let signatures = checked.map_err(rpc::Error::invalid)?;
    Ok(signatures.into_iter().map(|(job, signature)| (job.0, signature)).collect())
}

/// Returns for each node whether the last run has restarted it, or will.
fn begun_anew(flow: &StartedFlow) -> Result<Vec<bool>, Status> {
    let stored = flow.nodes.iter().map(|stored| (&stored.node, &*stored.job));
    let plan = Plan::of_stored(&flow.flow.env_vars, stored).map_err(rpc::Error::invalid)?;
    let nodes: Vec<FlowNode> = flow.nodes.iter().map(|stored| stored.node.clone()).collect();
    let rerun = flow.flow.rerun.as_ref().unwrap_or(&Rerun::All);
    Ok(rerun::restarted_nodes(plan.graph(), &nodes, rerun, flow.flow.generation))
}

/// Chooses the nodes to rerun, and the variables.
fn choose(
    flow: &StartedFlow,
    request: &RetryFlowRequest,
    violations: &mut Violations,
) -> (Option<Rerun>, EnvVars) {
    let scope = RetryScope::try_from(request.scope);
    if !request.nodes.is_empty() && scope != Ok(RetryScope::From) {
        violations.add("nodes", "nodes are named with the scope RETRY_SCOPE_FROM only");
    }
    let rerun = match scope {
        Ok(RetryScope::Unspecified | RetryScope::Failed) => Some(Rerun::Failed),
        Ok(RetryScope::All) => Some(Rerun::All),
        Ok(RetryScope::From) => Some(Rerun::From { jobs: named_jobs(flow, &request.nodes, violations) }),
        Err(_) => violations.take("scope", Err("unknown value")),
    };
    let mut env_vars = flow.flow.env_vars.clone();
    for name in &request.unset_env_vars {
        if env_vars.remove(name).is_none() {
            violations.add("unset_env_vars", format!("the flow has no variable `{name}`"));
        }
    }
    env_vars.extend(request.env_vars.clone());
    model::job::check_env(&env_vars, "env_vars", violations);
    (rerun, env_vars)
}

fn named_jobs(flow: &StartedFlow, names: &[String], violations: &mut Violations) -> Vec<model::JobId> {
    if names.is_empty() {
        violations.add("nodes", "name at least one node to run again from");
    }
    let mut jobs = Vec::new();
    for (i, name) in names.iter().enumerate() {
        match flow.nodes.iter().find(|stored| stored.node.name.as_str() == name) {
            Some(stored) => jobs.push(stored.node.job_id),
            None => violations.add(format!("nodes[{i}]"), format!("the flow has no node `{name}`")),
        }
    }
    jobs
}

fn summary(flow: &StartedFlow, again: &[bool]) -> RetryFlowResponse {
    let flow_as_it_is = Some(convert::flow::to_wire(&flow.flow));
    let mut answer = RetryFlowResponse { flow: flow_as_it_is, ..RetryFlowResponse::default() };
    for (stored, again) in flow.nodes.iter().zip(again) {
        let (count, names) = if *again {
            (&mut answer.run_again_count, &mut answer.run_again)
        } else {
            (&mut answer.reused_count, &mut answer.reused)
        };
        *count += 1;
        if names.len() < NAMES_MAX {
            names.push(stored.node.name.to_string());
        }
    }
    answer
}
