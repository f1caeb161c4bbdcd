//! Tenants in metrics, named if the operator wants that.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use model::TenantId;
use prometheus::IntCounterVec;
use prometheus::core::Collector as _;

/// Number of tenants that are named. All others are counted together.
pub const TENANTS_NAMED_MAX: usize = 100;
/// The name of all others.
const OTHER: &str = "other";

/// Names of tenants in metrics.
#[derive(Debug)]
pub struct TenantLabels(Option<Mutex<HashSet<TenantId>>>);

impl TenantLabels {
    /// Names tenants, or none of them.
    #[must_use]
    pub fn new(is_wanted: bool) -> Self {
        Self(is_wanted.then(Mutex::default))
    }

    /// The labels of a metric that has these, and perhaps one for the tenant.
    #[must_use]
    pub fn labels<'a>(&self, labels: &[&'a str]) -> Vec<&'a str> {
        labels.iter().copied().chain(self.0.is_some().then_some("tenant")).collect()
    }

    /// Values of those labels: the first tenants that come have their names.
    #[must_use]
    pub fn values<'a>(&self, values: &[&'a str], tenant: &'a TenantId) -> Vec<&'a str> {
        values.iter().copied().chain(self.name(tenant)).collect()
    }

    fn name<'a>(&self, tenant: &'a TenantId) -> Option<&'a str> {
        let mut named = self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        if named.contains(tenant) {
            return Some(tenant.as_str());
        }
        if named.len() >= TENANTS_NAMED_MAX {
            return Some(OTHER);
        }
        named.insert(tenant.clone());
        Some(tenant.as_str())
    }
}

/// A counter over tenants, all of them together or by name.
#[derive(Debug)]
pub struct TenantCounter {
    all: IntCounterVec,
    by_tenant: Arc<TenantLabels>,
}

impl TenantCounter {
    /// Makes a counter that has no labels apart from the tenant.
    pub(super) fn new(all: IntCounterVec, by_tenant: &Arc<TenantLabels>) -> Self {
        if by_tenant.0.is_none() {
            // Shown from the beginning.
            all.with_label_values::<&str>(&[]).inc_by(0);
        }
        Self { all, by_tenant: Arc::clone(by_tenant) }
    }

    /// Adds to the count of a tenant.
    pub fn add(&self, tenant: &TenantId, number: u64) {
        if number > 0 {
            self.all.with_label_values(&self.by_tenant.values(&[], tenant)).inc_by(number);
        }
    }

    /// Returns the count over all tenants.
    #[must_use]
    pub fn get(&self) -> u64 {
        let families = self.all.collect();
        let counts = families.iter().flat_map(|family| family.get_metric());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the counter only ever adds whole numbers"
        )]
        let number = |count: f64| count as u64;
        counts.map(|count| number(count.get_counter().get_value())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_tenants_are_named() {
        let tenant = |number: usize| format!("t-{number}").parse::<TenantId>().expect("a tenant");
        let (named, nobody) = (TenantLabels::new(true), TenantLabels::new(false));
        assert_eq!((named.labels(&["a"]), nobody.labels(&["a"])), (vec!["a", "tenant"], vec!["a"]));
        for number in 0..2 * TENANTS_NAMED_MAX {
            let tenant = tenant(number);
            let expected = if number < TENANTS_NAMED_MAX { tenant.as_str() } else { OTHER };
            assert_eq!(named.values(&["x"], &tenant), ["x", expected]);
            assert_eq!(nobody.values(&["x"], &tenant), ["x"]);
        }
        assert_eq!(named.values(&[], &tenant(0)), ["t-0"], "it keeps its name");
    }
}
