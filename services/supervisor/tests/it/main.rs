//! The supervisor on a real Redis, with coordinators that speak to it.

mod actor_signatures;
mod admission;
mod attempts;
mod backlog;
mod disk;
mod draining;
mod job_metrics;
mod keeping;
mod legacy;
mod order;
mod read_back;
mod refusals;
mod setup;
mod signatures;
mod succession;
mod vanished;
