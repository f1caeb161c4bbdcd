//! The routers that are connected to this storage.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use model::{ContextId, MessageKey};
use tokio::sync::mpsc;

use crate::messages::Held;
use crate::store::lock;

/// Messages that one router holds, at most; what is beyond stays out.
pub(crate) const HELD_MAX: usize = 10_000;

/// One connected router.
#[derive(Debug)]
pub(crate) struct Router {
    name: String,
    held: Mutex<HashMap<ContextId, HashSet<MessageKey>>>,
    /// What was settled since it connected. What it held is read while commits already send to it, so the same
    /// message may come both ways, the second time after it was settled. Nothing once that is over.
    early: Mutex<Option<HashSet<(ContextId, MessageKey)>>>,
    count: AtomicUsize,
    /// Bounded by [`HELD_MAX`], since whoever fills it looks at `has_room` first.
    queue: mpsc::UnboundedSender<Held>,
}

impl Router {
    /// Its name: the same after a restart, different for each replica.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it may be given more.
    pub(crate) fn has_room(&self) -> bool {
        self.count.load(Ordering::Relaxed) < HELD_MAX
    }

    /// Sends a message that was taken into its hold just now, perhaps not for the first time: a dead letter may be
    /// sent again.
    pub(crate) fn send_taken(&self, message: Held) {
        if let Some(early) = lock(&self.early).as_mut() {
            early.remove(&(message.context, message.key));
        }
        self.send(message);
    }

    /// Sends a message that it holds; one that it was sent already, or has settled, is not sent again.
    pub(crate) fn send(&self, message: Held) {
        let mut held = lock(&self.held);
        let was_settled =
            lock(&self.early).as_ref().is_some_and(|early| early.contains(&(message.context, message.key)));
        let is_new = !was_settled && held.entry(message.context).or_default().insert(message.key);
        drop(held);
        if is_new {
            self.count.fetch_add(1, Ordering::Relaxed);
            // Its stream may have ended: the hold stands, and is sent again under the same name.
            let _ = self.queue.send(message);
        }
    }

    /// Forgets messages that it does not hold any more.
    pub(crate) fn forget(&self, context: ContextId, keys: impl IntoIterator<Item = MessageKey>) {
        let mut held = lock(&self.held);
        if let Some(known) = held.get_mut(&context) {
            let mut early = lock(&self.early);
            let mut gone = 0;
            for key in keys {
                if known.remove(&key) {
                    gone += 1;
                    if let Some(early) = early.as_mut() {
                        early.insert((context, key));
                    }
                }
            }
            if known.is_empty() {
                held.remove(&context);
            }
            self.count.fetch_sub(gone, Ordering::Relaxed);
        }
    }

    /// Ends the time in which a message may come both ways.
    pub(crate) fn settle_in(&self) {
        *lock(&self.early) = None;
    }

    /// What it holds, by context.
    pub(crate) fn held(&self) -> Vec<(ContextId, Vec<MessageKey>)> {
        lock(&self.held).iter().map(|(context, keys)| (*context, keys.iter().copied().collect())).collect()
    }
}

/// All of them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routers(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    connected: RwLock<Vec<Arc<Router>>>,
    turn: AtomicUsize,
}

impl Routers {
    /// Adds a router, in place of one of the same name, and gives what it is to be sent.
    pub(crate) fn connect(&self, name: &str) -> (Arc<Router>, mpsc::UnboundedReceiver<Held>) {
        let (queue, messages) = mpsc::unbounded_channel();
        let router = Arc::new(Router {
            name: name.to_owned(),
            held: Mutex::default(),
            early: Mutex::new(Some(HashSet::new())),
            count: AtomicUsize::new(0),
            queue,
        });
        let mut connected = self.0.connected.write().unwrap_or_else(PoisonError::into_inner);
        connected.retain(|known| known.name != name);
        connected.push(Arc::clone(&router));
        (router, messages)
    }

    /// Removes a router, unless another one took its name.
    pub(crate) fn disconnect(&self, router: &Arc<Router>) {
        let mut connected = self.0.connected.write().unwrap_or_else(PoisonError::into_inner);
        connected.retain(|known| !Arc::ptr_eq(known, router));
    }

    /// Whether it is still the one of its name.
    pub(crate) fn is_current(&self, router: &Arc<Router>) -> bool {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        connected.iter().any(|known| Arc::ptr_eq(known, router))
    }

    /// Whether it is the one that does what one of them has to do.
    pub(crate) fn is_first(&self, router: &Arc<Router>) -> bool {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        connected.first().is_some_and(|known| Arc::ptr_eq(known, router))
    }

    /// One that has room, in turns.
    pub(crate) fn pick(&self) -> Option<Arc<Router>> {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed);
        (0..connected.len())
            .map(|i| &connected[(turn.wrapping_add(i)) % connected.len()])
            .find(|router| router.has_room())
            .cloned()
    }

    /// Sends a message to the router that a commit chose, or to the one that has taken its name meanwhile.
    pub(crate) fn hand(&self, chosen: &Router, message: Held) {
        let connected = self.0.connected.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(router) = connected.iter().find(|known| known.name == chosen.name) {
            router.send(message);
        }
    }
}
