//! Spans of deliveries, for a collector: from the frame that goes to the gateway to its outcome.

use std::collections::HashMap;

use model::{ExecutionHead, TraceParent};
use service::traces;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// Spans of the deliveries under way whose flows are in a trace that is recorded; mostly none.
#[derive(Debug, Default)]
pub(crate) struct DeliverySpans(HashMap<u64, Span>);

impl DeliverySpans {
    /// Begins the span of a delivery of executions, given as JSON. They are of one step of one flow, so the first tells the
    /// trace of them all. For others it costs the comparison of a few bytes.
    pub(crate) fn begin(&mut self, delivery: u64, executions: &[impl AsRef<[u8]>], address: &str) {
        let Some(first) = executions.first().map(AsRef::as_ref) else { return };
        let span = traces::begin_below(TraceParent::of_execution(first), || {
            info_span!(
                target: traces::TARGET, parent: None, "deliver", otel.kind = "producer", context = Empty, flow = Empty,
                job_key = Empty, attempts = executions.len(), address, error = Empty,
            )
        });
        if span.is_disabled() {
            return;
        }
        if let Ok(head) = ExecutionHead::read(first) {
            span.record("context", head.context_id.0).record("flow", head.flow_id.0);
            span.record("job_key", head.job_key.to_string());
        }
        self.0.insert(delivery, span);
    }

    /// Ends the span of a delivery; `error` is empty for one that was answered.
    pub(crate) fn end(&mut self, delivery: u64, error: &str) {
        if self.0.is_empty() {
            return;
        }
        if let Some(span) = self.0.remove(&delivery)
            && !error.is_empty()
        {
            span.record("error", error);
        }
    }

    /// Ends the spans of all deliveries, whose outcomes are lost with the stream to the gateway.
    pub(crate) fn lose_all(&mut self) {
        for (_, span) in self.0.drain() {
            span.record("error", "the stream to the gateway was lost");
        }
    }
}
