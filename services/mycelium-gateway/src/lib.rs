//! The gateway: a coordinator's conversation with other machines.
//!
//! - [`delivery`]: messages to supervisors.
//! - [`stops`]: attempts that are to be stopped.
//! - [`commands`]: what else routers want of supervisors: where attempts stand, contexts forgotten.
//! - [`log_reads`]: pieces of what attempts printed, read at their supervisors.
//! - [`supervisor_api`]: what supervisors say, and ask for.
//! - [`peers`]: the supervisors it speaks to, over streams or over a bus.
//! - [`bus_link`]: a conversation over the bus, kept alive.
//! - [`routers`]: who is told what supervisors say, and what is not acknowledged yet.
//! - [`runner_records`]: what runner records ask of a conversation; [`secrets`] what goes with plain requests.
//! - [`signing`]: what it signs with, and who the coordinator is.
//! - [`mail`]: chat and mail between actors, out and in.
//! - [`ping`]: whether somebody is there.
//! - [`inline`]: small files travel with their jobs.
//! - [`presence`]: what is heard of supervisors, for the registry.
//! - [`rpc`] the gRPC side, [`clients`] outgoing calls and streams, [`app`] puts it together.

pub mod app;
pub mod bus_link;
pub mod clients;
pub mod commands;
pub mod config;
pub mod delivery;
mod dialing;
pub mod error;
pub mod inline;
pub mod log_reads;
pub mod mail;
pub mod mail_policy;
mod metrics;
pub mod node_addresses;
mod node_guard;
pub mod peers;
pub mod ping;
pub mod plain;
mod plain_delivery;
pub mod presence;
pub mod process;
pub mod routers;
pub mod rpc;
pub mod runner_records;
pub mod secrets;
pub mod signing;
pub mod stops;
pub mod supervisor_api;

pub use app::{App, Deps};
pub use config::Config;
pub use dialing::{Dial, dial};
pub use error::Error;
pub use rpc::{INTERNAL_POLICY, PUBLIC_POLICY};
pub use signing::SigningSource;
