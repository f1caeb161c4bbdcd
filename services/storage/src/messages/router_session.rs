//! Session of one router: sends it the messages that it holds and renews their holds while the stream is open.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use model::{ContextId, ContextUid, RunnerId, Timestamp};
use tokio::sync::{broadcast, mpsc};

use crate::error::{Error, Result};
use crate::messages::forgettable_attempts::ForgettableAttempts;
use crate::messages::message_holds::{RouterHeldMessage, Settlement};
use crate::messages::push_watcher::PushedMessageWatcher;
use crate::messages::routers::{Router, RouterQueues, StorageRouters};
use crate::store::{TenantStore, lock};
use crate::tenants::context_removal::{ContextRemovals, PendingContextDrop};
use crate::watch::events::{EventHub, Hint};

/// How often holds are renewed, and everything is looked at that a lost hint may have been about.
const RENEWAL: Duration = Duration::from_secs(10);
/// Contexts that are looked at at once.
const CONTEXTS_AT_ONCE: usize = 16;
/// Messages of one answer.
const BATCH_MAX: usize = 64;

/// Session of one router.
pub(crate) struct RouterMessageSession {
    hub: EventHub,
    routers: StorageRouters,
    router: Arc<Router>,
    removals: ContextRemovals,
    drops: mpsc::Sender<Vec<PendingContextDrop>>,
    /// Settlements that could not be written to Redis yet.
    unsettled: std::sync::Mutex<Vec<(ContextId, Vec<Settlement>)>>,
    /// Contexts whose messages that the router held before it connected are not read yet.
    ungreeted: std::sync::Mutex<UnsyncedContexts>,
}

/// Contexts in which a router may hold messages that it was not sent on this stream.
#[derive(Debug, Default)]
enum UnsyncedContexts {
    /// All contexts, since their list is not read yet.
    #[default]
    All,
    /// These.
    Some(HashSet<ContextId>),
}

impl UnsyncedContexts {
    fn contains(&self, context: ContextId) -> bool {
        match self {
            Self::All => true,
            Self::Some(contexts) => contexts.contains(&context),
        }
    }
}

/// Receivers of everything that a router is sent.
pub(crate) struct RouterSessionQueues {
    /// Messages that it holds from now on.
    pub(crate) messages: mpsc::UnboundedReceiver<RouterHeldMessage>,
    /// Contexts that supervisors are to forget.
    pub(crate) drops: mpsc::Receiver<Vec<PendingContextDrop>>,
    /// Attempts that supervisors may forget.
    pub(crate) forgets: mpsc::Receiver<ForgettableAttempts>,
}

impl Drop for RouterMessageSession {
    fn drop(&mut self) {
        // The holds stay: the router reconnects under its name, or they end and other routers take the messages.
        self.routers.disconnect(&self.router);
    }
}

impl RouterMessageSession {
    /// Begins the session: from now on commits hand their messages to this router.
    pub(crate) fn begin(
        hub: EventHub,
        routers: StorageRouters,
        removals: ContextRemovals,
        name: &str,
    ) -> (Self, RouterSessionQueues) {
        let (router, RouterQueues { messages, forgets }) = routers.connect(name);
        let (sender, drops) = mpsc::channel(1);
        let taking = Self {
            hub,
            routers,
            router,
            removals,
            drops: sender,
            unsettled: std::sync::Mutex::default(),
            ungreeted: std::sync::Mutex::default(),
        };
        (taking, RouterSessionQueues { messages, drops, forgets })
    }

    /// Resends the messages that the router holds, takes waiting ones, renews holds, and takes over messages whose hold by
    /// another router has ended. Ends when another stream has taken the router's name.
    pub(crate) async fn run(&self) {
        // Subscribed before the first look, so that nothing falls between.
        let (mut hints, mut looks) = (self.hub.hints(), self.removals.looks());
        let (mut waiting, mut pushed) = PushedMessageWatcher::new();
        self.everywhere(&mut waiting).await;
        self.send_drops().await;
        let mut clock = tokio::time::interval_at(tokio::time::Instant::now() + RENEWAL, RENEWAL);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.routers.is_current(&self.router) {
            tokio::select! {
                hint = hints.recv() => match hint {
                    Ok(Hint::Out(context)) => {
                        let place = self.hub.store().tenant_unchecked(context);
                        self.report(&place, self.drain(&place).await.map(drop));
                    }
                    Ok(Hint::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => {
                        self.everywhere(&mut waiting).await;
                    }
                    Ok(Hint::Runner(_) | Hint::Removal(_) | Hint::Replicas) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                changed = looks.changed() => match changed {
                    Ok(()) => self.send_drops().await,
                    Err(_) => return,
                },
                Some((context, all_taken)) = pushed.recv() => {
                    let place = self.hub.store().tenant_unchecked(context);
                    let drained = self.drain(&place).await;
                    // Nothing waits for the answer when the context is no longer watched.
                    let _ = all_taken.send(matches!(drained, Ok(true)));
                    self.report(&place, drained.map(drop));
                }
                _ = clock.tick() => {
                    if matches!(&*lock(&self.ungreeted), UnsyncedContexts::Some(contexts) if contexts.is_empty()) {
                        self.router.settle_in();
                    }
                    self.settle_again().await;
                    self.renew().await;
                    self.everywhere(&mut waiting).await;
                    self.send_drops().await;
                }
            }
        }
    }

    async fn everywhere(&self, pushed: &mut PushedMessageWatcher) {
        let tenants = match self.hub.store().tenants().await {
            Ok(tenants) => tenants,
            Err(error) => return tracing::warn!(%error, "looking for messages failed"),
        };
        {
            let mut ungreeted = lock(&self.ungreeted);
            if matches!(*ungreeted, UnsyncedContexts::All) {
                *ungreeted = UnsyncedContexts::Some(tenants.iter().map(|tenant| tenant.id).collect());
            }
        }
        let look = |tenant: Arc<TenantStore>| async move {
            let (may_push, result) = match self.hub.store().context(tenant.id).await {
                Ok((_, context)) => (context.settings.raw_publish, self.look(&tenant).await),
                Err(error) => (false, Err(error)),
            };
            self.report(&tenant, result);
            may_push.then_some(tenant)
        };
        let looks = stream::iter(tenants).map(look).buffer_unordered(CONTEXTS_AT_ONCE);
        let pushing: Vec<_> = looks.filter_map(std::future::ready).collect().await;
        pushed.wait_for(&pushing, |tenant| self.hub.store().blocking(tenant));
    }

    async fn look(&self, tenant: &TenantStore) -> Result<()> {
        // Messages taken now would be held under the router's name but would not reach its newer stream.
        if !self.routers.is_current(&self.router) {
            return Ok(());
        }
        let store = self.hub.store();
        let is_ungreeted = lock(&self.ungreeted).contains(tenant.id);
        if is_ungreeted {
            let held = store.held_by(tenant, self.router.name(), Timestamp::now()).await?;
            held.into_iter().for_each(|message| self.router.send(message));
            if let UnsyncedContexts::Some(contexts) = &mut *lock(&self.ungreeted) {
                contexts.remove(&tenant.id);
            }
        }
        if self.router.has_room() {
            let expired = store.take_expired(tenant, self.router.name(), Timestamp::now()).await?;
            expired.into_iter().for_each(|message| self.router.send_taken(message));
        }
        self.drain(tenant).await.map(drop)
    }

    /// Takes waiting messages, as far as there is room, unless another stream has taken the router's name. Returns whether
    /// none are left.
    async fn drain(&self, tenant: &TenantStore) -> Result<bool> {
        while self.routers.is_current(&self.router) && self.router.has_room_for_all_of(tenant.id) {
            let now = Timestamp::now();
            let (messages, more) = self.hub.store().take_out(tenant, self.router.name(), now).await?;
            messages.into_iter().for_each(|message| self.router.send_taken(message));
            if !more {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn renew(&self) {
        let renew = |(context, keys): (ContextId, Vec<_>)| async move {
            let place = self.hub.store().tenant_unchecked(context);
            match self.hub.store().renew(&place, self.router.name(), &keys, Timestamp::now()).await {
                Ok(lost) => self.router.forget(context, lost),
                // The context is gone, so these messages are no longer needed.
                Err(Error::NotFound(_) | Error::ContextDeleting) => self.router.forget(context, keys),
                Err(error) => self.report(&place, Err(error)),
            }
        };
        stream::iter(self.router.held()).map(renew).buffer_unordered(CONTEXTS_AT_ONCE).collect::<()>().await;
    }

    /// Sends the contexts that supervisors must drop. One router of all that are connected is enough.
    async fn send_drops(&self) {
        if !self.routers.is_first(&self.router) {
            return;
        }
        match self.removals.drops().await {
            Ok(drops) if drops.is_empty() => {}
            // While earlier drops are still unsent, there is no need to repeat them.
            Ok(drops) => drop(self.drops.try_send(drops)),
            Err(error) => tracing::warn!(%error, "reading the contexts to drop failed, trying again later"),
        }
    }

    /// Records that a supervisor has dropped a context, or is given up.
    pub(crate) async fn dropped(&self, context: ContextUid, runner: RunnerId) {
        if let Err(error) = self.removals.dropped(context, runner).await {
            // A router is asked again later, and the answer is then repeated.
            tracing::warn!(
                %context, %runner, %error,
                "the drop of a context could not be recorded, asking a router again later"
            );
        }
    }

    /// Settles messages. While Redis is away, settlements are kept and written later.
    pub(crate) async fn settle(&self, settled: Vec<(ContextId, Vec<Settlement>)>) {
        let settle = |(context, settled): (ContextId, Vec<Settlement>)| async move {
            let result = self.hub.store().settle(context, &settled, Timestamp::now()).await;
            match result {
                Err(Error::Store(error)) if error.is_connection_trouble() => {
                    tracing::warn!(%context, %error, "messages will be settled later");
                    lock(&self.unsettled).push((context, settled));
                }
                Err(Error::ContextFrozen) => lock(&self.unsettled).push((context, settled)),
                result => {
                    self.report(&self.hub.store().tenant_unchecked(context), result);
                    self.router.forget(context, settled.iter().map(|one| one.key));
                }
            }
        };
        stream::iter(settled).map(settle).buffer_unordered(CONTEXTS_AT_ONCE).collect::<()>().await;
    }

    async fn settle_again(&self) {
        let unsettled = std::mem::take(&mut *lock(&self.unsettled));
        self.settle(unsettled).await;
    }

    fn report(&self, tenant: &TenantStore, result: Result<()>) {
        match result {
            // A context that is exported announces the end of that.
            Ok(()) | Err(Error::NotFound(_) | Error::ContextDeleting | Error::ContextFrozen) => {}
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(context = %tenant.id, %error, cause, "looking for messages failed, trying again later");
            }
        }
    }
}

/// Receives what is queued, at least one message, up to the size of one answer; `None` when the queue has ended.
pub(crate) async fn next_batch(
    queue: &mut mpsc::UnboundedReceiver<RouterHeldMessage>,
    bytes_max: usize,
) -> Option<Vec<RouterHeldMessage>> {
    let size = |message: &RouterHeldMessage| message.body.bytes();
    let first = queue.recv().await?;
    let mut bytes = size(&first);
    let mut batch = vec![first];
    // The last message may exceed this limit, but never that of a gRPC message, since a commit is limited as well.
    while batch.len() < BATCH_MAX && bytes < bytes_max {
        match queue.try_recv() {
            Ok(message) => {
                bytes += size(&message);
                batch.push(message);
            }
            Err(_) => break,
        }
    }
    Some(batch)
}
