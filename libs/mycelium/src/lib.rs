//! How machines talk: a bus that carries payloads under topics, and JSON-RPC 2.0 in those payloads.
//!
//! - [`bus`]: the [`Bus`] trait, made to fit what a Mycelium daemon really does: fire and forget,
//!   addressed to a public key or an overlay address.
//! - [`memory`]: a bus within one process.
//! - [`daemon`]: a bus over a real Mycelium daemon.
//! - [`joined_bus`]: both of them as one.
//! - [`json_rpc`]: requests, responses and batches, parsed strictly; [`json_rpc::JsonRpcPeer`] joins calls
//!   with their answers over any duplex of payloads.
//! - [`bus_peers`]: many such peers over one topic of a bus.

pub mod bus;
pub mod bus_peers;
pub mod daemon;
pub mod guard;
pub mod joined_bus;
pub mod json_rpc;
pub mod memory;

pub use bus::{
    Bus, BusDestination, BusError, BusInbox, BusNeighbour, BusNode, BusStatus, CLOCK_SKEW, Datagram,
    IncomingPayload, PayloadForm, PublicKey, Receipt, watch_up,
};
pub use bus_peers::{BusPeers, PeerAcceptor, PeerEndpoint};
pub use daemon::{DaemonBus, MyceliumFlags};
pub use guard::{Guard, RejectedPayload, Unguarded};
pub use joined_bus::JoinedBus;
pub use json_rpc::{
    CallError, JsonRpcCall, JsonRpcError, JsonRpcHandler, JsonRpcPeer, JsonRpcRequest, JsonRpcResult,
};
pub use memory::MemoryNetwork;
