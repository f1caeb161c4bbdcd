//! Watchers of attempts, woken by the events that go to coordinators.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::JobKey;
use tokio::sync::watch;

/// Registry of attempts that are watched. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct AttemptWatchers(Arc<Mutex<HashMap<JobKey, watch::Sender<u64>>>>);

/// Subscription to one attempt's events; unsubscribes on drop.
#[derive(Debug)]
pub struct AttemptSubscription {
    watchers: AttemptWatchers,
    key: JobKey,
    changes: watch::Receiver<u64>,
}

impl AttemptWatchers {
    /// Subscribes to an attempt. State that is read afterwards cannot change without a notification.
    #[must_use]
    pub fn subscribe(&self, key: JobKey) -> AttemptSubscription {
        let changes = self.lock().entry(key).or_insert_with(|| watch::Sender::new(0)).subscribe();
        AttemptSubscription { watchers: self.clone(), key, changes }
    }

    /// Notifies the watchers of an attempt.
    pub(crate) fn notify(&self, key: JobKey) {
        if let Some(listeners) = self.lock().get(&key) {
            listeners.send_modify(|times| *times += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, watch::Sender<u64>>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptSubscription {
    /// Waits for the next notification, or returns at once if one came since the last call. Cancel safe.
    pub async fn next(&mut self) {
        if self.changes.changed().await.is_err() {
            // Never happens: the sender stays as long as there is a subscription.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for AttemptSubscription {
    fn drop(&mut self) {
        let mut listeners = self.watchers.lock();
        // The count still includes this subscription.
        if listeners.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            listeners.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notifications_are_kept_only_while_there_are_subscriptions() {
        let watchers = AttemptWatchers::default();
        let uid = model::id::Uid::from_bits(7);
        let key: JobKey = format!("{uid}-{uid}-1-1").parse().expect("a job key");
        watchers.notify(key);
        let (mut first, second) = (watchers.subscribe(key), watchers.subscribe(key));
        watchers.notify(key);
        first.next().await;
        drop(second);
        watchers.notify(key);
        first.next().await;
        drop(first);
        assert!(watchers.lock().is_empty());
    }
}
