//! The scheduler: owns running flows, steps them, and commits each step.
//!
//! - [`driver`]: the loop, inputs → engine → commits; [`run`]: one flow in memory.
//! - [`commit`], [`commit_link`]: from a step to its commit, and the stream that carries it.
//! - [`loader`]: flows as storage has them; [`replica`]: the lease, and what others touch.
//! - [`destinations`], [`liveness`], [`runners`]: where jobs can run, and whose attempts are lost.
//! - [`submit`], [`filling`], [`retry`], [`wishes`]: what clients do to flows.
//! - [`reader`], [`watch`], [`logs`], [`explain`], [`drawing`], [`job`]: what clients see of them.
//! - [`rpc`]: the gRPC services.

mod app;
pub mod clients;
pub mod commit;
pub mod commit_link;
mod config;
pub mod destinations;
pub mod drawing;
pub mod driver;
pub mod error;
pub mod explain;
pub mod filling;
pub mod job;
pub mod liveness;
pub mod loader;
pub mod logs;
pub mod message_ids;
pub mod metrics;
pub mod position;
mod process;
pub mod reader;
pub mod replica;
pub mod retry;
pub mod routers;
pub mod rpc;
pub mod run;
pub mod runners;
pub mod submit;
pub mod watch;
pub mod wishes;

pub use app::{App, Deps};
pub use config::Config;
