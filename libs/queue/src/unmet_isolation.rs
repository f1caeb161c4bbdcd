//! Detection of jobs that demand more isolation than any instance will give.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use keys::{InstanceRef, WorkQueue};

use crate::presence::{PRESENCE_TTL, PresenceRecord};
use crate::supervisor::QueueStats;

/// Remembers since when jobs wait for more isolation than the instances of their queue give.
///
/// An instance that gives it may be restarting, so they wait for a whole [`PRESENCE_TTL`] before they are given
/// up. While a queue has no instances at all, its jobs wait.
#[derive(Debug)]
pub struct UnmetIsolationDetector {
    patience: Duration,
    unmet: HashMap<WorkQueue, Instant>,
}

impl Default for UnmetIsolationDetector {
    fn default() -> Self {
        Self::new(PRESENCE_TTL)
    }
}

impl UnmetIsolationDetector {
    /// With another patience, for tests.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { patience, unmet: HashMap::new() }
    }

    /// Gives the queues whose jobs are to be refused, with
    /// [`SupervisorQueues::refuse_waiting`](crate::SupervisorQueues::refuse_waiting).
    pub fn check(
        &mut self,
        queues: &[QueueStats],
        present: &[(InstanceRef, PresenceRecord)],
        now: Instant,
    ) -> Vec<WorkQueue> {
        let is_unmet = |queue: &WorkQueue| {
            let fitting = present.iter().filter(|(instance, _)| queue.is_for(instance));
            let best = fitting.map(|(_, record)| record.isolation).max();
            best.is_some_and(|best| best < queue.isolation())
        };
        let unmet = queues.iter().filter(|stats| stats.depth > 0).map(|stats| &stats.queue);
        let unmet: Vec<_> = unmet.filter(|queue| is_unmet(queue)).collect();
        self.unmet.retain(|queue, _| unmet.contains(&queue));
        let mut hopeless = Vec::new();
        for queue in unmet {
            let since = *self.unmet.entry(queue.clone()).or_insert(now);
            if now.saturating_duration_since(since) >= self.patience {
                hopeless.push(queue.clone());
            }
        }
        hopeless
    }

    /// Restarts all waiting times, after a while in which nothing could be observed.
    pub fn forget(&mut self) {
        self.unmet.clear();
    }
}
