//! Messages on their way to routers.
//!
//! - [`message_holds`]: messages that a router holds, and how they are settled; [`router_session`]: a router's stream; [`routers`]: the
//!   connected routers;
//! - [`push_watcher`], [`raw`]: messages that programs push to Redis; [`forgettable_attempts`]: attempts that are no longer needed.

pub(crate) mod forgettable_attempts;
pub(crate) mod message_holds;
pub(crate) mod push_watcher;
pub(crate) mod raw;
pub(crate) mod router_session;
pub(crate) mod routers;
