//! Spans for a collector with given ids: messages between processes name them before they are begun.
//!
//! They have the target [`TARGET`], which no line of the log has, and which is disabled unless a collector is configured: such a span is
//! not begun then, and costs no more than the check.

use std::cell::Cell;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The target of spans that are for a collector alone.
pub const TARGET: &str = "traces";

thread_local! {
    /// The ids that the span has which is begun now.
    static WANTED: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// Place of a span in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
    /// Set where the trace is recorded.
    pub is_sampled: bool,
}

impl TraceContext {
    fn context(self) -> SpanContext {
        let flags = if self.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        let (trace, span) = (TraceId::from(self.trace), SpanId::from(self.span));
        SpanContext::new(trace, span, flags, true, TraceState::default())
    }
}

/// Puts a span that was begun just now in its place: with given ids, or new ones; below another span, or at the top of
/// its trace. A span of a trace that is not recorded is not exported. Does nothing for a disabled span.
pub fn set_context(span: &Span, at: Option<TraceContext>, below: Option<TraceContext>) {
    if span.is_disabled() {
        return;
    }
    // Only the span above can say that a trace is not recorded.
    let above = below.or_else(|| at.filter(|at| !at.is_sampled));
    // A parent is refused where the layer of a collector is missing: the span is then not exported anyway.
    let parent = above.map(|above| Context::new().with_remote_span_context(above.context()));
    let _ = span.set_parent(parent.unwrap_or_default());
    if let Some(at) = at {
        WANTED.set(Some(at));
        // Asking for it begins it.
        drop(span.context());
        WANTED.set(None);
    }
}

/// Keeps a span that was begun just now from being exported.
pub fn suppress_export(span: &Span) {
    set_context(span, None, Some(TraceContext { trace: 1, span: 1, is_sampled: false }));
}

/// Links a span to another one.
pub fn link(span: &Span, to: TraceContext) {
    if !span.is_disabled() {
        span.add_link(to.context());
    }
}

/// Makes ids: those of a place where one is wanted, random ones else.
#[derive(Debug, Default)]
pub(crate) struct SpanIdGenerator(RandomIdGenerator);

impl IdGenerator for SpanIdGenerator {
    fn new_trace_id(&self) -> TraceId {
        WANTED.get().map_or_else(|| self.0.new_trace_id(), |wanted| TraceId::from(wanted.trace))
    }

    fn new_span_id(&self) -> SpanId {
        WANTED.get().map_or_else(|| self.0.new_span_id(), |wanted| SpanId::from(wanted.span))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Keeps what is exported.
    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().expect("no panic").extend(batch);
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    #[test]
    fn spans_stand_where_they_are_put() {
        let kept = Kept::default();
        let provider = SdkTracerProvider::builder().with_id_generator(SpanIdGenerator::default());
        let provider = provider.with_simple_exporter(kept.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let place = |trace, span| TraceContext { trace, span, is_sampled: true };
        let unrecorded = TraceContext { is_sampled: false, ..place(8, 8) };
        tracing::subscriber::with_default(Registry::default().with(layer), || {
            let begin = || tracing::info_span!(target: TARGET, parent: None, "one", field = 1);
            let span = begin();
            set_context(&span, Some(place(7, 3)), Some(place(7, 2)));
            link(&span, place(5, 4));
            drop(span);
            set_context(&begin(), Some(place(9, 6)), None);
            set_context(&begin(), None, Some(place(7, 3)));
            suppress_export(&begin());
            set_context(&begin(), Some(unrecorded), None);
            set_context(&begin(), Some(place(8, 9)), Some(unrecorded));
        });
        let spans = kept.0.lock().expect("no panic");
        let ids = |span: &SpanData| {
            let context = &span.span_context;
            (context.trace_id(), context.span_id(), span.parent_span_id)
        };
        let found: Vec<_> = spans.iter().map(ids).collect();
        let [first, second, third] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(*first, (TraceId::from(7_u128), SpanId::from(3_u64), SpanId::from(2_u64)));
        assert_eq!(*second, (TraceId::from(9_u128), SpanId::from(6_u64), SpanId::INVALID));
        assert_eq!((third.0, third.2), (TraceId::from(7_u128), SpanId::from(3_u64)));
        assert!(![3, 6].map(SpanId::from).contains(&third.1), "it is a new one");
        let links: Vec<_> = spans[0].links.iter().map(|link| link.span_context.span_id()).collect();
        assert_eq!(links, [SpanId::from(4_u64)]);
    }
}
