//! Contexts that were dropped recently: their events that still wait in memory are no longer sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::ContextUid;
use queue::DROP_MARK_KEEP;

/// The contexts, each with the coordinator that owned it. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct DroppedContexts(Arc<Mutex<HashMap<(String, ContextUid), Instant>>>);

impl DroppedContexts {
    /// Notes that a coordinator has dropped a context.
    pub fn note(&self, coordinator: &str, context: ContextUid) {
        let mut contexts = self.contexts();
        // Events that waited in memory have been handled within that time.
        contexts.retain(|_, since| since.elapsed() < DROP_MARK_KEEP);
        contexts.insert((coordinator.to_owned(), context), Instant::now());
    }

    /// Returns true if a coordinator has dropped this context.
    #[must_use]
    pub fn contains(&self, coordinator: &str, context: ContextUid) -> bool {
        let contexts = self.contexts();
        !contexts.is_empty() && contexts.contains_key(&(coordinator.to_owned(), context))
    }

    fn contexts(&self) -> MutexGuard<'_, HashMap<(String, ContextUid), Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
