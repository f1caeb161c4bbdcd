//! The router: gets messages delivered, and brings back what attempts report.
//!
//! `libs/delivery` decides what happens to each message; this crate feeds it.
//!
//! - [`driver`]: the loop that feeds it and carries out its effects.
//! - [`clients`]: the streams to storage, gateway, registry and schedulers, each opened again when lost.
//! - [`schedulers`]: one stream for each scheduler replica that lives.
//! - [`submissions`]: asks schedulers to make flows of jobs that came as messages.
//! - [`rpc`]: what actors may call.
//! - [`app`]: puts it together.

pub mod app;
pub mod clients;
pub mod config;
pub mod driver;
pub mod error;
pub mod process;
pub mod rpc;
pub mod schedulers;
pub mod submissions;

pub use app::{App, Deps, DialScheduler, RouterClock};
pub use config::Config;
pub use error::Error;
