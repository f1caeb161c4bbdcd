//! The router: gets messages delivered, and brings back what attempts report.
//!
//! - [`core`]: decides; pure. Its parts: [`lanes`] (windows and turns), [`message`] (one message on
//!   its way), [`reports`] (what is not acknowledged yet, and whose it is), [`acceptances`] (reports that wait for
//!   better ones), [`inquiries`] (attempts that are asked for), [`log_queries`] (pieces of output to be read at
//!   supervisors), [`drops`] (contexts to be forgotten), [`runners`] (where runners are), [`settled`] (how messages
//!   ended), [`letters`] (messages that are delivered whole).
//! - [`driver`]: the loop that feeds the core and carries out what it says.
//! - [`clients`]: the streams to storage, gateway, registry and schedulers, each opened again when lost.
//! - [`schedulers`]: one stream for each scheduler replica that lives.
//! - [`submits`]: asks schedulers to make flows of jobs that came as messages.
//! - [`rpc`]: what actors may call.
//! - [`app`]: puts it together.

pub mod acceptances;
pub mod app;
pub mod clients;
pub mod config;
pub mod core;
pub mod driver;
pub mod drops;
pub mod error;
pub mod inquiries;
pub mod lanes;
pub mod letters;
pub mod log_queries;
pub mod message;
pub mod metrics;
pub mod process;
pub mod reports;
pub mod rpc;
pub mod runners;
pub mod schedulers;
pub mod settled;
pub mod submits;

pub use app::{App, Clock, Deps, DialScheduler};
pub use config::Config;
pub use error::Error;
