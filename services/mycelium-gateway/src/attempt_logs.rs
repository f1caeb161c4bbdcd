//! Pieces of what attempts printed, read at their supervisors: what storage does not keep of it.
//!
//! Asked once and answered in any case: whoever reads is told why there is nothing, and goes on behind it.

use std::time::Duration;

use model::supervision::{JobLogPiece, JobLogs, method};
use model::{ContextId, JobKey};
use mycelium::{Call, CallError, RpcError};
use proto::internal::v1 as wire;
use proto::v1::LogGapReason;

use crate::front::Desk;
use crate::wishes::{WishError, connect};

/// How long a supervisor may take to answer. With the wait for its connection it is less than whoever asks waits.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

/// Reads a piece.
pub async fn read(desk: &Desk, ask: wire::ReadAttemptLog) -> wire::LogOutcome {
    use wire::log_reading::Result as Reading;
    let wire::ReadAttemptLog { read_id, address, topic, job_key, offset, limit, context_id } = ask;
    let reading = match job_key.parse::<JobKey>() {
        Err(error) => Err((LogGapReason::Refused, error.to_string())),
        Ok(job_key) => {
            let ask = JobLogs { job_key, offset, limit };
            try_read(desk, (&address, &topic), ContextId(context_id), &ask).await.map_err(|error| {
                tracing::info!(%job_key, address, %error, "a log is not told");
                why(&error, &address)
            })
        }
    };
    let reading = match reading {
        Ok(JobLogPiece { offset, text, next_offset, .. }) => {
            desk.metrics.log_bytes_read.inc_by(text.len() as u64);
            Reading::Piece(wire::LogPiece { offset, data: text.into(), next_offset })
        }
        Err((reason, detail)) => Reading::Refusal(wire::LogRefusal { reason: reason.into(), detail }),
    };
    wire::LogOutcome { read_id, reading: Some(wire::LogReading { result: Some(reading) }) }
}

async fn try_read(
    desk: &Desk,
    (address, topic): (&str, &str),
    context: ContextId,
    ask: &JobLogs,
) -> Result<JobLogPiece, WishError> {
    let peer = connect(desk, address, topic, Some(context)).await?;
    let call = Call::new(method::JOB_LOGS, ask).map_err(WishError::Json)?.of_context(context.0);
    let answer = peer.call_batch(vec![call], ANSWER_TIMEOUT).await.pop();
    let answer = answer.unwrap_or(Err(CallError::Closed)).map_err(WishError::Call)?;
    serde_json::from_str(answer.get()).map_err(WishError::Json)
}

/// What somebody who only reads the log is told of a failure.
fn why(error: &WishError, address: &str) -> (LogGapReason, String) {
    match error {
        WishError::Peer(_) | WishError::Call(CallError::Closed) => {
            (LogGapReason::Unreachable, format!("the supervisor at {address} cannot be reached"))
        }
        WishError::Call(CallError::Refused(refused)) => (reason_of(refused), refused.message.clone()),
        WishError::Call(CallError::TimedOut) => {
            (LogGapReason::Unreachable, format!("the supervisor at {address} did not answer in time"))
        }
        WishError::Call(CallError::TooMany) => {
            (LogGapReason::Unreachable, format!("the supervisor at {address} has too much to answer"))
        }
        error => (LogGapReason::Refused, error.to_string()),
    }
}

fn reason_of(refused: &RpcError) -> LogGapReason {
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
    fn a_refusal_says_whether_it_may_work_later() {
        let refused = |reason, lasting| reason_of(&RpcError::refused(reason, lasting, "why"));
        assert_eq!(refused("NOT_FOUND", true), LogGapReason::NotKept);
        assert_eq!(refused("CONTEXT_CLAIMED", true), LogGapReason::Refused);
        assert_eq!(refused("BUSY", false), LogGapReason::Unreachable);
        let unknown = RpcError::of_protocol(METHOD_NOT_FOUND, "there is no such method");
        assert_eq!(reason_of(&unknown), LogGapReason::Refused, "of a supervisor that cannot tell logs");
        let (reason, detail) = why(&WishError::Call(CallError::TimedOut), "grpc://a:1");
        assert_eq!(reason, LogGapReason::Unreachable);
        assert_eq!(detail, "the supervisor at grpc://a:1 did not answer in time");
    }
}
