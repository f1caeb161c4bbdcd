//! Readings of owned lanes: sums and extremes are computed when metrics are collected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, Opts};

/// Readings of all lanes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LaneReadings(Arc<LaneReadingsInner>);

#[derive(Debug)]
struct LaneReadingsInner {
    now: Mutex<CurrentReadings>,
    outbox_rows: Gauge,
    outbox_oldest: Gauge,
    pending: GaugeVec,
    age: GaugeVec,
}

/// Latest readings of lanes, each under a number.
#[derive(Debug, Default)]
struct CurrentReadings {
    next: u64,
    outboxes: HashMap<u64, OutboxSample>,
    sources: HashMap<u64, SourceSample>,
}

#[derive(Debug, Default)]
struct OutboxSample {
    rows: usize,
    oldest: Option<Instant>,
}

#[derive(Debug)]
struct SourceSample {
    saga: String,
    source: String,
    pending: u64,
    oldest_millis: Option<u64>,
}

/// Reading of a lane's outbox, which ends when this is dropped.
#[derive(Debug)]
pub struct OutboxReading {
    readings: LaneReadings,
    number: u64,
}

/// Reading of a source of a lane, which ends when this is dropped.
#[derive(Debug)]
pub struct SourceReading {
    readings: LaneReadings,
    number: u64,
}

impl LaneReadings {
    /// Makes empty readings.
    ///
    /// # Errors
    /// When a name is invalid; they are all constants.
    pub fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| Gauge::new(format!("mycora_saga_{name}"), help);
        let vector = |name: &str, help: &str| {
            GaugeVec::new(Opts::new(format!("mycora_saga_{name}"), help), &["saga", "source"])
        };
        Ok(Self(Arc::new(LaneReadingsInner {
            now: Mutex::default(),
            outbox_rows: gauge("outbox_rows", "Work of owned lanes that waits to be sent")?,
            outbox_oldest: gauge(
                "outbox_oldest_seconds",
                "How long the oldest work has waited to be sent, since its lane was taken at most",
            )?,
            pending: vector(
                "source_pending",
                "Messages that a source has for owned lanes and that are not settled",
            )?,
            age: vector(
                "source_age_seconds",
                "How long ago the oldest message was stored that is not settled",
            )?,
        })))
    }

    fn now(&self) -> MutexGuard<'_, CurrentReadings> {
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to read a lane's outbox.
    #[must_use]
    pub fn outbox(&self) -> OutboxReading {
        let mut now = self.now();
        let number = now.next;
        now.next += 1;
        now.outboxes.insert(number, OutboxSample::default());
        drop(now);
        OutboxReading { readings: self.clone(), number }
    }

    /// Begins to read a source of a lane; `saga` is empty for one of an effect.
    #[must_use]
    pub fn source(&self, saga: &str, source: &str) -> SourceReading {
        let mut now = self.now();
        let number = now.next;
        now.next += 1;
        let (saga, source) = (saga.to_owned(), source.to_owned());
        now.sources.insert(number, SourceSample { saga, source, pending: 0, oldest_millis: None });
        drop(now);
        SourceReading { readings: self.clone(), number }
    }
}

impl OutboxReading {
    /// Notes how many rows wait, and since when the first of them does.
    pub fn note(&self, rows: usize, oldest: Option<Instant>) {
        if let Some(outbox) = self.readings.now().outboxes.get_mut(&self.number) {
            *outbox = OutboxSample { rows, oldest };
        }
    }
}

impl Drop for OutboxReading {
    fn drop(&mut self) {
        self.readings.now().outboxes.remove(&self.number);
    }
}

impl SourceReading {
    /// Notes how many messages are not settled, and when the first of those that have come was stored.
    pub fn note(&self, pending: u64, oldest_millis: Option<u64>) {
        if let Some(source) = self.readings.now().sources.get_mut(&self.number) {
            (source.pending, source.oldest_millis) = (pending, oldest_millis);
        }
    }
}

impl Drop for SourceReading {
    fn drop(&mut self) {
        self.readings.now().sources.remove(&self.number);
    }
}

impl Collector for LaneReadings {
    fn desc(&self) -> Vec<&Desc> {
        let LaneReadingsInner { outbox_rows, outbox_oldest, pending, age, .. } = &*self.0;
        [outbox_rows.desc(), outbox_oldest.desc(), pending.desc(), age.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let LaneReadingsInner { outbox_rows, outbox_oldest, pending, age, .. } = &*self.0;
        // Held to the end, so that concurrent readers see complete sums.
        let now = self.now();
        let rows: usize = now.outboxes.values().map(|outbox| outbox.rows).sum();
        outbox_rows.set(float(rows as u64));
        let oldest = now.outboxes.values().filter_map(|outbox| outbox.oldest).min();
        outbox_oldest.set(oldest.map_or(0.0, |oldest| oldest.elapsed().as_secs_f64()));
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = u64::try_from(clock.as_millis()).unwrap_or(u64::MAX);
        pending.reset();
        age.reset();
        for source in now.sources.values() {
            let labels = [source.saga.as_str(), source.source.as_str()];
            pending.with_label_values(&labels).add(float(source.pending));
            let seconds =
                source.oldest_millis.map_or(0.0, |oldest| float(clock.saturating_sub(oldest)) / 1000.0);
            let age = age.with_label_values(&labels);
            age.set(age.get().max(seconds));
        }
        [outbox_rows.collect(), outbox_oldest.collect(), pending.collect(), age.collect()].concat()
    }
}

/// Counts and milliseconds of this service are far below where a float has gaps.
#[expect(clippy::cast_precision_loss, reason = "they are far below 2^52")]
const fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    fn values(readings: &LaneReadings) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        for family in readings.collect() {
            for metric in family.get_metric() {
                let labels: Vec<_> = metric.get_label().iter().map(|label| label.value()).collect();
                values.insert(
                    format!("{} {}", family.name(), labels.join(" ")),
                    metric.get_gauge().get_value(),
                );
            }
        }
        values
    }

    #[test]
    fn lanes_are_summed_up_and_go_with_their_owners() {
        let readings = LaneReadings::new().expect("names");
        let (a, b) = (readings.outbox(), readings.outbox());
        let since = Instant::now().checked_sub(Duration::from_secs(60)).expect("a moment");
        a.note(2, Some(since));
        b.note(3, Some(Instant::now()));
        let sources =
            [readings.source("order", "aggregate.Order"), readings.source("order", "aggregate.Order")];
        sources[0].note(5, Some(1));
        sources[1].note(7, None);
        let found = values(&readings);
        assert_eq!(found["mycora_saga_outbox_rows "], 5.0);
        assert!(found["mycora_saga_outbox_oldest_seconds "] >= 60.0, "{found:?}");
        assert_eq!(found["mycora_saga_source_pending order aggregate.Order"], 12.0);
        assert!(found["mycora_saga_source_age_seconds order aggregate.Order"] > 1e9, "{found:?}");
        drop((a, sources));
        let found = values(&readings);
        assert_eq!(found["mycora_saga_outbox_rows "], 3.0);
        assert!(found.keys().all(|key| !key.contains("source")), "{found:?}");
    }
}
