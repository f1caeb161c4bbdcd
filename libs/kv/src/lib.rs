//! Redis: connections, scripts, and the classes of what can go wrong.
//!
//! The only crate that names the `redis` client; everybody else sees [`Kv`],
//! [`Connection`], [`Cmd`], [`Script`] and [`Value`].
//!
//! What it promises:
//! - one multiplexed connection per database, made when first used, replaced when it breaks, noticed
//!   as broken even while idle. A failed command is *not* repeated: only its caller knows whether it may be;
//! - an error says whether the command cannot have happened ([`Error::Unreachable`]), was refused, or
//!   may have happened ([`Error::UnknownOutcome`]);
//! - commands that block the server's answer have a connection of their own ([`Blocking`]).

mod blocking;
mod command;
mod connection;
mod endpoint;
mod error;
mod script;
mod subscription;
mod value;

pub use blocking::Blocking;
pub use command::{Arg, Cmd, Pipeline};
pub use connection::{Connection, Kv, Options};
pub use endpoint::{Endpoint, EndpointError};
pub use error::{Error, Result};
pub use script::{Call, Script};
pub use subscription::{Notice, Subscription, Topic};
pub use value::{StreamEntry, Value};
