//! Rehearsals of sagas: scenarios that authors write are played in virtual time, without any server. Pure.
//!
//! - [`scenario`]: scenario files, read and checked against the manifests that they name.
//! - [`player`]: one run of a scenario: answers, timers and inputs in their order, through [`workflow::step`].
//! - [`invariants`]: laws that must hold in every run, even with faults.
//! - [`variation`]: everything that can go wrong in a scenario, one thing at a time.
//! - [`report`]: reports, for people and for programs.

pub mod invariants;
pub mod player;
pub mod report;
pub mod scenario;
pub mod variation;

pub use player::{ScenarioRun, play};
pub use report::{ScenarioReport, rehearse};
pub use scenario::{Scenario, ScenarioFile};
pub use variation::Variation;
