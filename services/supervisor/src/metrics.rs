//! Metrics of the supervisor.

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
    /// Attempts that were forgotten since their flows were removed.
    pub attempts_forgotten: IntCounter,
    /// Drains that were requested.
    pub drains: IntCounter,
    /// Drain state: 1 while the supervisor drains.
    pub draining: IntGauge,
    /// Processes of vanished instances that were ended.
    pub processes_ended: IntCounter,
    /// Blobs that were removed for want of room.
    pub blobs_evicted: IntCounter,
    /// Bytes of blobs that are kept.
    pub blob_bytes: IntGauge,
    /// Logs that were removed in time.
    pub logs_removed: IntCounter,
    /// Bytes of logs that are kept.
    pub log_bytes: IntGauge,
    /// Bytes of logs that were read back.
    pub log_bytes_read: IntCounter,
    foreign: IntCounterVec,
    policies_read: IntCounterVec,
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
            attempts_forgotten: IntCounter::new(
                name("attempts_forgotten_total"),
                "Attempts that were forgotten since their flows were removed",
            )?,
            lost: IntCounter::new(name("lost_total"), "Attempts whose instance vanished")?,
            drains: IntCounter::new(name("drains_total"), "Times that a drain was asked for")?,
            draining: IntGauge::new(name("draining"), "1 while the machine is being drained")?,
            processes_ended: IntCounter::new(
                name("processes_ended_total"),
                "Processes of vanished instances that were ended",
            )?,
            blobs_evicted: IntCounter::new(
                name("blobs_evicted_total"),
                "Blobs that were removed for want of room",
            )?,
            blob_bytes: IntGauge::new(name("blob_bytes"), "Bytes of blobs that are kept")?,
            logs_removed: IntCounter::new(name("logs_removed_total"), "Logs that were removed in time")?,
            log_bytes: IntGauge::new(name("log_bytes"), "Bytes of logs that are kept")?,
            log_bytes_read: IntCounter::new(
                name("log_bytes_read_total"),
                "Bytes of logs that were read back",
            )?,
            foreign: IntCounterVec::new(
                Opts::new(
                    name("foreign_total"),
                    "Jobs that others pushed into work queues, by what became of them",
                ),
                &["outcome"],
            )?,
            policies_read: IntCounterVec::new(
                Opts::new(name("policies_read_total"), "Policy files read again, by what became of them"),
                &["outcome"],
            )?,
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
            Box::new(metrics.attempts_forgotten.clone()),
            Box::new(metrics.drains.clone()),
            Box::new(metrics.draining.clone()),
            Box::new(metrics.processes_ended.clone()),
            Box::new(metrics.blobs_evicted.clone()),
            Box::new(metrics.blob_bytes.clone()),
            Box::new(metrics.logs_removed.clone()),
            Box::new(metrics.log_bytes.clone()),
            Box::new(metrics.log_bytes_read.clone()),
            Box::new(metrics.foreign.clone()),
            Box::new(metrics.policies_read.clone()),
        ] {
            registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// Counts a refusal.
    pub(crate) fn refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    /// Counts a job that others pushed into a work queue: `adopted` or `refused`.
    pub(crate) fn foreign(&self, outcome: &str) {
        self.foreign.with_label_values(&[outcome]).inc();
    }

    /// Counts a policy file that was read again: `taken` or `refused`.
    pub(crate) fn policy_read(&self, outcome: &str) {
        self.policies_read.with_label_values(&[outcome]).inc();
    }
}
