//! Views of flows for clients: read from storage, never from memory.
//!
//! - [`reader`]: one flow in the name of one actor, on which the others stand;
//! - [`watch`]: a snapshot, then each change; [`context_flows`]: the same of all flows of a context; [`answers`]: how both reach the
//!   watcher; [`position`]: where a watch stands; [`logs`]: output;
//! - [`explain`]: why a node is where it is; [`graph_rendering`]: a flow as a picture.

pub mod answers;
pub mod context_flows;
pub mod explain;
pub mod graph_rendering;
pub mod logs;
pub(crate) mod node_names;
pub mod position;
pub mod reader;
pub mod watch;
