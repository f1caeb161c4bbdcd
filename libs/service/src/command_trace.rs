//! The span of one command of the command line, for a collector: the calls that the command makes are below it.

use model::TraceParent;
use opentelemetry::trace::{Span as _, SpanKind, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;
use rpc::traces;

use crate::collector::{OtlpCollector, environment};
use crate::telemetry::{Telemetry, TelemetryError, tracer_provider};

/// A program that is in a trace tells its children so by this variable.
const PARENT: &str = "TRACEPARENT";

/// Span of a command, in the trace of the program that started it. Without a collector there is no span, and the trace goes on all
/// the same.
#[derive(Debug)]
#[must_use = "the span is lost unless it ends"]
pub struct CommandTrace {
    telemetry: Telemetry,
    span: Option<Span>,
    at: Option<TraceParent>,
}

impl CommandTrace {
    /// Begins the span of the command of this name, where the environment names a collector. Has to be called within a runtime.
    ///
    /// # Errors
    /// When the collector cannot be used.
    pub fn begin(name: String) -> Result<Self, TelemetryError> {
        let Some(collector) = OtlpCollector::of_command(environment)? else { return Ok(Self::unrecorded()) };
        let provider = tracer_provider("mycora", &collector)?;
        let parent = parent().map_or_else(Context::new, traces::remote_context);
        let tracer = provider.tracer("mycora");
        let span = tracer.span_builder(name).with_kind(SpanKind::Client);
        let span = span.start_with_context(&tracer, &parent);
        let at = traces::trace_parent(span.span_context());
        Ok(Self { telemetry: Telemetry::of(provider), span: Some(span), at })
    }

    /// The trace that this process was started in, without a span of its own.
    pub fn unrecorded() -> Self {
        Self { telemetry: Telemetry::none(), span: None, at: parent() }
    }

    /// Returns the trace context for the calls of the command; `None` outside of a trace.
    #[must_use]
    pub const fn at(&self) -> Option<TraceParent> {
        self.at
    }

    /// Ends the span, and sends it within three seconds.
    pub async fn end(self, exit_code: u8) {
        if let Some(mut span) = self.span {
            span.set_attribute(KeyValue::new("exit_code", i64::from(exit_code)));
            span.end();
        }
        self.telemetry.flush().await;
    }
}

/// Returns the trace context of the program that started this one.
fn parent() -> Option<TraceParent> {
    TraceParent::read(&environment(PARENT)?)
}
