//! Delivery: what happens to messages on their way to supervisors, and to what attempts report.
//!
//! This crate decides and does no I/O: time and randomness are arguments, and effects are returned as values. A router feeds it
//! from its streams and carries out the effects.
//!
//! - [`core`]: decides; the other modules are its parts;
//! - [`send_queue`]: windows and turns; [`message`]: one message on its way; [`opaque_messages`]: messages that are delivered whole;
//!   [`settled_messages`]: how messages ended;
//! - [`reports`]: reports that are not acknowledged yet, by owner; [`acceptances`]: reports that wait for further ones;
//! - [`reconcile`]: attempts that supervisors are asked about; [`log_reads`]: pieces of output to be read at supervisors;
//! - [`runners`]: where runners are; [`context_drops`]: contexts to be forgotten; [`metrics`]: what it counts.

pub mod acceptances;
pub mod context_drops;
pub mod core;
pub mod log_reads;
pub mod message;
pub mod metrics;
pub mod opaque_messages;
pub mod reconcile;
pub mod reports;
pub mod runners;
pub mod send_queue;
pub mod settled_messages;
