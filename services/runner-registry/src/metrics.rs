//! Metrics of the registry.

use prometheus::{IntCounter, IntGauge, Registry};

/// The registry's metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Runner records.
    pub runners: IntGauge,
    /// Runner records whose supervisor is alive.
    pub live: IntGauge,
    /// Presences that were reported.
    pub presences: IntCounter,
    /// Streams that watch the view.
    pub watchers: IntGauge,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            runners: IntGauge::new("mycora_registry_runners", "Runner records.")?,
            live: IntGauge::new("mycora_registry_runners_live", "Runner records whose supervisor is alive.")?,
            presences: IntCounter::new("mycora_registry_presences_total", "Presences that were reported.")?,
            watchers: IntGauge::new("mycora_registry_watchers", "Streams that watch the view.")?,
        };
        registry.register(Box::new(metrics.runners.clone()))?;
        registry.register(Box::new(metrics.live.clone()))?;
        registry.register(Box::new(metrics.presences.clone()))?;
        registry.register(Box::new(metrics.watchers.clone()))?;
        Ok(metrics)
    }
}
