//! Prometheus metrics of the scheduler.

use model::{NodeState, ReasonCode};
use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The scheduler's counters, under `/metrics`.
#[derive(Debug)]
pub struct Metrics {
    /// Flows that this replica has in memory.
    pub flows_owned: IntGauge,
    /// Flows that wait for a time, and are not in memory until then.
    pub flows_asleep: IntGauge,
    /// Flows submitted through this replica.
    pub flows_submitted: IntCounter,
    /// Flows whose owner this replica became while they ran.
    pub take_overs: IntCounter,
    /// Attempts whose supervisors were asked where they stand.
    pub reconciled: IntCounter,
    /// Steps stored.
    pub commits: IntCounter,
    /// Steps that storage has not answered yet.
    pub commits_in_flight: IntGauge,
    /// Steps refused since the flow has another owner or has changed.
    pub fenced_commits: IntCounter,
    /// Reports that changed nothing.
    pub stale_reports: IntCounter,
    /// Watches that were ended since their clients did not read.
    pub slow_watchers: IntCounter,
    nodes: IntCounterVec,
    lost: IntCounterVec,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When one of the names is taken in this registry.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("mycora_scheduler_{name}_total"), help)?;
            add(registry, &counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(format!("mycora_scheduler_{name}"), help)?;
            add(registry, &gauge)
        };
        let transitions =
            Opts::new("mycora_scheduler_node_transitions_total", "State changes of nodes, by new state");
        let lost = Opts::new(
            "mycora_scheduler_lost_attempts_total",
            "Attempts that were lost, by what they were lost with: no failures of their scripts",
        );
        Ok(Self {
            flows_owned: gauge("flows_owned", "Flows that this replica has in memory")?,
            flows_asleep: gauge("flows_asleep", "Flows that wait for a time, not in memory until then")?,
            flows_submitted: counter("flows_submitted", "Flows submitted here")?,
            take_overs: counter("take_overs", "Flows whose owner this replica became while they ran")?,
            reconciled: counter("reconciled_attempts", "Attempts whose supervisors were queried about them")?,
            commits: counter("commits", "Steps stored")?,
            commits_in_flight: gauge("commits_in_flight", "Steps that storage has not answered yet")?,
            fenced_commits: counter(
                "fenced_commits",
                "Steps refused: the flow has another owner, or changed",
            )?,
            stale_reports: counter("stale_reports", "Reports that changed nothing")?,
            slow_watchers: counter("slow_watchers", "Watches ended because their watcher did not read")?,
            nodes: add(registry, &IntCounterVec::new(transitions, &["state"])?)?,
            lost: add(registry, &IntCounterVec::new(lost, &["with"])?)?,
        })
    }

    /// Counts an attempt that was lost with its instance, with its supervisor, or by a drain.
    pub fn lost(&self, code: ReasonCode) {
        let with = match code {
            ReasonCode::InstanceLost => "instance",
            ReasonCode::Drained => "drain",
            _ => "supervisor",
        };
        self.lost.with_label_values(&[with]).inc();
    }

    /// Counts a node's new state.
    pub fn transition(&self, to: NodeState) {
        self.nodes.with_label_values(&[to.as_str()]).inc();
    }
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, collector: &C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector.clone())
}
