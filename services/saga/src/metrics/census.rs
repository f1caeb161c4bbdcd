//! Census of owned lanes: their rows, counted when a lane is taken and updated with each commit.

use std::sync::{Arc, Mutex, PoisonError};

use model::{SagaStatus, TenantId};
use prometheus::{IntGauge, IntGaugeVec};

use super::{SagaMetricRegistrar, TenantLabels};

/// Kind of row that the census counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CensusKind {
    /// Instances that run.
    Running,
    /// Instances that are being undone.
    Compensating,
    /// Instances that need a person.
    Stuck,
    /// Instances that have ended, and whose journal is still there.
    Ended,
    /// Dead letters.
    Letters,
    /// Correlations behind a dead letter.
    ParkedKeys,
    /// Events that came before their step.
    Kept,
    /// Timers of sagas.
    Timers,
}

impl CensusKind {
    /// All of them, in the order of their declaration.
    const ALL: [Self; 8] = [
        Self::Running,
        Self::Compensating,
        Self::Stuck,
        Self::Ended,
        Self::Letters,
        Self::ParkedKeys,
        Self::Kept,
        Self::Timers,
    ];

    /// Returns the kind that an instance of this status is counted as.
    #[must_use]
    pub const fn instance(status: SagaStatus) -> Self {
        match status {
            SagaStatus::Running => Self::Running,
            SagaStatus::Compensating => Self::Compensating,
            SagaStatus::Stuck => Self::Stuck,
            SagaStatus::Completed | SagaStatus::Failed | SagaStatus::Compensated | SagaStatus::Killed => {
                Self::Ended
            }
        }
    }
}

/// Numbers by kind; in a change they may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census([i64; CensusKind::ALL.len()]);

impl Census {
    /// Adds to the number of a kind.
    pub fn add(&mut self, what: CensusKind, number: usize) {
        self.0[what as usize] += i64::try_from(number).unwrap_or(i64::MAX);
    }

    /// Subtracts from the number of a kind.
    pub fn remove(&mut self, what: CensusKind, number: usize) {
        self.0[what as usize] -= i64::try_from(number).unwrap_or(i64::MAX);
    }

    /// The number of a kind.
    #[must_use]
    pub const fn of(&self, what: CensusKind) -> i64 {
        self.0[what as usize]
    }
}

/// Gauges of the census over all owned lanes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CensusGauges(Arc<CensusGaugeFamilies>);

#[derive(Debug)]
struct CensusGaugeFamilies {
    by_tenant: Arc<TenantLabels>,
    instances: IntGaugeVec,
    letters: IntGaugeVec,
    stuck: IntGaugeVec,
    parked_keys: IntGauge,
    kept: IntGauge,
    timers: IntGauge,
}

/// Gauges of the lanes of a tenant, or of all.
#[derive(Debug)]
struct LaneCensusGauges {
    each: [IntGauge; CensusKind::ALL.len()],
    /// Instances that need a person, under a name of their own: there is an alert on it.
    stuck: IntGauge,
}

impl CensusGauges {
    /// Registers them.
    pub(super) fn new(names: &SagaMetricRegistrar<'_>) -> Result<Self, prometheus::Error> {
        let by_tenant = names.by_tenant;
        let of_tenants =
            |name: &str, help: &str, labels: &[&str]| names.gauges(name, help, &by_tenant.labels(labels));
        let families = Self(Arc::new(CensusGaugeFamilies {
            by_tenant: Arc::clone(by_tenant),
            instances: of_tenants(
                "instances",
                "Instances of owned lanes by status; `ended`: for the seven days that their journal is kept",
                &["status"],
            )?,
            letters: of_tenants("letters", "Dead letters of owned lanes", &[])?,
            stuck: of_tenants("stuck", "Instances of owned lanes that need a person", &[])?,
            parked_keys: names
                .gauge("parked_keys", "Correlations of owned lanes that wait behind a dead letter")?,
            kept: names.gauge("kept", "Events of owned lanes that came before their step")?,
            timers: names.gauge("timers", "Timers of owned lanes that are set")?,
        }));
        if by_tenant.labels(&[]).is_empty() {
            // Shown from the beginning.
            drop(families.of(&TenantId::single()));
        }
        Ok(families)
    }

    /// The gauges of lanes of a tenant.
    fn of(&self, tenant: &TenantId) -> LaneCensusGauges {
        let CensusGaugeFamilies { by_tenant, instances, letters, stuck, parked_keys, kept, timers } =
            &*self.0;
        let instances = |status: &str| instances.with_label_values(&by_tenant.values(&[status], tenant));
        let each = [
            instances(SagaStatus::Running.as_str()),
            instances(SagaStatus::Compensating.as_str()),
            instances(SagaStatus::Stuck.as_str()),
            instances("ended"),
            letters.with_label_values(&by_tenant.values(&[], tenant)),
            parked_keys.clone(),
            kept.clone(),
            timers.clone(),
        ];
        LaneCensusGauges { each, stuck: stuck.with_label_values(&by_tenant.values(&[], tenant)) }
    }

    /// Adds the census of a lane that was taken just now.
    #[must_use]
    pub fn lane(&self, tenant: &TenantId, census: &Census) -> LaneCensus {
        let lane = LaneCensus { gauges: self.of(tenant), now: Mutex::default() };
        lane.change(census);
        lane
    }
}

/// Census of one lane, which counts until it is dropped.
#[derive(Debug)]
pub struct LaneCensus {
    gauges: LaneCensusGauges,
    now: Mutex<Census>,
}

impl LaneCensus {
    /// The number of a kind.
    #[must_use]
    pub fn of(&self, what: CensusKind) -> u64 {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.of(what).unsigned_abs()
    }

    /// Applies the changes of a commit.
    pub fn change(&self, change: &Census) {
        if *change == Census::default() {
            return;
        }
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        for what in CensusKind::ALL {
            let before = now.of(what);
            // A commit whose answer was lost may not have been counted.
            let after = before.saturating_add(change.of(what)).max(0);
            now.0[what as usize] = after;
            self.gauges.each[what as usize].add(after - before);
            if what == CensusKind::Stuck {
                self.gauges.stuck.add(after - before);
            }
        }
    }
}

impl Drop for LaneCensus {
    fn drop(&mut self) {
        let now = *self.now.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.change(&Census(now.0.map(|number| -number)));
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    fn gauges(by_tenant: bool) -> CensusGauges {
        let (registry, by_tenant) = (&Registry::new(), &Arc::new(TenantLabels::new(by_tenant)));
        CensusGauges::new(&SagaMetricRegistrar { registry, by_tenant }).expect("names")
    }

    fn census(counts: &[(CensusKind, usize)]) -> Census {
        let mut census = Census::default();
        counts.iter().for_each(|(what, number)| census.add(*what, *number));
        census
    }

    #[test]
    fn each_has_its_place() {
        for (place, what) in CensusKind::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, place);
        }
    }

    #[test]
    fn lanes_are_summed_up_and_go_with_their_owners() {
        let (gauges, tenant) = (gauges(false), TenantId::single());
        let all = gauges.of(&tenant);
        let seen = |what: CensusKind| all.each[what as usize].get();
        let one = gauges.lane(&tenant, &census(&[(CensusKind::Stuck, 2), (CensusKind::Timers, 5)]));
        let other = gauges.lane(&tenant, &census(&[(CensusKind::Stuck, 1), (CensusKind::Kept, 1)]));
        let mut change = census(&[(CensusKind::Running, 1)]);
        change.remove(CensusKind::Stuck, 1);
        one.change(&change);
        assert_eq!((seen(CensusKind::Stuck), all.stuck.get(), seen(CensusKind::Running)), (2, 2, 1));
        // Rows that were not counted are not taken from another lane's count.
        let mut change = Census::default();
        change.remove(CensusKind::Timers, 9);
        one.change(&change);
        assert_eq!(seen(CensusKind::Timers), 0);
        drop(one);
        assert_eq!((seen(CensusKind::Stuck), seen(CensusKind::Running), seen(CensusKind::Kept)), (1, 0, 1));
        drop(other);
        assert!(CensusKind::ALL.into_iter().all(|what| seen(what) == 0) && all.stuck.get() == 0);
    }

    #[test]
    fn gauges_are_split_by_tenant_only_if_configured() {
        let [a, b] = ["a", "b"].map(|tenant| tenant.parse().expect("a tenant"));
        for (by_tenant, expected) in [(true, (2, 1, 5)), (false, (3, 3, 5))] {
            let gauges = gauges(by_tenant);
            let one = gauges.lane(&a, &census(&[(CensusKind::Stuck, 2), (CensusKind::Timers, 4)]));
            let other = gauges.lane(&b, &census(&[(CensusKind::Stuck, 1), (CensusKind::Timers, 1)]));
            let timers = gauges.of(&a).each[CensusKind::Timers as usize].get();
            assert_eq!((gauges.of(&a).stuck.get(), gauges.of(&b).stuck.get(), timers), expected);
            drop((one, other));
        }
    }
}
