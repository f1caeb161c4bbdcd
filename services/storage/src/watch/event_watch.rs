//! Watching a context's events from a position on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use model::{ContextId, ContextState, FlowId};
use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::flows::reads::{NodeFilter, NodePage};
use crate::pages::PageRequest;
use crate::store::{RequestPrincipal, TenantStore};
use crate::tenants::permission::{self, ContextAction};
use crate::watch::events::{EventEntry, EventHub, EventPosition, READ_MAX, WatchSubject};
use crate::watch::tailer::{EventSubscription, SubscriptionCatchUp, SubscriptionStart};

/// How often an idle watch gives a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Events that wait to be read.
const OUT_BUFFER: usize = 64;

/// Parameters of a watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventWatch {
    /// Context that is watched.
    pub(crate) context: ContextId,
    /// Subject of the watch; everything if not given.
    pub(crate) subject: Option<WatchSubject>,
    /// Principal that watches.
    pub(crate) asker: RequestPrincipal,
    /// Position to begin after; from now on if not given.
    pub(crate) position: Option<EventPosition>,
}

/// One answer of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchedEvent {
    /// The event as JSON; empty for the first answer and for signs of life.
    pub(crate) event: Bytes,
    /// The position after it.
    pub(crate) position: EventPosition,
}

/// Where a watch begins.
enum EventWatchStart {
    /// With the tailer: the events that the watch has missed are known.
    With(SubscriptionCatchUp, EventSubscription),
    /// At a position far behind. The stream is read before joining, so that little is left to catch up with.
    Behind(EventPosition),
}

type WatchedEventSender = mpsc::Sender<Result<WatchedEvent>>;

/// Stream of a watch's answers, made where it is read.
pub(crate) type EventWatchStream = BoxStream<'static, Result<WatchedEvent>>;

impl EventHub {
    /// Begins a watch of a flow with its present state: the flow, some of its nodes, and the events after them.
    pub(crate) async fn watch_from_now(
        &self,
        watch: EventWatch,
        flow: FlowId,
        nodes: PageRequest,
    ) -> Result<(NodePage, EventWatchStream)> {
        let filter = NodeFilter::default();
        let page = self.store().read_nodes(watch.context, flow, watch.asker, &filter, &nodes, true).await?;
        let position =
            page.to_watch.as_ref().and_then(|(_, position)| *position).ok_or(Error::PositionGone)?;
        let watch = EventWatch { position: Some(position), ..watch };
        let tenant = self.store().tenant(watch.context).await?;
        match self.join(&tenant, watch.subject, SubscriptionStart::End(position)).await? {
            // The permission was checked at or after `position`, so a later change of it is among the missed events.
            (joined @ SubscriptionCatchUp { missed: Some(_), .. }, membership) => {
                Ok((page, self.begin(tenant, watch, EventWatchStart::With(joined, membership))))
            }
            (SubscriptionCatchUp { missed: None, .. }, _) => Ok((page, self.watch(watch).await?)),
        }
    }

    /// Begins a watch. Its first answer says where it begins; no later event is missing or comes twice. A watch with a position
    /// receives an answer without an event once it has all events that existed.
    pub(crate) async fn watch(&self, watch: EventWatch) -> Result<EventWatchStream> {
        let tenant = self.store().tenant(watch.context).await?;
        // Joined before the context is read, so that later changes of it arrive as events.
        let joined = self
            .join(
                &tenant,
                watch.subject,
                watch.position.map_or(SubscriptionStart::Now, SubscriptionStart::Then),
            )
            .await;
        let (_, context, _) = self.store().read(watch.context, watch.asker, |_, _| {}).await?;
        if context.state == ContextState::Deleting {
            return Err(Error::ContextDeleting);
        }
        let begin = match (joined?, watch.position) {
            ((SubscriptionCatchUp { missed: None, .. }, _), Some(position)) => {
                if !tenant.has_position(position).await? {
                    return Err(Error::PositionGone);
                }
                EventWatchStart::Behind(position)
            }
            ((joined, membership), _) => EventWatchStart::With(joined, membership),
        };
        Ok(self.begin(tenant, watch, begin))
    }

    fn begin(&self, tenant: Arc<TenantStore>, watch: EventWatch, begin: EventWatchStart) -> EventWatchStream {
        let hub = self.clone();
        Box::pin(rpc::producer_stream(OUT_BUFFER, move |out| async move {
            let watch = EventWatchTask { hub, tenant, watch, out };
            if let Err(error) = watch.run(begin).await {
                // The watcher may have left.
                let _ = watch.out.send(Err(error)).await;
            }
        }))
    }
}

/// Task that sends a watch its events.
struct EventWatchTask {
    hub: EventHub,
    tenant: Arc<TenantStore>,
    watch: EventWatch,
    out: WatchedEventSender,
}

impl EventWatchTask {
    async fn run(&self, begin: EventWatchStart) -> Result<()> {
        let (position, membership) = match (begin, self.watch.position) {
            (EventWatchStart::With(joined, membership), None) => (joined.at, membership),
            (EventWatchStart::With(joined, membership), Some(mut position)) => {
                self.send_position(position).await;
                self.send(&joined.missed.unwrap_or_default(), &mut position).await?;
                (joined.at, membership)
            }
            (EventWatchStart::Behind(mut position), _) => {
                self.send_position(position).await;
                let membership = self.join_behind(&mut position).await?;
                (position, membership)
            }
        };
        // The start of the watch; for one with a position, the mark that all existing events were sent.
        self.send_position(position).await;
        self.follow(position, membership).await
    }

    /// Sends the events that the watch has missed, then joins.
    async fn join_behind(&self, position: &mut EventPosition) -> Result<EventSubscription> {
        self.catch_up(position, None).await?;
        let (joined, membership) =
            self.hub.join(&self.tenant, self.watch.subject, SubscriptionStart::Now).await?;
        // Changes of the context before joining would otherwise be missed.
        self.check_context().await?;
        self.catch_up(position, Some(joined.at)).await?;
        Ok(membership)
    }

    /// Sends what the stream has after `position`, up to its end or to `till`.
    async fn catch_up(&self, position: &mut EventPosition, till: Option<EventPosition>) -> Result<()> {
        while till.is_none_or(|till| till.is_after(*position)) {
            let entries = self.tenant.events_after(*position, READ_MAX).await?;
            self.send(&entries, position).await?;
            if entries.len() < READ_MAX {
                break;
            }
        }
        Ok(())
    }

    async fn follow(&self, mut position: EventPosition, mut membership: EventSubscription) -> Result<()> {
        loop {
            tokio::select! {
                batch = membership.next(position) => self.send(&batch?, &mut position).await?,
                () = tokio::time::sleep(HEARTBEAT) => {
                    if let Some(reached) = membership.idle_position().filter(|at| at.is_after(position)) {
                        position = reached;
                    }
                    self.send_position(position).await;
                }
            }
        }
    }

    async fn send(&self, entries: &[EventEntry], position: &mut EventPosition) -> Result<()> {
        for entry in entries {
            if !entry.position.is_after(*position) {
                continue;
            }
            *position = entry.position;
            let checked = if entry.is_context { self.check_context().await } else { Ok(()) };
            // The removal of the context is the last event that is sent.
            if !matches!(checked, Ok(()) | Err(Error::ContextDeleting)) {
                return checked;
            }
            if entry.is_about(self.watch.subject) {
                let watched = WatchedEvent { event: entry.event.clone(), position: *position };
                // The caller notices when the watcher has left.
                let _ = self.out.send(Ok(watched)).await;
            }
            checked?;
        }
        Ok(())
    }

    /// A watch ends when the role that allowed it is taken away, and when the context goes.
    async fn check_context(&self) -> Result<()> {
        let (_, context) = self.hub.store().context(self.watch.context).await?;
        if let RequestPrincipal::Actor(actor) = self.watch.asker {
            permission::allow(&context, actor, ContextAction::Read)?;
        }
        match context.state {
            ContextState::Active => Ok(()),
            ContextState::Deleting => Err(Error::ContextDeleting),
        }
    }

    async fn send_position(&self, position: EventPosition) {
        let _ = self.out.send(Ok(WatchedEvent { event: Bytes::new(), position })).await;
    }
}
