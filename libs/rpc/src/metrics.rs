//! Metrics of serving.

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

/// Bounds of the durations of calls, in seconds. A call may take a minute, unless its method has a timeout of its own.
const CALL_SECONDS: [f64; 12] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];

/// Counters of one mount, over every way to it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) connections: IntCounterVec,
    pub(crate) connections_refused: IntCounter,
    pub(crate) connections_given_up: IntCounterVec,
    pub(crate) in_flight: IntGaugeVec,
    pub(crate) message_bytes: IntGaugeVec,
    pub(crate) shed: IntCounterVec,
    pub(crate) unread_answers_cut: IntCounter,
    pub(crate) deadlines_passed: IntCounter,
    pub(crate) call_seconds: HistogramVec,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            connections: counters(
                "mycora_connections_total",
                "Connections that came about, by how: tls, plaintext or mesh",
                "entrance",
            ),
            connections_refused: counter(
                "mycora_connections_refused_total",
                "Connections that did not come about: no handshake, one that gave way to a newer one, or too many",
            ),
            connections_given_up: counters(
                "mycora_connections_given_up_total",
                "Connections without a certificate that were ended, by why: unidentified or evicted",
                "why",
            ),
            in_flight: IntGaugeVec::new(
                Opts::new(
                    "mycora_calls_in_flight",
                    "Calls being answered, by kind: quick, waiting, stream, stranger or probe",
                ),
                &["kind"],
            )
            .expect("the name and the label are well formed"),
            message_bytes: IntGaugeVec::new(
                Opts::new(
                    "mycora_message_bytes_in_flight",
                    "Bytes of large messages, by kind: received and not answered yet, handled of these; answered and not taken by the caller yet, or made and waiting for room among these",
                ),
                &["kind"],
            )
            .expect("the name and the label are well formed"),
            shed: counters(
                "mycora_calls_shed_total",
                "Calls refused because too many were being answered, by kind; `actor` where one actor made too many, `bytes` where large messages were too many",
                "kind",
            ),
            unread_answers_cut: counter(
                "mycora_unread_answers_cut_total",
                "Large answers that were not being read and gave way to others",
            ),
            deadlines_passed: counter(
                "mycora_deadlines_passed_total",
                "Calls that were ended at their deadline",
            ),
            call_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "mycora_call_duration_seconds",
                    "Time from the receipt of a call to its answer, by method and code; streams are left out",
                )
                .buckets(CALL_SECONDS.to_vec()),
                &["method", "code"],
            )
            .expect("the name, the labels and the bounds are well formed"),
        }
    }

    /// Shows them in this registry.
    ///
    /// # Errors
    /// When it has metrics of such names already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.connections.clone()))?;
        registry.register(Box::new(self.connections_refused.clone()))?;
        registry.register(Box::new(self.connections_given_up.clone()))?;
        registry.register(Box::new(self.in_flight.clone()))?;
        registry.register(Box::new(self.message_bytes.clone()))?;
        registry.register(Box::new(self.shed.clone()))?;
        registry.register(Box::new(self.unread_answers_cut.clone()))?;
        registry.register(Box::new(self.deadlines_passed.clone()))?;
        registry.register(Box::new(self.call_seconds.clone()))
    }
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("the name is well formed")
}

fn counters(name: &str, help: &str, label: &str) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), &[label]).expect("the name and the label are well formed")
}
