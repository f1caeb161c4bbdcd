//! Task that reads one context's stream for all of its watchers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use model::limits;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::store::{TenantStore, lock};
use crate::watch::change_feed::ChangeReorderBuffer;
use crate::watch::events::{EventEntry, EventHub, EventPosition, READ_MAX, TailerWakeup, WatchSubject};
use crate::watch::recent_events::RecentEvents;

/// The pause after a failed read.
const RETRY: Duration = Duration::from_millis(200);
/// How many commands are taken up together.
const COMMANDS_MAX: usize = 64;
/// Entries that a tailer reads when it begins: most watchers join at one of them.
const BEGIN_READ: usize = 32;

/// How long the tailer waits for our own changes to report what a hint announced. Then it reads the stream.
const HINT_WAIT: Duration = Duration::from_millis(50);

/// Events that were read together.
pub(crate) type EventBatch = Arc<[EventEntry]>;

fn bytes_of(batch: &[EventEntry]) -> usize {
    batch.iter().map(EventEntry::bytes).sum()
}

/// Up to where a tailer has sent everything; nothing before the first read.
type TailerProgress = Arc<Mutex<Option<EventPosition>>>;

/// A tailer as the hub knows it.
#[derive(Debug)]
pub(crate) struct Tailer {
    pub(crate) wake: Arc<TailerWakeup>,
    reached: TailerProgress,
    commands: mpsc::UnboundedSender<TailerCommand>,
}

/// Command to a tailer.
enum TailerCommand {
    /// A subscriber wants the events to come, and those since its start.
    Join(EventSubscriber, SubscriptionStart, oneshot::Sender<Result<SubscriptionCatchUp>>),
    /// A subscriber has left.
    Leave,
}

/// Start of a subscription.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SubscriptionStart {
    /// From the moment of joining.
    Now,
    /// From an earlier position.
    Then(EventPosition),
    /// From a position at which the stream ended when the subscriber began to ask.
    End(EventPosition),
}

impl SubscriptionStart {
    fn position(self) -> Option<EventPosition> {
        match self {
            Self::Now => None,
            Self::Then(position) | Self::End(position) => Some(position),
        }
    }
}

/// Point at which a subscription joins.
#[derive(Debug)]
pub(crate) struct SubscriptionCatchUp {
    /// Everything after this position will be sent.
    pub(crate) at: EventPosition,
    /// Events between the requested position and this one, which is at least where the stream ended when the
    /// subscriber began to join; `None` where they are not known without a read.
    pub(crate) missed: Option<Vec<EventEntry>>,
}

/// Subscriber that is sent events.
struct EventSubscriber {
    subject: Option<WatchSubject>,
    batches: mpsc::Sender<EventBatch>,
    /// Bytes of the batches that it has not taken.
    backlog: Arc<AtomicUsize>,
    end: Arc<OnceLock<SubscriptionEnd>>,
}

/// Reason why a subscriber is sent nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriptionEnd {
    /// The subscriber did not keep up.
    Slow,
    /// The stream is not the one that it was watching.
    Gone,
}

/// A watcher's side.
pub(crate) struct EventSubscription {
    batches: mpsc::Receiver<EventBatch>,
    backlog: Arc<AtomicUsize>,
    reached: TailerProgress,
    end: Arc<OnceLock<SubscriptionEnd>>,
    commands: mpsc::UnboundedSender<TailerCommand>,
}

impl EventSubscription {
    /// The next events, for a watcher that was sent everything up to `at`.
    ///
    /// # Errors
    /// When there will be no more: too slow, or the stream is another one.
    pub(crate) async fn next(&mut self, at: EventPosition) -> Result<EventBatch> {
        match self.batches.recv().await {
            Some(batch) => {
                self.backlog.fetch_sub(bytes_of(&batch), Ordering::Relaxed);
                Ok(batch)
            }
            None if self.end.get() == Some(&SubscriptionEnd::Slow) => Err(Error::TooSlow { resume: at }),
            None => Err(Error::PositionGone),
        }
    }
}

impl EventSubscription {
    /// Up to where the stream was read without anything left to take: from there a watcher may resume, also
    /// when nothing was for it for a long time.
    pub(crate) fn idle_position(&self) -> Option<EventPosition> {
        // Sent first, noted then: whatever is before this place was sent, and taken if nothing waits now.
        let reached = *lock(&self.reached);
        if self.batches.is_empty() { reached } else { None }
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        self.batches.close();
        // The tailer may have ended already.
        let _ = self.commands.send(TailerCommand::Leave);
    }
}

impl EventHub {
    /// Joins a context's tailer, starting it if needed, for a subscriber that knows the events up to a position.
    pub(crate) async fn join(
        &self,
        tenant: &Arc<TenantStore>,
        subject: Option<WatchSubject>,
        since: SubscriptionStart,
    ) -> Result<(SubscriptionCatchUp, EventSubscription)> {
        let (sender, batches) = mpsc::channel(limits::WATCH_BUFFER);
        let backlog = Arc::new(AtomicUsize::new(0));
        let end = Arc::new(OnceLock::new());
        let (reply, answer) = oneshot::channel();
        let watcher = EventSubscriber {
            subject,
            batches: sender,
            backlog: Arc::clone(&backlog),
            end: Arc::clone(&end),
        };
        let (commands, reached) = {
            let mut tailers = lock(self.tailers());
            let tailer = tailers.entry(tenant.id).or_insert_with(|| self.start(tenant));
            // A tailer leaves the map before it ends, so this one still receives commands.
            let _ = tailer.commands.send(TailerCommand::Join(watcher, since, reply));
            (tailer.commands.clone(), Arc::clone(&tailer.reached))
        };
        let membership = EventSubscription { batches, backlog, reached, end, commands };
        let joined = answer.await.unwrap_or(Err(Error::PositionGone))?;
        Ok((joined, membership))
    }

    fn start(&self, tenant: &Arc<TenantStore>) -> Tailer {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (wake, reached) = (Arc::new(TailerWakeup::default()), TailerProgress::default());
        let task = TailerTask {
            hub: self.clone(),
            tenant: Arc::clone(tenant),
            wake: Arc::clone(&wake),
            inbox,
            watchers: Vec::new(),
            recent: RecentEvents::new(self.lender().clone()),
            reached: Arc::clone(&reached),
            missed: 0,
            ahead: ChangeReorderBuffer::default(),
            hinted: 0,
            awaited: None,
        };
        tenant.feed.listen(Arc::clone(&wake));
        tokio::spawn(task.run());
        Tailer { wake, reached, commands }
    }
}

struct TailerTask {
    hub: EventHub,
    tenant: Arc<TenantStore>,
    wake: Arc<TailerWakeup>,
    inbox: mpsc::UnboundedReceiver<TailerCommand>,
    watchers: Vec<EventSubscriber>,
    /// Last events that were read and sent; empty before the first read.
    recent: RecentEvents,
    reached: TailerProgress,
    missed: u64,
    /// Reported changes that do not yet follow on what was sent.
    ahead: ChangeReorderBuffer,
    /// Greatest change announced by a hint since the last full read; 0 for none.
    hinted: u64,
    awaited: Option<AwaitedChange>,
}

/// A change that a hint announced and that one of our own changes may report.
#[derive(Debug, Clone, Copy)]
struct AwaitedChange {
    revision: u64,
    /// How many of our own changes had begun by then; the announced one may be among them.
    begun: u64,
    until: Instant,
}

impl TailerTask {
    async fn run(mut self) {
        let mut commands = Vec::new();
        loop {
            let until = self.awaited.map_or_else(Instant::now, |awaited| awaited.until);
            tokio::select! {
                count = self.inbox.recv_many(&mut commands, COMMANDS_MAX) => {
                    if count == 0 {
                        return;
                    }
                    self.obey(&mut commands).await;
                }
                () = self.wake.notify.notified() => self.follow().await,
                () = tokio::time::sleep_until(until), if self.awaited.is_some() => self.read_or_retry().await,
            }
            if self.watchers.is_empty() && self.leave_map() {
                return;
            }
        }
    }

    async fn obey(&mut self, commands: &mut Vec<TailerCommand>) {
        self.take_reported();
        // A subscriber with a position may since have read the state up to now, so all events up to now must be sent, even if their
        // hints are still on their way. One read serves all subscribers that join together.
        let reads = commands.iter().any(|command| match command {
            TailerCommand::Join(_, SubscriptionStart::Then(_), _) => true,
            TailerCommand::Join(_, SubscriptionStart::End(end), _) => {
                self.has_missed() || self.recent.last().is_none_or(|at| end.is_after(at))
            }
            _ => false,
        });
        let is_current = !reads || self.read_on().await.is_ok();
        if !is_current {
            // The failed read may also have been due for other watchers.
            self.owe_read();
        }
        for command in commands.drain(..) {
            match command {
                TailerCommand::Join(watcher, since, reply) => {
                    let known = since.position().filter(|_| is_current);
                    let joined = self.admit(watcher, known).await;
                    // The subscriber may have given up.
                    let _ = reply.send(joined);
                }
                TailerCommand::Leave => self.watchers.retain(|watcher| !watcher.batches.is_closed()),
            }
        }
    }

    async fn admit(
        &mut self,
        watcher: EventSubscriber,
        known: Option<EventPosition>,
    ) -> Result<SubscriptionCatchUp> {
        let at = match self.recent.last() {
            Some(at) => at,
            None => {
                self.recent.extend(&self.tenant.last_events(BEGIN_READ).await?);
                // A stream begins with the context's creation, so an empty one is not the stream that the subscriber knows.
                let none =
                    || known.map_or(Error::not_found("context", self.tenant.id), |_| Error::PositionGone);
                self.recent.last().ok_or_else(none)?
            }
        };
        let missed = known.and_then(|known| self.recent.after(known, watcher.subject));
        self.watchers.push(watcher);
        Ok(SubscriptionCatchUp { at, missed })
    }

    /// Takes up reported changes, and reads the stream when hints have announced more.
    async fn follow(&mut self) {
        self.take_reported();
        let Some(at) = self.recent.last() else { return };
        if self.wake.is_vague.swap(false, Ordering::SeqCst) || self.has_missed() {
            return self.read_or_retry().await;
        }
        self.hinted = self.hinted.max(self.wake.hinted.swap(0, Ordering::SeqCst));
        if self.hinted <= at.revision {
            (self.hinted, self.awaited) = (0, None);
            return;
        }
        let feed = &self.tenant.feed;
        // A change announced while another is awaited waits no longer than that one.
        let until = self.awaited.map_or_else(|| Instant::now() + HINT_WAIT, |awaited| awaited.until);
        let awaited = self.awaited.filter(|awaited| awaited.revision > at.revision);
        let awaited =
            awaited.unwrap_or_else(|| AwaitedChange { revision: self.hinted, begun: feed.begun(), until });
        // The end of each change wakes this task.
        if feed.is_open(awaited.begun) {
            self.awaited = Some(awaited);
        } else {
            self.read_or_retry().await;
        }
    }

    /// Takes up the events that our own changes reported, as far as they directly follow the sent ones.
    fn take_reported(&mut self) {
        self.ahead.extend(self.tenant.feed.take());
        let Some(at) = self.recent.last() else { return self.ahead.clear() };
        let following = self.ahead.after(at);
        if !following.entries.is_empty() {
            self.take_up(&following.entries.into());
        }
        if following.is_doubtful {
            self.wake.miss();
        }
        // A gap remains before these changes, even if no hint has announced it.
        self.hinted = self.hinted.max(self.ahead.greatest());
    }

    fn take_up(&mut self, batch: &EventBatch) {
        self.recent.extend(batch);
        self.send(batch);
        *lock(&self.reached) = self.recent.last();
    }

    fn has_missed(&self) -> bool {
        self.wake.missed.load(Ordering::SeqCst) != self.missed
    }

    fn owe_read(&self) {
        self.wake.is_vague.store(true, Ordering::SeqCst);
        self.wake.notify.notify_one();
    }

    async fn read_or_retry(&mut self) {
        if let Err(error) = self.read_on().await {
            tracing::warn!(context = %self.tenant.id, %error, "reading events failed, trying again");
            tokio::time::sleep(RETRY).await;
            self.owe_read();
        }
    }

    async fn read_on(&mut self) -> Result<()> {
        self.awaited = None;
        let missed = self.wake.missed.load(Ordering::SeqCst);
        if missed != self.missed {
            // Redis may have lost the reported changes, so the whole rest of the stream is read.
            self.ahead.clear();
            drop(self.tenant.feed.take());
            if let Some(at) = self.recent.last()
                && !self.tenant.has_position(at).await?
            {
                self.end_all(SubscriptionEnd::Gone);
                self.recent.clear();
                *lock(&self.reached) = None;
            }
        }
        while let Some(at) = self.recent.last() {
            let batch: EventBatch = self.tenant.events_after(at, READ_MAX).await?.into();
            if !batch.is_empty() {
                self.take_up(&batch);
            }
            if batch.len() < READ_MAX {
                break;
            }
        }
        (self.missed, self.hinted) = (missed, 0);
        Ok(())
    }

    /// Sends each watcher the events that it needs, so that its backlog has nothing else. A watcher whose backlog
    /// exceeds its buffer is ended.
    fn send(&mut self, batch: &EventBatch) {
        self.watchers.retain(|watcher| {
            let batch = match watcher.subject {
                None => Arc::clone(batch),
                wanted => batch.iter().filter(|entry| entry.is_for(wanted)).cloned().collect(),
            };
            if batch.is_empty() {
                return !watcher.batches.is_closed();
            }
            let bytes = bytes_of(&batch);
            let waiting = watcher.backlog.fetch_add(bytes, Ordering::Relaxed);
            let is_full = waiting > 0 && waiting + bytes > limits::PAGE_BYTES_MAX;
            match watcher.batches.try_reserve() {
                Ok(place) if !is_full => {
                    place.send(batch);
                    true
                }
                Err(mpsc::error::TrySendError::Closed(())) => false,
                Ok(_) | Err(mpsc::error::TrySendError::Full(())) => {
                    // Set before the channel closes, so that its reader finds the reason.
                    let _ = watcher.end.set(SubscriptionEnd::Slow);
                    false
                }
            }
        });
    }

    fn end_all(&mut self, end: SubscriptionEnd) {
        for watcher in self.watchers.drain(..) {
            let _ = watcher.end.set(end);
        }
    }

    /// Leaves the map unless a subscriber has joined meanwhile: joining happens under the same lock.
    fn leave_map(&mut self) -> bool {
        let mut tailers = lock(self.hub.tailers());
        if self.inbox.is_empty() {
            tailers.remove(&self.tenant.id);
            self.tenant.feed.leave();
            return true;
        }
        false
    }
}
