//! What clients do to flows: each request is checked, and becomes calls of storage.
//!
//! - [`submit`]: from a submission to a flow that runs; [`filling`]: flows that come in pieces;
//! - [`job`]: one job as a flow, and waiting for it; [`retry`]: running an ended flow again;
//! - `created`: nodes whose jobs were created before; `scripts`: long ones become blobs; `signatures`: what actors have signed of it;
//! - [`wishes`]: signals, cancels and reports, kept for the flow's owner.

pub(crate) mod created;
pub mod filling;
pub mod job;
pub(crate) mod repeat;
pub mod retry;
pub(crate) mod scripts;
pub(crate) mod signatures;
pub mod submit;
pub mod wishes;
