//! A job as its hash holds it.

use model::execution::{AttemptEnd, Outcome};
use model::{BlobHash, Execution, ExecutionRecord, Grants, Timestamp};

use kv::{Error, Result, Value};

use crate::event::QueueEventKind;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueJobStatus {
    /// The job waits in a queue.
    Queued,
    /// An instance runs the job.
    Started,
    /// The job succeeded.
    Finished,
    /// The job failed.
    Error,
    /// The job exceeded its time limit.
    Timeout,
    /// The job was stopped on request.
    Stopped,
    /// The job's instance vanished.
    Lost,
    /// The job was handed back unstarted.
    Returned,
}

impl QueueJobStatus {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Started,
        Self::Finished,
        Self::Error,
        Self::Timeout,
        Self::Stopped,
        Self::Lost,
        Self::Returned,
    ];

    /// Returns the status as Redis stores it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
            Self::Returned => "returned",
        }
    }

    /// The status of a job that ended so.
    #[must_use]
    pub const fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded => Self::Finished,
            Outcome::Failed => Self::Error,
            Outcome::TimedOut => Self::Timeout,
            Outcome::Stopped => Self::Stopped,
            Outcome::Lost => Self::Lost,
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| Error::Protocol(format!("`{text}` is no status of a job")))
    }
}

/// Known state of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueJobSnapshot {
    /// Where it stands.
    pub status: QueueJobStatus,
    /// Hash of the content that was accepted under the job's key.
    pub hash: BlobHash,
    /// The instance that has, or had it.
    pub instance: Option<String>,
    /// When an instance began.
    pub started_at: Option<Timestamp>,
    /// How much it has printed.
    pub log_offset: u64,
    /// How it ended.
    pub end: Option<AttemptEnd>,
}

impl QueueJobSnapshot {
    /// From `HMGET state hash claimed_by started_at log_offset end`; nothing for a job that is not known.
    pub(crate) fn from_value(value: Value) -> Result<Option<Self>> {
        let [status, hash, instance, started_at, log_offset, end] = value.tuple()?;
        let Some(status) = status.optional_text()? else {
            return Ok(None);
        };
        let bad = |what: &str| Error::Protocol(format!("a job's record has no usable `{what}`"));
        let end = match end.optional_text()? {
            None => None,
            Some(text) => match serde_json::from_str::<QueueEventKind>(&text) {
                Ok(QueueEventKind::Ended(end)) => Some(*end),
                _ => return Err(bad("end")),
            },
        };
        let started_at = started_at.optional_text()?.map(|text| text.parse().map_err(|_| bad("started_at")));
        Ok(Some(Self {
            status: QueueJobStatus::parse(&status)?,
            hash: hash.text()?.parse().map_err(|_| bad("hash"))?,
            instance: instance.optional_text()?,
            started_at: started_at.transpose()?,
            log_offset: log_offset.uint()?,
            end,
        }))
    }
}

/// The hash of an execution, and the fields that are kept of it, beside those that every job has. The script stands in a field of its
/// own, for old readers, and is left out of the rest so that it is kept once.
pub(crate) fn fields(
    execution: Execution,
    grants: &Grants,
) -> Result<(BlobHash, Vec<(&'static str, String)>)> {
    let text = |what: &str, result: std::result::Result<String, serde_json::Error>| {
        result.map_err(|error| Error::Protocol(format!("{what} cannot be written as JSON: {error}")))
    };
    let mut fields = vec![
        ("script_type", execution.script_type.to_string()),
        ("env_vars", text("env_vars", serde_json::to_string(&execution.env_vars))?),
        ("timeout", execution.timeout_secs.to_string()),
        ("context", execution.job_key.context.to_string()),
        ("caller", execution.caller_id.to_string()),
        ("context_id", execution.context_id.to_string()),
        ("flow_id", execution.flow_id.to_string()),
        ("grants", text("grants", serde_json::to_string(grants))?),
    ];
    let record = ExecutionRecord::write(execution)
        .map_err(|error| Error::Protocol(format!("job cannot be written as JSON: {error}")))?;
    fields.extend([("job", record.text), ("script", record.script)]);
    Ok((record.hash, fields))
}
