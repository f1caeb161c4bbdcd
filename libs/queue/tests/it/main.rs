//! The protocol on a real Redis: both sides, and everything that can go wrong between them.

mod attempt_stage;
mod attempt_states;
mod conditions;
mod dispatcher;
mod fair_turns;
mod finish_and_take;
mod flow_of_work;
mod foreign;
mod idle_handoff;
mod interleavings;
mod legacy;
mod legacy_pool;
mod legacy_worker;
mod loss;
mod maintenance;
mod pool;
mod root_rotation;
mod setup;
mod shares;
mod stopping;
mod unmet_isolation;
