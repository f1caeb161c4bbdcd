//! The saga service: runs sagas, and makes the calls that they order.
//!
//! - [`lane`]: the parts that lanes of both kinds share: epochs, rows, sources, outgoing messages.
//! - [`sagas`]: the owner of a saga's lane; [`effects`]: the owner of an effect's lane.
//! - [`placement`]: which lanes this replica owns; [`tenants`]: the tenants they belong to; [`quotas`]: how much each tenant may have.
//! - [`manifests`]: the files that people write; [`definitions`]: the definitions in force, and those that instances are pinned to.
//! - [`command_service`]: the gateway of aggregates; [`nats_permissions`]: what the broker has to allow; [`health`]: impairments of
//!   a service that works on.
//! - [`metrics`]: counters and gauges; [`spans`]: spans for trace collectors; [`visibility`]: how much of an instance they show.
//! - [`rpc`]: the methods that actors and the operator call; [`reads`]: rows, read without owning their lane; [`facts`]: changes
//!   of instances, for watchers.
//! - [`providers`]: calls to the outside world; [`secrets`]: their credentials.

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
