//! Engines that wait for a job: which are kept, and for how long.

use std::time::{Duration, Instant};

use model::ContextUid;

use crate::runtime::ScriptJob;

/// Engines that wait at once.
const IDLE_MAX: usize = 16;
/// How long one waits.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Key of an engine, which is never shared between keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EngineKey {
    pub(super) context: ContextUid,
    /// The user that it runs as, when that is not the runner's.
    pub(super) owner: Option<u32>,
}

impl EngineKey {
    pub(super) fn of(job: &ScriptJob) -> Self {
        Self { context: job.execution.job_key.context, owner: job.workspace.owner() }
    }
}

/// Engines that wait, the longest first.
#[derive(Debug)]
pub(super) struct IdleEngines<T>(Vec<IdleEngine<T>>);

#[derive(Debug)]
struct IdleEngine<T> {
    key: EngineKey,
    since: Instant,
    engine: T,
}

impl<T> Default for IdleEngines<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> IdleEngines<T> {
    /// The one that was used last, which has most at hand.
    pub(super) fn take(&mut self, key: EngineKey) -> Option<T> {
        let at = self.0.iter().rposition(|waiting| waiting.key == key)?;
        Some(self.0.remove(at).engine)
    }

    /// Keeps one, and gives the one that had to make room.
    pub(super) fn put(&mut self, key: EngineKey, engine: T, now: Instant) -> Option<T> {
        self.0.push(IdleEngine { key, since: now, engine });
        (self.0.len() > IDLE_MAX).then(|| self.0.remove(0).engine)
    }

    /// Those that have waited long.
    pub(super) fn take_unused(&mut self, now: Instant) -> Vec<T> {
        let is_unused = |waiting: &IdleEngine<T>| now.duration_since(waiting.since) >= IDLE_TIME_MAX;
        let count = self.0.iter().take_while(|waiting| is_unused(waiting)).count();
        self.0.drain(..count).map(|waiting| waiting.engine).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uid;

    use super::*;

    fn key(number: u128) -> EngineKey {
        EngineKey { context: ContextUid(Uid::from_bits(number)), owner: None }
    }

    #[test]
    fn an_engine_serves_one_context_and_owner_only() {
        let (mut idle, now) = (IdleEngines::default(), Instant::now());
        idle.put(key(1), "a", now);
        idle.put(key(1), "b", now);
        assert_eq!(idle.take(key(2)), None);
        assert_eq!(idle.take(EngineKey { owner: Some(7), ..key(1) }), None);
        assert_eq!((idle.take(key(1)), idle.take(key(1)), idle.take(key(1))), (Some("b"), Some("a"), None));
    }

    #[test]
    fn the_longest_unused_makes_room() {
        let (mut idle, now) = (IdleEngines::default(), Instant::now());
        for number in 0..IDLE_MAX {
            assert_eq!(idle.put(key(number as u128), number, now), None);
        }
        assert_eq!(idle.put(key(0), 100, now), Some(0));
    }

    #[test]
    fn what_waits_too_long_is_given_up() {
        let (mut idle, now) = (IdleEngines::default(), Instant::now());
        idle.put(key(1), 1, now);
        idle.put(key(1), 2, now + IDLE_TIME_MAX);
        assert!(idle.take_unused(now).is_empty());
        assert_eq!(idle.take_unused(now + IDLE_TIME_MAX), [1]);
        assert_eq!(idle.take(key(1)), Some(2));
    }
}
