//! Requests to the outside world.
//!
//! Nothing is reached that was not allowed by name ([`Hosts`]), and no name
//! leads to an address behind this machine: what a name leads to is looked at,
//! and connected to as it was looked at.

mod client;
mod connect;
mod departure;
mod hosts;
mod resolve;
mod trust;

pub use client::{Ask, Cause, Reply, RequestError, has_good_port, is_of_connection, send, send_once};
pub use connect::{ConnectError, Denied, Rule, connect};
pub use departure::Departure;
pub use hosts::Hosts;
pub use resolve::{Resolve, SystemResolver};
pub use trust::Trust;
