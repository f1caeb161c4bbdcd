//! Spans of steps, for a collector: each below the call that brought its flow about.
//!
//! A span lasts from the step to the answer to its commit. The commit at storage and everything that happens to the attempts that
//! the step dispatches are below it: a hop without a collector, or one that dies, leaves no gap in the trace of the others.

use model::{Flow, FlowId, TraceParent};
use service::traces;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// Span of one step of a flow, which ends when it is dropped. Disabled unless the trace of the flow is recorded.
#[derive(Debug)]
pub struct StepSpan {
    span: Span,
    at: Option<TraceParent>,
}

impl StepSpan {
    /// No span.
    #[must_use]
    pub const fn none() -> Self {
        Self { span: Span::none(), at: None }
    }

    /// Begins the span of the next step of this flow.
    #[must_use]
    pub fn begin(flow: &Flow) -> Self {
        let span = traces::begin_below(flow.trace, || {
            info_span!(
                target: traces::TARGET, parent: None, "step", context = flow.context_id.0, flow = Empty,
                uid = %flow.uid, generation = flow.generation.0, messages = Empty, refusal = Empty,
            )
        });
        let at = traces::context_below(&span, flow.trace);
        let begun = Self { span, at };
        if flow.id != FlowId(0) {
            begun.numbered(flow.id);
        }
        begun
    }

    /// Notes the number of a flow that had none when its first step was made.
    pub fn numbered(&self, flow: FlowId) {
        self.span.record("flow", flow.0);
    }

    /// Returns the trace context for what the step causes; `None` for a flow that is in no trace.
    #[must_use]
    pub const fn at(&self) -> Option<TraceParent> {
        self.at
    }

    /// Notes how many messages the step sends.
    pub fn sends(&self, messages: usize) {
        self.span.record("messages", messages);
    }

    /// Notes why the step was not stored.
    pub fn refused(&self, refusal: &str) {
        self.span.record("refusal", refusal);
    }
}
