//! Delivery: what happens to messages on their way to supervisors, and to what attempts report.
//!
//! This crate decides, and does nothing: time and randomness come in, and what is to be done goes out as values. A router feeds it from its
//! streams and carries out what it says.
//!
//! - [`core`]: decides; the other modules are its parts;
//! - [`lanes`]: windows and turns; [`message`]: one message on its way; [`letters`]: messages that are delivered whole;
//!   [`settled`]: how messages ended;
//! - [`reports`]: what is not acknowledged yet, and whose it is; [`acceptances`]: reports that wait for better ones;
//! - [`inquiries`]: attempts that are asked for; [`log_queries`]: pieces of output to be read at supervisors;
//! - [`runners`]: where runners are; [`drops`]: contexts to be forgotten; [`metrics`]: what it counts.

pub mod acceptances;
pub mod core;
pub mod drops;
pub mod inquiries;
pub mod lanes;
pub mod letters;
pub mod log_queries;
pub mod message;
pub mod metrics;
pub mod reports;
pub mod runners;
pub mod settled;
