//! The router: gets messages delivered, and brings back what attempts report.
//!
//! `libs/delivery` decides what happens to each message; this crate feeds it.
//!
//! - [`driver`]: the loop that feeds `libs/delivery` and carries out its effects; `delivery_spans`: spans of deliveries.
//! - [`clients`]: the streams to storage, gateway, registry and schedulers, each opened again when lost.
//! - [`schedulers`]: one stream for each live scheduler replica.
//! - [`submissions`]: asks schedulers to make flows of jobs that arrived as messages.
//! - [`rpc`]: what actors may call.
//! - [`app`]: puts the parts together.

pub mod app;
pub mod clients;
pub mod config;
mod delivery_spans;
pub mod driver;
pub mod error;
pub mod process;
pub mod rpc;
pub mod schedulers;
pub mod submissions;

pub use app::{App, Deps, DialScheduler, RouterClock};
pub use config::Config;
pub use error::Error;
