//! Changes that clients make to flows: each request is checked and turned into storage calls.
//!
//! - [`submit`]: a submission is checked; [`creation`]: it becomes a flow that runs; [`submit_permissions`]: where that was
//!   allowed; [`incremental_creation`]: flows that come in pieces;
//! - [`job`]: one job as a flow, and waiting for it; [`retry`]: running an ended flow again;
//! - `created_jobs`: nodes whose jobs were created before; `script_blobs`: long scripts become blobs; `signatures`: signatures of jobs;
//! - [`flow_inputs`]: signals, cancels and reports, kept for the flow's owner.

pub(crate) mod created_jobs;
pub(crate) mod creation;
pub mod flow_inputs;
pub(crate) mod idempotency;
pub mod incremental_creation;
pub mod job;
pub mod retry;
pub(crate) mod script_blobs;
pub(crate) mod signatures;
pub mod submit;
pub(crate) mod submit_permissions;
