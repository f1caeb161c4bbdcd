//! A stand-in for the Mycelium daemon, for tests: it speaks the same JSON-RPC over HTTP and WebSocket, and
//! has the same habits, as they were measured on `mycelium 0.7.10`. Each bad habit is a trap that can be
//! taken away ([`Traps`]), so that a test can show what it does to a client that does not expect it.
//!
//! - [`StandIn`]: a daemon in this process, that can be killed and started again;
//! - [`Overlay`]: what joins several of them;
//! - [`Program`]: a daemon as a process of its own, this one's binary or the real one.
//!
//! What the real one does packet by packet, this one does message by message: a message is repeated ten
//! times a second until the other end acknowledges it, and given up after five minutes.

mod identity;
mod mesh;
mod node;
mod overlay;
mod packet;
mod process;
mod running;
mod server;
mod traps;

pub use identity::Identity;
pub use mesh::{Mesh, Neighbor};
pub use node::{Clock, Node, TICK};
pub use overlay::Overlay;
pub use process::{Program, REAL};
pub use running::StandIn;
pub use server::serve;
pub use traps::Traps;
