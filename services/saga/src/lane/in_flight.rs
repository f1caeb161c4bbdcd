//! Limits that lanes of a process share: bytes in flight, and commands of a tenant at a gateway.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::ReceiptHandle;
use model::TenantId;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Bytes of messages that lanes of a process have read and not settled. Messages that wait for their tenant's quota, behind a dead
/// letter, or for calls to end do not count: they would block the messages that make room.
pub const IN_FLIGHT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Commands of aggregates of one tenant that may be submitted at a time.
pub const TENANT_COMMANDS_MAX: usize = 32;
/// Bytes are counted in pieces of this size.
const PIECE: usize = 1024;

/// Limits of a process. Cheap to clone.
#[derive(Clone)]
pub struct InFlightLimits {
    in_flight: Arc<Semaphore>,
    pieces: u32,
    commands: Arc<Mutex<HashMap<TenantId, Arc<Semaphore>>>>,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self::of_bytes(IN_FLIGHT_BYTES_MAX)
    }
}

impl InFlightLimits {
    /// Makes limits with this many bytes in flight.
    #[must_use]
    pub fn of_bytes(bytes: usize) -> Self {
        let pieces = u32::try_from(bytes / PIECE).unwrap_or(u32::MAX).max(1);
        let in_flight = Arc::new(Semaphore::new(pieces as usize));
        Self { in_flight, pieces, commands: Arc::default() }
    }

    /// Bytes that are in flight now.
    #[must_use]
    pub fn in_flight_bytes(&self) -> usize {
        (self.pieces as usize).saturating_sub(self.in_flight.available_permits()) * PIECE
    }

    /// Makes the budget of one source.
    pub(crate) fn share(&self) -> InFlightBudget {
        InFlightBudget(Arc::new(InFlightBudgetInner {
            in_flight: Arc::clone(&self.in_flight),
            pieces: self.pieces,
            counted: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// Turns of a tenant at its gateway.
    pub(crate) fn commands_of(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut all = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let turns =
            all.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(TENANT_COMMANDS_MAX)));
        Arc::clone(turns)
    }
}

/// Budget of one source of a lane for bytes in flight. Each source may always have one message, so that no source waits for another.
/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct InFlightBudget(Arc<InFlightBudgetInner>);

struct InFlightBudgetInner {
    in_flight: Arc<Semaphore>,
    pieces: u32,
    counted: Mutex<InFlightCount>,
    /// Notified when the source has nothing in flight any more, or starts or ends a rest.
    freed: Notify,
}

#[derive(Default)]
struct InFlightCount {
    permit: Option<OwnedSemaphorePermit>,
    messages: usize,
    /// True while the source's owner takes no messages, so that those it has do not count.
    rests: bool,
    /// Number of rests so far.
    rest_count: u64,
}

/// A message in flight, which counts until this guard is dropped.
pub(crate) struct InFlightGuard {
    source: Arc<InFlightBudgetInner>,
    pieces: u32,
    /// Rests of the source before this message: from the next rest on the message is not counted.
    rests: u64,
}

impl InFlightBudget {
    /// Waits until a message may be pulled: a source that rests has no more than one. Cancel-safe.
    pub(crate) async fn ready(&self) {
        let source = &self.0;
        loop {
            let freed = source.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let (messages, rests) = {
                let counted = source.counted();
                (counted.messages, counted.rests)
            };
            if messages == 0 {
                return;
            }
            tokio::select! {
                biased;
                // The semaphore is never closed.
                _ = source.in_flight.acquire(), if !rests => return,
                () = freed => {}
            }
        }
    }

    /// Waits until a message of so many bytes may be in flight. Cancel-safe.
    pub(crate) async fn take(&self, bytes: usize) -> InFlightGuard {
        let source = &self.0;
        let pieces = u32::try_from(bytes.div_ceil(PIECE)).unwrap_or(u32::MAX).clamp(1, source.pieces);
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&source.in_flight).acquire_many_owned(pieces) => permit.ok(),
            () = source.has_nothing() => None,
        };
        let mut counted = source.counted();
        counted.messages += 1;
        let permit = permit.filter(|_| !counted.rests);
        let (pieces, rests) = (if permit.is_some() { pieces } else { 0 }, counted.rest_count);
        match (&mut counted.permit, permit) {
            (Some(counted), Some(permit)) => counted.merge(permit),
            (counted, Some(permit)) => *counted = Some(permit),
            (_, None) => {}
        }
        drop(counted);
        InFlightGuard { source: Arc::clone(source), pieces, rests }
    }

    /// Notes whether the owner takes messages: those that a resting owner has read do not hold up other sources.
    pub(crate) fn rest(&self, rests: bool) {
        let mut counted = self.0.counted();
        if counted.rests == rests {
            return;
        }
        counted.rests = rests;
        if rests {
            counted.rest_count += 1;
            counted.permit = None;
        }
        self.0.freed.notify_waiters();
    }
}

impl InFlightBudgetInner {
    fn counted(&self) -> MutexGuard<'_, InFlightCount> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the source has no message in flight, or its owner rests.
    async fn has_nothing(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let counted = self.counted();
                if counted.messages == 0 || counted.rests {
                    return;
                }
            }
            freed.await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut counted = self.source.counted();
        counted.messages = counted.messages.saturating_sub(1);
        let is_counted = counted.rest_count == self.rests;
        if let Some(permit) = counted.permit.as_mut().filter(|_| is_counted) {
            drop(permit.split(self.pieces as usize));
        }
        if counted.messages == 0 {
            self.source.freed.notify_waiters();
        }
    }
}

/// The receipt of a message that is worked on, with its share of the bytes in flight.
pub(crate) struct OpenReceipt {
    receipt: ReceiptHandle,
    in_flight: Option<InFlightGuard>,
}

impl OpenReceipt {
    pub(crate) const fn new(receipt: ReceiptHandle, in_flight: InFlightGuard) -> Self {
        Self { receipt, in_flight: Some(in_flight) }
    }

    /// Acknowledges the message.
    pub(crate) fn ack(&self) {
        self.receipt.ack();
    }

    /// Stops counting the message as in flight: it waits for other messages.
    pub(crate) fn set_aside(&mut self) {
        self.in_flight = None;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn sources_share_bytes_and_none_waits_for_another() {
        let bounds = InFlightLimits::of_bytes(4 * PIECE);
        let (one, other) = (bounds.share(), bounds.share());
        let first = one.take(1).await;
        let second = one.take(3 * PIECE).await;
        assert_eq!(bounds.in_flight_bytes(), 4 * PIECE);
        // Each source may have one message, however little is left; a second one waits.
        let beyond = other.take(100 * PIECE).await;
        let waits = other.take(PIECE);
        tokio::pin!(waits);
        assert!(poll!(&mut waits).is_pending() && poll!(std::pin::pin!(other.ready())).is_pending());
        drop(first);
        let waited = waits.await;
        let (ready, waits) = (one.ready(), one.take(2 * PIECE));
        tokio::pin!(ready, waits);
        assert!(poll!(&mut ready).is_pending() && poll!(&mut waits).is_pending());
        drop(second);
        ready.await;
        drop((waits.await, waited, beyond));
        assert_eq!(bounds.in_flight_bytes(), 0, "who has nothing to do holds nothing");
    }

    #[tokio::test]
    async fn what_rests_holds_up_no_other() {
        let bounds = InFlightLimits::of_bytes(4 * PIECE);
        let (one, other) = (bounds.share(), bounds.share());
        let before = one.take(4 * PIECE).await;
        one.rest(true);
        assert_eq!(bounds.in_flight_bytes(), 0);
        let (while_resting, others) = (one.take(4 * PIECE).await, other.take(4 * PIECE).await);
        one.rest(false);
        let waits = one.take(PIECE);
        tokio::pin!(waits);
        assert!(poll!(&mut waits).is_pending());
        // A resting source pulls no more than one message.
        one.rest(true);
        let ready = one.ready();
        tokio::pin!(ready);
        assert!(poll!(&mut ready).is_pending());
        one.rest(false);
        assert!(poll!(&mut ready).is_pending(), "others have everything");
        drop(others);
        ready.await;
        let after = waits.await;
        assert_eq!(bounds.in_flight_bytes(), PIECE);
        // Messages that are no longer counted do not free bytes of others.
        let others = other.take(3 * PIECE).await;
        drop((before, while_resting));
        assert_eq!(bounds.in_flight_bytes(), 4 * PIECE);
        drop((after, others));
        assert_eq!(bounds.in_flight_bytes(), 0);
    }
}
