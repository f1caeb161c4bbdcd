//! Metrics of the supervisor.

mod job_metrics;

use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use self::job_metrics::JobMetrics;

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
    /// Waits and runs of jobs, and slots.
    pub(crate) jobs: Arc<JobMetrics>,
    foreign: IntCounterVec,
    policies_read: IntCounterVec,
}

impl Metrics {
    /// Registers them.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(format!("mycora_supervisor_{name}_total"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counters = |name: &str, help: &str, label: &str| -> Result<IntCounterVec, prometheus::Error> {
            let opts = Opts::new(format!("mycora_supervisor_{name}_total"), help);
            let counters = IntCounterVec::new(opts, &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(format!("mycora_supervisor_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        Ok(Self {
            accepted: counter("accepted", "Attempts put into a queue")?,
            repeated: counter("repeated", "Attempts that were known already")?,
            refused: counters("refused", "Attempts refused, by reason", "reason")?,
            events_answered: counter("events_answered", "Events that a coordinator has answered")?,
            events_waiting: gauge("events_waiting", "Events that wait for a coordinator")?,
            instances: gauge("instances", "Live instances")?,
            queued: gauge("queued", "Jobs that wait in queues")?,
            contexts_dropped: counter("contexts_dropped", "Contexts that were forgotten")?,
            attempts_forgotten: counter(
                "attempts_forgotten",
                "Attempts that were forgotten since their flows were removed",
            )?,
            lost: counter("lost", "Attempts whose instance vanished")?,
            drains: counter("drains", "Times that a drain was asked for")?,
            draining: gauge("draining", "1 while the machine is being drained")?,
            processes_ended: counter("processes_ended", "Processes of vanished instances that were ended")?,
            blobs_evicted: counter("blobs_evicted", "Blobs that were removed for want of room")?,
            blob_bytes: gauge("blob_bytes", "Bytes of blobs that are kept")?,
            logs_removed: counter("logs_removed", "Logs that were removed in time")?,
            log_bytes: gauge("log_bytes", "Bytes of logs that are kept")?,
            log_bytes_read: counter("log_bytes_read", "Bytes of logs that were read back")?,
            jobs: Arc::new(JobMetrics::new(registry)?),
            foreign: counters(
                "foreign",
                "Jobs that others pushed into work queues, by what became of them",
                "outcome",
            )?,
            policies_read: counters(
                "policies_read",
                "Policy files read again, by what became of them",
                "outcome",
            )?,
        })
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
