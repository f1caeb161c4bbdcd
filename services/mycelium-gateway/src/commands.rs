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
/// Attempts that are asked for at once.
pub const QUERY_ATTEMPTS_MAX: usize = 500;

/// Asks a supervisor where attempts stand, and reports what it says. While it cannot be reached there is
/// no report.
pub async fn query(desk: &GatewayState, answers: &RouterReplySender, query: wire::QueryAttempts) {
    let wire::QueryAttempts { address, topic, context_id, flow_id, job_keys } = query;
    let parsed = job_keys.iter().filter_map(|key| {
        key.parse::<JobKey>().inspect_err(|error| tracing::error!(%error, "a query names no attempt")).ok()
    });
    let keys: Vec<JobKey> = parsed.collect();
    let source = ReportSource { address, topic };
    for part in keys.chunks(QUERY_ATTEMPTS_MAX) {
        match ask(desk, &source, ContextId(context_id), part).await {
            Ok(found) => {
                desk.metrics.queried.inc_by(found.len() as u64);
                for (job_key, kind) in found {
                    let (context_id, flow_id) = (ContextId(context_id), FlowId(flow_id));
                    let source = Some(source.clone());
                    // Not waited for: whoever asked asks again when it does not come.
                    drop(answers.report(&NodeReport { job_key, context_id, flow_id, source, kind }));
                }
            }
            Err(error) => {
                tracing::info!(address = source.address, %error, "a supervisor does not tell of attempts");
                return;
            }
        }
    }
}

async fn ask(
    desk: &GatewayState,
    at: &ReportSource,
    context: ContextId,
    keys: &[JobKey],
) -> Result<Vec<(JobKey, ReportKind)>, SupervisorCommandError> {
    let peer = connect(desk, &at.address, &at.topic, Some(context)).await?;
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
                found.extend(told(status, desk.peers.name_of(&at.address)).map(|kind| (*key, kind)));
            }
            Err(CallError::Refused(error)) => tracing::info!(%key, %error, "an attempt is not told of"),
            Err(error) => return Err(SupervisorCommandError::Call(error)),
        }
    }
    Ok(found)
}

/// Turns a status into a report. An end with outputs is sent as an event instead, since its outputs are
/// handed over first.
fn told(status: JobStatus, supervisor: String) -> Option<ReportKind> {
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
            tracing::warn!(state, "a supervisor told a state that is not known");
            None
        }
    }
}

/// Has a supervisor forget a context. One to which the context never belonged, or does not any more, has
/// nothing to forget.
pub async fn drop_context(desk: &GatewayState, wish: wire::DropContext) -> wire::DropOutcome {
    let wire::DropContext { drop_id, address, topic, context_uid, context_id } = wish;
    let dropping = async {
        let context_uid: ContextUid = context_uid.parse().map_err(SupervisorCommandError::Uid)?;
        let peer = connect(desk, &address, &topic, Some(ContextId(context_id))).await?;
        let ask = ContextDrop { context_uid };
        match call::<_, serde::de::IgnoredAny>(&peer, ContextId(context_id), method::CONTEXT_DROP, &ask).await
        {
            Err(SupervisorCommandError::Call(CallError::Refused(refused)))
                if refused.reason() == "CONTEXT_CLAIMED" =>
            {
                tracing::warn!(%context_uid, address, "a context is another coordinator's there");
                Ok(())
            }
            other => other.map(drop),
        }
    };
    let error = match dropping.await {
        Ok(()) => {
            desk.metrics.contexts_dropped.inc();
            String::new()
        }
        Err(error) => error.to_string(),
    };
    wire::DropOutcome { drop_id, error }
}

/// Tells a supervisor to forget attempts. A supervisor that cannot be reached, or does not know this call, keeps them for
/// their time.
pub async fn forget_attempts(desk: &GatewayState, wish: wire::ForgetAttempts) {
    let wire::ForgetAttempts { address, topic, context_id, job_keys } = wish;
    // One that speaks plain has shapes of its own, and not this.
    if desk.peers.form(&address) == PayloadForm::Plain {
        return;
    }
    let context = ContextId(context_id);
    let job_keys: Vec<JobKey> = job_keys.iter().filter_map(|key| key.parse().ok()).collect();
    let (attempts, ask) = (job_keys.len() as u64, JobsForget { job_keys });
    let telling = async {
        let peer = connect(desk, &address, &topic, Some(context)).await?;
        call::<_, serde::de::IgnoredAny>(&peer, context, method::JOBS_FORGET, &ask).await
    };
    match telling.await {
        Ok(_) => desk.metrics.attempts_forgotten.inc_by(attempts),
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
    #[error("what the supervisor answered cannot be read: {0}")]
    Json(serde_json::Error),
    #[error("the context's uid cannot be read: {0}")]
    Uid(model::id::ParseIdError),
}

pub(crate) async fn connect(
    desk: &GatewayState,
    address: &str,
    topic: &str,
    context: Option<ContextId>,
) -> Result<JsonRpcPeer, SupervisorCommandError> {
    desk.connected(address, topic, context, CONNECT_WAIT).await.map_err(SupervisorCommandError::Peer)
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
    fn a_status_is_told_as_what_happened() {
        let told = |json: &str| told(serde_json::from_str(json).expect("a status"), "s".to_owned());
        let end = r#"{"outcome":"lost","end_time":7,"output_bytes":3}"#;
        let of = |state: &str, rest: &str| format!(r#"{{"state":"{state}"{rest}}}"#);
        assert_eq!(told(&of("unknown", "")), Some(ReportKind::Unknown));
        assert_eq!(told(&of("queued", "")), Some(ReportKind::Accepted { supervisor: "s".into() }));
        assert_eq!(told(&of("returned", "")), Some(ReportKind::Returned));
        assert_eq!(told(&of("dancing", "")), None);
        let started = told(&of("started", r#","instance":"shell:default:1","start_time":2.5"#));
        let time = model::Timestamp::from_millis(2500);
        assert_eq!(started, Some(ReportKind::Started { instance: "shell:default:1".into(), time }));
        let ended = told(&of("lost", &format!(r#","end":{end}"#)));
        assert!(matches!(ended, Some(ReportKind::Ended(end)) if end.output_bytes == 3));
        let blob = format!(r#""outputs":{{"a":{{"sha256":"{}","size":1}}}}"#, "ab".repeat(32));
        let with_outputs = end.replace(r#""output_bytes":3"#, &blob);
        assert_eq!(told(&of("finished", &format!(r#","end":{with_outputs}"#))), None, "an event tells it");
    }
}
