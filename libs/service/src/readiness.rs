//! Whether calls are welcome, and if not, why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Ready when every condition is met. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    unmet: Mutex<BTreeMap<String, String>>,
    ready: watch::Sender<bool>,
}

impl Readiness {
    /// Without conditions, that is ready.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Inner { unmet: Mutex::default(), ready: watch::Sender::new(true) }))
    }

    /// Adds a condition; it is unmet at first. The name says what is waited for: `storage`, `redis`.
    #[must_use]
    pub fn condition(&self, name: impl Into<String>) -> Condition {
        let condition = Condition { name: name.into(), readiness: self.clone() };
        condition.unmet("not yet");
        condition
    }

    /// Not ready any more, whatever the conditions say.
    pub fn close(&self, why: &str) {
        self.set("process", Some(why.to_owned()));
    }

    /// Whether it is ready now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Follows whether it is ready.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.ready.subscribe()
    }

    /// Waits until it is ready. Cancel safe.
    pub async fn ready(&self) {
        // The sender lives as long as `self`.
        let _ = self.subscribe().wait_for(|ready| *ready).await;
    }

    /// What is missing: name and reason, one each.
    #[must_use]
    pub fn missing(&self) -> Vec<(String, String)> {
        let unmet = self.0.unmet.lock().unwrap_or_else(PoisonError::into_inner);
        unmet.iter().map(|(name, why)| (name.clone(), why.clone())).collect()
    }

    fn set(&self, name: &str, unmet_because: Option<String>) {
        let mut unmet = self.0.unmet.lock().unwrap_or_else(PoisonError::into_inner);
        match unmet_because {
            Some(why) => drop(unmet.insert(name.to_owned(), why)),
            None => drop(unmet.remove(name)),
        }
        let ready = unmet.is_empty();
        // Still under the lock, so that two changes cannot overtake each other.
        self.0.ready.send_if_modified(|former| std::mem::replace(former, ready) != ready);
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

/// One thing that has to be so before calls are welcome.
#[derive(Debug)]
pub struct Condition {
    name: String,
    readiness: Readiness,
}

impl Condition {
    /// It is so.
    pub fn met(&self) {
        self.readiness.set(&self.name, None);
    }

    /// It is not so, for this reason.
    pub fn unmet(&self, why: impl Into<String>) {
        self.readiness.set(&self.name, Some(why.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_all_conditions_are_met() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let (storage, view) = (readiness.condition("storage"), readiness.condition("view"));
        assert!(!readiness.is_ready());
        storage.met();
        assert_eq!(readiness.missing(), [("view".to_owned(), "not yet".to_owned())]);
        view.met();
        assert!(readiness.is_ready());
        storage.unmet("connection lost");
        assert_eq!(readiness.missing(), [("storage".to_owned(), "connection lost".to_owned())]);
    }

    #[test]
    fn closed_for_good() {
        let readiness = Readiness::new();
        let storage = readiness.condition("storage");
        readiness.close("ending");
        storage.met();
        assert!(!readiness.is_ready());
    }
}
