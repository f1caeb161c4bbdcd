//! What the supervisor counts.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The supervisor's counters, under `/metrics`.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Attempts put into a queue.
    pub accepted: IntCounter,
    /// Attempts that were known already.
    pub repeated: IntCounter,
    refused: IntCounterVec,
    /// Events that a coordinator has answered.
    pub events_answered: IntCounter,
    /// Events that wait for a coordinator.
    pub events_waiting: IntGauge,
    /// Live instances.
    pub instances: IntGauge,
    /// Jobs that wait in queues.
    pub queued: IntGauge,
    /// Attempts whose instance vanished.
    pub lost: IntCounter,
    /// Contexts that were forgotten.
    pub contexts_dropped: IntCounter,
}

impl Metrics {
    /// Registers them.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let name = |name: &str| format!("mycora_supervisor_{name}");
        let metrics = Self {
            accepted: IntCounter::new(name("accepted_total"), "Attempts put into a queue")?,
            repeated: IntCounter::new(name("repeated_total"), "Attempts that were known already")?,
            refused: IntCounterVec::new(
                Opts::new(name("refused_total"), "Attempts refused, by reason"),
                &["reason"],
            )?,
            events_answered: IntCounter::new(
                name("events_answered_total"),
                "Events that a coordinator has answered",
            )?,
            events_waiting: IntGauge::new(name("events_waiting"), "Events that wait for a coordinator")?,
            instances: IntGauge::new(name("instances"), "Live instances")?,
            queued: IntGauge::new(name("queued"), "Jobs that wait in queues")?,
            contexts_dropped: IntCounter::new(
                name("contexts_dropped_total"),
                "Contexts that were forgotten",
            )?,
            lost: IntCounter::new(name("lost_total"), "Attempts whose instance vanished")?,
        };
        for collector in [
            Box::new(metrics.accepted.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(metrics.repeated.clone()),
            Box::new(metrics.refused.clone()),
            Box::new(metrics.events_answered.clone()),
            Box::new(metrics.events_waiting.clone()),
            Box::new(metrics.instances.clone()),
            Box::new(metrics.queued.clone()),
            Box::new(metrics.lost.clone()),
            Box::new(metrics.contexts_dropped.clone()),
        ] {
            registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// Counts a refusal.
    pub(crate) fn refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }
}
