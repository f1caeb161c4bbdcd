//! Storage: the only service that touches the coordinator's Redis.
//!
//! - `store`: connections and keys of what is global and of each context;
//! - `scripts`: the Lua scripts, each one change of state; `record`: hashes as objects and back;
//! - `permission`: who may do what; `audit`: who did what; `roles`: who has which role where, and whom one may know of;
//! - `actors`, `contexts`, `jobs`, `creation`, `first_step`, `flows`, `commits`, `reads`, `removal`, `messages`, `blobs`, `logs`, `runners`:
//!   what can be asked, one module for each kind of thing; `sweeps`: what nobody needs any more goes;
//! - `quotas`: how much an actor and a context may have; `counting`: what was made before that was counted; `listing`: what was made
//!   before flows were listed by status;
//!   `room`: whether Redis has room for anything new;
//! - `letters`, `letter_box`, `letter_lists`, `letter_watch`: chat and mail that leave, arrive, are looked at, are read;
//! - `events`, `tailer`, `watches`, `runner_watch`: hints, streams, and those who watch;
//! - `routers`, `taking`: the routers that are connected, and what they hold; `pushed`: waits for what programs push;
//! - `rpc`: parse, call, convert; `process`: storage as a process of its own.

mod actors;
mod app;
mod audit;
mod authorization;
mod blobs;
mod commits;
mod config;
mod context_removal;
mod contexts;
mod counting;
mod creation;
mod error;
mod events;
mod first_step;
mod flows;
mod forgets;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod identities;
mod inbox;
mod jobs;
mod joining;
mod layout;
mod letter_box;
mod letter_lists;
mod letter_watch;
mod letters;
mod listing;
mod logs;
mod messages;
mod pages;
mod permission;
mod positions;
mod process;
mod pushed;
mod quotas;
mod raw;
mod reads;
mod recent;
mod record;
mod removal;
mod replicas;
mod requests;
mod roles;
mod room;
mod routers;
mod rpc;
mod runner_watch;
mod runners;
mod scripts;
mod signers;
mod store;
mod sweeps;
mod tailer;
mod taking;
mod watches;

pub use app::{App, DURABILITY, Deps, StartError};
pub use config::Config;
pub use process::Flags;
pub use quotas::{BadSetting, Quota, QuotaSetting, Quotas};
pub use rpc::{ADMINISTRATIVE, INTERNAL_POLICY, PUBLIC_POLICY, policy};
pub use sweeps::Swept;
