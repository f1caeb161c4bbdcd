//! How much is answered at once. What is more is refused at once, so that a server with too much to do
//! does some of it instead of none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus::IntGauge;

use crate::error::{Error, ErrorKind};
use crate::methods::Shape;
use crate::metrics::Metrics;
use crate::reason::Reason;

/// Calls with one answer at once.
pub(crate) const QUICK_MAX: usize = 2048;
/// Calls at once that wait for something.
pub(crate) const WAITING_MAX: usize = 8192;
/// Streams at once.
pub(crate) const STREAMS_MAX: usize = 16384;
/// When to try again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// What a server answers at once, at most. Of each, a quarter is kept for services.
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

/// Counts what is being answered.
#[derive(Debug)]
pub(crate) struct Shed {
    quick: Places,
    waiting: Places,
    streams: Places,
    metrics: Metrics,
}

#[derive(Debug)]
struct Places {
    kind: &'static str,
    max: usize,
    taken: Arc<AtomicUsize>,
    gauge: IntGauge,
}

/// A call's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    taken: Arc<AtomicUsize>,
    gauge: IntGauge,
}

impl Shed {
    pub(crate) fn new(max: CallsMax, metrics: Metrics) -> Self {
        let places = |kind, max| {
            let gauge = metrics.in_flight.with_label_values(&[kind]);
            Places { kind, max, taken: Arc::default(), gauge }
        };
        let (quick, waiting) = (places("quick", max.quick), places("waiting", max.waiting));
        Self { quick, waiting, streams: places("stream", max.streams), metrics }
    }

    /// A place for one more call; services have some that nobody else gets.
    pub(crate) fn take(&self, shape: Shape, by_service: bool) -> Result<Place, Error> {
        let places = match shape {
            Shape::Quick => &self.quick,
            Shape::Waiting(_) => &self.waiting,
            Shape::Stream => &self.streams,
        };
        places.take(by_service).ok_or_else(|| {
            self.metrics.shed.with_label_values(&[places.kind]).inc();
            let message = format!("this server is answering as many calls as it can ({})", places.max);
            Error::new(ErrorKind::ResourceExhausted, Reason::Overloaded, message)
                .with("kind", places.kind)
                .with("max", places.max)
                .retry_after(RETRY_AFTER)
        })
    }
}

impl Places {
    fn take(&self, by_service: bool) -> Option<Place> {
        let max = if by_service { self.max } else { self.max - self.max / 4 };
        let more = |taken: usize| (taken < max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        self.gauge.inc();
        Some(Place { taken: self.taken.clone(), gauge: self.gauge.clone() })
    }
}

impl Drop for Place {
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
        let shed = Shed::new(CallsMax { quick: 4, waiting: 1, streams: 0 }, Metrics::new());
        let taken: Vec<_> = (0..3).map(|_| shed.take(Shape::Quick, false).expect("room")).collect();
        let refused = shed.take(Shape::Quick, false).expect_err("full for others");
        assert_eq!(refused.reason(), Reason::Overloaded);
        let last = shed.take(Shape::Quick, true).expect("room for a service");
        assert!(shed.take(Shape::Quick, true).is_err());
        drop((taken, last));
        assert_eq!(shed.metrics.in_flight.with_label_values(&["quick"]).get(), 0);
        assert_eq!(shed.metrics.shed.with_label_values(&["quick"]).get(), 2);
        assert!(shed.take(Shape::Quick, false).is_ok());
        assert!(shed.take(Shape::Stream, true).is_err());
    }
}
