//! Rehearsals of sagas: scenarios that authors write are played in virtual time, without any server. Pure.
//!
//! - [`scenario`]: scenario files, read and checked against the manifests that they name.
//! - [`stage`]: one run of a scenario: answers, timers and inputs in their order, through [`workflow::step`].
//! - [`laws`]: what must hold in every run, whatever went wrong.
//! - [`variation`]: everything that can go wrong in a scenario, one thing at a time.
//! - [`report`]: reports, for people and for programs.

pub mod laws;
pub mod report;
pub mod scenario;
pub mod stage;
pub mod variation;

pub use report::{ScenarioReport, rehearse};
pub use scenario::{Scenario, Source};
pub use stage::{Run, play};
pub use variation::Variation;
