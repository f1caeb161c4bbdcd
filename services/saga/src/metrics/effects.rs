//! Metrics of calls.

use std::sync::Arc;
use std::time::Duration;

use model::{EffectState, TenantId};
use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::{ATTEMPTS, LONG, SagaMetricRegistrar, TenantLabels};

/// Metrics of calls.
#[derive(Debug)]
pub struct EffectMetrics {
    by_tenant: Arc<TenantLabels>,
    ended: IntCounterVec,
    seconds: HistogramVec,
    attempts: HistogramVec,
    open: IntGaugeVec,
    unknown_outcomes: IntCounterVec,
    breaker_open: IntGaugeVec,
}

impl EffectMetrics {
    /// Registers them.
    pub(super) fn new(names: &SagaMetricRegistrar<'_>) -> Result<Self, prometheus::Error> {
        let of_calls = ["effect", "result"];
        Ok(Self {
            by_tenant: Arc::clone(names.by_tenant),
            ended: names.of_tenants("effects", "Calls that ended, by effect and result", &of_calls)?,
            seconds: names.times_by(
                "effect_seconds",
                "Time from a command to its result, all calls and pauses together",
                &["effect"],
                &LONG,
            )?,
            attempts: names.times_by("effect_attempts", "Calls until a result", &["effect"], &ATTEMPTS)?,
            open: names.gauges("effects_open", "Calls that have not ended, by state", &["state"])?,
            unknown_outcomes: names.vector(
                "unknown_outcomes",
                "Calls of which nobody knew whether they happened, by effect and policy",
                &["effect", "policy"],
            )?,
            breaker_open: names.gauges("breaker_open", "1 where an upstream is left alone", &["upstream"])?,
        })
    }

    /// Counts the calls that are being made.
    pub(crate) fn under_way(&self) -> i64 {
        self.open.with_label_values(&[EffectState::Calling.as_str()]).get()
    }

    /// Counts a call of a tenant that ended.
    pub fn ended(&self, tenant: &TenantId, (effect, result): (&str, &str), attempts: u32, took: Duration) {
        self.ended.with_label_values(&self.by_tenant.values(&[effect, result], tenant)).inc();
        self.attempts.with_label_values(&[effect]).observe(attempts.into());
        self.seconds.with_label_values(&[effect]).observe(took.as_secs_f64());
    }

    /// Counts a call whose outcome is unknown.
    pub fn unknown_outcome(&self, effect: &str, policy: &str) {
        self.unknown_outcomes.with_label_values(&[effect, policy]).inc();
    }

    /// Counts an open call that moves from one state to another; `None`: it is not open, or not this replica's.
    pub fn moved(&self, from: Option<EffectState>, to: Option<EffectState>) {
        let open = |state: Option<EffectState>| state.filter(|state| !state.is_end());
        if let Some(from) = open(from) {
            self.open.with_label_values(&[from.as_str()]).dec();
        }
        if let Some(to) = open(to) {
            self.open.with_label_values(&[to.as_str()]).inc();
        }
    }

    /// Notes whether an upstream is left alone.
    pub fn breaker(&self, upstream: &str, is_open: bool) {
        self.breaker_open.with_label_values(&[upstream]).set(i64::from(is_open));
    }
}
