//! Metrics of the saga service.

mod census;
mod effects;
mod readings;
mod tenant_labels;

use std::sync::Arc;
use std::time::Duration;

use model::TenantId;
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

pub use self::census::{Census, CensusGauges, CensusKind, LaneCensus};
pub use self::effects::EffectMetrics;
pub use self::readings::{LaneReadings, OutboxReading, SourceReading};
pub use self::tenant_labels::{TENANTS_NAMED_MAX, TenantCounter, TenantLabels};
use crate::lane::checkpoint::StreamLoss;
use crate::lane::{AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS};
use crate::visibility::SagaVisibility;

/// Bounds of short times, in seconds: commits and transitions.
const SHORT: [f64; 11] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Bounds of long times, in seconds: calls and timers.
const LONG: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0];
/// Bounds of attempts.
const ATTEMPTS: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 100.0];

/// An input that is being applied, counted until this guard is dropped.
#[derive(Debug)]
pub(crate) struct ActiveInputGuard(IntGauge);

impl Drop for ActiveInputGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The service's counters, under `/metrics`.
#[derive(Debug)]
pub struct Metrics {
    /// Settings for what is shown of tenants and correlations.
    pub seeing: SagaVisibility,
    /// Which metrics name tenants, and which of them.
    pub by_tenant: Arc<TenantLabels>,
    /// Lanes that this replica owns.
    pub lanes_owned: IntGauge,
    /// Lanes that were taken.
    pub taken: IntCounter,
    /// Commits that were refused because the lane has another owner.
    pub fenced_commits: IntCounter,
    /// Cursors that were opened, by reason.
    pub cursor_resets: IntCounterVec,
    /// Census of what owned lanes keep.
    pub census: CensusGauges,
    /// Owned lanes at their limit of dead letters, so that inputs wait.
    pub lanes_full_of_letters: IntGauge,
    /// Bytes that the store uses, as last measured.
    pub store_bytes: IntGauge,
    /// Latest readings of sources and outboxes of owned lanes.
    pub readings: LaneReadings,
    /// Streams that went back, by stream and evidence.
    stream_went_back: IntCounterVec,
    /// Steps back of the store's clock.
    pub clock_went_back: IntCounter,
    /// Messages that were gone before they were read.
    pub events_expired: IntCounter,
    /// Messages that no filter should have let through.
    pub foreign_messages: IntCounter,
    /// Requests whose metadata named another tenant than their body.
    pub tenant_mismatches: IntCounter,
    /// Work that was sent.
    pub relayed: IntCounter,
    inputs_under_way: IntGauge,
    /// Timers that fired.
    pub timers_fired: IntCounter,
    /// Dead letters that were written.
    pub letters: TenantCounter,
    /// Overdue timers in memory that wait for a source.
    pub timers_waiting_for_source: IntGauge,
    /// Time between the moment at which a timer was due and its transition.
    timer_lag: Histogram,
    /// Journals and transitions that gave another result when they were run again.
    pub replay_differences: IntCounter,
    /// Transitions that were made twice and compared.
    pub transitions_verified: IntCounter,
    /// Watchers that were ended because they did not read.
    pub slow_watchers: IntCounter,
    transitions: IntCounterVec,
    transition_seconds: Histogram,
    commit_seconds: HistogramVec,
    dedupe_hits: IntCounterVec,
    /// Calls of effects.
    pub effects: EffectMetrics,
}

/// Registers metrics under the names of this service.
struct SagaMetricRegistrar<'a> {
    registry: &'a Registry,
    by_tenant: &'a Arc<TenantLabels>,
}

impl SagaMetricRegistrar<'_> {
    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        add(self.registry, &IntCounter::new(format!("mycora_saga_{name}_total"), help)?)
    }

    fn vector(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        let opts = Opts::new(format!("mycora_saga_{name}_total"), help);
        add(self.registry, &IntCounterVec::new(opts, labels)?)
    }

    /// Registers a counter that may have a label for the tenant.
    fn of_tenants(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        self.vector(name, help, &self.by_tenant.labels(labels))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        add(self.registry, &IntGauge::new(format!("mycora_saga_{name}"), help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        add(self.registry, &IntGaugeVec::new(Opts::new(format!("mycora_saga_{name}"), help), labels)?)
    }

    fn times(&self, name: &str, help: &str, bounds: &[f64]) -> Result<Histogram, prometheus::Error> {
        let opts = HistogramOpts::new(format!("mycora_saga_{name}"), help).buckets(bounds.to_vec());
        add(self.registry, &Histogram::with_opts(opts)?)
    }

    fn times_by(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        bounds: &[f64],
    ) -> Result<HistogramVec, prometheus::Error> {
        let opts = HistogramOpts::new(format!("mycora_saga_{name}"), help).buckets(bounds.to_vec());
        add(self.registry, &HistogramVec::new(opts, labels)?)
    }
}

impl Metrics {
    /// Registers the metrics, with the visibility that the operator wants.
    ///
    /// # Errors
    /// When one of the names is taken in this registry.
    pub fn new(registry: &Registry, seeing: SagaVisibility) -> Result<Self, prometheus::Error> {
        let by_tenant = Arc::new(TenantLabels::new(seeing.by_tenant));
        let names = SagaMetricRegistrar { registry, by_tenant: &by_tenant };
        Ok(Self {
            seeing,
            lanes_owned: names.gauge("lanes_owned", "Lanes that this replica owns")?,
            taken: names.counter("taken", "Lanes that were taken")?,
            fenced_commits: names.counter("fenced_commits", "Commits refused: the lane has another owner")?,
            cursor_resets: names.vector(
                "cursor_resets",
                "Cursors that were made: since their lane was taken, or since they were lost",
                &["why"],
            )?,
            census: CensusGauges::new(&names)?,
            lanes_full_of_letters: names
                .gauge("lanes_full_of_letters", "Owned lanes without room for a dead letter")?,
            store_bytes: names
                .gauge("store_bytes", "Bytes that the store uses; of Redis all of its memory")?,
            readings: add(registry, &LaneReadings::new()?)?,
            stream_went_back: names
                .vector(
                    "stream_went_back",
                    "Streams that lost messages, or were made anew, as a lane finds",
                    &["stream", "why"],
                )
                .map(from_zero)?,
            clock_went_back: names.counter("clock_went_back", "Steps back of the clock that timers go by")?,
            events_expired: names
                .counter("events_expired", "Messages that were gone before they were read")?,
            foreign_messages: names
                .counter("foreign_messages", "Messages that no filter should have let through")?,
            tenant_mismatches: names
                .counter("tenant_mismatches", "Requests refused: they name two tenants")?,
            relayed: names.counter("relayed", "Work that was sent")?,
            inputs_under_way: names.gauge("inputs_under_way", "Inputs that are being applied")?,
            timers_fired: names.counter("timers_fired", "Timers that fired")?,
            letters: names
                .of_tenants("letters_written", "Dead letters that were written", &[])
                .map(|letters| TenantCounter::new(letters, &by_tenant))?,
            replay_differences: names.counter("replay_differences", "What differs when it is run again")?,
            transitions_verified: names
                .counter("transitions_verified", "Transitions that were made twice")?,
            slow_watchers: names.counter("slow_watchers", "Watchers ended: they did not read")?,
            transitions: names.of_tenants(
                "transitions",
                "Inputs of instances by saga, and by what became of them",
                &["saga", "outcome"],
            )?,
            timers_waiting_for_source: names.gauge(
                "timers_waiting_for_source",
                "Timers in memory whose time is over, and that wait for a source",
            )?,
            timer_lag: names.times(
                "timer_lag_seconds",
                "Time from a timer's moment to its transition",
                &LONG,
            )?,
            transition_seconds: names.times(
                "transition_seconds",
                "From an input's turn to its commit",
                &SHORT,
            )?,
            commit_seconds: names.times_by(
                "commit_seconds",
                "Time of commits, by store",
                &["backend"],
                &SHORT,
            )?,
            dedupe_hits: names.vector(
                "dedupe_hits",
                "Inputs that had come before, by who knew it",
                &["where"],
            )?,
            effects: EffectMetrics::new(&names)?,
            by_tenant,
        })
    }

    /// Counts a lane that finds that a stream went back.
    pub(crate) fn stream_went_back(&self, stream: &str, loss: StreamLoss) {
        self.stream_went_back.with_label_values(&[stream, loss.as_str()]).inc();
    }

    /// Counts an input that is being applied.
    pub(crate) fn under_way(&self) -> ActiveInputGuard {
        self.inputs_under_way.inc();
        ActiveInputGuard(self.inputs_under_way.clone())
    }

    /// Counts the inputs that are being applied.
    pub(crate) fn inputs_under_way(&self) -> i64 {
        self.inputs_under_way.get()
    }

    /// Counts an input, by its outcome. `saga` is its [`label`](crate::definitions::ActiveDefinitions::label).
    pub fn transition(&self, saga: &str, tenant: &TenantId, outcome: &str) {
        if outcome == "repeat" {
            self.dedupe_hit("store");
        }
        self.transitions.with_label_values(&self.by_tenant.values(&[saga, outcome], tenant)).inc();
    }

    /// Drops the counts of sagas whose names are no longer kept.
    pub fn forget_sagas(&self, is_kept: impl Fn(&str) -> bool) {
        for family in self.transitions.collect() {
            for metric in family.get_metric() {
                let value = |name: &&str| {
                    let labels = metric.get_label().iter();
                    labels
                        .filter(|label| label.name() == *name)
                        .map(|label| label.value())
                        .next()
                        .unwrap_or_default()
                };
                let names = self.by_tenant.labels(&["saga", "outcome"]);
                let values: Vec<_> = names.iter().map(value).collect();
                if values.first().is_some_and(|saga| !is_kept(saga)) {
                    // It was there just now, and no other task removes it.
                    let _ = self.transitions.remove_label_values(&values);
                }
            }
        }
    }

    /// Notes how long an input's turn took, its commit included.
    pub fn transition_took(&self, length: Duration) {
        self.transition_seconds.observe(length.as_secs_f64());
    }

    /// Notes how long a commit took. `is_shared` says which store it was: Redis, or a directory.
    pub fn commit_took(&self, is_shared: bool, length: Duration) {
        let backend = if is_shared { "redis" } else { "embedded" };
        self.commit_seconds.with_label_values(&[backend]).observe(length.as_secs_f64());
    }

    /// Notes how late a timer fired.
    pub fn timer_lagged(&self, length: Duration) {
        self.timer_lag.observe(length.as_secs_f64());
    }

    /// Counts an input that had come before: `store` recognised an event or a request, `ledger` a command.
    pub fn dedupe_hit(&self, place: &str) {
        self.dedupe_hits.with_label_values(&[place]).inc();
    }
}

/// One lane's part of a gauge that all lanes share; taken back on drop.
#[derive(Debug)]
pub struct GaugeShare {
    gauge: IntGauge,
    part: i64,
}

impl GaugeShare {
    /// Makes an empty part.
    #[must_use]
    pub const fn new(gauge: IntGauge) -> Self {
        Self { gauge, part: 0 }
    }

    /// The part of the lane.
    #[must_use]
    pub const fn part(&self) -> i64 {
        self.part
    }

    /// Sets the part of the lane.
    pub fn set(&mut self, part: usize) {
        let part = i64::try_from(part).unwrap_or(i64::MAX);
        self.gauge.add(part - self.part);
        self.part = part;
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Shows each stream and each loss from the beginning, so that the first one is an increase.
fn from_zero(went_back: IntCounterVec) -> IntCounterVec {
    for stream in [AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS] {
        for loss in StreamLoss::ALL {
            went_back.with_label_values(&[stream, loss.as_str()]).inc_by(0);
        }
    }
    went_back
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, collector: &C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus::Gauge;

    use super::*;

    #[test]
    fn alerts_are_of_metrics_that_there_are() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../specs/saga.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, alerts) = page.split_once("\n### Alerts\n").expect("a part about alerts");
        let (alerts, _) = alerts.split_once("\n## ").expect("a part behind it");
        let names = alerts.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: BTreeSet<_> = names.filter(|name| name.starts_with("mycora_saga_")).collect();
        assert!(names.len() >= 10, "{names:?}");
        let registry = Registry::new();
        let _metrics = Metrics::new(&registry, SagaVisibility::default()).expect("new names");
        let is_free = |name: &str| {
            let other = Gauge::new(name, "another one").expect("a name");
            registry.register(Box::new(other)).is_ok()
        };
        for name in names {
            let family = ["_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(!is_free(family), "there is no {name}");
        }
        assert!(is_free("mycora_saga_unknown"));
    }

    #[test]
    fn what_is_counted_of_a_saga_goes_with_its_name() {
        for by_tenant in [false, true] {
            let registry = Registry::new();
            let seeing = SagaVisibility { by_tenant, ..SagaVisibility::default() };
            let metrics = Metrics::new(&registry, seeing).expect("new names");
            let tenant = "acme".parse().expect("a tenant");
            for saga in ["order", "own", "old"] {
                metrics.transition(saga, &tenant, "applied");
                metrics.transition(saga, &tenant, "kept");
            }
            metrics.forget_sagas(|saga| saga != "old");
            let families = metrics.transitions.collect();
            let left = families.iter().flat_map(|family| family.get_metric());
            let left: Vec<_> =
                left.flat_map(|metric| metric.get_label()).map(|label| label.value()).collect();
            assert_eq!(left.iter().filter(|value| ["order", "own"].contains(value)).count(), 4, "{left:?}");
            assert!(!left.contains(&"old") && left.contains(&"acme") == by_tenant, "{left:?}");
        }
    }
}
