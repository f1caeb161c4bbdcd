//! Redis: connections, scripts, and the classes of what can go wrong.
//!
//! The only crate that names the `redis` client; all others see [`Kv`],
//! [`KvConnection`], [`Cmd`], [`Script`] and [`Value`].
//!
//! Guarantees:
//! - one multiplexed connection per database, or per node of a cluster, made when first used, replaced when it
//!   breaks, noticed as broken even while idle. A failed command is *not* repeated: only its caller knows whether it
//!   may be. The exception is a command that was certainly not executed because another node serves the keys, or because the
//!   server is a replica now: it is sent to the responsible server;
//! - an error says whether the command cannot have happened ([`Error::Unreachable`]), was refused, or
//!   may have happened ([`Error::UnknownOutcome`]);
//! - a change may be answered only when it is as durable as requested ([`KvConnection::change`]), without other commands waiting
//!   for that;
//! - durability has three names ([`Durability`]), and what they amount to depends on the server;
//! - commands that block the server's answer have a connection of their own ([`BlockingConnection`]).

mod blocking;
mod cluster;
mod command;
mod confirm;
mod connection;
mod durability;
mod endpoint;
mod error;
mod link;
mod process;
mod route;
mod script;
mod server;
mod slot;
mod subscription;
mod value;

pub use blocking::BlockingConnection;
pub use command::{Arg, Cmd, Pipeline};
pub use confirm::{PersistenceTarget, WriteConcern};
pub use connection::{Kv, KvConnection};
pub use durability::{Confirmation, Durability, PrimarySetup, SetupError, UnknownDurability};
pub use endpoint::{EndpointError, KvEndpoint};
pub use error::{Error, Result};
pub use process::RedisSetup;
pub use script::{Script, ScriptCall};
pub use server::KvOptions;
pub use subscription::{KvSubscription, KvSubscriptionEvent, Topic};
pub use value::{StreamEntry, Value};
