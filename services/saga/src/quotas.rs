//! Usage of quotas by the tenants of this replica.
//!
//! A tenant at its quota starts no instance: events that would start one wait, and requests are refused. Running instances continue,
//! since only their ends make room. A lane's usage is counted when the lane is taken, and updated from there.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::TenantId;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};
use tokio::sync::watch;

use crate::metrics::TenantLabels;
use crate::tenants::Quotas;

/// How long a start waits before it is tried again if no room is freed on this replica.
const AGAIN: Duration = Duration::from_secs(1);

/// Number of open calls in a process at which the lane of one effect of a tenant takes no other.
pub const LANE_CALLS_MAX: u64 = 10_000;
/// Bytes of their commands at which it takes no other either.
pub const LANE_CALL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Usage of quotas by all tenants. Cheap to clone.
#[derive(Clone, Default)]
pub struct QuotaUsage(Arc<Mutex<HashMap<TenantId, Arc<TenantUsage>>>>);

/// Usage of one tenant.
struct TenantUsage {
    instances: AtomicU64,
    timers: AtomicU64,
    effects: AtomicU64,
    /// Starts that are still free, in thousandths, and when they were counted.
    starts: Mutex<(u64, Instant)>,
    quotas: Mutex<Quotas>,
    /// Lanes in which starts wait, and the quota that was used up last.
    starving: Mutex<(u64, Option<TenantQuotaExceeded>)>,
    freed: watch::Sender<()>,
}

/// A quota that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tenant has {found} of the quota `{quota}`, which is {most}")]
pub struct TenantQuotaExceeded {
    /// Name of the quota in the tenants file.
    pub quota: &'static str,
    /// How much there may be.
    pub most: u64,
    /// How much there is.
    pub found: u64,
    /// When to try again.
    pub again: Duration,
}

/// Usage of one lane, as part of its tenant's; given back when the lane is given up.
pub(crate) struct LaneUsage {
    tenant: Arc<TenantUsage>,
    instances: AtomicU64,
    timers: AtomicU64,
    is_starving: AtomicBool,
}

/// Room for one more instance, which is given back unless the instance has started.
pub(crate) struct InstanceReservation<'a> {
    lane: &'a LaneUsage,
    is_taken: bool,
}

/// Open calls of one effect's lane in this process, and of its tenant. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LaneCallUsage {
    tenant: Arc<TenantUsage>,
    /// Limit of open calls, whatever the tenant's quota.
    most: u64,
    count: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

/// An open call of an effect. Makes room for another when it is dropped.
pub(crate) struct OpenCallGuard {
    lane: LaneCallUsage,
    bytes: u64,
}

impl QuotaUsage {
    fn of(&self, tenant: &TenantId) -> Arc<TenantUsage> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(tenant.clone()).or_default())
    }

    /// Returns the usage of a lane that was taken with this many instances and timers.
    pub(crate) fn lane(&self, tenant: &TenantId, instances: u64, timers: u64) -> LaneUsage {
        let tenant = self.of(tenant);
        tenant.instances.fetch_add(instances, Ordering::Relaxed);
        tenant.timers.fetch_add(timers, Ordering::Relaxed);
        let (instances, timers) = (AtomicU64::new(instances), AtomicU64::new(timers));
        LaneUsage { tenant, instances, timers, is_starving: AtomicBool::new(false) }
    }

    /// Tenants whose starts wait on this replica, each with the quota that is used up.
    pub(crate) fn starving(&self) -> BTreeMap<TenantId, TenantQuotaExceeded> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |usage: &TenantUsage| {
            let starving = usage.starving.lock().unwrap_or_else(PoisonError::into_inner);
            starving.1.filter(|_| starving.0 > 0)
        };
        all.iter().filter_map(|(tenant, usage)| Some((tenant.clone(), full(usage)?))).collect()
    }

    /// Makes the usage of an effect's lane with this limit of open calls.
    pub(crate) fn lane_calls(&self, tenant: &TenantId, most: u64) -> LaneCallUsage {
        LaneCallUsage { tenant: self.of(tenant), most, count: Arc::default(), bytes: Arc::default() }
    }
}

impl Default for TenantUsage {
    fn default() -> Self {
        Self {
            instances: AtomicU64::new(0),
            timers: AtomicU64::new(0),
            effects: AtomicU64::new(0),
            starts: Mutex::new((u64::MAX, Instant::now())),
            quotas: Mutex::default(),
            starving: Mutex::default(),
            freed: watch::Sender::new(()),
        }
    }
}

impl TenantUsage {
    /// Takes one of the starts of this second, or returns how long to wait for the next one.
    fn take_start(&self, per_sec: u64) -> Result<(), Duration> {
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        let (free, counted) = *starts;
        let passed = u64::try_from(counted.elapsed().as_millis()).unwrap_or(u64::MAX);
        // One start a second is a thousandth of a start each millisecond.
        let free = free.saturating_add(passed.saturating_mul(per_sec)).min(per_sec.saturating_mul(1000));
        *starts = (free, if passed > 0 { Instant::now() } else { counted });
        if starts.0 < 1000 {
            let missing = 1000 - starts.0;
            return Err(Duration::from_millis(missing.div_ceil(per_sec.max(1))));
        }
        starts.0 -= 1000;
        Ok(())
    }

    /// Has waiting starts tried again.
    fn free(&self) {
        self.freed.send_replace(());
    }
}

impl LaneUsage {
    /// Reserves room for one more instance.
    ///
    /// # Errors
    /// The quota that is used up.
    pub(crate) fn room(&self, quotas: Quotas) -> Result<InstanceReservation<'_>, TenantQuotaExceeded> {
        *self.tenant.quotas.lock().unwrap_or_else(PoisonError::into_inner) = quotas;
        let full = |quota, most, found| TenantQuotaExceeded { quota, most, found, again: AGAIN };
        for (quota, most, found) in [
            ("timers", quotas.timers, self.tenant.timers.load(Ordering::Relaxed)),
            ("open_effects", quotas.open_effects, self.tenant.effects.load(Ordering::Relaxed)),
        ] {
            if found >= most {
                return Err(full(quota, most, found));
            }
        }
        let more = |found: u64| (found < quotas.instances).then_some(found + 1);
        let taken = self.tenant.instances.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map_err(|found| full("instances", quotas.instances, found))?;
        self.instances.fetch_add(1, Ordering::Relaxed);
        let room = InstanceReservation { lane: self, is_taken: false };
        let most = quotas.starts_per_sec;
        match self.tenant.take_start(most) {
            Ok(()) => Ok(room),
            Err(again) => Err(TenantQuotaExceeded { quota: "starts_per_sec", most, found: most, again }),
        }
    }

    /// Has inputs that wait for room tried again.
    pub(crate) fn try_again(&self) {
        self.tenant.free();
    }

    /// Notes that an instance has ended.
    pub(crate) fn ended(&self) {
        self.give_back();
        self.tenant.free();
    }

    fn give_back(&self) {
        lower(&self.instances, 1);
        lower(&self.tenant.instances, 1);
    }

    /// Notes timers that were set, and timers that are gone.
    pub(crate) fn timers(&self, set: usize, gone: usize) {
        for count in [&self.timers, &self.tenant.timers] {
            count.fetch_add(set as u64, Ordering::Relaxed);
            lower(count, gone as u64);
        }
        if gone > set {
            self.tenant.free();
        }
    }

    /// Notes that starts of the lane wait for this quota; with `None`, that none waits.
    pub(crate) fn starve(&self, full: Option<TenantQuotaExceeded>) {
        let was_starving = self.is_starving.swap(full.is_some(), Ordering::Relaxed);
        let mut starving = self.tenant.starving.lock().unwrap_or_else(PoisonError::into_inner);
        match (was_starving, full.is_some()) {
            (false, true) => starving.0 += 1,
            (true, false) => starving.0 = starving.0.saturating_sub(1),
            (true, true) | (false, false) => {}
        }
        starving.1 = full.or(starving.1);
    }

    /// Subscribes to moments at which waiting starts may be tried again.
    pub(crate) fn freed(&self) -> watch::Receiver<()> {
        self.tenant.freed.subscribe()
    }
}

impl Drop for LaneUsage {
    fn drop(&mut self) {
        self.starve(None);
        lower(&self.tenant.instances, self.instances.load(Ordering::Relaxed));
        lower(&self.tenant.timers, self.timers.load(Ordering::Relaxed));
        self.tenant.free();
    }
}

impl InstanceReservation<'_> {
    /// Keeps the room: the instance has started.
    pub(crate) fn keep(mut self) {
        self.is_taken = true;
    }
}

impl Drop for InstanceReservation<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.lane.give_back();
        }
    }
}

impl LaneCallUsage {
    /// Returns whether the lane's own limits allow one more call.
    fn fits(&self) -> bool {
        let (count, bytes) = (self.count.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        count < self.most && bytes < LANE_CALL_BYTES_MAX
    }

    /// Returns whether there is room for one more call.
    pub(crate) fn has_room(&self, quotas: Quotas) -> bool {
        self.fits() && self.tenant.effects.load(Ordering::Relaxed) < quotas.open_effects
    }

    /// Counts a call, if there is room for it, until the guard is dropped.
    pub(crate) fn open(&self, quotas: Quotas) -> Option<OpenCallGuard> {
        *self.tenant.quotas.lock().unwrap_or_else(PoisonError::into_inner) = quotas;
        let more = |found: u64| (found < quotas.open_effects).then_some(found + 1);
        let is_open = self.fits()
            && self.tenant.effects.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        is_open.then(|| self.counted())
    }

    /// Counts a call that is open, whether there is room for it or not.
    pub(crate) fn add(&self) -> OpenCallGuard {
        self.tenant.effects.fetch_add(1, Ordering::Relaxed);
        self.counted()
    }

    /// Counts a call in the lane that is already counted in its tenant.
    fn counted(&self) -> OpenCallGuard {
        self.count.fetch_add(1, Ordering::Relaxed);
        OpenCallGuard { lane: self.clone(), bytes: 0 }
    }

    /// Subscribes to moments at which there may be room again.
    pub(crate) fn freed(&self) -> watch::Receiver<()> {
        self.tenant.freed.subscribe()
    }
}

impl OpenCallGuard {
    /// Counts the bytes of its command.
    pub(crate) fn weigh(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.lane.bytes.fetch_add(bytes, Ordering::Relaxed);
        lower(&self.lane.bytes, std::mem::replace(&mut self.bytes, bytes));
    }
}

impl Drop for OpenCallGuard {
    fn drop(&mut self) {
        lower(&self.lane.bytes, self.bytes);
        lower(&self.lane.count, 1);
        lower(&self.lane.tenant.effects, 1);
        self.lane.tenant.free();
    }
}

/// Counts down, but not below zero: a commit whose answer was lost may not have been counted.
fn lower(count: &AtomicU64, by: u64) {
    let less = |found: u64| Some(found.saturating_sub(by));
    // The update never fails, since it always returns a number.
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Metrics of quota usage: for each quota the highest share that any tenant uses.
pub(crate) struct TenantQuotaMetrics {
    usage: QuotaUsage,
    ratio: GaugeVec,
    by_tenant: Arc<TenantLabels>,
}

impl TenantQuotaMetrics {
    /// Makes the metrics of this usage.
    ///
    /// # Errors
    /// None: its name is a good one.
    pub(crate) fn new(usage: QuotaUsage, by_tenant: &Arc<TenantLabels>) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "mycora_saga_quota_used_ratio",
            "Share of a quota that the tenant has which has most of it",
        );
        let ratio = GaugeVec::new(opts, &by_tenant.labels(&["quota"]))?;
        Ok(Self { usage, ratio, by_tenant: Arc::clone(by_tenant) })
    }
}

impl Collector for TenantQuotaMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.ratio.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Held to the end, so that concurrent readers see complete figures.
        let all = self.usage.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.ratio.reset();
        let raise = |labels: &[&str], ratio: f64| {
            let gauge = self.ratio.with_label_values(labels);
            gauge.set(gauge.get().max(ratio));
        };
        if self.by_tenant.labels(&[]).is_empty() {
            ["instances", "timers", "open_effects"].iter().for_each(|quota| raise(&[*quota], 0.0));
        }
        for (id, tenant) in &*all {
            let quotas = *tenant.quotas.lock().unwrap_or_else(PoisonError::into_inner);
            for (quota, found, most) in [
                ("instances", &tenant.instances, quotas.instances),
                ("timers", &tenant.timers, quotas.timers),
                ("open_effects", &tenant.effects, quotas.open_effects),
            ] {
                #[allow(clippy::cast_precision_loss, reason = "a share for a graph")]
                let share = found.load(Ordering::Relaxed) as f64 / most as f64;
                raise(&self.by_tenant.values(&[quota], id), share);
            }
        }
        self.ratio.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_a_tenant_share_what_it_may_have() {
        let (usage, acme) = (QuotaUsage::default(), "acme".parse().expect("a tenant"));
        let quotas = Quotas { instances: 3, timers: 5, open_effects: 1, ..Quotas::default() };
        let (one, other) = (usage.lane(&acme, 1, 0), usage.lane(&acme, 0, 0));
        drop(other.room(quotas).expect("given back"));
        one.room(quotas).expect("there is room").keep();
        other.room(quotas).expect("there is room").keep();
        let full = |lane: &LaneUsage| lane.room(quotas).err().map(|full| (full.quota, full.most, full.found));
        assert_eq!((full(&one), full(&other)), (Some(("instances", 3, 3)), Some(("instances", 3, 3))));
        let b = usage.lane(&"b".parse().expect("a tenant"), 0, 0);
        assert_ne!(full(&b).map(|full| full.0), Some("instances"), "another tenant has room");
        let mut freed = one.freed();
        freed.mark_unchanged();
        other.ended();
        assert!(freed.has_changed().expect("it goes on"));
        assert_eq!(full(&one), None);
        let effect = usage.lane_calls(&acme, 5).open(quotas).expect("there is room");
        assert_eq!(full(&one), Some(("open_effects", 1, 1)));
        drop(effect);
        other.timers(6, 1);
        assert_eq!(full(&one), Some(("timers", 5, 5)));
        // A lane that is given up is no longer counted here: its next owner counts it.
        drop(other);
        assert_eq!(full(&one), None);
    }

    #[test]
    fn calls_are_bounded_by_their_tenant_and_by_their_lane() {
        let (usage, acme) = (QuotaUsage::default(), "acme".parse().expect("a tenant"));
        let quotas = Quotas { open_effects: 3, ..Quotas::default() };
        let (one, other) = (usage.lane_calls(&acme, 2), usage.lane_calls(&acme, 2));
        let mut open = vec![one.open(quotas).expect("room"), one.open(quotas).expect("room")];
        assert!(one.open(quotas).is_none() && !one.has_room(quotas), "the lane is full");
        open.push(other.open(quotas).expect("room"));
        assert!(other.open(quotas).is_none() && !other.has_room(quotas), "the tenant is full");
        // A call that was open before counts, and is not refused.
        open.push(other.add());
        let mut freed = other.freed();
        freed.mark_unchanged();
        open.truncate(2);
        assert!(freed.has_changed().expect("it goes on") && other.has_room(quotas));
        open.pop();
        let mut large = one.open(quotas).expect("room");
        large.weigh(1);
        large.weigh(usize::try_from(LANE_CALL_BYTES_MAX).expect("it fits"));
        assert!(!one.has_room(Quotas::UNLIMITED) && other.has_room(Quotas::UNLIMITED));
        large.weigh(1);
        open.push(large);
        assert!(!one.has_room(Quotas::UNLIMITED), "it has as many as it may");
        drop(open);
        assert!(one.has_room(quotas) && one.tenant.effects.load(Ordering::Relaxed) == 0);
        assert_eq!((one.count.load(Ordering::Relaxed), one.bytes.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn starts_are_so_many_a_second() {
        let usage = TenantUsage::default();
        let begin = Instant::now();
        let mut started = 0;
        // The starts of one second are free from the beginning.
        while started < 120 {
            match usage.take_start(100) {
                Ok(()) => started += 1,
                Err(again) => assert!(again <= Duration::from_millis(10)),
            }
        }
        assert!(begin.elapsed() >= Duration::from_millis(190), "{:?}", begin.elapsed());
    }
}
