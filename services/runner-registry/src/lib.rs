//! The runner registry: where jobs can run, and which of these places are alive.
//!
//! - [`view`]: the runners with their supervisors' presences, and how they change; pure.
//! - [`hub`]: the view shared by streams and calls, and the watchers of its changes.
//! - [`app`]: puts the parts together; reads the records from storage, and expires silent supervisors.
//! - `rpc::runner_watch`: streams the runners of a context to actors.
//! - [`rpc`]: the gRPC side.

pub mod app;
pub mod clients;
pub mod config;
pub mod error;
pub mod hub;
pub mod metrics;
pub mod process;
pub mod rpc;
pub mod view;

pub use app::{App, Deps, RegistryClock};
pub use config::Config;
pub use error::Error;
pub use rpc::{INTERNAL_POLICY, PUBLIC_POLICY, policy};
