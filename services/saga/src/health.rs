//! Impairments of a working service: a store that has no room, an upstream or a gateway that does not answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use service::{Impairment, Readiness};

/// Impairments that `/health` reports beside the conditions of the service. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SagaHealth {
    readiness: Readiness,
    lacks: Arc<Mutex<BTreeMap<String, CountedImpairment>>>,
}

/// An impairment, and the number of its guards.
#[derive(Debug)]
struct CountedImpairment {
    impairment: Impairment,
    count: usize,
}

/// Guard of an impairment, which lasts until the guard is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct ImpairmentGuard {
    health: SagaHealth,
    name: String,
}

impl SagaHealth {
    /// Reports impairments through this readiness.
    #[must_use]
    pub fn new(readiness: &Readiness) -> Self {
        Self { readiness: readiness.clone(), lacks: Arc::default() }
    }

    /// Reports an impairment until the guard is dropped. Of several reasons under one name, the last one is shown.
    pub(crate) fn begin_impairment(&self, name: &str, why: &str) -> ImpairmentGuard {
        let mut lacks = self.lacks.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = lacks
            .entry(name.to_owned())
            .or_insert_with(|| CountedImpairment { impairment: self.readiness.impairment(name), count: 0 });
        counted.count += 1;
        counted.impairment.begin(why);
        ImpairmentGuard { health: self.clone(), name: name.to_owned() }
    }
}

impl Drop for ImpairmentGuard {
    fn drop(&mut self) {
        let mut lacks = self.health.lacks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(counted) = lacks.get_mut(&self.name) else { return };
        counted.count -= 1;
        if counted.count == 0 {
            counted.impairment.end();
            lacks.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_listed_until_its_last_impairment_ends() {
        let readiness = Readiness::new();
        let health = SagaHealth::new(&readiness);
        let one = health.begin_impairment("store", "it is full");
        let other = health.begin_impairment("store", "it is still full");
        drop(one);
        assert_eq!(readiness.problems(), [("store".to_owned(), "it is still full".to_owned())]);
        drop(other);
        assert_eq!(readiness.problems(), []);
        assert!(readiness.is_ready());
    }
}
