//! The trace that all calls of this process belong to.

use std::sync::OnceLock;

use model::TraceParent;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// Value of the header of that name; unset outside of a trace.
static TRACEPARENT: OnceLock<MetadataValue<Ascii>> = OnceLock::new();

/// Puts the calls that are made from now on into this trace. Counts once in a process.
pub(crate) fn trace_calls(trace: Option<TraceParent>) {
    if let Some(Ok(value)) = trace.map(|trace| MetadataValue::try_from(trace.to_string())) {
        // The trace of the process is that of its command, of which there is one.
        let _ = TRACEPARENT.set(value);
    }
}

/// Adds the trace to the headers of a call.
pub(super) fn add_trace(headers: &mut MetadataMap) {
    if let Some(value) = TRACEPARENT.get() {
        headers.insert("traceparent", value.clone());
    }
}
