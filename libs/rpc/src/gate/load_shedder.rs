//! Bound on how much is answered at once. Calls beyond it are refused at once, so that an overloaded server
//! does some of its work instead of none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::IntGauge;

use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::methods::RpcMethodKind;
use crate::metrics::Metrics;

/// Calls with one answer at once.
pub(crate) const QUICK_MAX: usize = 2048;
/// Calls at once that wait for something.
pub(crate) const WAITING_MAX: usize = 8192;
/// Streams at once.
pub(crate) const STREAMS_MAX: usize = 16384;
/// Calls at once of strangers, who may call what is open to anyone: their messages may take as long as a call.
pub(crate) const STRANGERS_MAX: usize = QUICK_MAX / 4;
/// Calls at once that one connection may make to health and reflection, which are answered when nothing else is.
pub(crate) const CONNECTION_PROBES_MAX: usize = 32;
/// When to try again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Limits on the calls that a server answers at once. Of each, a quarter is kept for services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallsMax {
    /// Calls with one answer.
    pub quick: usize,
    /// Calls that wait for something.
    pub waiting: usize,
    /// Streams.
    pub streams: usize,
}

impl Default for CallsMax {
    fn default() -> Self {
        Self { quick: QUICK_MAX, waiting: WAITING_MAX, streams: STREAMS_MAX }
    }
}

/// Class of a caller that asks for a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerClass {
    /// One of ours.
    Service,
    /// Any other identified caller.
    Other,
    /// No identity is known, and the method is open to anyone.
    Stranger,
}

/// Counts what is being answered.
#[derive(Debug)]
pub(crate) struct LoadShedder {
    quick: RpcPermitPool,
    waiting: RpcPermitPool,
    streams: RpcPermitPool,
    strangers: RpcPermitPool,
    metrics: Metrics,
}

#[derive(Debug)]
struct RpcPermitPool {
    kind: &'static str,
    max: usize,
    taken: Arc<AtomicUsize>,
    gauge: IntGauge,
}

/// A call's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct RpcCallPermit {
    taken: Arc<AtomicUsize>,
    gauge: IntGauge,
}

impl LoadShedder {
    pub(crate) fn new(max: CallsMax, metrics: Metrics) -> Self {
        let places = |kind, max| RpcPermitPool::new(kind, max, Arc::default(), &metrics);
        let (quick, waiting) = (places("quick", max.quick), places("waiting", max.waiting));
        let (streams, strangers) = (places("stream", max.streams), places("stranger", max.quick / 4));
        Self { quick, waiting, streams, strangers, metrics }
    }

    /// Takes a permit for one more call. A quarter of the permits is reserved for services, and strangers have a pool of their own.
    pub(crate) fn take(&self, shape: RpcMethodKind, guest: CallerClass) -> Result<RpcCallPermit, Error> {
        let places = match (guest, shape) {
            (CallerClass::Stranger, _) => &self.strangers,
            (_, RpcMethodKind::Quick) => &self.quick,
            (_, RpcMethodKind::Waiting(_)) => &self.waiting,
            (_, RpcMethodKind::Stream) => &self.streams,
        };
        let max = if guest == CallerClass::Other { places.max - places.max / 4 } else { places.max };
        places.take(max).ok_or_else(|| self.refuse(places.kind, places.max, "calls"))
    }

    /// A place among the calls that a connection makes to health and reflection.
    pub(crate) fn take_probe(&self, of_connection: &Arc<AtomicUsize>) -> Result<RpcCallPermit, Error> {
        let places =
            RpcPermitPool::new("probe", CONNECTION_PROBES_MAX, Arc::clone(of_connection), &self.metrics);
        places
            .take(places.max)
            .ok_or_else(|| self.refuse(places.kind, places.max, "such calls of one connection"))
    }

    fn refuse(&self, kind: &'static str, max: usize, what: &str) -> Error {
        self.metrics.shed.with_label_values(&[kind]).inc();
        let message = format!("this server is answering as many {what} as it can ({max})");
        Error::new(ErrorKind::ResourceExhausted, RpcReason::Overloaded, message)
            .with("kind", kind)
            .with("max", max)
            .retry_after(RETRY_AFTER)
    }
}

impl RpcPermitPool {
    fn new(kind: &'static str, max: usize, taken: Arc<AtomicUsize>, metrics: &Metrics) -> Self {
        Self { kind, max, taken, gauge: metrics.in_flight.with_label_values(&[kind]) }
    }

    fn take(&self, max: usize) -> Option<RpcCallPermit> {
        let more = |taken: usize| (taken < max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        self.gauge.inc();
        Some(RpcCallPermit { taken: self.taken.clone(), gauge: self.gauge.clone() })
    }
}

impl Drop for RpcCallPermit {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_places_of_their_own() {
        let shed = LoadShedder::new(CallsMax { quick: 4, waiting: 1, streams: 0 }, Metrics::new());
        let taken: Vec<_> =
            (0..3).map(|_| shed.take(RpcMethodKind::Quick, CallerClass::Other).expect("room")).collect();
        let refused = shed.take(RpcMethodKind::Quick, CallerClass::Other).expect_err("full for others");
        assert_eq!(refused.reason(), RpcReason::Overloaded);
        let last = shed.take(RpcMethodKind::Quick, CallerClass::Service).expect("room for a service");
        assert!(shed.take(RpcMethodKind::Quick, CallerClass::Service).is_err());
        let stranger = shed.take(RpcMethodKind::Quick, CallerClass::Stranger).expect("room of its own");
        assert!(shed.take(RpcMethodKind::Stream, CallerClass::Stranger).is_err());
        drop((taken, last, stranger));
        assert_eq!(shed.metrics.in_flight.with_label_values(&["quick"]).get(), 0);
        assert_eq!(shed.metrics.shed.with_label_values(&["quick"]).get(), 2);
        assert!(shed.take(RpcMethodKind::Quick, CallerClass::Other).is_ok());
        assert!(shed.take(RpcMethodKind::Stream, CallerClass::Service).is_err());
    }
}
