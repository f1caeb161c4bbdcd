//! Storage: the only service that touches the coordinator's Redis.
//!
//! - `store`: connections and keys, global and of each context; `scripts`: the Lua scripts, each one change of state;
//!   `record`: conversion between hashes and objects; `idempotency`: a repeated request has one effect; `pages`: pages of lists;
//! - one module for each kind of object: `flows`, `messages` that carry jobs, `mail`, `tenants` (actors, contexts and
//!   permissions), `blobs` and `logs`, `runners`;
//! - `moving`: contexts that are exported to files and imported from them; `checking`: records that break an invariant, and their repair;
//! - `watch`: hints, event streams, and their watchers;
//! - `sweeps`: removal of what is no longer needed; `retention`: bounds of what is kept of what has ended; `redis_memory`: room in Redis for
//!   anything new; `layout`: how contexts are kept apart; `metrics`;
//! - `rpc`: parse, call, convert; `app` and `process`: the service inside another program, and as a program.

mod app;
mod blobs;
mod checking;
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
mod metrics;
mod moving;
mod pages;
mod process;
mod record;
mod redis_memory;
mod retention;
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
