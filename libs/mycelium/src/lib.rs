//! How machines talk: a bus that carries payloads under topics, and JSON-RPC 2.0 in those payloads.
//!
//! - [`bus`]: the [`Bus`] trait, made to fit what a Mycelium daemon really does: fire and forget,
//!   addressed to a public key or an overlay address.
//! - [`memory`]: a bus within one process.
//! - [`daemon`]: a bus over a real Mycelium daemon.
//! - [`joined`]: both of them as one.
//! - [`json_rpc`]: requests, responses and batches, parsed strictly; [`json_rpc::Peer`] joins calls
//!   with their answers over any duplex of payloads.
//! - [`bus_peers`]: many such peers over one topic of a bus.

pub mod bus;
pub mod bus_peers;
pub mod daemon;
pub mod guard;
pub mod joined;
pub mod json_rpc;
pub mod memory;

pub use bus::{
    Bus, BusError, CLOCK_SKEW, Destination, Form, Inbox, Incoming, Link, Node, Parcel, PublicKey, Receipt,
    Standing, is_up,
};
pub use bus_peers::{Accept, BusPeers, Side};
pub use daemon::{DaemonBus, MyceliumFlags};
pub use guard::{Guard, Refused, Unguarded};
pub use joined::JoinedBus;
pub use json_rpc::{Answer, Call, CallError, Handler, Peer, Request, RpcError};
pub use memory::MemoryNetwork;
