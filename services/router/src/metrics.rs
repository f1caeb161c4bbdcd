//! What can be seen from the outside.

use prometheus::{IntCounter, IntGauge, Registry};

/// The router's metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Messages taken from storage.
    pub taken: IntCounter,
    /// Messages that their receivers acknowledged.
    pub acknowledged: IntCounter,
    /// Messages given up.
    pub failed: IntCounter,
    /// Deliveries that were tried again.
    pub retries: IntCounter,
    /// Messages on their way or waiting for it.
    pub held: IntGauge,
    /// Reports that no scheduler has acknowledged yet.
    pub reports_open: IntGauge,
    /// Bytes of output handed to storage.
    pub log_bytes: IntCounter,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When one of that name is there already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, about: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::new(name, about)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, about: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::new(name, about)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        Ok(Self {
            taken: counter("mycora_router_messages_taken_total", "Messages taken from storage.")?,
            acknowledged: counter(
                "mycora_router_messages_acknowledged_total",
                "Messages that their receivers acknowledged.",
            )?,
            failed: counter("mycora_router_messages_failed_total", "Messages given up.")?,
            retries: counter("mycora_router_retries_total", "Deliveries that were tried again.")?,
            held: gauge("mycora_router_messages_held", "Messages on their way or waiting for it.")?,
            reports_open: gauge(
                "mycora_router_reports_open",
                "Reports that no scheduler has acknowledged yet.",
            )?,
            log_bytes: counter("mycora_router_log_bytes_total", "Bytes of output handed to storage.")?,
        })
    }
}
