//! The runner registry: where jobs can run, and which of these places are alive.
//!
//! - [`view`]: what is known, and how it changes; pure.
//! - [`hub`]: the view shared by streams and calls, and who waits for its changes.
//! - [`app`]: puts it together; reads the records from storage, and keeps the time.
//! - `rpc::watching`: tells actors of the runners of their contexts.
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
