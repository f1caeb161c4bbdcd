//! What the saga service counts.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The service's counters, under `/metrics`.
#[derive(Debug)]
pub struct Metrics {
    /// Lanes that this replica owns.
    pub lanes_owned: IntGauge,
    /// Lanes that were taken.
    pub taken: IntCounter,
    /// Commits that were refused since the lane has another owner.
    pub fenced_commits: IntCounter,
    /// Cursors that were made.
    pub cursor_resets: IntCounter,
    /// Streams that went back.
    pub stream_went_back: IntCounter,
    /// Messages that were gone before they were read.
    pub events_expired: IntCounter,
    /// Messages that no filter should have let through.
    pub foreign_messages: IntCounter,
    /// Work that was sent.
    pub relayed: IntCounter,
    /// Rows that wait to be sent.
    pub outbox_rows: IntGauge,
    /// Timers that fired.
    pub timers_fired: IntCounter,
    /// Dead letters that were written.
    pub letters: IntCounter,
    transitions: IntCounterVec,
    effects: IntCounterVec,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When one of the names is taken in this registry.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            add(registry, &IntCounter::new(format!("mycora_saga_{name}_total"), help)?)
        };
        let gauge =
            |name: &str, help: &str| add(registry, &IntGauge::new(format!("mycora_saga_{name}"), help)?);
        let vector = |name: &str, help: &str, labels: &[&str]| {
            add(registry, &IntCounterVec::new(Opts::new(format!("mycora_saga_{name}_total"), help), labels)?)
        };
        Ok(Self {
            lanes_owned: gauge("lanes_owned", "Lanes that this replica owns")?,
            taken: counter("taken", "Lanes that were taken")?,
            fenced_commits: counter("fenced_commits", "Commits refused: the lane has another owner")?,
            cursor_resets: counter("cursor_resets", "Cursors that were made")?,
            stream_went_back: counter("stream_went_back", "Streams that lost messages, or were made anew")?,
            events_expired: counter("events_expired", "Messages that were gone before they were read")?,
            foreign_messages: counter("foreign_messages", "Messages that no filter should have let through")?,
            relayed: counter("relayed", "Work that was sent")?,
            outbox_rows: gauge("outbox_rows", "Work that waits to be sent")?,
            timers_fired: counter("timers_fired", "Timers that fired")?,
            letters: counter("letters_written", "Dead letters that were written")?,
            transitions: vector(
                "transitions",
                "Inputs given to instances, by what became of them",
                &["outcome"],
            )?,
            effects: vector("effects", "Calls that ended, by effect and result", &["effect", "result"])?,
        })
    }

    /// Counts an input, by what became of it.
    pub fn transition(&self, outcome: &str) {
        self.transitions.with_label_values(&[outcome]).inc();
    }

    /// Counts a call that ended.
    pub fn effect(&self, effect: &str, result: &str) {
        self.effects.with_label_values(&[effect, result]).inc();
    }
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, collector: &C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector.clone())
}
