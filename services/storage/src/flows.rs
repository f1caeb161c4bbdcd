//! Flows: made, driven by their owners, read and removed.
//!
//! - [`creation`], [`first_step`]: one change makes a flow and starts it; [`lifecycle`]: filled in parts, started, taken over, run again;
//! - [`commits`]: steps of their owners, the hot path; [`inbox`]: what others bring for them;
//! - [`replicas`], [`joining`]: the schedulers that own them;
//! - [`reads`], [`listing`]: what is told of them; [`jobs`]: jobs, also those of no flow; [`counting`]: how many there are;
//! - [`removal`]: they go with everything that is theirs.

pub(crate) mod commits;
pub(crate) mod counting;
pub(crate) mod creation;
pub(crate) mod first_step;
pub(crate) mod inbox;
pub(crate) mod jobs;
pub(crate) mod joining;
pub(crate) mod lifecycle;
pub(crate) mod listing;
pub(crate) mod reads;
pub(crate) mod removal;
pub(crate) mod replicas;
