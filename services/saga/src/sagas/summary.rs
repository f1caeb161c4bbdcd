//! Instances without their state, as lists and answers show them.

use model::{BlobHash, SagaStatus, StepName, Timestamp};
use serde::{Deserialize, Serialize};
use workflow::instance::{CorrelationEntry, CorrelationRecord};

/// Instance without its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSummary {
    /// Instances of this correlation before it.
    pub run: u64,
    /// Status of the instance.
    pub status: SagaStatus,
    /// True if the instance is paused.
    pub is_paused: bool,
    /// True if a dead letter stands in front of its inputs.
    pub is_parked: bool,
    /// Inputs that are held back.
    pub held: u64,
    /// The step that it is at, or ended at.
    pub step: StepName,
    /// Why it is undone, stuck or ended.
    pub reason: Option<String>,
    /// True if the pivot has succeeded.
    pub is_past_pivot: bool,
    /// Inputs that were applied or ignored.
    pub revision: u64,
    /// Version of its definition.
    pub version: u32,
    /// Hash of its definition.
    pub definition: BlobHash,
    /// When it started.
    pub started: Timestamp,
    /// When it came to its step; none where it has ended.
    pub entered: Option<Timestamp>,
    /// The latest time of its inputs.
    pub updated: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

impl InstanceSummary {
    /// The summary of a record; none where there is no instance.
    #[must_use]
    pub fn of(record: &CorrelationRecord) -> Option<Self> {
        match &record.entry {
            CorrelationEntry::Live(instance) => Some(Self {
                run: instance.run,
                status: instance.status,
                is_paused: record.is_paused,
                is_parked: record.parked_by.is_some(),
                held: record.held.len(),
                step: instance.step.clone(),
                reason: instance
                    .stuck
                    .as_ref()
                    .map(|stuck| stuck.why.clone())
                    .or_else(|| instance.reason.clone()),
                is_past_pivot: instance.is_past_pivot,
                revision: instance.revision,
                version: instance.version,
                definition: instance.definition,
                started: instance.started,
                entered: Some(instance.entered),
                updated: instance.now,
                ended: None,
            }),
            CorrelationEntry::Ended(tombstone) => Some(Self {
                run: tombstone.run,
                status: tombstone.status,
                is_paused: false,
                is_parked: false,
                held: 0,
                step: tombstone.step.clone(),
                reason: tombstone.reason.clone(),
                is_past_pivot: tombstone.is_past_pivot,
                revision: tombstone.revision,
                version: tombstone.version,
                definition: tombstone.definition,
                started: tombstone.started,
                entered: None,
                updated: tombstone.ended,
                ended: Some(tombstone.ended),
            }),
            CorrelationEntry::Awaited(_) => None,
        }
    }
}
