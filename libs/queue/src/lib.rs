//! The work-queue protocol between a supervisor and its instances, over the supervisor's own Redis.
//!
//! ```text
//! supervisor ─ accept ─► hero:job:<key> + queue ─ take ─► instance ─ log, finish ─► hero:done ─► supervisor
//! ```
//!
//! [`SupervisorQueues`] accepts, stops and counts jobs, ends lost ones, and reads events through
//! [`QueueEventReader`]. An instance [`join`]s and works with an [`InstanceSession`], a [`JobConsumer`] that gives it jobs and
//! an [`InstanceCommandReader`] that gives it commands. Every change is one script; nothing polls, except that
//! old workers, which send no events, are checked every second.
//!
//! A job's `status`: `queued → started → finished | error | timeout | stopped | lost`, or
//! `queued → stopped | returned`. The protocol uses the field `state`; `status` repeats it for other readers, and old workers
//! overwrite that one.

mod accept_error;
mod cleanup;
mod commands;
mod consumer;
mod consumer_state;
mod coordinators;
mod endpoint;
mod event;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod instance;
mod instance_loss;
mod job;
mod legacy;
mod maintenance;
mod offer;
mod operators;
mod presence;
mod script;
mod supervisor;
mod unmet_isolation;
pub mod work_dir;

pub use accept_error::JobAcceptError;
pub use commands::{InstanceCommand, InstanceCommandReader, TypeCommandReader};
pub use consumer::{JobConsumer, SlotsFullGuard};
pub use consumer_state::ClaimedJob;
pub use coordinators::{RootTransferCounts, RotationAuthority, RotationStartOutcome};
pub use endpoint::{QueueEndpointError, parse_endpoint};
pub use event::{
    LogChunk, QueueEvent, QueueEventAcknowledger, QueueEventKind, QueueEventReader, QueuedJobOrigin,
};
pub use instance::{
    InstanceDescriptor, InstanceJoinError, InstanceSession, JobEndReport, JobRecordOutcome,
    PresenceRefreshOutcome, join,
};
pub use instance_loss::InstanceLossDetector;
pub use job::{QueueJobSnapshot, QueueJobStatus};
pub use keys::{ActorNonce, ControlScope, InstanceRef, LegacyQueue, WorkQueue};
pub use legacy::{
    ForeignJob, ForeignJobWatcher, JobImportCounts, LegacySweepCounts, OLD_OUTPUT_BYTES_MAX,
    OLD_WORKER_PATIENCE, PopBinding, PushBinding, is_plain,
};
pub use maintenance::SupervisorDrain;
pub use offer::{AcceptCondition, JobOffer};
pub use operators::OPERATOR;
pub use presence::{PRESENCE_INTERVAL, PRESENCE_TTL, PresenceRecord};
pub use supervisor::{OfferAcceptance, QueueStats, StopOutcome, SupervisorQueues};
pub use unmet_isolation::UnmetIsolationDetector;

use std::time::Duration;

/// How many jobs one queue may hold.
pub const QUEUE_LEN_MAX: usize = 100_000;
/// How long a stop of a job that never arrived is remembered.
pub const STOP_MARK_KEEP: Duration = Duration::from_secs(24 * 3600);
/// How long late jobs of a context that was dropped are refused.
pub const DROP_MARK_KEEP: Duration = Duration::from_secs(600);
/// How long an ended job's record is kept after the coordinator has acknowledged its end.
pub const ENDED_KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// How many records of ended jobs of one context are kept: beyond it those go that were acknowledged first.
pub const ENDED_MAX: usize = 50_000;
/// How much of a job's output its record keeps.
pub const OUTPUT_TAIL_BYTES_MAX: usize = 16 * 1024;

/// Names a place where a test may make the process die.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        testkit::crash_point!($name);
    };
}
pub(crate) use crash_point;
