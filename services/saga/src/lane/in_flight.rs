//! Bounds that lanes of a process share: bytes that are in flight, and commands of a tenant that a gateway has at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::ReceiptHandle;
use model::TenantId;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Bytes of messages that lanes of a process have read and not settled. What waits for room of its tenant, for a letter or for calls to
/// end does not count: it would be in the way of what makes room.
pub const IN_FLIGHT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Commands of aggregates of one tenant that are submitted at a time.
pub const TENANT_COMMANDS_MAX: usize = 32;
/// Bytes are counted in pieces of this size.
const PIECE: usize = 1024;

/// Bounds of a process. Cheap to clone.
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
    /// So many bytes may be in flight.
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

    /// The part of one source.
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

/// Budget of one source of a lane for bytes in flight. Each source may have one message whatever the others have, so that none
/// waits for another. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InFlightBudget(Arc<InFlightBudgetInner>);

struct InFlightBudgetInner {
    in_flight: Arc<Semaphore>,
    pieces: u32,
    counted: Mutex<InFlightCount>,
    /// Told when the source has nothing in flight any more.
    freed: Notify,
}

#[derive(Default)]
struct InFlightCount {
    permit: Option<OwnedSemaphorePermit>,
    messages: usize,
    /// True while the source's owner takes no messages, so that those it has do not count.
    rests: bool,
    /// Number of its rests.
    rest_count: u64,
}

/// A message in flight. It counts until this is dropped.
pub(crate) struct InFlightGuard {
    source: Arc<InFlightBudgetInner>,
    pieces: u32,
    /// Rests of its source before it: at the next it is counted no more.
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
                // It is closed by nobody.
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

    /// Takes note whether its owner takes messages: what a resting owner has read holds up no other.
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

/// The receipt of a message that is worked on, with its part of what is in flight.
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

    /// Counts it no more: it waits for something that only others bring.
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
        // One of each source goes on, however little is left; a second one waits.
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
    async fn what_rests_holds_up_nobody() {
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
        // Nor is anything pulled for it beyond one message.
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
        // What was counted no more gives back nothing that is another's.
        let others = other.take(3 * PIECE).await;
        drop((before, while_resting));
        assert_eq!(bounds.in_flight_bytes(), 4 * PIECE);
        drop((after, others));
        assert_eq!(bounds.in_flight_bytes(), 0);
    }
}
