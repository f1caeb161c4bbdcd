//! The routers that are connected to this storage.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use model::{ContextId, MessageKey};
use tokio::sync::mpsc;

use crate::messages::forgettable_attempts::{FORGETS_MAX, ForgettableAttempts};
use crate::messages::message_holds::RouterHeldMessage;
use crate::record::routed_message::RoutedMessagePayload;
use crate::store::lock;

/// Maximum number of messages that one router holds; others wait in `msg_out`. Messages with nodes and messages delivered whole
/// are limited separately: mail may wait for days for a coordinator that does not answer, and must not block jobs.
pub(crate) const HELD_MAX: usize = 10_000;
/// Messages of one context that are delivered whole and that one router holds, at most.
pub(crate) const HELD_WHOLE_MAX: usize = 1_000;

/// One connected router.
#[derive(Debug)]
pub(crate) struct Router {
    name: String,
    held: Mutex<HashMap<ContextId, RouterContextHolds>>,
    /// Messages settled since the router connected. Its holds are read while commits already send to it, so the same
    /// message may come both ways, the second time after it was settled. `None` once that is over.
    early: Mutex<Option<HashSet<(ContextId, MessageKey)>>>,
    /// Numbers of messages held: with nodes, and whole.
    count: [AtomicUsize; 2],
    /// Bounded by [`HELD_MAX`], since senders check for room first.
    queue: mpsc::UnboundedSender<RouterHeldMessage>,
    forgets: mpsc::Sender<ForgettableAttempts>,
}

/// Queues of what is to be sent to a router.
#[derive(Debug)]
pub(crate) struct RouterQueues {
    /// Messages that it holds from now on.
    pub(crate) messages: mpsc::UnboundedReceiver<RouterHeldMessage>,
    /// Attempts that supervisors may forget.
    pub(crate) forgets: mpsc::Receiver<ForgettableAttempts>,
}

/// Messages of one context that a router holds.
#[derive(Debug, Default)]
struct RouterContextHolds {
    /// Each with whether it is delivered whole.
    messages: BTreeMap<MessageKey, bool>,
    whole: usize,
}

impl RouterContextHolds {
    fn add(&mut self, key: MessageKey, is_whole: bool) -> bool {
        let is_new = self.messages.insert(key, is_whole).is_none();
        self.whole += usize::from(is_new && is_whole);
        is_new
    }

    fn remove(&mut self, key: MessageKey) -> Option<bool> {
        let is_whole = self.messages.remove(&key)?;
        self.whole -= usize::from(is_whole);
        Some(is_whole)
    }
}

impl Router {
    /// Name of the router: the same after a restart, different for each replica.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the router may be given more messages that carry nodes.
    pub(crate) fn has_room(&self) -> bool {
        self.count[0].load(Ordering::Relaxed) < HELD_MAX
    }

    /// Returns true if the router may be given more messages of a context, of any kind.
    pub(crate) fn has_room_for_all_of(&self, context: ContextId) -> bool {
        let whole = lock(&self.held).get(&context).map_or(0, |held| held.whole);
        self.has_room() && self.count[1].load(Ordering::Relaxed) < HELD_MAX && whole < HELD_WHOLE_MAX
    }

    /// Sends a message that the router has just taken, perhaps not for the first time: a dead letter may be
    /// sent again.
    pub(crate) fn send_taken(&self, message: RouterHeldMessage) {
        if let Some(early) = lock(&self.early).as_mut() {
            early.remove(&(message.context, message.key));
        }
        self.send(message);
    }

    /// Sends a message that the router holds, unless it has already received or settled it.
    pub(crate) fn send(&self, message: RouterHeldMessage) {
        let mut held = lock(&self.held);
        let was_settled =
            lock(&self.early).as_ref().is_some_and(|early| early.contains(&(message.context, message.key)));
        let is_whole = !matches!(message.body.kind, RoutedMessagePayload::Nodes { .. });
        let is_new = !was_settled && held.entry(message.context).or_default().add(message.key, is_whole);
        drop(held);
        if is_new {
            self.count[usize::from(is_whole)].fetch_add(1, Ordering::Relaxed);
            // The stream may have ended: the hold remains, and the message is resent when the router reconnects.
            let _ = self.queue.send(message);
        }
    }

    /// Forgets messages that it does not hold any more.
    pub(crate) fn forget(&self, context: ContextId, keys: impl IntoIterator<Item = MessageKey>) {
        let mut held = lock(&self.held);
        if let Some(known) = held.get_mut(&context) {
            let mut early = lock(&self.early);
            for key in keys {
                if let Some(is_whole) = known.remove(key) {
                    self.count[usize::from(is_whole)].fetch_sub(1, Ordering::Relaxed);
                    if let Some(early) = early.as_mut() {
                        early.insert((context, key));
                    }
                }
            }
            if known.messages.is_empty() {
                held.remove(&context);
            }
        }
    }

    /// Ends the phase in which a message may come both ways.
    pub(crate) fn settle_in(&self) {
        *lock(&self.early) = None;
    }

    /// Returns the messages that the router holds, by context.
    pub(crate) fn held(&self) -> Vec<(ContextId, Vec<MessageKey>)> {
        let held = lock(&self.held);
        held.iter().map(|(context, held)| (*context, held.messages.keys().copied().collect())).collect()
    }
}

/// All connected routers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StorageRouters(Arc<StorageRoutersInner>);

#[derive(Debug, Default)]
struct StorageRoutersInner {
    connected: RwLock<Vec<Arc<Router>>>,
    turn: AtomicUsize,
}

impl StorageRouters {
    /// Adds a router, replacing one of the same name; returns the queues of what to send to it.
    pub(crate) fn connect(&self, name: &str) -> (Arc<Router>, RouterQueues) {
        let (queue, messages) = mpsc::unbounded_channel();
        let (forgets, notices) = mpsc::channel(FORGETS_MAX);
        let router = Arc::new(Router {
            name: name.to_owned(),
            held: Mutex::default(),
            early: Mutex::new(Some(HashSet::new())),
            count: Default::default(),
            queue,
            forgets,
        });
        let mut connected = self.0.connected.write().unwrap_or_else(PoisonError::into_inner);
        connected.retain(|known| known.name != name);
        connected.push(Arc::clone(&router));
        (router, RouterQueues { messages, forgets: notices })
    }

    /// Notifies supervisors that these attempts are no longer needed. The notices are dropped without a router, or when too many wait.
    pub(crate) fn forget_attempts(&self, notices: Vec<ForgettableAttempts>) {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        let Some(router) = connected.first() else { return };
        for notice in notices {
            if router.forgets.try_send(notice).is_err() {
                tracing::debug!(
                    "a notice about forgettable attempts was dropped; supervisors keep them until they expire"
                );
            }
        }
    }

    /// Removes a router, unless another one took its name.
    pub(crate) fn disconnect(&self, router: &Arc<Router>) {
        let mut connected = self.0.connected.write().unwrap_or_else(PoisonError::into_inner);
        connected.retain(|known| !Arc::ptr_eq(known, router));
    }

    /// All that are connected.
    pub(crate) fn all(&self) -> Vec<Arc<Router>> {
        self.0.connected.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the router is still the connected one of its name.
    pub(crate) fn is_current(&self, router: &Arc<Router>) -> bool {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        connected.iter().any(|known| Arc::ptr_eq(known, router))
    }

    /// Returns true for the one router that does the work for all of them.
    pub(crate) fn is_first(&self, router: &Arc<Router>) -> bool {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        connected.first().is_some_and(|known| Arc::ptr_eq(known, router))
    }

    /// Picks a router with room for messages that carry nodes, in turns.
    pub(crate) fn pick(&self) -> Option<Arc<Router>> {
        self.pick_where(Router::has_room)
    }

    /// Picks a router with room for a direct message of a context, in turns.
    pub(crate) fn pick_for_direct_message(&self, context: ContextId) -> Option<Arc<Router>> {
        self.pick_where(|router| router.has_room_for_all_of(context))
    }

    fn pick_where(&self, has_room: impl Fn(&Router) -> bool) -> Option<Arc<Router>> {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed);
        (0..connected.len())
            .map(|i| &connected[(turn.wrapping_add(i)) % connected.len()])
            .find(|router| has_room(router))
            .cloned()
    }

    /// Sends a message to the router that a commit chose, or to the one that has taken its name meanwhile.
    pub(crate) fn hand(&self, chosen: &Router, message: RouterHeldMessage) {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(router) = connected.iter().find(|known| known.name == chosen.name) {
            router.send(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::routed_message::RoutedMessage;
    use model::id::Uid;
    use model::{ActorId, ContextUid, FlowId, MessageId, RunnerId, Timestamp};

    fn message(context: u32, id: usize, kind: RoutedMessagePayload) -> RouterHeldMessage {
        let key = MessageKey { caller: ActorId(1), id: MessageId(u32::try_from(id).expect("few")) };
        let body = RoutedMessage { kind, timeout_ack_secs: 0, created_at: Timestamp::default() };
        RouterHeldMessage {
            context: ContextId(context),
            context_uid: ContextUid(Uid::from_bits(1)),
            key,
            body,
        }
    }

    fn direct_message(context: u32, id: usize) -> RouterHeldMessage {
        message(context, id, RoutedMessagePayload::DirectMessage { json: "{}".into(), addresses: Vec::new() })
    }

    #[test]
    fn undelivered_direct_messages_leave_room_for_other_contexts_and_for_nodes() {
        let routers = StorageRouters::default();
        let (router, _queue) = routers.connect("router");
        let [one, other] = [1, 2].map(ContextId);
        (0..HELD_WHOLE_MAX).for_each(|id| router.send(direct_message(1, id)));
        assert!(
            routers.pick_for_direct_message(one).is_none()
                && routers.pick_for_direct_message(other).is_some()
        );
        router.send(direct_message(1, 0));
        router.forget(one, [direct_message(1, 0).key, direct_message(1, 0).key]);
        assert!(routers.pick_for_direct_message(one).is_some(), "one has left");
        (2..12)
            .for_each(|context| (0..HELD_WHOLE_MAX).for_each(|id| router.send(direct_message(context, id))));
        assert!(
            routers.pick_for_direct_message(ContextId(20)).is_none() && routers.pick().is_some(),
            "jobs go on"
        );

        let nodes = |id| {
            message(
                1,
                50_000 + id,
                RoutedMessagePayload::Nodes { flow: FlowId(1), runner: RunnerId(1), nodes: Vec::new() },
            )
        };
        (0..HELD_MAX).for_each(|id| router.send(nodes(id)));
        assert!(routers.pick().is_none());
        router.forget(one, [nodes(0).key]);
        assert!(routers.pick().is_some());
        let held: usize = router.held().iter().map(|(_, keys)| keys.len()).sum();
        assert_eq!(held, 11 * HELD_WHOLE_MAX + HELD_MAX - 2);
    }
}
