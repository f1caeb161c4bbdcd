//! Attempts on the wire, and why they are not run.

use ::rpc::{Error, ErrorKind, RpcReason};
use model::job::check_env;
use model::limits::{SCRIPT_BYTES_MAX, TIMEOUT_SECS_DEFAULT, TIMEOUT_SECS_MAX};
use model::supervision::JobLogPiece;
use model::{JobKey, Violations};
use mycelium::JsonRpcError;
use proto::convert::node::{blob_to_wire, reason_to_wire};
use proto::convert::{enums, time};
use proto::v1::{self, AttemptState, RunAttemptRequest, StreamAttemptLogsResponse};
use queue::{JobAcceptError, QueueJobStatus};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use super::{not_read, refused, store_trouble};
use crate::attempt_watchers::AttemptSubscription;
use crate::attempts::{AttemptSnapshot, OperatorAttemptSpec, RunAttemptError};
use crate::coordinator_requests::SupervisorState;
use crate::results;

/// Interval of heartbeats on an idle stream.
const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(15);
/// A request id is a UUID; other texts of this length do as well.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// Adds a violation if a request id is invalid.
pub(super) fn check_request_id(id: &str, violations: &mut Violations) {
    if id.len() > REQUEST_ID_BYTES_MAX || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("a UUID, or at most {REQUEST_ID_BYTES_MAX} visible ASCII characters");
        violations.add("request_id", what);
    }
}

pub(super) fn parse_key(text: &str) -> Result<JobKey, Status> {
    text.parse().map_err(|error| refused("job_key", error))
}

/// Returns the request id, and the attempt to run.
pub(super) fn wanted(request: RunAttemptRequest) -> Result<(String, OperatorAttemptSpec), Violations> {
    let RunAttemptRequest {
        request_id,
        script_type,
        script,
        env_vars,
        timeout_secs,
        group,
        instance,
        isolation,
        network,
    } = request;
    let mut violations = Violations::new();
    check_request_id(&request_id, &mut violations);
    let script_type = enums::script_type_from_wire(script_type).ok_or("give a script type");
    let script_type = violations.take("script_type", script_type);
    if script.is_empty() || script.len() > SCRIPT_BYTES_MAX {
        violations.add("script", format!("a script has 1 to {SCRIPT_BYTES_MAX} bytes, not {}", script.len()));
    }
    check_env(&env_vars, "env_vars", &mut violations);
    if timeout_secs > TIMEOUT_SECS_MAX {
        violations.add("timeout_secs", format!("at most {TIMEOUT_SECS_MAX} are allowed"));
    }
    let group = match group.as_str() {
        "" => None,
        text => violations.take("group", text.parse()),
    };
    let isolation = match v1::Isolation::try_from(isolation) {
        Ok(v1::Isolation::Unspecified) => Some(model::Isolation::Basic),
        _ => violations.take("isolation", enums::isolation_from_wire(isolation).ok_or("no isolation level")),
    };
    let wanted = script_type.zip(isolation).map(|(script_type, isolation)| OperatorAttemptSpec {
        script_type,
        script,
        env_vars,
        timeout_secs: if timeout_secs == 0 { TIMEOUT_SECS_DEFAULT } else { timeout_secs },
        group,
        instance,
        isolation,
        network,
    });
    violations.into_result(wanted.map(|wanted| (request_id, wanted)))
}

/// Converts an attempt to the wire.
pub(super) fn to_wire(known: AttemptSnapshot) -> v1::Attempt {
    let AttemptSnapshot { key, coordinator, state } = known;
    let queue::QueueJobSnapshot { status, hash: _, instance, started_at, log_offset, end } = state;
    let mut attempt = v1::Attempt {
        job_key: key.to_string(),
        state: state_to_wire(status).into(),
        coordinator,
        instance: instance.unwrap_or_default(),
        start_time: started_at.map(time::to_wire),
        output_bytes: log_offset,
        ..Default::default()
    };
    if let Some(end) = end {
        attempt.end_time = Some(time::to_wire(end.end_time));
        attempt.exit_code = end.exit_code;
        attempt.reason = end.reason.as_ref().map(reason_to_wire);
        attempt.outputs = end.outputs.iter().map(|(name, blob)| (name.clone(), blob_to_wire(blob))).collect();
        attempt.result = end.result;
        attempt.output_bytes = end.output_bytes;
    }
    attempt
}

const fn state_to_wire(status: QueueJobStatus) -> AttemptState {
    match status {
        QueueJobStatus::Queued => AttemptState::Queued,
        QueueJobStatus::Started => AttemptState::Started,
        QueueJobStatus::Finished => AttemptState::Finished,
        QueueJobStatus::Error => AttemptState::Error,
        QueueJobStatus::Timeout => AttemptState::Timeout,
        QueueJobStatus::Stopped => AttemptState::Stopped,
        QueueJobStatus::Lost => AttemptState::Lost,
        QueueJobStatus::Returned => AttemptState::Returned,
    }
}

/// Returns the attempt that was found, or NOT_FOUND.
pub(super) fn found(
    key: JobKey,
    known: kv::Result<Option<AttemptSnapshot>>,
) -> Result<Option<v1::Attempt>, Status> {
    match known.map_err(store_trouble)? {
        Some(known) => Ok(Some(to_wire(known))),
        None => Err(Error::not_found(format!("attempt {key}")).into()),
    }
}

/// Converts an error that a coordinator would get with `data.reason` to the status for an operator.
pub(super) fn not_run(error: RunAttemptError) -> Status {
    match error {
        RunAttemptError::Refused(refusal) => of_refusal(&refusal),
        RunAttemptError::Queue(JobAcceptError::KeyConflict(_)) => {
            let message = "the request id was used with another body before";
            Error::new(ErrorKind::AlreadyExists, RpcReason::RequestIdReused, message).into()
        }
        RunAttemptError::Queue(JobAcceptError::QueueFull(message)) => {
            Error::new(ErrorKind::ResourceExhausted, RpcReason::QueueFull, message).into()
        }
        RunAttemptError::Queue(JobAcceptError::Stopped(message)) => {
            Error::new(ErrorKind::FailedPrecondition, RpcReason::Stopped, message).into()
        }
        RunAttemptError::Queue(JobAcceptError::Store(error)) | RunAttemptError::Store(error) => {
            store_trouble(error)
        }
        RunAttemptError::Queue(other) => Error::internal(other).into(),
    }
}

fn of_refusal(refusal: &JsonRpcError) -> Status {
    if refusal.reason() == "DISK_FULL" {
        return Error::disk_full(refusal.message.clone()).into();
    }
    let (kind, reason) = match refusal.reason() {
        "DRAINING" => (ErrorKind::Unavailable, RpcReason::Draining),
        "POLICY_REFUSED" => (ErrorKind::PermissionDenied, RpcReason::PolicyRefused),
        "NETWORK_REFUSED" => (ErrorKind::PermissionDenied, RpcReason::NetworkRefused),
        "SIGNATURE_REFUSED" => (ErrorKind::PermissionDenied, RpcReason::SignatureRefused),
        "ISOLATION_UNAVAILABLE" => (ErrorKind::FailedPrecondition, RpcReason::IsolationUnavailable),
        _ => (ErrorKind::Unavailable, RpcReason::StoreUnavailable),
    };
    Error::new(kind, reason, refusal.message.clone()).into()
}

/// Sends a log up to its current end, or with `follow` until the attempt has ended. The subscription to the attempt begins
/// before the first piece is read.
pub(super) async fn send_log(
    supervisor: &SupervisorState,
    key: JobKey,
    first: JobLogPiece,
    (follow, mut listener): (bool, AttemptSubscription),
    pieces: &mpsc::Sender<Result<StreamAttemptLogsResponse, Status>>,
) {
    let mut piece = first;
    loop {
        let JobLogPiece { offset, text, next_offset, size, complete } = piece;
        let at_end = next_offset >= size;
        let is_over = complete || (at_end && !follow);
        let is_update = !text.is_empty() || is_over;
        if is_update
            && pieces.send(Ok(StreamAttemptLogsResponse { offset, text, size, complete })).await.is_err()
        {
            return;
        }
        if is_over {
            return;
        }
        if at_end {
            let beat = StreamAttemptLogsResponse { offset: next_offset, size, ..Default::default() };
            tokio::select! {
                () = pieces.closed() => return,
                waited = tokio::time::timeout_at(Instant::now() + HEARTBEAT, listener.next()) => {
                    if waited.is_err() && pieces.send(Ok(beat)).await.is_err() {
                        return;
                    }
                }
            }
        }
        piece = match results::log(supervisor, key, next_offset, 0).await {
            Ok(piece) => piece,
            Err(error) => {
                // A caller that is gone needs no answer.
                let _ = pieces.send(Err(not_read(error))).await;
                return;
            }
        };
    }
}
