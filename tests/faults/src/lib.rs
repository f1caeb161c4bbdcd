//! The suite's own fault harness: real processes over a real Redis, a load of flows, and faults by chance that can be repeated.
//!
//! - [`schedule`] and [`load`]: the faults and the calls, both drawn from a seed alone;
//! - [`suite`]: `mycora up`, or ten processes with three schedulers, with links that can be cut;
//! - [`client`]: clients that never give up, watchers that resume, and a stranger; they write a [`history`];
//! - [`check`]: judges a history by the invariants, without asking anybody;
//! - [`run`]: all of it together; [`report`]: in words and tables.

pub mod check;
pub mod client;
pub mod draw;
pub mod history;
pub mod load;
pub mod report;
pub mod run;
pub mod schedule;
pub mod suite;
