//! Views of flows for clients: read from storage, never from memory.
//!
//! - [`reader`]: reads one flow on behalf of one actor; the others build on it;
//! - [`watch`]: a snapshot, then each change; [`context_flows`]: the same for all flows of a context; [`answers`]: how both reach the
//!   watcher; [`position`]: positions of watches; [`logs`]: output;
//! - [`explain`]: why a node is in its state; [`graph_rendering`]: a flow as a picture.

pub mod answers;
pub mod context_flows;
pub mod explain;
pub mod graph_rendering;
pub mod logs;
pub(crate) mod node_names;
pub mod position;
pub mod reader;
pub mod watch;
