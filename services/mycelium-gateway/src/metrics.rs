//! Prometheus metrics of the gateway.

use model::Timestamp;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The gateway's metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Jobs that supervisors accepted.
    pub accepted: IntCounter,
    /// Jobs that supervisors refused.
    pub refused: IntCounter,
    /// Deliveries that failed as a whole.
    pub failed: IntCounter,
    /// Attempts whose state was queried and answered.
    pub queried: IntCounter,
    /// Bytes of output that were read at supervisors.
    pub log_bytes_read: IntCounter,
    /// Contexts that supervisors have forgotten.
    pub contexts_dropped: IntCounter,
    /// Attempts that supervisors were told to forget.
    pub attempts_forgotten: IntCounter,
    /// Events that supervisors reported.
    pub events: IntCounter,
    /// Events that were refused because no router could take them.
    pub events_refused: IntCounter,
    /// Supervisors that are connected.
    pub connected: IntGauge,
    /// Routers that are connected.
    pub routers: IntGauge,
    /// Bytes of blobs that went to supervisors.
    pub blob_bytes_out: IntCounter,
    /// Bytes of blobs that came from supervisors.
    pub blob_bytes_in: IntCounter,
    /// Letters that their recipients' coordinators have taken.
    pub letters_sent: IntCounter,
    /// Letters that could not be delivered, once for each try.
    pub letters_failed: IntCounter,
    /// Letters for actors of this coordinator that were taken.
    pub letters_taken: IntCounter,
    /// Letters for actors of this coordinator that were refused.
    pub letters_refused: IntCounter,
    envelopes_refused: IntCounterVec,
    signing_read: IntCounterVec,
    signing_certificate_end: IntGauge,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, about: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::new(format!("mycora_gateway_{name}"), about)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, about: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::new(format!("mycora_gateway_{name}"), about)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let refused = Opts::new("mycora_gateway_envelopes_refused_total", "What was said and not heard.");
        let envelopes_refused = IntCounterVec::new(refused, &["reason"])?;
        registry.register(Box::new(envelopes_refused.clone()))?;
        let read = Opts::new(
            "mycora_gateway_signing_files_read_total",
            "Signing keys and certificates read again, by what became of them.",
        );
        let signing_read = IntCounterVec::new(read, &["outcome"])?;
        registry.register(Box::new(signing_read.clone()))?;
        Ok(Self {
            envelopes_refused,
            signing_read,
            signing_certificate_end: gauge(
                "signing_certificate_expiry_seconds",
                "When the certificate of the signing key ends, in seconds since 1970; 0 without one.",
            )?,
            accepted: counter("jobs_accepted_total", "Jobs that supervisors accepted.")?,
            refused: counter("jobs_refused_total", "Jobs that supervisors refused.")?,
            failed: counter("deliveries_failed_total", "Deliveries that failed as a whole.")?,
            queried: counter("attempts_queried_total", "Attempts that supervisors told the state of.")?,
            log_bytes_read: counter(
                "log_bytes_read_total",
                "Bytes of output that were read at supervisors.",
            )?,
            contexts_dropped: counter("contexts_dropped_total", "Contexts that supervisors have forgotten.")?,
            attempts_forgotten: counter(
                "attempts_forgotten_total",
                "Attempts that supervisors were told to forget.",
            )?,
            letters_sent: counter("letters_sent_total", "Letters that were delivered.")?,
            letters_failed: counter("letters_failed_total", "Tries to deliver a letter that failed.")?,
            letters_taken: counter("letters_taken_total", "Letters for actors here that were taken.")?,
            letters_refused: counter("letters_refused_total", "Letters for actors here that were refused.")?,
            events: counter("events_total", "Events that supervisors told.")?,
            events_refused: counter("events_refused_total", "Events that no router could take.")?,
            connected: gauge("supervisors_connected", "Supervisors that are connected.")?,
            routers: gauge("routers_connected", "Routers that are connected.")?,
            blob_bytes_out: counter("blob_bytes_out_total", "Bytes of blobs that went to supervisors.")?,
            blob_bytes_in: counter("blob_bytes_in_total", "Bytes of blobs that came from supervisors.")?,
        })
    }

    /// Counts a rejected envelope.
    pub fn envelope_refused(&self, reason: &str) {
        self.envelopes_refused.with_label_values(&[reason]).inc();
    }

    /// Shows when the certificate of the signing key ends.
    pub(crate) fn signing_certificate_ends(&self, at: Timestamp) {
        self.signing_certificate_end.set(at.as_secs().try_into().unwrap_or(i64::MAX));
    }

    /// Counts a reload of key and certificate: `taken` or `refused`.
    pub(crate) fn signing_read(&self, outcome: &str) {
        self.signing_read.with_label_values(&[outcome]).inc();
    }
}
