//! The work-queue protocol between a supervisor and its instances, over the supervisor's own Redis.
//!
//! ```text
//! supervisor ─ accept ─► hero:job:<key> + queue ─ take ─► instance ─ log, finish ─► hero:done ─► supervisor
//! ```
//!
//! [`Supervisor`] accepts, stops, counts, looks after what was lost, and reads what happened through
//! [`EventReader`]. An instance [`join`]s and works with an [`Instance`], an [`Intake`] that gives it jobs and
//! a [`Control`] that gives it commands. Every change is one script; nothing polls, but that
//! old workers, who tell nobody, are looked after every second.
//!
//! A job's `status`: `queued → started → finished | error | timeout | stopped | lost`, or
//! `queued → stopped | returned`. It stands in `state`; `status` says the same for other readers, and old workers
//! overwrite it.

mod control;
mod coordinators;
mod demand;
mod event;
mod forgetting;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod instance;
mod intake;
mod job;
mod loss;
mod offer;
mod old;
mod operators;
mod place;
mod presence;
mod refusal;
mod script;
mod supervisor;
mod taking;
mod upkeep;
pub mod work_dir;

pub use control::{Command, Control, TypeControl};
pub use coordinators::{Authority, Begun, PassedOn};
pub use demand::DemandWatch;
pub use event::{Acknowledger, Event, EventKind, EventReader, LogChunk, Origin};
pub use instance::{About, Ending, Instance, JoinError, Refreshed, Standing, join};
pub use intake::{Full, Intake};
pub use job::{JobState, JobStatus};
pub use keys::{ActorNonce, ControlScope, InstanceRef, OldQueue, WorkQueue};
pub use loss::LossWatch;
pub use offer::{Condition, Offer};
pub use old::{
    Foreign, ForeignWatch, Imported, OLD_OUTPUT_BYTES_MAX, OLD_WORKER_PATIENCE, PopBinding, PushBinding,
    Swept, is_plain,
};
pub use operators::OPERATOR;
pub use place::{PlaceError, parse_place};
pub use presence::{PRESENCE_INTERVAL, PRESENCE_TTL, PresenceRecord};
pub use refusal::Refusal;
pub use supervisor::{Accepted, QueueStats, StopOutcome, Supervisor};
pub use taking::Taken;
pub use upkeep::Drain;

use std::time::Duration;

/// How many jobs one queue may hold.
pub const QUEUE_LEN_MAX: usize = 100_000;
/// How long a stop of a job that never arrived is remembered.
pub const STOP_MARK_KEEP: Duration = Duration::from_secs(24 * 3600);
/// How long late jobs of a context that was dropped are refused.
pub const DROP_MARK_KEEP: Duration = Duration::from_secs(600);
/// How long an ended job's record is kept after the coordinator has heard of it.
pub const ENDED_KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
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
