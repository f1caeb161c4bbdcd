//! The supervisor: accepts jobs on a machine, owns its work queues, and
//! answers for the results.
//!
//! - [`intake`]: what coordinators ask, whichever way they ask it.
//! - [`outbox`]: what happens to jobs, told to their coordinators until answered.
//! - [`presence`]: who works here, told every few seconds; instances that vanish.
//! - [`coordinators`]: the conversations that are open.
//! - [`dropped`]: contexts that were forgotten lately.
//! - [`blobs`], [`logs`]: what jobs need and what they printed, on this machine.
//! - [`policy`]: what the operator of this machine lets jobs do; [`drain`]: taking nothing new.
//! - [`read_back`]: how a job ended and what it printed, for coordinators and operators.
//! - [`attempts`]: what operators ask of attempts; [`word`]: who waits for one.
//! - [`legacy`]: the old world, and what others push; [`others`]: what workers of others run.
//! - `succession`: coordinators that have another root.
//! - [`rpc`]: the gRPC front; the bus is the other.

mod admission;
mod app;
pub mod attempts;
pub mod blobs;
mod config;
pub mod coordinators;
pub mod drain;
pub mod dropped;
mod error;
mod held;
pub mod intake;
pub mod legacy;
pub mod logs;
mod lost;
mod metrics;
pub mod others;
pub mod outbox;
pub mod policy;
pub mod presence;
mod process;
pub mod read_back;
pub mod refused;
pub mod rpc;
mod starts;
mod succession;
mod upkeep;
pub mod word;
pub mod work_dir;

pub use app::{App, Deps};
pub use config::Config;
pub use error::Error;
pub use policy::Admitted;
