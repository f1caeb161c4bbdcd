//! Reads pieces of attempts' output at their supervisors: output that storage does not keep.
//!
//! Each piece is requested once and answered in any case: the reader gets the reason for a gap, and continues after it.

use std::time::Duration;

use model::supervision::{JobLogPiece, JobLogs, method};
use model::{ContextId, JobKey};
use mycelium::{CallError, JsonRpcCall, JsonRpcError};
use proto::internal::v1 as wire;
use proto::v1::LogGapReason;

use crate::commands::{SupervisorCommandError, connect};
use crate::supervisor_api::GatewayState;

/// Time limit for a supervisor to answer. With the wait for its connection it is less than the reader waits.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

/// Reads a piece.
pub async fn read(state: &GatewayState, ask: wire::ReadAttemptLog) -> wire::LogOutcome {
    use wire::log_reading::Result as Reading;
    let wire::ReadAttemptLog { read_id, address, topic, job_key, offset, limit, context_id } = ask;
    let reading = match job_key.parse::<JobKey>() {
        Err(error) => Err((LogGapReason::Refused, error.to_string())),
        Ok(job_key) => {
            let ask = JobLogs { job_key, offset, limit };
            try_read(state, (&address, &topic), ContextId(context_id), &ask).await.map_err(|error| {
                tracing::info!(%job_key, address, %error, "a piece of output cannot be read");
                why(&error, &address)
            })
        }
    };
    let reading = match reading {
        Ok(JobLogPiece { offset, text, next_offset, .. }) => {
            state.metrics.log_bytes_read.inc_by(text.len() as u64);
            Reading::Piece(wire::LogPiece { offset, data: text.into(), next_offset })
        }
        Err((reason, detail)) => Reading::Refusal(wire::LogRefusal { reason: reason.into(), detail }),
    };
    wire::LogOutcome { read_id, reading: Some(wire::LogReading { result: Some(reading) }) }
}

async fn try_read(
    state: &GatewayState,
    (address, topic): (&str, &str),
    context: ContextId,
    ask: &JobLogs,
) -> Result<JobLogPiece, SupervisorCommandError> {
    let peer = connect(state, address, topic, Some(context)).await?;
    let call =
        JsonRpcCall::new(method::JOB_LOGS, ask).map_err(SupervisorCommandError::Json)?.of_context(context.0);
    let answer = peer.call_batch(vec![call], ANSWER_TIMEOUT).await.pop();
    let answer = answer.unwrap_or(Err(CallError::Closed)).map_err(SupervisorCommandError::Call)?;
    serde_json::from_str(answer.get()).map_err(SupervisorCommandError::Json)
}

/// Turns a failure into the reason that a log reader gets.
fn why(error: &SupervisorCommandError, address: &str) -> (LogGapReason, String) {
    match error {
        SupervisorCommandError::Peer(_) | SupervisorCommandError::Call(CallError::Closed) => {
            (LogGapReason::Unreachable, format!("the supervisor at {address} cannot be reached"))
        }
        SupervisorCommandError::Call(CallError::Refused(refused)) => {
            (reason_of(refused), refused.message.clone())
        }
        SupervisorCommandError::Call(CallError::TimedOut) => {
            (LogGapReason::Unreachable, format!("the supervisor at {address} did not answer in time"))
        }
        SupervisorCommandError::Call(CallError::TooMany) => {
            (LogGapReason::Unreachable, format!("the supervisor at {address} has too many calls under way"))
        }
        error => (LogGapReason::Refused, error.to_string()),
    }
}

fn reason_of(refused: &JsonRpcError) -> LogGapReason {
    match refused.reason() {
        "NOT_FOUND" => LogGapReason::NotKept,
        _ if refused.is_lasting() => LogGapReason::Refused,
        _ => LogGapReason::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use mycelium::json_rpc::METHOD_NOT_FOUND;

    use super::*;

    #[test]
    fn the_reason_of_a_refusal_shows_whether_a_later_read_may_succeed() {
        let refused = |reason, lasting| reason_of(&JsonRpcError::refused(reason, lasting, "why"));
        assert_eq!(refused("NOT_FOUND", true), LogGapReason::NotKept);
        assert_eq!(refused("CONTEXT_CLAIMED", true), LogGapReason::Refused);
        assert_eq!(refused("BUSY", false), LogGapReason::Unreachable);
        let unknown = JsonRpcError::of_protocol(METHOD_NOT_FOUND, "there is no such method");
        assert_eq!(reason_of(&unknown), LogGapReason::Refused, "of a supervisor that cannot tell logs");
        let (reason, detail) = why(&SupervisorCommandError::Call(CallError::TimedOut), "grpc://a:1");
        assert_eq!(reason, LogGapReason::Unreachable);
        assert_eq!(detail, "the supervisor at grpc://a:1 did not answer in time");
    }
}
