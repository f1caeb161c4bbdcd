//! Metrics of whether a process is ready, and whether anything is wrong with it.

use prometheus::IntGauge;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use crate::readiness::Readiness;

/// Shows what `/readyz` and `/health` answer, for alerts. Reasons are not shown: they may name what tenants have.
pub(crate) struct ReadinessMetrics {
    readiness: Readiness,
    ready: IntGauge,
    healthy: IntGauge,
}

impl ReadinessMetrics {
    pub(crate) fn of(readiness: Readiness) -> Self {
        let gauge = |name: &str, help: &str| IntGauge::new(name, help).expect("the name is well formed");
        Self {
            readiness,
            ready: gauge("mycora_ready", "1 while everything that calls need is there, as /readyz says"),
            healthy: gauge("mycora_healthy", "1 while nothing is known to be wrong, as /health says"),
        }
    }
}

impl Collector for ReadinessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.ready.desc().into_iter().chain(self.healthy.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.ready.set(self.readiness.is_ready().into());
        self.healthy.set(self.readiness.problems().is_empty().into());
        self.ready.collect().into_iter().chain(self.healthy.collect()).collect()
    }
}
