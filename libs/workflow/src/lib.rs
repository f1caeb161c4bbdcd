//! Sagas and effects, pure: no I/O, no clock, no randomness but what is passed in.
//!
//! - [`json`]: values and state, the same bytes everywhere.
//! - [`id`]: ids of inputs and of the work that they cause.
//! - [`transition`]: the tables of legal state changes, of sagas and of calls.
//! - [`lane`]: what has one owner, and which lane a correlation belongs to.
//! - [`formula`]: expressions of manifests, and values with expressions in them.
//! - [`cursor`]: how far a source was read; [`queues`]: what waits for its turn.
//! - [`key`]: the names of everything that a store keeps of a lane.
//! - [`subject`]: the names of everything that a broker carries.

pub mod catalog;
pub mod cursor;
pub mod definition;
pub mod formula;
pub mod id;
pub mod input;
pub mod instance;
pub mod json;
pub mod key;
pub mod lane;
pub mod manifest;
pub mod provider;
pub mod queues;
pub mod replay;
pub mod step;
pub mod subject;
pub mod transition;

pub use id::{InputId, WorkSource};
pub use json::Json;
pub use key::Key;
pub use lane::Lane;
pub use subject::Subject;
