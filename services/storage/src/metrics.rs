//! Prometheus metrics of storage.

use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

/// Bounds in seconds of how long a script takes, with the way to Redis and back.
const SCRIPT_SECONDS: [f64; 13] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 2.0];
/// Contexts that have metrics of their own: the first by number.
pub(crate) const CONTEXTS_LABELLED_MAX: usize = 100;

/// Metrics of one storage.
#[derive(Debug, Clone)]
pub(crate) struct StorageMetrics {
    pub(crate) script_seconds: HistogramVec,
    pub(crate) redis_used_bytes: IntGauge,
    pub(crate) redis_max_bytes: IntGauge,
    pub(crate) refused_full: IntCounter,
    pub(crate) flows_expired: IntCounter,
    pub(crate) flows_relieved: IntCounter,
    pub(crate) messages_expired: IntCounter,
    pub(crate) blobs_removed: IntCounter,
    pub(crate) events_trimmed: IntCounter,
    pub(crate) context_records: IntGaugeVec,
    pub(crate) context_bytes: IntGaugeVec,
}

impl StorageMetrics {
    pub(crate) fn new() -> Self {
        let script_seconds =
            HistogramOpts::new("mycora_storage_script_seconds", "Time of a change, by its script")
                .buckets(SCRIPT_SECONDS.to_vec());
        Self {
            script_seconds: HistogramVec::new(script_seconds, &["script"]).expect("the name is well formed"),
            redis_used_bytes: gauge(
                "redis_used_bytes",
                "Memory that Redis uses; of several servers the fullest",
            ),
            redis_max_bytes: gauge("redis_max_bytes", "Memory that this Redis may use; 0 without a bound"),
            refused_full: counter("refused_full", "Requests refused since Redis is nearly full"),
            flows_expired: counter(
                "flows_expired",
                "Ended flows removed beyond the bounds of their contexts",
            ),
            flows_relieved: counter(
                "flows_relieved",
                "Ended flows removed before their time to relieve Redis",
            ),
            messages_expired: counter("messages_expired", "Finished messages removed beyond the bounds"),
            blobs_removed: counter("blobs_removed", "Unreferenced blobs removed"),
            events_trimmed: counter("events_trimmed", "Events removed since they were too old"),
            context_records: of_contexts("context_records", "Records of a context, by kind"),
            context_bytes: of_contexts("context_bytes", "Bytes of a context in Redis, by kind"),
        }
    }

    /// Shows them in this registry.
    ///
    /// # Errors
    /// When it has metrics of such names already.
    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let Self {
            script_seconds,
            redis_used_bytes,
            redis_max_bytes,
            refused_full,
            flows_expired,
            flows_relieved,
            messages_expired,
            blobs_removed,
            events_trimmed,
            context_records,
            context_bytes,
        } = self;
        add(registry, script_seconds)?;
        for gauge in [redis_used_bytes, redis_max_bytes] {
            add(registry, gauge)?;
        }
        for counter in
            [refused_full, flows_expired, flows_relieved, messages_expired, blobs_removed, events_trimmed]
        {
            add(registry, counter)?;
        }
        add(registry, context_records)?;
        add(registry, context_bytes)
    }
}

fn add<M: Collector + Clone + 'static>(registry: &Registry, metric: &M) -> Result<(), prometheus::Error> {
    registry.register(Box::new(metric.clone()))
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(format!("mycora_storage_{name}_total"), help).expect("the name is well formed")
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(format!("mycora_storage_{name}"), help).expect("the name is well formed")
}

fn of_contexts(name: &str, help: &str) -> IntGaugeVec {
    let opts = Opts::new(format!("mycora_storage_{name}"), help);
    IntGaugeVec::new(opts, &["context", "kind"]).expect("the name and the labels are well formed")
}
