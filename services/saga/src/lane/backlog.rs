//! Backlog of a lane's outgoing messages: at a limit, the lane takes in nothing new.
//!
//! Two tasks send, one to the broker and one to the gateway of aggregates, and each notes its backlog. Both keep theirs in memory,
//! which this limit bounds.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Number of outbox rows at which a lane takes in nothing new.
pub const OUTBOX_ROWS_MAX: usize = 10_000;
/// Bytes of outbox bodies at which a lane takes in nothing new.
pub const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Divisor of the outbox that timers due at once may fill: messages of other inputs go behind theirs, and must not wait for a full
/// outbox.
const OF_TIMERS: usize = 8;

/// Backlog of a lane: rows that wait to be sent.
#[derive(Debug)]
pub struct Backlog {
    rows_max: usize,
    broker: BacklogCounters,
    gateway: BacklogCounters,
    eased: Notify,
}

#[derive(Debug, Default)]
struct BacklogCounters {
    rows: AtomicUsize,
    bytes: AtomicUsize,
}

impl Backlog {
    /// Makes an empty backlog with this limit of rows.
    #[must_use]
    pub fn new(rows_max: usize) -> Self {
        Self {
            rows_max,
            broker: BacklogCounters::default(),
            gateway: BacklogCounters::default(),
            eased: Notify::new(),
        }
    }

    /// Notes the backlog for the broker.
    pub(super) fn note_for_broker(&self, rows: usize, bytes: usize) {
        self.note(&self.broker, rows, bytes);
    }

    /// Notes the backlog for the gateway.
    pub(super) fn note_for_gateway(&self, rows: usize, bytes: usize) {
        self.note(&self.gateway, rows, bytes);
    }

    fn note(&self, part: &BacklogCounters, rows: usize, bytes: usize) {
        let (was_full, was_crowded) = (self.is_full(), self.is_crowded());
        part.rows.store(rows, Ordering::Release);
        part.bytes.store(bytes, Ordering::Release);
        if was_full && !self.is_full() || was_crowded && !self.is_crowded() {
            self.eased.notify_one();
        }
    }

    /// Returns whether the backlog is at its limit: nothing new may be taken in.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.sum(|part| &part.rows) >= self.rows_max || self.sum(|part| &part.bytes) >= OUTBOX_BYTES_MAX
    }

    /// Returns whether no timer may fire: the backlog is full, or at the part that timers may fill.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.is_full() || self.sum(|part| &part.rows) >= (self.rows_max / OF_TIMERS).max(1)
    }

    fn sum(&self, of: fn(&BacklogCounters) -> &AtomicUsize) -> usize {
        of(&self.broker).load(Ordering::Acquire) + of(&self.gateway).load(Ordering::Acquire)
    }

    /// Waits until the backlog falls below the limit, or below the part that timers may fill. Cancel-safe; for the lane's owner only.
    pub async fn eased(&self) {
        self.eased.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_waits_for_both_counts_together() {
        let backlog = Backlog::new(7);
        backlog.note_for_broker(6, 0);
        assert!(!backlog.is_full());
        backlog.note_for_gateway(1, 0);
        assert!(backlog.is_full());
        backlog.note_for_gateway(0, 0);
        backlog.eased().await;
        backlog.note_for_broker(0, 0);
        backlog.eased().await;
        assert!(!backlog.is_crowded());
        backlog.note_for_gateway(1, OUTBOX_BYTES_MAX - 1);
        assert!(backlog.is_crowded() && !backlog.is_full());
        backlog.note_for_broker(1, 1);
        assert!(backlog.is_full());
    }
}
