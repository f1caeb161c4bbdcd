//! Flows: made, driven by their owners, read and removed.
//!
//! - [`creation`], [`first_step`]: one change makes a flow and starts it; [`lifecycle`]: filled in parts, started, taken over, run again;
//! - [`commits`]: steps of their owners, the hot path; [`flow_inputs`]: what others bring for them;
//! - [`replicas`], [`replica_session`]: the schedulers that own them;
//! - [`reads`], [`flow_list_backfill`]: what is told of them; [`jobs`]: jobs, also those of no flow; [`usage_backfill`]: how many there are;
//! - [`removal`]: they go with everything that is theirs.

pub(crate) mod commits;
pub(crate) mod creation;
pub(crate) mod first_step;
pub(crate) mod flow_inputs;
pub(crate) mod flow_list_backfill;
pub(crate) mod jobs;
pub(crate) mod lifecycle;
pub(crate) mod reads;
pub(crate) mod removal;
pub(crate) mod replica_session;
pub(crate) mod replicas;
pub(crate) mod usage_backfill;
