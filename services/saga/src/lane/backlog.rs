//! How much a lane has to send: beyond a limit nothing new is taken in.
//!
//! Two tasks send, and each notes what it has: what goes to the broker, and what goes to the gateway of aggregates. Both keep it in
//! memory, which is bounded by this.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Rows of the outbox with which a lane takes in nothing new.
pub const OUTBOX_ROWS_MAX: usize = 10_000;
/// Bytes of their bodies with which it does not either.
pub const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Timers that are due at once may fill this part of the outbox: what others order goes behind what is there, and must not wait for
/// all of it.
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
    /// Nothing, with this limit of rows.
    #[must_use]
    pub fn new(rows_max: usize) -> Self {
        Self {
            rows_max,
            broker: BacklogCounters::default(),
            gateway: BacklogCounters::default(),
            eased: Notify::new(),
        }
    }

    /// Notes what goes to the broker.
    pub(super) fn note_for_broker(&self, rows: usize, bytes: usize) {
        self.note(&self.broker, rows, bytes);
    }

    /// Notes what goes to the gateway.
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

    /// Returns whether nothing new is to be taken in.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.sum(|part| &part.rows) >= self.rows_max || self.sum(|part| &part.bytes) >= OUTBOX_BYTES_MAX
    }

    /// Returns whether no timer is to fire: it is full, or has what a crowd of timers may fill.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.is_full() || self.sum(|part| &part.rows) >= (self.rows_max / OF_TIMERS).max(1)
    }

    fn sum(&self, of: fn(&BacklogCounters) -> &AtomicUsize) -> usize {
        of(&self.broker).load(Ordering::Acquire) + of(&self.gateway).load(Ordering::Acquire)
    }

    /// Waits until there is less to send again than the limit, or than timers may fill. Cancel-safe; for the owner of the lane alone.
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
