//! The gateway: a coordinator's conversation with other machines.
//!
//! - [`delivery`]: messages to supervisors.
//! - [`stops`]: stops of attempts, queued and retried.
//! - [`commands`]: other commands of routers to supervisors: status queries, context drops.
//! - [`log_reads`]: pieces of attempts' output, read at their supervisors.
//! - [`supervisor_api`]: handler of supervisors' calls.
//! - [`peers`]: the supervisors that the gateway is connected to, over streams or over a bus.
//! - [`bus_link`]: a conversation over the bus, kept alive.
//! - [`routers`]: routes supervisors' events to routers, and keeps those that are not acknowledged yet.
//! - [`runner_records`]: requirements of runner records on a conversation; [`secrets`] of plain requests.
//! - [`signing`]: the signing files, and the coordinator's identity.
//! - [`mail`]: chat and mail between actors, out and in.
//! - [`ping`]: pings addresses.
//! - [`inline`]: sends small files with their jobs.
//! - [`presence`]: last presences of supervisors, for the registry.
//! - [`rpc`]: the gRPC side; [`clients`]: outgoing calls and streams; [`app`]: puts the parts together.

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
