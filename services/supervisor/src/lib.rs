//! The supervisor: accepts jobs on a machine, owns its work queues, and
//! answers for the results.
//!
//! - [`coordinator_requests`]: handler of coordinators' requests, over the bus and over gRPC; `accept_span`: their spans in traces.
//! - [`outbox`]: delivers job events to their coordinators, until acknowledged.
//! - [`presence`]: the instances of this machine, announced every few seconds; detects instances that vanish.
//! - [`coordinators`]: the open conversations with coordinators.
//! - [`dropped_contexts`]: contexts that were dropped recently.
//! - [`blobs`], [`logs`]: files and logs of jobs, on this machine.
//! - [`policy`]: what the operator of this machine lets jobs do; [`drain`]: accepting no new jobs.
//! - [`results`]: results and logs of jobs, for coordinators and operators.
//! - [`attempts`]: operators' requests about attempts; [`attempt_watchers`]: subscriptions to attempts.
//! - [`legacy`]: old queues, and jobs that others push; [`external_workers`]: script types of external workers.
//! - `root_rotation`: root key rotation of coordinators.
//! - [`rpc`]: the gRPC front end, beside the bus.

mod accept_span;
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
