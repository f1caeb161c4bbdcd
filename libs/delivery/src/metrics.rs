//! Prometheus metrics of delivery.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

/// Bounds of the times of deliveries, in seconds: milliseconds to a supervisor at hand, and up to a message's time limit.
const DELIVERY_SECONDS: [f64; 12] =
    [0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];

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
    /// Messages with attempts that are under way.
    pub under_way: IntGauge,
    /// Messages delivered whole that are under way.
    pub opaque_under_way: IntGauge,
    /// Routes to runners whose window holds back messages.
    pub windows_full: IntGauge,
    /// When the message with attempts that was taken first was made, in seconds since 1970; 0 while there is none.
    pub oldest_message: IntGauge,
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
    delivery_seconds: Histogram,
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
        let [under_way, opaque_under_way] = under_way(registry)?;
        Ok(Self {
            taken: counter("mycora_router_messages_taken_total", "Messages taken from storage.")?,
            acknowledged: counter(
                "mycora_router_messages_acknowledged_total",
                "Messages that their receivers acknowledged.",
            )?,
            failed: counter("mycora_router_messages_failed_total", "Messages given up.")?,
            retries: counter("mycora_router_retries_total", "Deliveries that were tried again.")?,
            held: gauge("mycora_router_messages_held", "Messages on their way or waiting for it.")?,
            under_way,
            opaque_under_way,
            windows_full: gauge(
                "mycora_router_windows_full",
                "Routes to runners whose window holds back messages.",
            )?,
            oldest_message: gauge(
                "mycora_router_oldest_message_timestamp_seconds",
                "When the message with attempts that was taken first was made; 0 while there is none.",
            )?,
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
            delivery_seconds: delivery_seconds(registry)?,
        })
    }

    /// Measures a message with attempts that its supervisor has answered, from its making on; nothing when that is not known.
    pub(crate) fn delivered(&self, took: Option<Duration>) {
        if let Some(took) = took {
            self.delivery_seconds.observe(took.as_secs_f64());
        }
    }
}

/// Gauges of the messages under way: those with attempts, and those that are delivered whole.
fn under_way(registry: &Registry) -> prometheus::Result<[IntGauge; 2]> {
    let opts = Opts::new("mycora_router_messages_under_way", "Messages that wait for an answer, by kind.");
    let all = IntGaugeVec::new(opts, &["kind"])?;
    registry.register(Box::new(all.clone()))?;
    Ok(["attempts", "whole"].map(|kind| all.with_label_values(&[kind])))
}

fn delivery_seconds(registry: &Registry) -> prometheus::Result<Histogram> {
    let opts = HistogramOpts::new(
        "mycora_router_delivery_seconds",
        "Time from the commit of a message with attempts to its supervisor's answer.",
    );
    let histogram = Histogram::with_opts(opts.buckets(DELIVERY_SECONDS.to_vec()))?;
    registry.register(Box::new(histogram.clone()))?;
    Ok(histogram)
}
