//! The flow engine, pure: no I/O, no clock, no randomness but what is passed in.
//!
//! - [`graph`]: nodes and what they depend on, checked as a whole.
//! - [`template`]: `${{ … }}` in environment values, parsed and rendered.
//! - [`condition`]: `when`, an expression over upstream results.
//! - [`plan`]: graph, templates and conditions together: everything about a
//!   flow that never changes while it runs, checked before it starts.
//! - [`transition`]: the tables of legal state changes, of nodes and flows.
//! - [`retry`]: whether a failed try is followed by another.
//! - [`rerun`]: which nodes of an ended flow are run again.
//! - [`engine`]: a running flow; `step` takes what happened and gives what
//!   has to be stored and sent.

pub mod condition;
pub mod engine;
pub mod graph;
pub mod plan;
mod reach;
pub mod rerun;
pub mod retry;
mod size;
pub mod template;
pub mod transition;

pub use condition::{Condition, ConditionError};
pub use engine::{
    Change, Destinations, Dispatch, Engine, InFlight, Input, Inputs, NoDestination, NodeView, Outside,
    Refused, Stale, Step, Stop, StoredNode, Transition,
};
pub use graph::{Graph, NodeIndex, suggestion};
pub use plan::{Plan, ResultRef, When, check_request};
pub use template::{Reference, RenderError, Template, TemplateError};
pub use transition::{FlowEvent, IllegalTransition, NodeEvent};
