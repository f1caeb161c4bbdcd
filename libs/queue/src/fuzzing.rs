//! Readers for the fuzzer: records as they come from Redis, where anybody may have written them.

use kv::{Result, StreamEntry, Value};
use model::{BlobHash, Execution, Grants};

use crate::legacy::PopBinding;
use crate::legacy::end::LegacyJobEnd;
use crate::legacy::import::JobImportCandidate;
use crate::script::FINISH;
use crate::{InstanceCommand, QueueEvent, QueueEventKind, QueueJobSnapshot};

/// An event of the stream.
///
/// # Errors
/// It cannot be understood.
pub fn event(entry: &StreamEntry) -> Result<QueueEvent> {
    crate::event::parse(entry)
}

/// The field `data` of an event, as it is written.
///
/// # Errors
/// It cannot be written.
pub fn event_data(kind: &QueueEventKind) -> Result<String> {
    crate::event::encode(kind)
}

/// `HMGET` of a job's state.
///
/// # Errors
/// It cannot be understood.
pub fn job_state(value: Value) -> Result<Option<QueueJobSnapshot>> {
    QueueJobSnapshot::from_value(value)
}

/// Reads the part of a job record that an instance is given.
///
/// # Errors
/// The record cannot be understood.
pub fn job(job: &str, script: String, grants: Option<&str>) -> serde_json::Result<(Execution, Grants)> {
    crate::consumer_state::read(job, script, grants)
}

/// The fields that a job is written with.
///
/// # Errors
/// It cannot be written.
pub fn job_fields(execution: Execution, grants: &Grants) -> Result<Vec<(&'static str, String)>> {
    crate::job::fields(execution, grants).map(|(_, fields)| fields)
}

/// A command to an instance; nothing for one that cannot be understood.
#[must_use]
pub fn command(value: Value) -> Option<InstanceCommand> {
    crate::commands::parse_command(value)
}

/// The blobs that a job's record names.
///
/// # Errors
/// It cannot be understood.
pub fn needed_blobs(job: Option<String>, end: Option<String>) -> Result<Vec<BlobHash>> {
    crate::maintenance::needed(job, end)
}

/// Reads the end that a legacy worker wrote, and builds the call that ends its job.
///
/// # Errors
/// The record cannot be understood.
pub fn old_end(value: Value) -> Result<()> {
    LegacyJobEnd::from_value(value)?.finish_call(&FINISH, "legacy:queue:x").map(drop)
}

/// Reads the record of a legacy dispatcher as the job that it becomes, or the reason why it becomes none.
///
/// # Errors
/// The record cannot be understood.
pub fn old_job(from: &PopBinding, value: Value) -> Result<std::result::Result<Execution, String>> {
    let found = JobImportCandidate::from_value(from, value, |_| Ok(Grants::default()))?;
    Ok(found.work.map(|(execution, _)| execution))
}
