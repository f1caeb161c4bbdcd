//! Requests to the outside world.
//!
//! Nothing is reached that was not allowed by name ([`HostAllowlist`]), and no name
//! leads to an address behind this machine: what a name leads to is looked at,
//! and connected to as it was looked at.

mod client;
mod connect;
mod host_allowlist;
mod resolve;
mod send_observer;
mod trust_anchors;

pub use client::{
    EgressError, EgressFailure, EgressRequest, EgressResponse, has_valid_port, is_connection_header, send,
    send_once,
};
pub use connect::{ConnectError, DeniedHost, HostDenialReason, connect};
pub use host_allowlist::HostAllowlist;
pub use resolve::{HostResolver, SystemResolver};
pub use send_observer::SendObserver;
pub use trust_anchors::TrustAnchors;
