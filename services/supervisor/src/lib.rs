//! The supervisor: accepts jobs on a machine, owns its work queues, and
//! answers for the results.
//!
//! - [`coordinator_requests`]: what coordinators ask, whichever way they ask it.
//! - [`outbox`]: what happens to jobs, told to their coordinators until answered.
//! - [`presence`]: who works here, told every few seconds; instances that vanish.
//! - [`coordinators`]: the conversations that are open.
//! - [`dropped_contexts`]: contexts that were forgotten lately.
//! - [`blobs`], [`logs`]: what jobs need and what they printed, on this machine.
//! - [`policy`]: what the operator of this machine lets jobs do; [`drain`]: taking nothing new.
//! - [`results`]: how a job ended and what it printed, for coordinators and operators.
//! - [`attempts`]: what operators ask of attempts; [`attempt_watchers`]: who waits for one.
//! - [`legacy`]: the old world, and what others push; [`external_workers`]: what workers of others run.
//! - `root_rotation`: coordinators that have another root.
//! - [`rpc`]: the gRPC front; the bus is the other.

mod admission;
mod app;
pub mod attempt_watchers;
pub mod attempts;
pub mod blobs;
mod config;
pub mod coordinator_requests;
pub mod coordinators;
mod delayed_starts;
pub mod drain;
pub mod dropped_contexts;
mod error;
pub mod external_workers;
mod instance_loss;
pub mod legacy;
pub mod logs;
mod maintenance;
mod metrics;
pub mod outbox;
pub mod policy;
pub mod presence;
mod process;
pub mod refused_attempts;
pub mod results;
mod retry_queue;
mod root_rotation;
pub mod rpc;
pub mod work_dir;

pub use app::{App, Deps};
pub use config::Config;
pub use error::Error;
pub use policy::DefaultCoordinators;
