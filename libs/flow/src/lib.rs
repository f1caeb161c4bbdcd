//! The flow engine, pure: no I/O, no clock, no randomness but what is passed in.
//!
//! - [`graph`]: nodes and what they depend on, checked as a whole.
//! - [`template`]: `${{ … }}` in environment values, parsed and rendered.
//! - [`condition`]: `when`, an expression over upstream results.
//! - [`plan`]: graph, templates and conditions together: everything about a flow that never changes while it runs, checked
//!   before the flow starts.
//! - [`transition`]: the tables of legal state changes, of nodes and flows.
//! - [`retry`]: decides whether another try follows a failed one.
//! - [`rerun`]: which nodes of an ended flow are run again.
//! - [`engine`]: a running flow; `step` takes inputs and returns what to store and what to send.

pub mod condition;
pub mod engine;
pub mod graph;
mod json_size;
pub mod plan;
mod reachability;
pub mod rerun;
pub mod retry;
pub mod template;
pub mod transition;

pub use condition::{Condition, ConditionError};
pub use engine::{
    ActiveNodes, AttemptTimes, ChangedNode, Destinations, Dispatch, Engine, EngineInputQueue,
    FlowEngineInput, FlowStepOutput, InFlightAttempt, NoDestination, NodeTransition, PlacementRequest,
    RefusedTransition, StaleReport, StepEnvironment, Stop, StoredNode,
};
pub use graph::{Graph, NodeIndex, suggestion};
pub use plan::{Plan, ResultRef, WhenClause, check_request};
pub use template::{EnvTemplate, RenderError, TemplateError, TemplateReference};
pub use transition::{FlowTransitionEvent, IllegalTransition, NodeTransitionEvent};
