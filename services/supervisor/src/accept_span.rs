//! Spans of the acceptance of attempts, for a collector: from the request to the answer.
//!
//! A payload may have attempts of several flows, so each attempt has a span in its own trace.

use model::{Execution, TraceParent};
use mycelium::JsonRpcError;
use service::traces;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// Span of the acceptance of one attempt, which ends when it is dropped. Disabled unless the trace of the attempt is recorded.
#[derive(Debug)]
pub(crate) struct AcceptSpan(Span);

impl AcceptSpan {
    /// Begins the span of an attempt that is to be accepted.
    pub(crate) fn begin(execution: &Execution) -> Self {
        let above = execution.traceparent.as_deref().and_then(TraceParent::read);
        Self(traces::begin_below(above, || {
            info_span!(
                target: traces::TARGET, parent: None, "accept", otel.kind = "consumer", context = execution.context_id.0,
                flow = execution.flow_id.0, job_key = %execution.job_key, refusal = Empty,
            )
        }))
    }

    /// Notes why the attempt was refused, if it was.
    pub(crate) fn answered<T>(&self, answer: &Result<T, JsonRpcError>) {
        if let Err(refusal) = answer {
            self.0.record("refusal", refusal.reason());
        }
    }
}
