//! Spans of scripts, for a collector: from the start of an attempt to the end of its script.

use model::execution::{AttemptEnd, Outcome};
use model::{Execution, TraceParent};
use service::traces;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// Span of one run of a script, which ends when it is dropped. Disabled unless the trace of the attempt is recorded.
#[derive(Debug)]
pub(crate) struct RunSpan(Span);

impl RunSpan {
    /// Begins the span of an attempt, and puts it into the execution: the script's own spans, and the flows that it submits,
    /// are below it. Without a collector the script gets the trace context that the attempt came with.
    pub(crate) fn begin(execution: &mut Execution) -> Self {
        let Some(above) = execution.traceparent.as_deref().and_then(TraceParent::read) else {
            return Self(Span::none());
        };
        let span = traces::begin_below(Some(above), || {
            info_span!(
                target: traces::TARGET, parent: None, "script", otel.name = format!("script {}", execution.script_type),
                otel.kind = "consumer", script_type = %execution.script_type, job_key = %execution.job_key,
                context = execution.context_id.0, flow = execution.flow_id.0, job = %execution.node,
                instance = Empty, state = Empty, exit_code = Empty, reason = Empty, otel.status_code = Empty,
            )
        });
        if !span.is_disabled() {
            execution.traceparent = traces::context_below(&span, Some(above)).map(|own| own.to_string());
        }
        Self(span)
    }

    /// Notes how the attempt has ended.
    pub(crate) fn ended(&self, end: &AttemptEnd) {
        if self.0.is_disabled() {
            return;
        }
        self.0.record("state", state(end.outcome));
        self.0.record("instance", end.instance.as_deref());
        self.0.record("exit_code", end.exit_code);
        if let Some(reason) = &end.reason {
            self.0.record("reason", reason.code.as_str());
            self.0.record("otel.status_code", "error");
        }
    }
}

/// Returns the name of an outcome, as records have it.
const fn state(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "succeeded",
        Outcome::Failed => "failed",
        Outcome::TimedOut => "timed_out",
        Outcome::Stopped => "stopped",
        Outcome::Lost => "lost",
    }
}
