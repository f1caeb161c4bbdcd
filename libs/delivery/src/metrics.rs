//! Prometheus metrics of delivery.

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
    /// Reports that could not be read, and were dropped.
    pub reports_unreadable: IntCounter,
    /// Attempts that schedulers queried.
    pub queries: IntCounter,
    /// Pieces of output that schedulers wanted read.
    pub log_queries: IntCounter,
    /// Stops that came before their attempt was sent.
    pub stops_overtook: IntCounter,
    /// Contexts that supervisors have forgotten.
    pub contexts_dropped: IntCounter,
    /// Contexts whose drop was given up because a supervisor could not be reached.
    pub contexts_given_up: IntCounter,
    /// Times another router took the name of this one.
    pub name_conflicts: IntCounter,
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
            reports_unreadable: counter(
                "mycora_router_reports_unreadable_total",
                "Reports that could not be read, and were dropped.",
            )?,
            queries: counter("mycora_router_queries_total", "Attempts that schedulers asked for.")?,
            log_queries: counter(
                "mycora_router_log_queries_total",
                "Pieces of output that schedulers wanted read.",
            )?,
            stops_overtook: counter(
                "mycora_router_stops_overtook_total",
                "Stops that came before their attempt was sent.",
            )?,
            contexts_dropped: counter(
                "mycora_router_contexts_dropped_total",
                "Contexts that supervisors have forgotten.",
            )?,
            contexts_given_up: counter(
                "mycora_router_contexts_given_up_total",
                "Contexts that supervisors could not be told to forget.",
            )?,
            name_conflicts: counter(
                "mycora_router_name_conflicts_total",
                "Times another router took the name of this one.",
            )?,
            log_bytes: counter("mycora_router_log_bytes_total", "Bytes of output handed to storage.")?,
        })
    }
}
