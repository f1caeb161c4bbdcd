//! Messages on their way to routers.
//!
//! - [`held`]: messages that a router holds, and how they are settled; [`taking`]: a router's stream; [`routers`]: those that are
//!   connected;
//! - [`pushed`], [`raw`]: what programs push to Redis; [`forgets`]: attempts that nobody asks for any more.

pub(crate) mod forgets;
pub(crate) mod held;
pub(crate) mod pushed;
pub(crate) mod raw;
pub(crate) mod routers;
pub(crate) mod taking;
