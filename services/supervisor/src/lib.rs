//! The supervisor: accepts jobs on a machine, owns its work queues, and
//! answers for the results.
//!
//! - [`intake`]: what coordinators ask, whichever way they ask it.
//! - [`outbox`]: what happens to jobs, told to their coordinators until answered.
//! - [`presence`]: who works here, told every few seconds; instances that vanish.
//! - [`coordinators`]: the conversations that are open.
//! - [`dropped`]: contexts that were forgotten lately.
//! - [`blobs`]: scripts and files of jobs, by hash, on this machine.
//! - [`rpc`]: the gRPC front; the bus is the other.

mod app;
pub mod blobs;
mod config;
pub mod coordinators;
pub mod dropped;
mod error;
mod held;
pub mod intake;
pub mod legacy;
mod metrics;
pub mod outbox;
pub mod presence;
mod process;
pub mod rpc;

pub use app::{App, Deps};
pub use config::Config;
pub use error::Error;
