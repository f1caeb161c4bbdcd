//! Sagas and effects, pure: no I/O, no clock, no randomness but what is passed in.
//!
//! What people write and what comes:
//!
//! - [`manifest`] reads sagas ([`definition`]) and providers of effects ([`provider`]); [`catalog`] checks them together.
//! - [`graph`]: a definition as nodes and edges.
//! - [`formula`]: expressions of manifests, and values with expressions in them.
//! - [`json`]: values and state, the same bytes everywhere; [`message`]: messages as they travel.
//!
//! What follows:
//!
//! - [`receive`] turns a message into an [`input`], [`step`] applies that to an [`instance`], [`replay`] recomputes it from
//!   the journal.
//! - [`ledger`]: the known state of each call of an effect; [`breaker`] and [`fair_queue`] decide when one may be made.
//! - [`schedule`]: when sagas start by the calendar.
//! - [`transition`]: the tables of legal state changes, of sagas and of calls.
//! - [`id`]: ids of inputs and of the work that they cause; [`trace`]: the traces of that work.
//!
//! Where it is kept and how it is read:
//!
//! - [`lane`]: units with one owner each, and which lane a correlation belongs to.
//! - [`cursor`]: how far a source was read; [`correlation_queues`]: inputs that wait for their turn.
//! - [`placement`]: which replica owns a lane.
//! - [`key`]: the keys of all rows that a store keeps of a lane.
//! - [`subject`]: the names of everything that a broker carries.

pub mod breaker;
pub mod catalog;
pub mod correlation_queues;
pub mod cursor;
pub mod definition;
pub mod fair_queue;
pub mod formula;
pub mod graph;
pub mod id;
pub mod input;
pub mod instance;
pub mod json;
pub mod key;
pub mod lane;
pub mod lane_request;
pub mod ledger;
pub mod manifest;
pub mod message;
pub mod placement;
pub mod provider;
pub mod receive;
pub mod replay;
pub mod schedule;
pub mod step;
pub mod subject;
pub mod trace;
pub mod transition;

pub use id::{InputId, WorkSource};
pub use json::Json;
pub use key::LaneRowKey;
pub use lane::WorkflowLane;
pub use subject::MessageSubject;
