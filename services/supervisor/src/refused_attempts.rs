//! Attempts that were refused lately. Their coordinator takes the refusal for their end and goes on to the next attempt,
//! so they must not be accepted when a message is repeated, though there is room by now.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use model::JobKey;
use mycelium::JsonRpcError;

/// Refusals that are remembered; the oldest are forgotten first. As many as messages that one router holds.
const REFUSED_MAX: usize = 10_000;

/// The attempts, each with the coordinator that offered it. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct RefusedAttempts(Arc<Mutex<RefusalCache>>);

#[derive(Debug, Default)]
struct RefusalCache {
    errors: HashMap<(String, JobKey), JsonRpcError>,
    order: VecDeque<(String, JobKey)>,
}

impl RefusedAttempts {
    /// Remembers a refusal that would not be one later. Where the coordinator is to offer the attempt again, it is none, and
    /// what can never be taken is judged each time.
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

    /// How an attempt was refused.
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
