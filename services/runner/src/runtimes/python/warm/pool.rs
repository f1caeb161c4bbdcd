//! Which interpreters are kept, and for how long.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::ContextUid;
use sandbox::BrokerRules;
use tokio::sync::OnceCell;

/// Interpreters that are kept at once.
pub(super) const INTERPRETERS_MAX: usize = 16;
/// How long one is kept that nothing uses.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(300);
/// How many jobs one serves before another takes its place.
pub(super) const JOBS_MAX: u32 = 1000;
/// For how long nothing is tried after one could not be started.
const FAILURE_PAUSE: Duration = Duration::from_secs(30);

/// Key of an interpreter, which is never shared between keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct InterpreterKey {
    pub(super) context: ContextUid,
    /// The user that it runs as, when that is not the runner's.
    pub(super) owner: Option<u32>,
    pub(super) network: bool,
    /// Calls that the init makes for the jobs: another policy needs another interpreter.
    pub(super) broker: BrokerRules,
}

/// Cell of an interpreter that runs or is being started: jobs that come meanwhile wait for the same one.
pub(super) type InterpreterCell<T> = Arc<OnceCell<Arc<T>>>;

/// Interpreters that are running. An interpreter is in use as long as there is another clone of it or of its cell.
#[derive(Debug)]
pub(super) struct InterpreterPool<T> {
    kept: HashMap<InterpreterKey, InterpreterPoolEntry<T>>,
}

#[derive(Debug)]
struct InterpreterPoolEntry<T> {
    place: InterpreterCell<T>,
    used: Instant,
    /// How many jobs it was given to.
    jobs: u32,
    /// Until when none is started.
    failed_until: Option<Instant>,
}

/// Interpreter that a job gets.
#[derive(Debug)]
pub(super) struct InterpreterCheckout<T> {
    pub(super) place: InterpreterCell<T>,
    /// Another one has to be started in its place, beside it.
    pub(super) worn: bool,
}

impl<T> Default for InterpreterPool<T> {
    fn default() -> Self {
        Self { kept: HashMap::new() }
    }
}

impl<T> InterpreterPoolEntry<T> {
    fn new(place: InterpreterCell<T>, now: Instant) -> Self {
        Self { place, used: now, jobs: 0, failed_until: None }
    }

    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.place) == 1
            && self.place.get().is_none_or(|interpreter| Arc::strong_count(interpreter) == 1)
    }
}

impl<T> InterpreterPool<T> {
    /// A place for a job; none while all are in use by others, or when it failed lately. What has to make room is
    /// ended.
    pub(super) fn give(&mut self, key: InterpreterKey, now: Instant) -> Option<InterpreterCheckout<T>> {
        if !self.kept.contains_key(&key) && self.kept.len() >= INTERPRETERS_MAX {
            let idle = self.kept.iter().filter(|(_, kept)| kept.is_idle());
            let least = idle.min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone())?;
            self.kept.remove(&least);
        }
        let kept = self
            .kept
            .entry(key)
            .or_insert_with(|| InterpreterPoolEntry::new(InterpreterCell::default(), now));
        if kept.failed_until.is_some_and(|until| now < until) {
            return None;
        }
        kept.used = now;
        kept.jobs += 1;
        Some(InterpreterCheckout { place: Arc::clone(&kept.place), worn: kept.jobs == JOBS_MAX })
    }

    /// Puts another one into the place of one that is worn. Jobs that have that one keep it.
    pub(super) fn replace(
        &mut self,
        key: &InterpreterKey,
        old: &InterpreterCell<T>,
        new: Arc<T>,
        now: Instant,
    ) {
        if let Some(kept) = self.kept.get_mut(key).filter(|kept| Arc::ptr_eq(&kept.place, old)) {
            *kept = InterpreterPoolEntry::new(Arc::new(OnceCell::new_with(Some(new))), now);
        }
    }

    /// Notes that none could be started in the place of a worn one, which goes on.
    pub(super) fn keep_worn(&mut self, key: &InterpreterKey, old: &InterpreterCell<T>) {
        if let Some(kept) = self.kept.get_mut(key).filter(|kept| Arc::ptr_eq(&kept.place, old)) {
            kept.jobs = 0;
        }
    }

    /// Notes that none could be started.
    pub(super) fn fail(&mut self, key: &InterpreterKey, place: &InterpreterCell<T>, now: Instant) {
        if let Some(kept) = self.kept.get_mut(key).filter(|kept| Arc::ptr_eq(&kept.place, place)) {
            kept.failed_until = Some(now + FAILURE_PAUSE);
        }
    }

    /// Gives up one that is of no use any more.
    pub(super) fn forget(&mut self, key: &InterpreterKey, place: &InterpreterCell<T>) {
        if self.kept.get(key).is_some_and(|kept| Arc::ptr_eq(&kept.place, place)) {
            self.kept.remove(key);
        }
    }

    /// Removes interpreters that were unused for long, or of which `is_gone` is true.
    pub(super) fn tidy(&mut self, now: Instant, is_gone: impl Fn(&T) -> bool) {
        self.kept.retain(|_, kept| {
            let gone = kept.place.get().is_some_and(|interpreter| is_gone(interpreter));
            let idle = kept.is_idle() && now.duration_since(kept.used) >= IDLE_MAX;
            !gone && !idle
        });
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uid;

    use super::*;

    fn key(number: u128) -> InterpreterKey {
        InterpreterKey {
            context: ContextUid(Uid::from_bits(number)),
            owner: None,
            network: false,
            broker: BrokerRules::default(),
        }
    }

    fn fill(given: &InterpreterCheckout<u32>, interpreter: u32) -> Arc<u32> {
        given.place.set(Arc::new(interpreter)).expect("it is empty");
        Arc::clone(given.place.get().expect("it was filled"))
    }

    #[test]
    fn one_for_each_context_and_what_it_may() {
        let (mut pool, now) = (InterpreterPool::<u32>::default(), Instant::now());
        let given = pool.give(key(1), now).expect("a place");
        let same = pool.give(key(1), now).expect("a place");
        assert!(Arc::ptr_eq(&given.place, &same.place), "who comes meanwhile waits for the same one");
        let broker = BrokerRules { processes: Some(1), ..BrokerRules::default() };
        let others = [
            key(2),
            InterpreterKey { network: true, ..key(1) },
            InterpreterKey { owner: Some(7), ..key(1) },
            InterpreterKey { broker, ..key(1) },
        ];
        for other in others {
            assert!(!Arc::ptr_eq(&given.place, &pool.give(other, now).expect("a place").place));
        }
    }

    #[test]
    fn the_least_recently_used_makes_room_unless_it_is_in_use() {
        let (mut pool, now) = (InterpreterPool::default(), Instant::now());
        let mut in_use = Vec::new();
        for number in 0..INTERPRETERS_MAX as u128 {
            let second = Duration::from_secs(u64::try_from(number).expect("a small number"));
            let given = pool.give(key(number), now + second).expect("a place");
            in_use.push(fill(&given, u32::try_from(number).expect("a small number")));
        }
        let later = now + Duration::from_secs(60);
        assert!(pool.give(key(100), later).is_none(), "all are in use");
        let longest = Arc::downgrade(&in_use.remove(3));
        in_use.remove(7);
        pool.give(key(100), later).expect("a place");
        assert!(longest.upgrade().is_none(), "it was ended");
        assert!(pool.give(key(8), later).is_some_and(|given| given.place.get().is_some()));
    }

    #[test]
    fn idle_ones_and_gone_ones_are_ended() {
        let (mut pool, now) = (InterpreterPool::default(), Instant::now());
        drop(fill(&pool.give(key(1), now).expect("a place"), 1));
        let used = fill(&pool.give(key(2), now).expect("a place"), 2);
        drop(fill(&pool.give(key(3), now + IDLE_MAX).expect("a place"), 3));
        pool.tidy(now + IDLE_MAX, |_| false);
        assert!(!pool.kept.contains_key(&key(1)));
        assert!(pool.kept.contains_key(&key(2)) && pool.kept.contains_key(&key(3)));
        pool.tidy(now + IDLE_MAX, |interpreter| *interpreter == 2);
        assert_eq!((pool.kept.len(), *used), (1, 2));
    }

    #[test]
    fn a_worn_one_is_replaced_once_and_those_who_have_it_keep_it() {
        let (mut pool, now) = (InterpreterPool::default(), Instant::now());
        let mut worn = 0;
        let first = pool.give(key(1), now).expect("a place");
        let old = fill(&first, 1);
        for _ in 0..JOBS_MAX + 5 {
            worn += u32::from(pool.give(key(1), now).expect("a place").worn);
        }
        assert_eq!(worn, 1);
        pool.replace(&key(1), &first.place, Arc::new(2), now);
        pool.replace(&key(1), &first.place, Arc::new(3), now);
        let next = pool.give(key(1), now).expect("a place");
        assert_eq!(next.place.get().map(|interpreter| **interpreter), Some(2));
        pool.forget(&key(1), &first.place);
        assert_eq!((pool.kept.len(), *old), (1, 1));
    }

    #[test]
    fn what_cannot_be_started_is_not_tried_for_every_job() {
        let (mut pool, now) = (InterpreterPool::<u32>::default(), Instant::now());
        let given = pool.give(key(1), now).expect("a place");
        pool.fail(&key(1), &given.place, now);
        assert!(pool.give(key(1), now).is_none());
        assert!(pool.give(key(1), now + FAILURE_PAUSE).is_some());
        pool.forget(&key(1), &given.place);
        assert!(pool.give(key(1), now).is_some());
    }
}
