//! Conversions between wire and model, one module for each kind of object.
//!
//! `from_wire` parses what came from outside and notes every violation;
//! `to_wire` cannot fail.

pub mod actor;
pub mod context;
pub mod enums;
pub mod envelope;
pub mod flow;
pub mod flow_spec;
pub mod job;
pub mod node;
pub mod runner;
pub mod saga;
pub mod time;
