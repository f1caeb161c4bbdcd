//! Runners that are not alive, and since when.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use model::{ContextId, RunnerId, Timestamp};

/// A runner record of a context.
pub type RunnerKey = (ContextId, RunnerId);

/// Tells whose attempts are lost. Pure: the time comes in.
#[derive(Debug)]
pub struct Liveness {
    /// A supervisor that was away for this long has lost its attempts.
    lost_after: Duration,
    /// Runners that are away and not lost yet, by when they will be.
    waiting: BTreeSet<(Timestamp, RunnerKey)>,
    /// The same by runner; nothing for one whose time is over.
    away: HashMap<RunnerKey, Option<Timestamp>>,
}

impl Liveness {
    /// Knows of nobody.
    #[must_use]
    pub fn new(lost_after: Duration) -> Self {
        Self { lost_after, waiting: BTreeSet::new(), away: HashMap::new() }
    }

    /// It lives.
    pub fn lives(&mut self, runner: RunnerKey) {
        if let Some(Some(until)) = self.away.remove(&runner) {
            self.waiting.remove(&(until, runner));
        }
    }

    /// It was last heard of at `since`, or is not known at all since then.
    pub fn is_away(&mut self, runner: RunnerKey, since: Timestamp) {
        self.away.entry(runner).or_insert_with(|| {
            let until = since + self.lost_after;
            self.waiting.insert((until, runner));
            Some(until)
        });
    }

    /// Whether its attempts are lost.
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
        liveness.is_away(runner, at(100));
        liveness.is_away(runner, at(200));
        assert_eq!(liveness.next_due(), Some(at(400)));
        assert_eq!(liveness.next_lost(at(399)), None);
        assert_eq!(liveness.next_lost(at(400)), Some(runner));
        assert_eq!(liveness.next_lost(at(500)), None);
        assert!(liveness.is_lost(runner));
        liveness.lives(runner);
        assert!(!liveness.is_lost(runner));
        liveness.is_away(runner, at(600));
        liveness.lives(runner);
        assert_eq!(liveness.next_due(), None);
    }
}
