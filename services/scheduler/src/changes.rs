//! What clients do to flows: each request is checked, and becomes calls of storage.
//!
//! - [`submit`]: a submission is checked; [`creation`]: it becomes a flow that runs; [`granted`]: where that was allowed; [`filling`]: flows that come in pieces;
//! - [`job`]: one job as a flow, and waiting for it; [`retry`]: running an ended flow again;
//! - `created`: nodes whose jobs were created before; `scripts`: long ones become blobs; `signatures`: what actors have signed of it;
//! - [`wishes`]: signals, cancels and reports, kept for the flow's owner.

pub(crate) mod created;
pub(crate) mod creation;
pub mod filling;
pub(crate) mod granted;
pub mod job;
pub(crate) mod repeat;
pub mod retry;
pub(crate) mod scripts;
pub(crate) mod signatures;
pub mod submit;
pub mod wishes;
