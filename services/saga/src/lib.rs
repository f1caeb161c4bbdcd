//! The saga service: runs sagas, and makes the calls that they order.
//!
//! - [`lane`]: what lanes of both kinds have in common: epochs, rows, sources, what goes out.
//! - [`sagas`]: the owner of a saga's lane; [`effects`]: that of an effect's.
//! - [`placement`]: which lanes this replica owns; [`tenants`]: whose; [`quotas`]: how much they have.
//! - [`manifests`]: what people write; [`definitions`]: what is in force, and what instances are pinned to.
//! - [`command_service`]: the gateway of aggregates; [`nats_permissions`]: what the broker has to allow; [`health`]: what is
//!   wrong while all goes on.
//! - [`metrics`]: what is counted; [`spans`]: what collectors of traces are told; [`visibility`]: how much of it.
//! - [`rpc`]: what actors and the operator may call; [`reads`]: rows, for whoever owns no lane; [`facts`]: what becomes
//!   of instances, for those who watch.
//! - [`providers`]: the ways to the outside world; [`secrets`]: what they prove themselves with.

mod admin;
mod app;
pub mod command_service;
pub mod definitions;
pub mod effects;
pub mod facts;
pub mod health;
pub mod lane;
pub mod manifests;
pub mod metrics;
pub mod nats_login;
pub mod nats_permissions;
pub mod placement;
mod process;
pub mod providers;
pub mod quotas;
pub mod reads;
pub mod rpc;
pub mod sagas;
pub mod secrets;
pub mod spans;
pub mod tenants;
pub mod visibility;

pub use app::{App, Config, Deps, Error, FlowSuite, ReloadChange, ReloadKind};
pub use process::limits;
