//! Attempts that were refused recently. Their coordinator takes the refusal as their end and continues with the next attempt,
//! so they must not be accepted from a repeated message, even if there is room by then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use model::JobKey;
use mycelium::JsonRpcError;

/// Refusals that are remembered; the oldest are forgotten first. As many as messages that one router holds.
const REFUSED_MAX: usize = 10_000;

/// The attempts, each with the coordinator that offered it. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct RefusedAttempts(Arc<Mutex<RefusalCache>>);

#[derive(Debug, Default)]
struct RefusalCache {
    errors: HashMap<(String, JobKey), JsonRpcError>,
    order: VecDeque<(String, JobKey)>,
}

impl RefusedAttempts {
    /// Remembers a refusal whose cause may pass. Not remembered are refusals after which the coordinator offers the same attempt
    /// again, and lasting ones, which are decided each time.
    pub fn note(&self, coordinator: &str, key: JobKey, refusal: &JsonRpcError) {
        if refusal.is_lasting() || matches!(refusal.reason(), "UNAVAILABLE" | "BUSY") {
            return;
        }
        let name = (coordinator.to_owned(), key);
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.errors.insert(name.clone(), refusal.clone()).is_none() {
            refusals.order.push_back(name);
        }
        if refusals.order.len() > REFUSED_MAX
            && let Some(oldest) = refusals.order.pop_front()
        {
            refusals.errors.remove(&oldest);
        }
    }

    /// Returns the refusal of an attempt, if there was one.
    #[must_use]
    pub fn get(&self, coordinator: &str, key: JobKey) -> Option<JsonRpcError> {
        let refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.errors.is_empty() {
            return None;
        }
        refusals.errors.get(&(coordinator.to_owned(), key)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(attempt: usize) -> JobKey {
        format!("0000000000000000000000000000000a-0000000000000000000000000000000b-1-{attempt}")
            .parse()
            .expect("a key")
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let refused = RefusedAttempts::default();
        let full = JsonRpcError::refused("DISK_FULL", false, "full");
        for attempt in 1..=REFUSED_MAX + 1 {
            refused.note("c", key(attempt), &full);
        }
        assert!(refused.get("c", key(1)).is_none() && refused.get("other", key(2)).is_none());
        assert_eq!(
            refused.get("c", key(2)).map(|error| error.reason().to_owned()).as_deref(),
            Some("DISK_FULL")
        );
        assert_eq!(refused.0.lock().map(|refusals| refusals.errors.len()).ok(), Some(REFUSED_MAX));
    }

    #[test]
    fn what_is_to_be_offered_again_is_not_remembered() {
        let refused = RefusedAttempts::default();
        refused.note("c", key(1), &JsonRpcError::refused("UNAVAILABLE", false, "try again"));
        refused.note("c", key(1), &JsonRpcError::refused("POLICY_REFUSED", true, "never"));
        assert!(refused.get("c", key(1)).is_none());
    }
}
