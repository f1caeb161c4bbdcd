//! Redis: connections, scripts, and the classes of what can go wrong.
//!
//! The only crate that names the `redis` client; everybody else sees [`Kv`],
//! [`KvConnection`], [`Cmd`], [`Script`] and [`Value`].
//!
//! What it promises:
//! - one multiplexed connection per database, or per node of a cluster, made when first used, replaced when it
//!   breaks, noticed as broken even while idle. A failed command is *not* repeated: only its caller knows whether it
//!   may be. But what a node of a cluster did not execute since another one serves the keys, or a former master since
//!   it is a replica now, is asked of those;
//! - an error says whether the command cannot have happened ([`Error::Unreachable`]), was refused, or
//!   may have happened ([`Error::UnknownOutcome`]);
//! - a change may be answered when it is kept as well as was asked for ([`KvConnection::change`]), without others waiting
//!   for that;
//! - what an answered change survives has three names ([`Durability`]), and what they come to depends on the server;
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
