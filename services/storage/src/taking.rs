//! One router's stream: what it holds is sent to it and cared for while the stream stands.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use model::{ContextId, Timestamp};
use tokio::sync::{broadcast, mpsc};

use crate::error::{Error, Result};
use crate::events::{Hint, Hub};
use crate::messages::{Held, Settlement};
use crate::routers::{Router, Routers};
use crate::store::{Tenant, lock};

/// How often holds are renewed, and everything is looked at that a lost hint may have been about.
const RENEWAL: Duration = Duration::from_secs(10);
/// Contexts that are looked at at once.
const CONTEXTS_AT_ONCE: usize = 16;
/// Messages of one answer.
const BATCH_MAX: usize = 64;

/// The care for one router's messages.
pub(crate) struct Taking {
    hub: Hub,
    routers: Routers,
    router: Arc<Router>,
    /// Settlements that Redis could not be told yet.
    unsettled: std::sync::Mutex<Vec<(ContextId, Vec<Settlement>)>>,
}

impl Drop for Taking {
    fn drop(&mut self) {
        // Its holds stay: it comes back under its name, or they end and others take them.
        self.routers.disconnect(&self.router);
    }
}

impl Taking {
    /// Begins: from now on commits hand their messages to this router.
    pub(crate) fn begin(hub: Hub, routers: Routers, name: &str) -> (Self, mpsc::UnboundedReceiver<Held>) {
        let (router, queue) = routers.connect(name);
        (Self { hub, routers, router, unsettled: std::sync::Mutex::default() }, queue)
    }

    /// Sends again what the router holds, takes what is out, renews, and takes over what others dropped.
    /// Ends when another stream has taken the router's name.
    pub(crate) async fn care(&self) {
        // Before looking around, so that nothing falls between.
        let mut hints = self.hub.hints();
        self.everywhere(true).await;
        let mut clock = tokio::time::interval_at(tokio::time::Instant::now() + RENEWAL, RENEWAL);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.routers.is_current(&self.router) {
            tokio::select! {
                hint = hints.recv() => match hint {
                    Ok(Hint::Out(context)) => {
                        let place = self.hub.store().place(context);
                        self.report(&place, self.drain(&place).await);
                    }
                    Ok(Hint::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => self.everywhere(false).await,
                    Ok(Hint::Runner(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                _ = clock.tick() => {
                    self.router.settle_in();
                    self.settle_again().await;
                    self.renew().await;
                    self.everywhere(false).await;
                }
            }
        }
    }

    async fn everywhere(&self, is_hello: bool) {
        let tenants = match self.hub.store().tenants().await {
            Ok(tenants) => tenants,
            Err(error) => return tracing::warn!(%error, "looking for messages failed"),
        };
        let look = |tenant: Arc<Tenant>| async move {
            let result = self.look(&tenant, is_hello).await;
            self.report(&tenant, result);
        };
        stream::iter(tenants).map(look).buffer_unordered(CONTEXTS_AT_ONCE).collect::<()>().await;
    }

    async fn look(&self, tenant: &Tenant, is_hello: bool) -> Result<()> {
        let store = self.hub.store();
        if is_hello {
            self.send(store.held_by(tenant, self.router.name(), Timestamp::now()).await?);
        }
        if self.router.has_room() {
            self.send(store.take_expired(tenant, self.router.name(), Timestamp::now()).await?);
        }
        self.drain(tenant).await
    }

    async fn drain(&self, tenant: &Tenant) -> Result<()> {
        while self.router.has_room() {
            let now = Timestamp::now();
            let (messages, more) = self.hub.store().take_out(tenant, self.router.name(), now).await?;
            self.send(messages);
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn send(&self, messages: Vec<Held>) {
        for message in messages {
            self.router.send(message);
        }
    }

    async fn renew(&self) {
        let renew = |(context, keys): (ContextId, Vec<_>)| async move {
            let place = self.hub.store().place(context);
            match self.hub.store().renew(&place, self.router.name(), &keys, Timestamp::now()).await {
                Ok(lost) => self.router.forget(context, lost),
                Err(error) => self.report(&place, Err(error)),
            }
        };
        stream::iter(self.router.held()).map(renew).buffer_unordered(CONTEXTS_AT_ONCE).collect::<()>().await;
    }

    /// Ends the care for messages. What Redis cannot be told now it is told later.
    pub(crate) async fn settle(&self, settled: Vec<(ContextId, Vec<Settlement>)>) {
        let settle = |(context, settled): (ContextId, Vec<Settlement>)| async move {
            let result = self.hub.store().settle(context, &settled, Timestamp::now()).await;
            match result {
                Err(Error::Store(error)) if error.is_connection_trouble() => {
                    tracing::warn!(%context, %error, "messages will be settled later");
                    lock(&self.unsettled).push((context, settled));
                }
                result => {
                    self.report(&self.hub.store().place(context), result);
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

    fn report(&self, tenant: &Tenant, result: Result<()>) {
        match result {
            Ok(()) | Err(Error::NotFound(_) | Error::ContextDeleting) => {}
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(context = %tenant.id, %error, cause, "looking for messages failed, trying again later");
            }
        }
    }
}

/// What is in the queue now, at least one, up to the size of one answer; nothing when it has ended.
pub(crate) async fn next_batch(
    queue: &mut mpsc::UnboundedReceiver<Held>,
    bytes_max: usize,
) -> Option<Vec<Held>> {
    let size = |message: &Held| message.body.nodes.iter().map(bytes::Bytes::len).sum::<usize>();
    let first = queue.recv().await?;
    let mut bytes = size(&first);
    let mut batch = vec![first];
    // One more may go beyond the limit, but never beyond that of a gRPC message: a commit has a limit as well.
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
