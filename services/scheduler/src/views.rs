//! What clients see of flows: read from storage, never from memory.
//!
//! - [`reader`]: one flow in the name of one actor, on which the others stand;
//! - [`watch`]: a snapshot, then each change; [`flows`]: the same of all flows of a context; [`answers`]: how both reach whoever
//!   watches; [`position`]: where a watch stands; [`logs`]: output;
//! - [`explain`]: why a node is where it is; [`drawing`]: a flow as a picture.

pub mod answers;
pub mod drawing;
pub mod explain;
pub mod flows;
pub mod logs;
pub(crate) mod names;
pub mod position;
pub mod reader;
pub mod watch;
