//! Requests to the outside world.
//!
//! Nothing is reached that was not allowed by name ([`Hosts`]), and no name
//! leads to an address behind this machine: what a name leads to is looked at,
//! and connected to as it was looked at.

mod client;
mod hosts;

pub use client::{Ask, Cause, Reply, RequestError, Trust, is_of_connection, send};
pub use hosts::Hosts;
