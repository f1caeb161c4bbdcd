//! Work of one key, done in the order in which it came though it is prepared side by side.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long a ticket whose turn it is may hold up those behind it: order is worth less than progress.
const PATIENCE: Duration = Duration::from_secs(5);

/// Gives tickets that are served one after the other, apart for each key. Clones are the same.
#[derive(Debug)]
pub struct Sequencer<K>(Arc<Mutex<TicketQueueMap<K>>>);

#[derive(Debug)]
struct TicketQueueMap<K> {
    by_key: HashMap<K, TicketQueue>,
    /// How many tickets were given: none has a number that another one had.
    given: u64,
}

/// The tickets of one key.
#[derive(Debug)]
struct TicketQueue {
    /// Their numbers, the one first whose turn it is.
    tickets: VecDeque<u64>,
    /// When the turn of the first one came.
    since: Instant,
    /// Notified whenever the first ticket changes.
    moved: watch::Sender<()>,
}

impl TicketQueue {
    fn new() -> Self {
        Self { tickets: VecDeque::new(), since: Instant::now(), moved: watch::Sender::default() }
    }

    /// Takes a ticket out; who comes after the first one is the first now.
    fn leave(&mut self, number: u64) {
        let was_first = self.tickets.front() == Some(&number);
        self.tickets.retain(|waiting| *waiting != number);
        if was_first {
            self.since = Instant::now();
            self.moved.send_replace(());
        }
    }

    /// Returns nothing when it is the turn of `number`, else until when the first one may hold it up, and a receiver that fires when
    /// the first one changes.
    fn before(&mut self, number: u64) -> Option<(Instant, watch::Receiver<()>)> {
        while let Some(&first) = self.tickets.front().filter(|_| self.tickets.contains(&number)) {
            if first == number {
                return None;
            }
            let until = self.since + PATIENCE;
            if until > Instant::now() {
                return Some((until, self.moved.subscribe()));
            }
            self.leave(first);
        }
        None
    }
}

/// A place in the order of one key, given up when it is dropped.
#[derive(Debug)]
pub struct Ticket<K: Eq + Hash> {
    sequencer: Sequencer<K>,
    key: K,
    number: u64,
}

impl<K> Clone for Sequencer<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Sequencer<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(TicketQueueMap { by_key: HashMap::new(), given: 0 })))
    }
}

impl<K: Eq + Hash + Clone> Sequencer<K> {
    /// Gives the next ticket of a key. Never waits.
    #[must_use]
    pub fn ticket(&self, key: K) -> Ticket<K> {
        let mut lines = self.lock();
        lines.given += 1;
        let number = lines.given;
        lines.by_key.entry(key.clone()).or_insert_with(TicketQueue::new).tickets.push_back(number);
        drop(lines);
        Ticket { sequencer: self.clone(), key, number }
    }
}

impl<K> Sequencer<K> {
    fn lock(&self) -> MutexGuard<'_, TicketQueueMap<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Ticket<K> {
    /// Waits until the tickets before this one were dropped; for one whose turn it is five seconds at most.
    ///
    /// Cancel safe.
    pub async fn wait_for_turn(&self) {
        loop {
            let line_before = |line: &mut TicketQueue| line.before(self.number);
            let before = self.sequencer.lock().by_key.get_mut(&self.key).and_then(line_before);
            let Some((until, mut moved)) = before else { return };
            // After a move or a timeout alike the loop looks up which ticket is first now.
            let _ = tokio::time::timeout_at(until, moved.changed()).await;
        }
    }
}

impl<K: Eq + Hash> Drop for Ticket<K> {
    fn drop(&mut self) {
        let mut lines = self.sequencer.lock();
        if let Some(line) = lines.by_key.get_mut(&self.key) {
            line.leave(self.number);
            if line.tickets.is_empty() {
                lines.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tickets_of_a_key_are_served_in_their_order() {
        let sequencer = Sequencer::default();
        let [first, second, third] = [(); 3].map(|()| sequencer.ticket("a"));
        let other = sequencer.ticket("b");
        let served = |ticket: &Ticket<&str>| ticket.wait_for_turn().now_or_never().is_some();
        assert!(served(&first) && served(&other));
        assert!(!served(&second) && !served(&third));
        drop(first);
        assert!(served(&second) && !served(&third));
        drop(second);
        third.wait_for_turn().await;
        drop((third, other));
        assert!(sequencer.lock().by_key.is_empty(), "nothing is kept of those that were served");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_loses_its_turn_after_a_while() {
        let sequencer = Sequencer::default();
        let [_hangs, slow, last] = [(); 3].map(|()| sequencer.ticket(1));
        let begun = Instant::now();
        slow.wait_for_turn().await;
        assert_eq!(begun.elapsed(), PATIENCE);
        // The time of each counts from its own turn.
        tokio::time::advance(PATIENCE / 2).await;
        assert!(last.wait_for_turn().now_or_never().is_none());
        drop(slow);
        last.wait_for_turn().await;
        assert_eq!(begun.elapsed(), PATIENCE + PATIENCE / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_gives_up_in_the_middle_holds_up_no_other() {
        let sequencer = Sequencer::default();
        let [first, second, third] = [(); 3].map(|()| sequencer.ticket(1));
        drop(second);
        assert!(third.wait_for_turn().now_or_never().is_none(), "the first has its turn still");
        drop(first);
        third.wait_for_turn().await;
    }
}
