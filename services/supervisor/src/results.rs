//! Results and logs of jobs, read back for coordinators and operators.

use std::io;

use model::JobKey;
use model::supervision::{JobLogPiece, JobResult};
use queue::QueueJobStatus;

use crate::coordinator_requests::SupervisorState;

/// Why the result or the log of a job cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JobReadError {
    /// The attempt is not known here, or not any more.
    #[error("attempt {0} is not known here")]
    Unknown(JobKey),
    /// The attempt is known, and its log is gone.
    #[error("the log of attempt {0} is not kept any more")]
    Gone(JobKey),
    /// Redis failed.
    #[error("the supervisor's store does not answer")]
    Store(#[source] kv::Error),
    /// The file cannot be read.
    #[error("the log of attempt {key} cannot be read")]
    File {
        /// Attempt whose log cannot be read.
        key: JobKey,
        /// Error of the file system.
        source: io::Error,
    },
}

/// Returns how a job ended, or its current state.
///
/// # Errors
/// A [`JobReadError`].
pub async fn result(supervisor: &SupervisorState, key: JobKey) -> Result<JobResult, JobReadError> {
    let state = supervisor.queue.status(key).await.map_err(JobReadError::Store)?;
    let state = state.ok_or(JobReadError::Unknown(key))?;
    Ok(JobResult { state: state.status.as_str().to_owned(), end: state.end.map(Box::new) })
}

/// Returns a piece of a job's log; `limit` as in [`model::supervision::JobLogs`].
///
/// # Errors
/// A [`JobReadError`].
pub async fn log(
    supervisor: &SupervisorState,
    key: JobKey,
    offset: u64,
    limit: u32,
) -> Result<JobLogPiece, JobReadError> {
    // The state is read first: if the attempt has ended by now, its log is complete.
    let state = supervisor.queue.status(key).await.map_err(JobReadError::Store)?;
    let ended = !matches!(
        state.as_ref().map(|state| state.status),
        Some(QueueJobStatus::Queued | QueueJobStatus::Started)
    );
    let piece = supervisor.logs.read(key, offset, usize::try_from(limit).unwrap_or(usize::MAX)).await;
    let piece = piece.map_err(|source| JobReadError::File { key, source })?;
    let Some(piece) = piece else {
        let state = state.ok_or(JobReadError::Unknown(key))?;
        let printed = state.end.map_or(0, |end| end.output_bytes);
        if printed > 0 {
            return Err(JobReadError::Gone(key));
        }
        let text = String::new();
        return Ok(JobLogPiece { offset: 0, text, next_offset: 0, size: 0, complete: ended });
    };
    supervisor.metrics.log_bytes_read.inc_by(piece.end - piece.offset);
    Ok(JobLogPiece {
        offset: piece.offset,
        text: piece.text,
        next_offset: piece.end,
        size: piece.size,
        complete: ended && piece.end >= piece.size,
    })
}
