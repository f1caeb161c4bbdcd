//! Durations of calls with one answer, by method and code.
//!
//! The histograms of a method are found with the method itself, so a call costs no lookup of its own: two readings of the clock, and one
//! observation. Labels are paths of known methods only; calls of unknown ones share one label.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use prometheus::{Histogram, HistogramVec};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::error::view::code_name;

/// Number of gRPC codes, which are counted from 0.
const CODES: usize = Code::Unauthenticated as usize + 1;

/// Durations of one method's calls. A code has its series from its first call on.
#[derive(Debug)]
pub(crate) struct MethodDurations {
    all: HistogramVec,
    method: String,
    by_code: [OnceLock<Histogram>; CODES],
}

impl MethodDurations {
    /// Durations of the calls of this method, `Service/Method`, among those of all methods.
    pub(crate) fn new(all: &HistogramVec, method: &str) -> Self {
        Self {
            all: all.clone(),
            method: method.to_owned(),
            by_code: std::array::from_fn(|_| OnceLock::new()),
        }
    }

    fn observe(&self, code: Code, seconds: f64) {
        let labelled = || self.all.with_label_values(&[self.method.as_str(), code_name(code)]);
        self.by_code[code as usize].get_or_init(labelled).observe(seconds);
    }
}

/// Measures one call. A call that is dropped before its answer counts as CANCELLED: its caller has gone away.
#[derive(Debug)]
pub(crate) struct CallTimer {
    begun: Instant,
    /// Absent for a stream, which has no single answer, and once the call was counted.
    durations: Option<Arc<MethodDurations>>,
}

impl CallTimer {
    /// Starts with the receipt of a call.
    pub(crate) fn start(durations: Option<&Arc<MethodDurations>>) -> Self {
        Self { begun: Instant::now(), durations: durations.cloned() }
    }

    /// Counts the call by the headers of its answer. They carry the code of a failure; an answer with a message has succeeded.
    pub(crate) fn answered(mut self, headers: &HeaderMap) {
        let code = headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
        self.count(code.unwrap_or(Code::Ok));
    }

    fn count(&mut self, code: Code) {
        if let Some(durations) = self.durations.take() {
            durations.observe(code, self.begun.elapsed().as_secs_f64());
        }
    }
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        self.count(Code::Cancelled);
    }
}
