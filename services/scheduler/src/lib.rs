//! The scheduler: owns running flows, steps them, and commits each step.
//!
//! - [`driver`]: the loop, inputs → engine → commits.
//! - [`run`]: one owned flow.
//! - [`commit`], [`commit_link`]: from a step to its commit, and the stream that carries it.
//! - [`submit`]: from a submission to a flow that runs.
//! - [`reader`], [`watch`], [`logs`]: what clients see of a flow while it runs.
//! - [`rpc`]: the gRPC services.

mod app;
pub mod clients;
pub mod commit;
pub mod commit_link;
mod config;
pub mod destinations;
pub mod driver;
pub mod error;
pub mod loader;
pub mod logs;
pub mod message_ids;
pub mod metrics;
pub mod position;
mod process;
pub mod reader;
pub mod routers;
pub mod rpc;
pub mod run;
pub mod runners;
pub mod submit;
pub mod watch;

pub use app::{App, Deps};
pub use config::Config;
