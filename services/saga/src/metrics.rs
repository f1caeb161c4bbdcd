//! What the saga service counts.

mod census;
mod readings;

use std::time::Duration;

use model::EffectState;
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

pub use self::census::{Census, CensusGauges, Counted, LaneCensus};
pub use self::readings::{OutboxReading, Readings, SourceReading};

/// Bounds of short times, in seconds: commits and transitions.
const SHORT: [f64; 11] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Bounds of long times, in seconds: calls and timers.
const LONG: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0];
/// Bounds of attempts.
const ATTEMPTS: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 100.0];

/// An input that is being applied, counted as long as this is kept.
#[derive(Debug)]
pub(crate) struct UnderWay(IntGauge);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The service's counters, under `/metrics`.
#[derive(Debug)]
pub struct Metrics {
    /// Lanes that this replica owns.
    pub lanes_owned: IntGauge,
    /// Lanes that were taken.
    pub taken: IntCounter,
    /// Commits that were refused since the lane has another owner.
    pub fenced_commits: IntCounter,
    /// Cursors that were made, by the reason.
    pub cursor_resets: IntCounterVec,
    /// What owned lanes keep.
    pub census: CensusGauges,
    /// Owned lanes that have as many dead letters as they may have, so that inputs wait.
    pub lanes_full_of_letters: IntGauge,
    /// Bytes that the store uses, as they were measured last.
    pub store_bytes: IntGauge,
    /// What owned lanes have before them.
    pub readings: Readings,
    /// Streams that went back.
    pub stream_went_back: IntCounter,
    /// Messages that were gone before they were read.
    pub events_expired: IntCounter,
    /// Messages that no filter should have let through.
    pub foreign_messages: IntCounter,
    /// Work that was sent.
    pub relayed: IntCounter,
    inputs_under_way: IntGauge,
    /// Timers that fired.
    pub timers_fired: IntCounter,
    /// Dead letters that were written.
    pub letters: IntCounter,
    /// Timers in memory whose time is over, and that wait for a source.
    pub timers_waiting_for_source: IntGauge,
    /// Time between the moment at which a timer was due and its transition.
    timer_lag: Histogram,
    /// Journals that gave something else when they were run again.
    pub replay_differences: IntCounter,
    /// Watchers that were ended since they did not read.
    pub slow_watchers: IntCounter,
    transitions: IntCounterVec,
    transition_seconds: Histogram,
    commit_seconds: HistogramVec,
    dedupe_hits: IntCounterVec,
    effects: IntCounterVec,
    effect_seconds: HistogramVec,
    effect_attempts: HistogramVec,
    effects_open: IntGaugeVec,
    unknown_outcomes: IntCounterVec,
    breaker_open: IntGaugeVec,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When one of the names is taken in this registry.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            add(registry, &IntCounter::new(format!("mycora_saga_{name}_total"), help)?)
        };
        let gauge =
            |name: &str, help: &str| add(registry, &IntGauge::new(format!("mycora_saga_{name}"), help)?);
        let vector = |name: &str, help: &str, labels: &[&str]| {
            add(registry, &IntCounterVec::new(Opts::new(format!("mycora_saga_{name}_total"), help), labels)?)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            add(registry, &IntGaugeVec::new(Opts::new(format!("mycora_saga_{name}"), help), labels)?)
        };
        let times_by = |name: &str, help: &str, labels: &[&str], bounds: &[f64]| {
            let opts = HistogramOpts::new(format!("mycora_saga_{name}"), help).buckets(bounds.to_vec());
            add(registry, &HistogramVec::new(opts, labels)?)
        };
        let times = |name: &str, help: &str, bounds: &[f64]| {
            let opts = HistogramOpts::new(format!("mycora_saga_{name}"), help).buckets(bounds.to_vec());
            add(registry, &Histogram::with_opts(opts)?)
        };
        Ok(Self {
            lanes_owned: gauge("lanes_owned", "Lanes that this replica owns")?,
            taken: counter("taken", "Lanes that were taken")?,
            fenced_commits: counter("fenced_commits", "Commits refused: the lane has another owner")?,
            cursor_resets: vector(
                "cursor_resets",
                "Cursors that were made: since their lane was taken, or since they were lost",
                &["why"],
            )?,
            census: CensusGauges::new(gauge, gauges)?,
            lanes_full_of_letters: gauge(
                "lanes_full_of_letters",
                "Owned lanes without room for a dead letter",
            )?,
            store_bytes: gauge("store_bytes", "Bytes that the store uses; of Redis all of its memory")?,
            readings: add(registry, &Readings::new()?)?,
            stream_went_back: counter("stream_went_back", "Streams that lost messages, or were made anew")?,
            events_expired: counter("events_expired", "Messages that were gone before they were read")?,
            foreign_messages: counter("foreign_messages", "Messages that no filter should have let through")?,
            relayed: counter("relayed", "Work that was sent")?,
            inputs_under_way: gauge("inputs_under_way", "Inputs that are being applied")?,
            timers_fired: counter("timers_fired", "Timers that fired")?,
            letters: counter("letters_written", "Dead letters that were written")?,
            replay_differences: counter("replay_differences", "Journals that differ when run again")?,
            slow_watchers: counter("slow_watchers", "Watchers ended: they did not read")?,
            transitions: vector("transitions", "Inputs of instances, by what became of them", &["outcome"])?,
            effects: vector("effects", "Calls that ended, by effect and result", &["effect", "result"])?,
            timers_waiting_for_source: gauge(
                "timers_waiting_for_source",
                "Timers in memory whose time is over, and that wait for a source",
            )?,
            timer_lag: times("timer_lag_seconds", "Time from a timer's moment to its transition", &LONG)?,
            transition_seconds: times("transition_seconds", "From an input's turn to its commit", &SHORT)?,
            commit_seconds: times_by("commit_seconds", "Time of commits, by store", &["backend"], &SHORT)?,
            dedupe_hits: vector("dedupe_hits", "Inputs that had come before, by who knew it", &["where"])?,
            effect_seconds: times_by(
                "effect_seconds",
                "Time from a command to its result, all calls and pauses together",
                &["effect"],
                &LONG,
            )?,
            effect_attempts: times_by("effect_attempts", "Calls until a result", &["effect"], &ATTEMPTS)?,
            effects_open: gauges("effects_open", "Calls that have not ended, by state", &["state"])?,
            unknown_outcomes: vector(
                "unknown_outcomes",
                "Calls of which nobody knew whether they happened, by effect and policy",
                &["effect", "policy"],
            )?,
            breaker_open: gauges("breaker_open", "1 where an upstream is left alone", &["upstream"])?,
        })
    }

    /// Counts an input that is being applied.
    pub(crate) fn under_way(&self) -> UnderWay {
        self.inputs_under_way.inc();
        UnderWay(self.inputs_under_way.clone())
    }

    /// Counts the inputs that are being applied.
    pub(crate) fn inputs_under_way(&self) -> i64 {
        self.inputs_under_way.get()
    }

    /// Counts the calls that are being made.
    pub(crate) fn calls_under_way(&self) -> i64 {
        self.effects_open.with_label_values(&[EffectState::Calling.as_str()]).get()
    }

    /// Counts an input, by what became of it.
    pub fn transition(&self, outcome: &str) {
        if outcome == "repeat" {
            self.dedupe_hit("store");
        }
        self.transitions.with_label_values(&[outcome]).inc();
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

    /// Counts an input that had come before: `store` knew an event or a request, `ledger` a command.
    pub fn dedupe_hit(&self, place: &str) {
        self.dedupe_hits.with_label_values(&[place]).inc();
    }

    /// Counts a call that ended.
    pub fn effect(&self, effect: &str, result: &str, attempts: u32, took: Duration) {
        self.effects.with_label_values(&[effect, result]).inc();
        self.effect_attempts.with_label_values(&[effect]).observe(attempts.into());
        self.effect_seconds.with_label_values(&[effect]).observe(took.as_secs_f64());
    }

    /// Counts a call of which nobody knows whether it happened.
    pub fn unknown_outcome(&self, effect: &str, policy: &str) {
        self.unknown_outcomes.with_label_values(&[effect, policy]).inc();
    }

    /// Counts an open call that comes from one state to another; none: it is not open, or not this replica's.
    pub fn effect_moved(&self, from: Option<EffectState>, to: Option<EffectState>) {
        let open = |state: Option<EffectState>| state.filter(|state| !state.is_end());
        if let Some(from) = open(from) {
            self.effects_open.with_label_values(&[from.as_str()]).dec();
        }
        if let Some(to) = open(to) {
            self.effects_open.with_label_values(&[to.as_str()]).inc();
        }
    }

    /// Notes whether an upstream is left alone.
    pub fn breaker(&self, upstream: &str, is_open: bool) {
        self.breaker_open.with_label_values(&[upstream]).set(i64::from(is_open));
    }
}

/// One lane's part of a gauge that all lanes share; taken back when it is dropped.
#[derive(Debug)]
pub struct GaugeShare {
    gauge: IntGauge,
    part: i64,
}

impl GaugeShare {
    /// Begins with nothing.
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

fn add<C: Collector + Clone + 'static>(registry: &Registry, collector: &C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector.clone())
}
