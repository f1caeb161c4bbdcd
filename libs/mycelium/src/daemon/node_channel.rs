//! The way to one node: numbers its messages, bounds how many are under way, and probes with one while the
//! node is not there. Twenty messages that wait in the daemon for an absent node were measured to get stuck
//! there, all of them, when it came back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backoff::jittered;
use prometheus::IntGauge;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use crate::bus::PublicKey;

use super::Timings;
use super::api::DaemonMessageId;
use super::frame::BusMessageId;

/// Payloads under way to one node.
pub const IN_FLIGHT_MAX: usize = 16;
/// A longer payload counts as several, so that at most 1 MiB is under way to one node. The daemon sends all chunks of
/// all messages at once and again every 100 ms until each is acknowledged: some MiB more, and it does nothing else.
const COUNTED_BYTES: usize = 64 * 1024;
/// Nodes with a lane; those in use are kept beyond it.
const LANES_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodePresence {
    /// Not known yet: the first message finds out.
    Unknown,
    Here,
    Absent,
}

/// The way to one node.
#[derive(Debug)]
pub(super) struct NodeChannel {
    pub(super) key: PublicKey,
    id: u64,
    count: AtomicU64,
    window: Semaphore,
    probe: Semaphore,
    presence: watch::Sender<NodePresence>,
    pace: Mutex<ProbeBackoff>,
    timings: Timings,
    absent: IntGauge,
}

/// When an absent node is tried next.
#[derive(Debug)]
struct ProbeBackoff {
    pause: Duration,
    next: Instant,
    /// The last message that was not answered: the daemon may still be trying to hand it over.
    trying: Option<DaemonMessageId>,
}

impl ProbeBackoff {
    fn new(timings: Timings) -> Self {
        Self { pause: timings.probe_min, next: Instant::now(), trying: None }
    }
}

impl NodeChannel {
    fn new(key: PublicKey, timings: Timings, absent: IntGauge) -> Self {
        Self {
            key,
            id: rand::random(),
            count: AtomicU64::new(0),
            window: Semaphore::new(IN_FLIGHT_MAX),
            probe: Semaphore::new(1),
            presence: watch::Sender::new(NodePresence::Unknown),
            pace: Mutex::new(ProbeBackoff::new(timings)),
            timings,
            absent,
        }
    }

    /// The number of a new message.
    pub(super) fn number(&self) -> BusMessageId {
        BusMessageId { channel: self.id, count: self.count.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Returns true when the node answered last.
    pub(super) fn is_here(&self) -> bool {
        *self.presence.borrow() == NodePresence::Here
    }

    /// Waits for leave to push one payload of so many bytes: one of many while the node is there, else the only one, and
    /// not before it is time to try again.
    pub(super) async fn acquire(&self, bytes: usize) -> SemaphorePermit<'_> {
        let counted = bytes.div_ceil(COUNTED_BYTES).clamp(1, IN_FLIGHT_MAX);
        let counted = u32::try_from(counted).unwrap_or(1);
        let mut presence = self.presence.subscribe();
        loop {
            let here = *presence.borrow_and_update() == NodePresence::Here;
            let permit = tokio::select! {
                permit = self.window.acquire_many(counted), if here => permit,
                permit = self.turn(), if !here => permit,
                _ = presence.wait_for(|now| (*now == NodePresence::Here) != here) => continue,
            };
            if let Some(permit) = permit.ok().filter(|_| self.is_here() == here) {
                return permit;
            }
        }
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, tokio::sync::AcquireError> {
        let permit = self.probe.acquire().await;
        let next = self.pace().next;
        tokio::time::sleep_until(next).await;
        permit
    }

    /// The node has answered.
    pub(super) fn answered(&self) {
        *self.pace() = ProbeBackoff::new(self.timings);
        self.change(NodePresence::Here);
    }

    /// Returns the message that the daemon may still be trying to hand over to an absent node.
    pub(super) fn pending_probe(&self) -> Option<DaemonMessageId> {
        self.pace().trying.clone().filter(|_| !self.is_here())
    }

    /// The node has not answered this. Several that find that out together count as one.
    pub(super) fn missed(&self, trying: Option<DaemonMessageId>) {
        let now = Instant::now();
        let mut pace = self.pace();
        pace.trying = trying;
        if now >= pace.next {
            pace.next = now + jittered(pace.pause);
            pace.pause = (pace.pause * 2).min(self.timings.probe_max);
        }
        drop(pace);
        self.change(NodePresence::Absent);
    }

    fn change(&self, to: NodePresence) {
        let before = self.presence.send_replace(to);
        self.absent.add(i64::from(to == NodePresence::Absent) - i64::from(before == NodePresence::Absent));
    }

    fn pace(&self) -> MutexGuard<'_, ProbeBackoff> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NodeChannel {
    fn drop(&mut self) {
        if *self.presence.borrow() == NodePresence::Absent {
            self.absent.dec();
        }
    }
}

/// The ways to all nodes.
#[derive(Debug)]
pub(super) struct NodeChannels {
    lanes: Mutex<HashMap<PublicKey, Arc<NodeChannel>>>,
    timings: Timings,
    absent: IntGauge,
}

impl NodeChannels {
    pub(super) fn new(timings: Timings, absent: IntGauge) -> Self {
        Self { lanes: Mutex::default(), timings, absent }
    }

    /// The way to a node.
    pub(super) fn to(&self, key: PublicKey) -> Arc<NodeChannel> {
        let mut lanes = self.lanes();
        if lanes.len() >= LANES_MAX && !lanes.contains_key(&key) {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        let lane = lanes
            .entry(key)
            .or_insert_with(|| Arc::new(NodeChannel::new(key, self.timings, self.absent.clone())));
        Arc::clone(lane)
    }

    /// Returns true for a message number that this process gave.
    pub(super) fn issued(&self, id: BusMessageId) -> bool {
        self.lanes().values().any(|lane| lane.id == id.channel)
    }

    /// Marks a node as present after a message from it.
    pub(super) fn mark_present(&self, key: PublicKey) {
        let lane = self.lanes().get(&key).cloned();
        if let Some(lane) = lane.filter(|lane| !lane.is_here()) {
            lane.answered();
        }
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<PublicKey, Arc<NodeChannel>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::poll;
    use std::pin::pin;

    fn lanes() -> NodeChannels {
        NodeChannels::new(Timings::default(), IntGauge::new("absent", "absent").expect("a good name"))
    }

    const KEY: PublicKey = PublicKey::from_bytes([1; 32]);

    #[tokio::test(start_paused = true)]
    async fn an_absent_node_is_probed_with_one_and_more_and_more_rarely() {
        let lanes = lanes();
        let lane = lanes.to(KEY);
        let first = lane.acquire(1).await;
        assert!(poll!(pin!(lane.acquire(1))).is_pending(), "nobody knows whether it is there");
        lane.missed(None);
        drop(first);
        assert_eq!(lanes.absent.get(), 1);
        let mut last = Duration::ZERO;
        for _ in 0..4 {
            let begin = Instant::now();
            drop(lane.acquire(1).await);
            assert!(begin.elapsed() > last / 2, "{:?} after {last:?}", begin.elapsed());
            last = begin.elapsed();
            lane.missed(None);
        }
        assert!(last > Timings::default().probe_min * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_answers_gets_many_and_not_more() {
        let lanes = lanes();
        let lane = lanes.to(KEY);
        let probe = lane.acquire(1).await;
        let mut held = pin!(lane.acquire(1));
        assert!(poll!(&mut held).is_pending());
        lane.answered();
        let mut permits = vec![held.await];
        for _ in 1..IN_FLIGHT_MAX {
            permits.push(lane.acquire(1).await);
        }
        drop(probe);
        assert!(poll!(pin!(lane.acquire(1))).is_pending());
        permits.pop();
        permits.push(lane.acquire(1).await);
        // A long one counts as several, and as no more than there may be.
        permits.truncate(IN_FLIGHT_MAX - 2);
        let long = lane.acquire(COUNTED_BYTES + 1).await;
        assert!(poll!(pin!(lane.acquire(1))).is_pending());
        drop((permits, long));
        let longest = lane.acquire(COUNTED_BYTES * 100).await;
        assert!(poll!(pin!(lane.acquire(1))).is_pending());
        drop(longest);
        assert_eq!((lane.number().count, lane.number().count), (1, 2));
        assert!(
            lanes.issued(lane.number()) && !lanes.issued(BusMessageId { channel: lane.id ^ 1, count: 1 })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_send_to_an_absent_node_goes_on_when_that_node_shows_itself() {
        let lanes = lanes();
        let lane = lanes.to(KEY);
        for _ in 0..10 {
            drop(lane.acquire(1).await);
            lane.missed(None);
        }
        let begin = Instant::now();
        let mut waiting = pin!(lane.acquire(1));
        assert!(poll!(&mut waiting).is_pending());
        lanes.mark_present(KEY);
        drop(waiting.await);
        assert_eq!((begin.elapsed(), lanes.absent.get()), (Duration::ZERO, 0));
    }
}
