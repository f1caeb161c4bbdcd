//! Spans for a collector: at given places in their traces, and below those of callers on other machines.
//!
//! A trace goes on from call to call by the header `traceparent` of W3C, and from the steps of a flow to its scripts by the execution of
//! each attempt.
//!
//! Spans of the target [`TARGET`] are in no line of the log, and are disabled unless a collector is configured: such a span is not
//! begun then, and costs no more than the check.

use std::cell::Cell;

use http::{HeaderMap, HeaderName, HeaderValue};
use model::TraceParent;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The target of spans that are for a collector alone.
pub const TARGET: &str = "traces";

const TRACEPARENT_HEADER: HeaderName = HeaderName::from_static("traceparent");

thread_local! {
    /// The ids that the span has which is begun now.
    static WANTED: Cell<Option<TraceParent>> = const { Cell::new(None) };
}

/// Converts a trace context to that of a span of another process.
#[must_use]
pub fn remote_context(at: TraceParent) -> Context {
    Context::new().with_remote_span_context(span_context(at))
}

/// Converts the context of a span; `None` for a span that is in no trace.
#[must_use]
pub fn trace_parent(of: &SpanContext) -> Option<TraceParent> {
    let trace = u128::from_be_bytes(of.trace_id().to_bytes());
    let span = u64::from_be_bytes(of.span_id().to_bytes());
    of.is_valid().then(|| TraceParent { trace, span, flags: of.trace_flags().to_u8() })
}

fn span_context(at: TraceParent) -> SpanContext {
    let flags = if at.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace, span) = (TraceId::from(at.trace), SpanId::from(at.span));
    SpanContext::new(trace, span, flags, true, TraceState::default())
}

/// Puts a span that was begun just now in its place: with given ids, or new ones; below another span, or at the top of
/// its trace. A span of a trace that is not recorded is not exported. Does nothing for a disabled span.
pub fn set_context(span: &Span, at: Option<TraceParent>, below: Option<TraceParent>) {
    if span.is_disabled() {
        return;
    }
    // Only the span above can say that a trace is not recorded.
    let above = below.or_else(|| at.filter(|at| !at.is_sampled()));
    // A parent is refused where the layer of a collector is missing: the span is then not exported anyway.
    let _ = span.set_parent(above.map(remote_context).unwrap_or_default());
    if let Some(at) = at {
        WANTED.set(Some(at));
        // Asking for it begins it.
        drop(span.context());
        WANTED.set(None);
    }
}

/// Begins a span below another one, where that one's trace is recorded; otherwise `begin` is not called, and the span is
/// disabled: it costs a check of the flag.
#[must_use]
pub fn begin_below(above: Option<TraceParent>, begin: impl FnOnce() -> Span) -> Span {
    let Some(above) = above.filter(|above| above.is_sampled()) else { return Span::none() };
    let span = begin();
    set_context(&span, None, Some(above));
    span
}

/// Returns the trace context for what a span causes: the span's own where a collector is configured, otherwise `above`.
/// The span cannot be put elsewhere any more.
#[must_use]
pub fn context_below(span: &Span, above: Option<TraceParent>) -> Option<TraceParent> {
    if span.is_disabled() {
        return above;
    }
    let context = span.context();
    let own = trace_parent(context.span().span_context());
    own.or(above)
}

/// Puts the span of a call that was begun just now below that of its caller, and names its trace in the log. Returns the
/// trace context for what the call causes.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) -> Option<TraceParent> {
    let caller = headers.get(TRACEPARENT_HEADER).and_then(|value| TraceParent::read(value.to_str().ok()?));
    if caller.is_some() {
        set_context(span, None, caller);
    }
    let trace = context_below(span, caller);
    if let Some(trace) = trace {
        span.record("trace_id", trace.trace_id().as_str());
    }
    trace
}

/// Hands a trace context on to a call, unless its caller has given it another one.
pub(crate) fn pass_trace_on(headers: &mut HeaderMap, trace: TraceParent) {
    let text = || HeaderValue::from_str(&trace.to_string()).expect("hex digits and dashes make a header");
    headers.entry(TRACEPARENT_HEADER).or_insert_with(text);
}

/// Keeps a span that was begun just now from being exported.
pub fn suppress_export(span: &Span) {
    set_context(span, None, Some(TraceParent { trace: 1, span: 1, flags: 0 }));
}

/// Links a span to another one.
pub fn link(span: &Span, to: TraceParent) {
    if !span.is_disabled() {
        span.add_link(span_context(to));
    }
}

/// Makes ids: those of a place where one is wanted, random ones else.
#[derive(Debug, Default)]
pub struct SpanIdGenerator(RandomIdGenerator);

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

    /// Runs `work` with a collector; returns the spans that were exported.
    fn collected(work: impl FnOnce()) -> Vec<SpanData> {
        let kept = Kept::default();
        let provider = SdkTracerProvider::builder().with_id_generator(SpanIdGenerator::default());
        let provider = provider.with_simple_exporter(kept.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(Registry::default().with(layer), work);
        let mut spans = kept.0.lock().expect("no panic");
        std::mem::take(&mut *spans)
    }

    fn begin() -> Span {
        tracing::info_span!(target: TARGET, parent: None, "one", field = 1)
    }

    fn place(trace: u128, span: u64) -> TraceParent {
        TraceParent::sampled(trace, span)
    }

    #[test]
    fn spans_stand_where_they_are_put() {
        let unrecorded = TraceParent { flags: 0, ..place(8, 8) };
        let spans = collected(|| {
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

    #[test]
    fn a_trace_goes_on_from_call_to_call_where_it_is_recorded() {
        let call = || tracing::info_span!("call", trace_id = tracing::field::Empty);
        let spans = collected(|| {
            let mut headers = HeaderMap::new();
            pass_trace_on(&mut headers, place(7, 2));
            let first = call();
            let trace = continue_trace(&first, &headers).expect("a trace");
            assert!((trace.trace, trace.is_sampled()) == (7, true) && trace.span != 2, "{trace}");
            pass_trace_on(&mut headers, trace);
            assert_eq!(headers[TRACEPARENT_HEADER], place(7, 2).to_string(), "its caller chose another one");
            drop(begin_below(Some(trace), begin));
            drop(first);
            // No service records a trace that its caller does not record.
            let unrecorded = TraceParent { flags: 0, ..place(8, 8) };
            headers.clear();
            pass_trace_on(&mut headers, unrecorded);
            let trace = continue_trace(&call(), &headers).expect("a trace");
            assert_eq!((trace.trace, trace.is_sampled()), (8, false));
            assert!(begin_below(Some(trace), || panic!("it is not begun")).is_disabled());
            assert!(begin_below(None, || panic!("it is not begun")).is_disabled());
            // A call in no trace begins one.
            assert!(continue_trace(&call(), &HeaderMap::new()).is_some_and(TraceParent::is_sampled));
        });
        let [step, first, root] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!(
            (first.parent_span_id, step.parent_span_id),
            (SpanId::from(2_u64), first.span_context.span_id())
        );
        assert_eq!(root.parent_span_id, SpanId::INVALID);
        // Without a collector, the context of the caller goes on.
        let mut headers = HeaderMap::new();
        pass_trace_on(&mut headers, place(7, 2));
        assert_eq!(continue_trace(&call(), &headers), Some(place(7, 2)));
        assert_eq!(continue_trace(&call(), &HeaderMap::new()), None);
    }
}
