//! The protocol on a real Redis: both sides, and everything that can go wrong between them.

mod conditions;
mod demands;
mod dispatcher;
mod flow_of_work;
mod foreign;
mod handed;
mod interleavings;
mod loss;
mod next;
mod old;
mod old_pool;
mod old_worker;
mod pool;
mod setup;
mod shares;
mod stopping;
mod succession;
mod turns;
mod upkeep;
