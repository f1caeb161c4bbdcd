//! The scheduler: owns running flows, steps them, and commits each step.
//!
//! - [`driver`]: the loop, inputs → engine → commits; [`loaded_flow`]: one flow in memory.
//! - [`commit`], [`commit_link`]: from a step to its commit, and the stream that carries it; [`step_span`]: its span in a trace.
//! - [`loader`]: flows as storage has them; [`replica`]: the lease, and the flows that others touch.
//! - [`destinations`], [`liveness`], [`runners`]: where jobs can run, and which runners' attempts are lost.
//! - [`report_streams`], [`log_reads`]: acknowledgements, stops and queries to routers.
//! - [`changes`]: changes that clients make to flows; [`views`]: their views of flows.
//! - [`rpc`]: the gRPC services.

mod app;
pub mod changes;
pub mod clients;
pub mod commit;
pub mod commit_link;
mod config;
pub mod destinations;
pub mod driver;
pub mod error;
pub mod liveness;
pub mod loaded_flow;
pub mod loader;
pub mod log_reads;
pub mod message_ids;
pub mod metrics;
mod process;
pub mod replica;
pub mod report_streams;
pub mod rpc;
pub mod runners;
pub mod step_span;
pub mod views;

pub use app::{App, Deps};
pub use config::Config;
