//! What the scheduler counts.

use model::NodeState;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The scheduler's counters, under `/metrics`.
#[derive(Debug)]
pub struct Metrics {
    /// Flows that this replica owns now.
    pub flows_owned: IntGauge,
    /// Flows submitted through this replica.
    pub flows_submitted: IntCounter,
    /// Steps stored.
    pub commits: IntCounter,
    /// Steps refused since the flow has changed or has another owner.
    pub fenced_commits: IntCounter,
    /// Reports that changed nothing.
    pub stale_reports: IntCounter,
    nodes: IntCounterVec,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When one of the names is taken in this registry.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| IntCounter::new(name, help);
        let metrics = Self {
            flows_owned: IntGauge::new("mycora_scheduler_flows_owned", "Flows that this replica owns now")?,
            flows_submitted: counter("mycora_scheduler_flows_submitted_total", "Flows submitted here")?,
            commits: counter("mycora_scheduler_commits_total", "Steps stored")?,
            fenced_commits: counter(
                "mycora_scheduler_fenced_commits_total",
                "Steps refused since the flow has changed or has another owner",
            )?,
            stale_reports: counter("mycora_scheduler_stale_reports_total", "Reports that changed nothing")?,
            nodes: IntCounterVec::new(
                Opts::new("mycora_scheduler_node_transitions_total", "State changes of nodes, by new state"),
                &["state"],
            )?,
        };
        for collector in [
            Box::new(metrics.flows_owned.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(metrics.flows_submitted.clone()),
            Box::new(metrics.commits.clone()),
            Box::new(metrics.fenced_commits.clone()),
            Box::new(metrics.stale_reports.clone()),
            Box::new(metrics.nodes.clone()),
        ] {
            registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// Counts a node's new state.
    pub fn transition(&self, to: NodeState) {
        self.nodes.with_label_values(&[to.as_str()]).inc();
    }
}
