//! Detection of instances that are gone, as opposed to briefly unreachable ones.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use keys::InstanceRef;
use kv::Result;

use crate::presence::PRESENCE_TTL;
use crate::supervisor::SupervisorQueues;

/// Remembers since when instances are missing.
///
/// Presence expires while Redis is down as well, so an instance counts as gone only after it was missing
/// through a whole [`PRESENCE_TTL`] of undisturbed looks: one that lives has come back by then.
#[derive(Debug)]
pub struct InstanceLossDetector {
    patience: Duration,
    missing: HashMap<InstanceRef, Instant>,
}

impl Default for InstanceLossDetector {
    fn default() -> Self {
        Self::new(PRESENCE_TTL)
    }
}

impl InstanceLossDetector {
    /// With another patience, for tests.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { patience, missing: HashMap::new() }
    }

    /// Checks, and returns the instances that are gone. Their processes have to be ended first; then
    /// [`SupervisorQueues::end_lost`] ends their jobs.
    ///
    /// # Errors
    /// Any [`kv::Error`], after which the wait starts over.
    pub async fn check(&mut self, supervisor: &SupervisorQueues, now: Instant) -> Result<Vec<InstanceRef>> {
        let absent = match supervisor.absent().await {
            Ok(absent) => absent,
            Err(error) => {
                self.missing.clear();
                return Err(error);
            }
        };
        self.missing.retain(|instance, _| absent.contains(instance));
        let mut gone = Vec::new();
        for instance in absent {
            let since = *self.missing.entry(instance.clone()).or_insert(now);
            if now.saturating_duration_since(since) >= self.patience {
                gone.push(instance);
            }
        }
        Ok(gone)
    }
}
