//! Storage: the only service that touches the coordinator's Redis.
//!
//! - `store`: connections and keys of what is global and of each context; `scripts`: the Lua scripts, each one change of state;
//!   `record`: hashes as objects and back; `idempotency`: the same request has one effect; `pages`: pages of lists;
//! - what can be asked, a room for each kind of thing: `flows`, `messages` that carry jobs, `mail`, `tenants` (actors and contexts, and
//!   who may do what), `blobs` and `logs`, `runners`;
//! - `watch`: hints, event streams, and those who watch them;
//! - `sweeps`: what nobody needs any more goes; `redis_memory`: whether Redis has room for anything new; `layout`: how it keeps contexts apart;
//! - `rpc`: parse, call, convert; `app` and `process`: the service, within a program and as one of its own.

mod app;
mod blobs;
mod config;
mod error;
mod flows;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod idempotency;
mod layout;
mod logs;
mod mail;
mod messages;
mod pages;
mod process;
mod record;
mod redis_memory;
mod rpc;
mod runners;
mod scripts;
mod store;
mod sweeps;
mod tenants;
mod watch;

pub use app::{App, DURABILITY, Deps, StorageStartError};
pub use config::Config;
pub use process::Flags;
pub use rpc::{ADMINISTRATIVE, INTERNAL_POLICY, PUBLIC_POLICY, policy};
pub use sweeps::StorageSweepReport;
pub use tenants::quotas::{InvalidQuotaSetting, Quota, QuotaSetting, StorageQuotas};
