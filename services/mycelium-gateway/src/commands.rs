//! Commands from routers to supervisors beside running and stopping jobs: status queries and context drops.
//! Each command is tried once; its sender repeats it until it succeeds.

use std::time::Duration;

use model::supervision::{
    ContextDrop, JobQuery, JobStatus, JobsForget, STATE_QUEUED, STATE_RETURNED, STATE_STARTED, STATE_UNKNOWN,
    method,
};
use model::{ContextId, ContextUid, FlowId, JobKey, NodeReport, ReportKind, ReportSource};
use mycelium::{CallError, JsonRpcCall, JsonRpcPeer, PayloadForm};
use proto::internal::v1 as wire;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::delivery::CONNECT_WAIT;
use crate::routers::RouterReplySender;
use crate::supervisor_api::GatewayState;

/// How long a supervisor may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts in one status query.
pub const QUERY_ATTEMPTS_MAX: usize = 500;

/// Queries a supervisor for the states of attempts, and reports them. An unreachable supervisor yields
/// no report.
pub async fn query(state: &GatewayState, answers: &RouterReplySender, query: wire::QueryAttempts) {
    let wire::QueryAttempts { address, topic, context_id, flow_id, job_keys } = query;
    let parsed = job_keys.iter().filter_map(|key| {
        key.parse::<JobKey>().inspect_err(|error| tracing::error!(%error, "a query names no attempt")).ok()
    });
    let keys: Vec<JobKey> = parsed.collect();
    let source = ReportSource { address, topic };
    for part in keys.chunks(QUERY_ATTEMPTS_MAX) {
        match ask(state, &source, ContextId(context_id), part).await {
            Ok(found) => {
                state.metrics.queried.inc_by(found.len() as u64);
                for (job_key, kind) in found {
                    let (context_id, flow_id) = (ContextId(context_id), FlowId(flow_id));
                    let source = Some(source.clone());
                    // Not awaited: a router that misses the report repeats its query.
                    drop(answers.report(&NodeReport { job_key, context_id, flow_id, source, kind }));
                }
            }
            Err(error) => {
                tracing::info!(address = source.address, %error, "a supervisor cannot be queried");
                return;
            }
        }
    }
}

async fn ask(
    state: &GatewayState,
    at: &ReportSource,
    context: ContextId,
    keys: &[JobKey],
) -> Result<Vec<(JobKey, ReportKind)>, SupervisorCommandError> {
    let peer = connect(state, &at.address, &at.topic, Some(context)).await?;
    let call = |key: &JobKey| {
        let call = JsonRpcCall::new(method::JOB_STATUS, &JobQuery { job_key: *key })?;
        Ok(call.of_context(context.0))
    };
    let calls = keys.iter().map(call).collect::<Result<Vec<_>, _>>().map_err(SupervisorCommandError::Json)?;
    let mut found = Vec::with_capacity(keys.len());
    for (key, answer) in keys.iter().zip(peer.call_batch(calls, ANSWER_TIMEOUT).await) {
        match answer {
            Ok(status) => {
                let status =
                    serde_json::from_str::<JobStatus>(status.get()).map_err(SupervisorCommandError::Json)?;
                found.extend(report_of(status, state.peers.name_of(&at.address)).map(|kind| (*key, kind)));
            }
            Err(CallError::Refused(error)) => {
                tracing::info!(%key, %error, "a supervisor refuses to tell an attempt's state")
            }
            Err(error) => return Err(SupervisorCommandError::Call(error)),
        }
    }
    Ok(found)
}

/// Turns a status into a report. An end with outputs yields none: the supervisor sends it as an event, after it has
/// handed over the outputs.
fn report_of(status: JobStatus, supervisor: String) -> Option<ReportKind> {
    let JobStatus { state, instance, start_time, end } = status;
    match (state.as_str(), end) {
        (_, Some(end)) => end.outputs.is_empty().then_some(ReportKind::Ended(end)),
        (STATE_UNKNOWN, None) => Some(ReportKind::Unknown),
        (STATE_QUEUED, None) => Some(ReportKind::Accepted { supervisor }),
        (STATE_STARTED, None) => {
            let (instance, time) = (instance.unwrap_or_default(), start_time.unwrap_or_default());
            Some(ReportKind::Started { instance, time })
        }
        (STATE_RETURNED, None) => Some(ReportKind::Returned),
        (state, None) => {
            tracing::warn!(state, "a supervisor reports an unknown state of an attempt");
            None
        }
    }
}

/// Has a supervisor forget a context. A supervisor where the context belongs to another coordinator has nothing
/// to forget.
pub async fn drop_context(state: &GatewayState, request: wire::DropContext) -> wire::DropOutcome {
    let wire::DropContext { drop_id, address, topic, context_uid, context_id } = request;
    let dropping = async {
        let context_uid: ContextUid = context_uid.parse().map_err(SupervisorCommandError::Uid)?;
        let peer = connect(state, &address, &topic, Some(ContextId(context_id))).await?;
        let ask = ContextDrop { context_uid };
        match call::<_, serde::de::IgnoredAny>(&peer, ContextId(context_id), method::CONTEXT_DROP, &ask).await
        {
            Err(SupervisorCommandError::Call(CallError::Refused(refused)))
                if refused.reason() == "CONTEXT_CLAIMED" =>
            {
                tracing::warn!(%context_uid, address, "the context belongs to another coordinator there");
                Ok(())
            }
            other => other.map(drop),
        }
    };
    let error = match dropping.await {
        Ok(()) => {
            state.metrics.contexts_dropped.inc();
            String::new()
        }
        Err(error) => error.to_string(),
    };
    wire::DropOutcome { drop_id, error }
}

/// Tells a supervisor to forget attempts. A supervisor that cannot be reached, or does not know this call, keeps them until
/// they expire.
pub async fn forget_attempts(state: &GatewayState, request: wire::ForgetAttempts) {
    let wire::ForgetAttempts { address, topic, context_id, job_keys } = request;
    // Plain supervisors do not have this method.
    if state.peers.form(&address) == PayloadForm::Plain {
        return;
    }
    let context = ContextId(context_id);
    let job_keys: Vec<JobKey> = job_keys.iter().filter_map(|key| key.parse().ok()).collect();
    let (attempts, ask) = (job_keys.len() as u64, JobsForget { job_keys });
    let forgetting = async {
        let peer = connect(state, &address, &topic, Some(context)).await?;
        call::<_, serde::de::IgnoredAny>(&peer, context, method::JOBS_FORGET, &ask).await
    };
    match forgetting.await {
        Ok(_) => state.metrics.attempts_forgotten.inc_by(attempts),
        Err(error) => tracing::debug!(address, %error, attempts, "a supervisor does not forget attempts"),
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SupervisorCommandError {
    #[error("{0}")]
    Peer(crate::error::PeerError),
    #[error("{0}")]
    Call(CallError),
    #[error("the supervisor's answer cannot be read: {0}")]
    Json(serde_json::Error),
    #[error("the context's uid cannot be read: {0}")]
    Uid(model::id::ParseIdError),
}

pub(crate) async fn connect(
    state: &GatewayState,
    address: &str,
    topic: &str,
    context: Option<ContextId>,
) -> Result<JsonRpcPeer, SupervisorCommandError> {
    state.connected(address, topic, context, CONNECT_WAIT).await.map_err(SupervisorCommandError::Peer)
}

async fn call<P: Serialize, R: DeserializeOwned>(
    peer: &JsonRpcPeer,
    context: ContextId,
    method: &'static str,
    params: &P,
) -> Result<R, SupervisorCommandError> {
    let call = JsonRpcCall::new(method, params).map_err(SupervisorCommandError::Json)?.of_context(context.0);
    let answer = peer.call_batch(vec![call], ANSWER_TIMEOUT).await.pop();
    let answer = answer.unwrap_or(Err(CallError::Closed)).map_err(SupervisorCommandError::Call)?;
    serde_json::from_str(answer.get()).map_err(SupervisorCommandError::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_the_report_of_its_state() {
        let report_of = |json: &str| report_of(serde_json::from_str(json).expect("a status"), "s".to_owned());
        let end = r#"{"outcome":"lost","end_time":7,"output_bytes":3}"#;
        let of = |state: &str, rest: &str| format!(r#"{{"state":"{state}"{rest}}}"#);
        assert_eq!(report_of(&of("unknown", "")), Some(ReportKind::Unknown));
        assert_eq!(report_of(&of("queued", "")), Some(ReportKind::Accepted { supervisor: "s".into() }));
        assert_eq!(report_of(&of("returned", "")), Some(ReportKind::Returned));
        assert_eq!(report_of(&of("dancing", "")), None);
        let started = report_of(&of("started", r#","instance":"shell:default:1","start_time":2.5"#));
        let time = model::Timestamp::from_millis(2500);
        assert_eq!(started, Some(ReportKind::Started { instance: "shell:default:1".into(), time }));
        let ended = report_of(&of("lost", &format!(r#","end":{end}"#)));
        assert!(matches!(ended, Some(ReportKind::Ended(end)) if end.output_bytes == 3));
        let blob = format!(r#""outputs":{{"a":{{"sha256":"{}","size":1}}}}"#, "ab".repeat(32));
        let with_outputs = end.replace(r#""output_bytes":3"#, &blob);
        assert_eq!(
            report_of(&of("finished", &format!(r#","end":{with_outputs}"#))),
            None,
            "an event tells it"
        );
    }
}
