//! Runners that are not alive, and since when.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use model::{ContextId, RunnerId, Timestamp};

/// A runner record of a context.
pub type RunnerKey = (ContextId, RunnerId);

/// Decides which runners' attempts are lost. Pure: callers pass the time in.
#[derive(Debug)]
pub struct Liveness {
    /// A supervisor that was away for this long has lost its attempts.
    lost_after: Duration,
    /// Runners that are away and not lost yet, by when they will be.
    waiting: BTreeSet<(Timestamp, RunnerKey)>,
    /// Runners that are away, each with the time at which it is lost; nothing once that has passed.
    away: HashMap<RunnerKey, Option<Timestamp>>,
}

impl Liveness {
    /// Begins without any runner.
    #[must_use]
    pub fn new(lost_after: Duration) -> Self {
        Self { lost_after, waiting: BTreeSet::new(), away: HashMap::new() }
    }

    /// Notes that a runner is alive.
    pub fn mark_alive(&mut self, runner: RunnerKey) {
        if let Some(Some(until)) = self.away.remove(&runner) {
            self.waiting.remove(&(until, runner));
        }
    }

    /// Notes that a runner was last seen at `since`, or has been unknown since then.
    pub fn mark_away(&mut self, runner: RunnerKey, since: Timestamp) {
        self.away.entry(runner).or_insert_with(|| {
            let until = since + self.lost_after;
            self.waiting.insert((until, runner));
            Some(until)
        });
    }

    /// Returns true when the runner's attempts are lost.
    #[must_use]
    pub fn is_lost(&self, runner: RunnerKey) -> bool {
        self.away.get(&runner) == Some(&None)
    }

    /// The next runner whose time is over, each once.
    pub fn next_lost(&mut self, now: Timestamp) -> Option<RunnerKey> {
        let (until, runner) = self.waiting.first().copied().filter(|(until, _)| *until <= now)?;
        self.waiting.remove(&(until, runner));
        self.away.insert(runner, None);
        Some(runner)
    }

    /// When [`Liveness::next_lost`] will have something.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.waiting.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_lost_once_and_after_their_time() {
        let at = |secs: u64| Timestamp::from_millis(secs * 1000);
        let runner = (ContextId(1), RunnerId(1));
        let mut liveness = Liveness::new(Duration::from_secs(300));
        liveness.mark_away(runner, at(100));
        liveness.mark_away(runner, at(200));
        assert_eq!(liveness.next_due(), Some(at(400)));
        assert_eq!(liveness.next_lost(at(399)), None);
        assert_eq!(liveness.next_lost(at(400)), Some(runner));
        assert_eq!(liveness.next_lost(at(500)), None);
        assert!(liveness.is_lost(runner));
        liveness.mark_alive(runner);
        assert!(!liveness.is_lost(runner));
        liveness.mark_away(runner, at(600));
        liveness.mark_alive(runner);
        assert_eq!(liveness.next_due(), None);
    }
}
