//! Prometheus metrics of a daemon's bus.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The counters of a daemon's bus, under `/metrics`.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Payloads handed to the daemon, again or for the first time.
    pub pushes: IntCounter,
    /// Payloads handed to the daemon again.
    pub resent: IntCounter,
    /// Payloads that had to be padded to arrive.
    pub padded: IntCounter,
    /// Messages taken out of the daemon.
    pub pops: IntCounter,
    /// Looks for messages that found none.
    pub empty_polls: IntCounter,
    /// Payloads handed to listeners.
    pub received: IntCounter,
    /// Acknowledgements, and plain answers, that came after their push had stopped waiting.
    pub late_replies: IntCounter,
    /// Replies from other nodes than the one that was sent to.
    pub strangers: IntCounter,
    /// Payloads that came before.
    pub duplicates: IntCounter,
    /// Payloads that came after their deadline.
    pub expired: IntCounter,
    /// Messages that were dropped, by reason.
    pub dropped: IntCounterVec,
    /// Times that a message had to wait because earlier ones were not consumed.
    pub inbox_full: IntCounter,
    /// Payloads that wait for their acknowledgement.
    pub in_flight: IntGauge,
    /// Nodes that did not answer the last payload.
    pub absent: IntGauge,
    /// 1 while the daemon answers, else 0.
    pub up: IntGauge,
    /// Times that the daemon was lost.
    pub lost: IntCounter,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When the registry has metrics of these names already: there is one such bus in a process.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| IntCounter::new(format!("mycora_bus_{name}_total"), help);
        let gauge = |name: &str, help: &str| IntGauge::new(format!("mycora_bus_{name}"), help);
        let dropped = Opts::new("mycora_bus_dropped_total", "Messages that were dropped, by reason");
        let metrics = Self {
            pushes: counter("pushes", "Payloads handed to the Mycelium daemon")?,
            resent: counter("resent", "Payloads handed to the daemon again")?,
            padded: counter("padded", "Payloads that were padded, because their size never arrives")?,
            pops: counter("pops", "Messages taken out of the daemon")?,
            empty_polls: counter("empty_polls", "Looks for messages that found none")?,
            received: counter("received", "Payloads handed to whoever listens")?,
            late_replies: counter("late_replies", "Replies that came after their push stopped waiting")?,
            strangers: counter("strangers", "Replies from somebody who was not asked, refused")?,
            duplicates: counter("duplicates", "Payloads that came before, dropped")?,
            expired: counter("expired", "Payloads that came after their deadline, dropped")?,
            dropped: IntCounterVec::new(dropped, &["reason"])?,
            inbox_full: counter("inbox_full", "Times that a message had to wait for room")?,
            in_flight: gauge("in_flight", "Payloads that wait for their acknowledgement")?,
            absent: gauge("absent", "Nodes that did not answer the last payload")?,
            up: gauge("up", "Whether the Mycelium daemon answers")?,
            lost: counter("lost", "Times that the Mycelium daemon was lost")?,
        };
        metrics.register(registry)?;
        Ok(metrics)
    }

    fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let Self {
            pushes,
            resent,
            padded,
            pops,
            empty_polls,
            received,
            late_replies,
            strangers,
            duplicates,
            expired,
            dropped,
            inbox_full,
            in_flight,
            absent,
            up,
            lost,
        } = self;
        let counters = [
            pushes,
            resent,
            padded,
            pops,
            empty_polls,
            received,
            late_replies,
            strangers,
            duplicates,
            expired,
            inbox_full,
            lost,
        ];
        for counter in counters {
            registry.register(Box::new(counter.clone()))?;
        }
        for gauge in [in_flight, absent, up] {
            registry.register(Box::new(gauge.clone()))?;
        }
        registry.register(Box::new(dropped.clone()))
    }
}
