//! Flows: created, driven by their owners, read and removed.
//!
//! - [`creation`], [`first_step`]: one change creates a flow and starts it; [`lifecycle`]: filled in parts, started, taken over, rerun;
//! - [`commits`]: steps by their owners, the hot path; [`flow_inputs`]: inputs from other parties;
//! - [`replicas`], [`replica_session`]: the schedulers that own them;
//! - [`reads`], [`flow_list_backfill`]: reads and lists; [`jobs`]: jobs, with or without a flow; [`usage_backfill`]: counts for quotas;
//! - [`removal`]: a flow is removed with everything that belongs to it.

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
