//! Watchers that are notified when an answer may not hold any more.

use std::collections::HashMap;

use rpc::{DirectoryFeedState, DirectorySubject};
use tokio::sync::watch;

use crate::view_state::DirectoryInvalidation;

/// Subjects that are kept before the first sweep for those without watchers.
const SWEPT_FROM: usize = 64;

/// Watchers by subject, each woken only by changes of its own subject: there may be thousands of streams, and some subject may
/// change all the time.
#[derive(Debug)]
pub(crate) struct DirectoryWatchers {
    feed_state: DirectoryFeedState,
    by_subject: HashMap<DirectorySubject, watch::Sender<DirectoryFeedState>>,
    /// Number of subjects at which the next sweep is due.
    sweep_at: usize,
}

impl Default for DirectoryWatchers {
    fn default() -> Self {
        Self { feed_state: DirectoryFeedState::Silent, by_subject: HashMap::new(), sweep_at: SWEPT_FROM }
    }
}

impl DirectoryWatchers {
    /// Subscribes to a subject. The receiver is marked changed whenever the subject changed, or may have.
    pub(crate) fn subscribe(&mut self, subject: DirectorySubject) -> watch::Receiver<DirectoryFeedState> {
        if self.by_subject.len() >= self.sweep_at {
            self.sweep();
        }
        let feed_state = self.feed_state;
        self.by_subject.entry(subject).or_insert_with(|| watch::Sender::new(feed_state)).subscribe()
    }

    /// Wakes the watchers that a change concerns.
    pub(crate) fn notify(&mut self, invalidation: DirectoryInvalidation) {
        match invalidation {
            DirectoryInvalidation::FeedRestored => self.notify_all(DirectoryFeedState::Live),
            DirectoryInvalidation::FeedLost => self.notify_all(DirectoryFeedState::Silent),
            DirectoryInvalidation::Actor(id) => self.notify_subject(DirectorySubject::Actor(id)),
            DirectoryInvalidation::Context(id) => self.notify_subject(DirectorySubject::Context(id)),
        }
    }

    fn notify_subject(&self, subject: DirectorySubject) {
        if let Some(listeners) = self.by_subject.get(&subject) {
            listeners.send_replace(self.feed_state);
        }
    }

    fn notify_all(&mut self, feed_state: DirectoryFeedState) {
        self.feed_state = feed_state;
        self.sweep();
        for listeners in self.by_subject.values() {
            listeners.send_replace(feed_state);
        }
    }

    /// Forgets subjects without watchers. The next sweep is due at twice the number that is left, so that the amortized cost is
    /// negligible.
    fn sweep(&mut self) {
        self.by_subject.retain(|_, listeners| listeners.receiver_count() > 0);
        self.sweep_at = SWEPT_FROM.max(2 * self.by_subject.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ActorId, ContextId};

    #[test]
    fn only_watchers_of_the_subject_are_notified() {
        let mut listeners = DirectoryWatchers::default();
        let mut alice = listeners.subscribe(DirectorySubject::Actor(ActorId(1)));
        let mut bob = listeners.subscribe(DirectorySubject::Actor(ActorId(2)));
        let mut here = listeners.subscribe(DirectorySubject::Context(ContextId(1)));
        let mut notified = |listeners: &mut DirectoryWatchers, invalidation| {
            listeners.notify(invalidation);
            [&mut alice, &mut bob, &mut here].map(|listener| {
                let notified = listener.has_changed().expect("the sender is there");
                notified.then(|| *listener.borrow_and_update())
            })
        };
        let all = |feed_state| [Some(feed_state); 3];
        assert_eq!(
            notified(&mut listeners, DirectoryInvalidation::FeedRestored),
            all(DirectoryFeedState::Live)
        );
        assert_eq!(
            notified(&mut listeners, DirectoryInvalidation::Actor(ActorId(2))),
            [None, Some(DirectoryFeedState::Live), None]
        );
        assert_eq!(
            notified(&mut listeners, DirectoryInvalidation::Context(ContextId(1))),
            [None, None, Some(DirectoryFeedState::Live)]
        );
        assert_eq!(notified(&mut listeners, DirectoryInvalidation::Actor(ActorId(3))), [None; 3]);
        assert_eq!(
            notified(&mut listeners, DirectoryInvalidation::FeedLost),
            all(DirectoryFeedState::Silent)
        );
    }

    #[test]
    fn subjects_without_watchers_are_forgotten() {
        let mut listeners = DirectoryWatchers::default();
        let kept = listeners.subscribe(DirectorySubject::Actor(ActorId(0)));
        for id in 1..100_000 {
            drop(listeners.subscribe(DirectorySubject::Actor(ActorId(id))));
            assert!(listeners.by_subject.len() <= SWEPT_FROM);
        }
        listeners.notify(DirectoryInvalidation::FeedRestored);
        assert_eq!(listeners.by_subject.len(), 1);
        assert_eq!(*kept.borrow(), DirectoryFeedState::Live);
    }
}
