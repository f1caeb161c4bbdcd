//! Shared tools for tests. Never part of a shipped program, except for crash points in builds made to be broken.
//!
//! - [`crash_point!`]: named places where a process can be made to die;
//! - `RedisServer`: a private `redis-server`, or what `MYCORA_REDIS_SERVER` names; `RedisCluster` and `RedisSentinels`:
//!   several;
//! - `NatsServer`: a private `nats-server` with JetStream, or what `MYCORA_NATS_SERVER` names;
//! - `TestCollector`: a collector of traces, with the feature `collector`;
//! - `FaultProxy`: a connection that can be cut, swallowed or delayed;
//! - `TestLog`: what a thread logs;
//! - `Witness`: a file to which scripts append, and what it proves;
//! - `pages`: tables of the pages in `specs/`;
//! - [`scripts`]: scripts of embedded languages, made up by chance;
//! - `SmallDisk`: a file system that is soon full, where this process may make one;
//! - `wait_until`: waiting for a condition, never for a time;
//! - `TestProcess`: a child whose output is shown when a test fails.

pub mod crash;
pub mod scripts;

#[cfg(feature = "collector")]
mod collector;
#[cfg(feature = "full")]
mod log;
#[cfg(feature = "full")]
mod nats;
#[cfg(feature = "full")]
pub mod pages;
#[cfg(feature = "full")]
mod port;
#[cfg(feature = "full")]
mod process;
#[cfg(feature = "full")]
mod proxy;
#[cfg(feature = "full")]
mod redis;
#[cfg(feature = "full")]
mod small_disk;
#[cfg(feature = "full")]
mod wait;
#[cfg(feature = "full")]
mod witness;

#[cfg(feature = "collector")]
pub use self::collector::{CollectedSpan, TestCollector};
#[cfg(feature = "full")]
pub use self::{
    log::TestLog,
    nats::{NatsServer, NatsSnapshot},
    port::free_port,
    process::TestProcess,
    proxy::{FaultProxy, ProxyFault, ProxyTarget},
    redis::{RedisBuilder, RedisServer, cluster::RedisCluster, sentinel::RedisSentinels},
    small_disk::SmallDisk,
    wait::{PATIENCE, wait_until, wait_until_blocking},
    witness::{Witness, WitnessMark, WitnessSpan},
};
