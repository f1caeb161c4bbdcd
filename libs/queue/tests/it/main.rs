//! The protocol on a real Redis: both sides, and everything that can go wrong between them.

mod flow_of_work;
mod loss;
mod setup;
mod stopping;
