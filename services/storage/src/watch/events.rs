//! Event streams: every change of a context, in order.
//!
//! One subscription receives the hints of all contexts. A context's stream is read by one task, its tailer,
//! and only while it has watchers. A hint may be lost, the stream is the truth: whenever the
//! subscription is renewed, every tailer reads on from its position.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use directory::DirectoryInvalidation;
use keys::FlowRef;
use kv::{Cmd, KvConnection, KvSubscriptionEvent, StreamEntry, Topic, Value};
use model::{ContextId, FlowId, RunnerId};
use serde::Deserialize;
use service::{Readiness, ReadinessCondition};
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::store::{Store, TenantStore, lock};
use crate::tenants::identities::{IdentityChangeFeed, identity_change_of};
use crate::watch::recent_events::EventMemoryPool;
use crate::watch::tailer::Tailer;

/// Entries of a stream that are read at once.
pub(crate) const READ_MAX: usize = 256;
/// Memory that an entry takes besides its text, about.
const ENTRY_BYTES: usize = 96;
/// Hints of a kind by which a receiver may fall behind before it looks at everything again.
const KINDS_BUFFER: usize = 1024;
/// Hints of inboxes by which a receiver may fall behind before it looks at its inbox anyway.
const INBOXES_BUFFER: usize = 1024;
/// Changes of identities by which a directory may fall behind before it discards everything.
const INVALIDATIONS_BUFFER: usize = 1024;
/// Touched flows by which a scheduler may fall behind before it must list its flows.
const TOUCHES_BUFFER: usize = 16_384;

/// A place in a context's stream: change, number within it, and the random bits of the change, by which a
/// store that went back is recognised. Written `<revision>.<n>-<bits>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventPosition {
    pub(crate) revision: u64,
    pub(crate) n: u32,
    pub(crate) bits: u64,
}

impl EventPosition {
    /// Returns true if this position comes after `other`.
    pub(crate) fn is_after(self, other: Self) -> bool {
        (self.revision, self.n) > (other.revision, other.n)
    }

    /// Where a stream ends now; nothing when there is none.
    pub(crate) async fn last(connection: &KvConnection, stream: &str) -> Result<Option<Self>> {
        Self::first_of(connection.cmd(newest(stream, 1)).await?)
    }

    /// Reads the present start of a stream; nothing when there is no stream.
    pub(crate) async fn first(connection: &KvConnection, stream: &str) -> Result<Option<Self>> {
        let query = Cmd::new("XRANGE").arg(stream).arg("-").arg("+").arg("COUNT").arg(1);
        Self::first_of(connection.cmd(query).await?)
    }

    /// Parses the position of the first entry in an answer of Redis.
    pub(crate) fn first_of(entries: Value) -> Result<Option<Self>> {
        let entry = entries.entries()?.into_iter().next();
        Ok(entry.map(EventEntry::read).transpose()?.map(|entry| entry.position))
    }

    /// Returns true if a stream has this position, with the same random bits.
    pub(crate) async fn is_in(self, connection: &KvConnection, stream: &str) -> Result<bool> {
        let id = self.entry_id();
        let entries = connection.cmd(Cmd::new("XRANGE").arg(stream).arg(&id).arg(&id)).await?;
        let found = entries.entries()?.into_iter().next().map(EventEntry::read).transpose()?;
        Ok(found.is_some_and(|entry| entry.position == self))
    }

    /// The place of an entry of this id, with random bits in hexadecimal digits.
    pub(crate) fn of_entry(id: &str, bits: &str) -> Result<Self> {
        let bits = u64::from_str_radix(bits, 16).map_err(|error| broken(&error))?;
        Self::of_id(id, bits)
    }

    fn of_id(id: &str, bits: u64) -> Result<Self> {
        let (revision, n) = id.split_once('-').ok_or_else(|| broken(&"no id"))?;
        let number = |error: std::num::ParseIntError| broken(&error);
        Ok(Self { revision: revision.parse().map_err(number)?, n: n.parse().map_err(number)?, bits })
    }

    /// The id of its entry.
    pub(crate) fn entry_id(self) -> String {
        format!("{}-{}", self.revision, self.n)
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}-{:016x}", self.revision, self.n, self.bits)
    }
}

impl FromStr for EventPosition {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (revision, rest) = text.split_once('.')?;
            let (n, bits) = rest.split_once('-')?;
            let position = Self {
                revision: revision.parse().ok()?,
                n: n.parse().ok()?,
                bits: u64::from_str_radix(bits, 16).ok()?,
            };
            (position.to_string() == text).then_some(position)
        };
        parse().ok_or_else(|| Error::field("resume_position", "not a position that was given by a watch"))
    }
}

/// Subject of a watch that is not about everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchSubject {
    /// One flow.
    Flow(FlowId),
    /// Every flow, without nodes and output.
    Flows,
    /// Every runner record.
    Runners,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventEntry {
    /// Where it stands.
    pub(crate) position: EventPosition,
    /// The event as JSON.
    pub(crate) event: Bytes,
    /// The flow or record it is about, of those that can be watched each for itself.
    pub(crate) subject: Option<WatchSubject>,
    /// A flow itself changed, rather than one of its nodes.
    pub(crate) is_flow: bool,
    /// The context itself changed: the permissions of watchers must be checked again.
    pub(crate) is_context: bool,
}

impl EventEntry {
    fn read(mut entry: StreamEntry) -> Result<Self> {
        let bits = u64::from_str_radix(entry.text("b")?, 16).map_err(|error| broken(&error))?;
        let event = entry.fields.iter_mut().find(|(name, _)| name == "e");
        let event = event.map(|(_, value)| std::mem::take(value)).unwrap_or_default();
        Self::of(&entry.id, bits, event)
    }

    /// An entry of this id, made by the change with these random bits.
    pub(crate) fn of(id: &str, bits: u64, event: Vec<u8>) -> Result<Self> {
        #[derive(Deserialize)]
        struct EventHeader<'a> {
            #[serde(borrow)]
            kind: Cow<'a, str>,
            #[serde(default)]
            flow_id: Option<FlowId>,
            #[serde(default)]
            runner_id: Option<RunnerId>,
        }
        let position = EventPosition::of_id(id, bits)?;
        let event = Bytes::from(event);
        let about: EventHeader<'_> = serde_json::from_slice(&event).map_err(|error| broken(&error))?;
        let (is_context, is_flow) = (about.kind == "context", about.kind == "flow");
        let of_runner = about.runner_id.filter(|_| about.kind == "runner").map(|_| WatchSubject::Runners);
        let subject = about.flow_id.map(WatchSubject::Flow).or(of_runner);
        Ok(Self { position, event, subject, is_flow, is_context })
    }

    /// Returns whether the entry is about `wanted`, or about anything if not given.
    pub(crate) fn is_about(&self, wanted: Option<WatchSubject>) -> bool {
        match wanted {
            None => true,
            Some(WatchSubject::Flows) => self.is_flow,
            wanted => self.subject == wanted,
        }
    }

    /// Returns whether a watch of this subject, or of everything, needs the entry.
    pub(crate) fn is_for(&self, wanted: Option<WatchSubject>) -> bool {
        self.is_context || self.is_about(wanted)
    }

    /// Memory that the entry takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.event.len() + ENTRY_BYTES
    }
}

fn broken(problem: &dyn fmt::Display) -> kv::Error {
    kv::Error::Protocol(format!("an entry of `events`: {problem}"))
}

/// Builds the command for the last entries of a stream, newest first.
pub(crate) fn newest(stream: &str, count: usize) -> Cmd {
    Cmd::new("XREVRANGE").arg(stream).arg("+").arg("-").arg("COUNT").arg(count)
}

impl TenantStore {
    /// The entries after `position`, at most `count`.
    pub(crate) async fn events_after(
        &self,
        position: EventPosition,
        count: usize,
    ) -> Result<Vec<EventEntry>> {
        let from = format!("({}", position.entry_id());
        let query = Cmd::new("XRANGE").arg(&self.events).arg(&from).arg("+").arg("COUNT").arg(count);
        self.connection.cmd(query).await?.entries()?.into_iter().map(EventEntry::read).collect()
    }

    /// The last entries, at most `count`, in their order. There is always one: the stream begins with the context's creation.
    pub(crate) async fn last_events(&self, count: usize) -> Result<Vec<EventEntry>> {
        let entries = self.connection.cmd(newest(&self.events, count)).await?.entries()?.into_iter().rev();
        entries.map(EventEntry::read).collect()
    }

    /// Returns true if `position` is in the stream, with the same random bits.
    pub(crate) async fn has_position(&self, position: EventPosition) -> Result<bool> {
        position.is_in(&self.connection, &self.events).await
    }

    /// Reads the present end of the stream. The stream is never empty: it begins with the context's creation.
    pub(crate) async fn last_position(&self) -> Result<EventPosition> {
        let last = EventPosition::last(&self.connection, &self.events).await?;
        last.ok_or_else(|| Error::not_found("context", self.id))
    }
}

/// A hint that more is to be done than to read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// Messages entered `msg_out`.
    Out(ContextId),
    /// A runner record changed.
    Runner(ContextId),
    /// A context is being removed, or another supervisor has dropped it.
    Removal(ContextId),
    /// A scheduler replica came or went.
    Replicas,
    /// Hints may have been missed: look at everything.
    Missed,
}

/// A hint for the owners of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowHint {
    /// There is something new for a flow.
    Flow(ContextId, FlowRef),
    /// There may be for any.
    Any,
}

/// Hint for watches of inboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InboxHint {
    /// Something came into an inbox, or the context itself changed.
    In(ContextId),
    /// Hints may have been missed.
    Any,
}

impl InboxHint {
    /// Returns true if the hint may be about an inbox of this context.
    pub(crate) fn is_for(self, context: ContextId) -> bool {
        match self {
            Self::In(known) => known == context,
            Self::Any => true,
        }
    }
}

/// Signal that wakes a tailer.
#[derive(Debug, Default)]
pub(crate) struct TailerWakeup {
    /// Notified when there may be something to read or to take up.
    pub(crate) notify: Notify,
    /// How often hints were missed: the stream may have been replaced since.
    pub(crate) missed: AtomicU64,
    /// Greatest change number seen in a hint.
    pub(crate) hinted: AtomicU64,
    /// Something was hinted at without a number.
    pub(crate) is_vague: AtomicBool,
}

impl TailerWakeup {
    /// Notes that hints may have been missed, and that the stream may have been replaced.
    pub(crate) fn miss(&self) {
        self.missed.fetch_add(1, Ordering::SeqCst);
        self.notify.notify_one();
    }

    fn note(&self, kind: &[u8]) {
        match std::str::from_utf8(kind).ok().and_then(|text| text.parse().ok()) {
            Some(revision) => _ = self.hinted.fetch_max(revision, Ordering::SeqCst),
            None => self.is_vague.store(true, Ordering::SeqCst),
        }
        self.notify.notify_one();
    }
}

/// Receiver of all hints, which also keeps the tailers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct EventHub(Arc<EventHubInner>);

#[derive(Debug)]
struct EventHubInner {
    store: Store,
    kinds: broadcast::Sender<Hint>,
    touches: broadcast::Sender<FlowHint>,
    inboxes: broadcast::Sender<InboxHint>,
    invalidations: broadcast::Sender<DirectoryInvalidation>,
    /// Ready while hints arrive, that is, while Redis is reachable.
    readiness: Readiness,
    redis: ReadinessCondition,
    /// Hints arrive from every part of Redis.
    receives_all: watch::Sender<bool>,
    pub(crate) tailers: Mutex<HashMap<ContextId, Tailer>>,
    lender: EventMemoryPool,
}

impl EventHub {
    pub(crate) fn new(store: Store) -> Self {
        let readiness = Readiness::new();
        Self(Arc::new(EventHubInner {
            store,
            redis: readiness.condition("redis"),
            readiness,
            kinds: broadcast::Sender::new(KINDS_BUFFER),
            touches: broadcast::Sender::new(TOUCHES_BUFFER),
            inboxes: broadcast::Sender::new(INBOXES_BUFFER),
            invalidations: broadcast::Sender::new(INVALIDATIONS_BUFFER),
            receives_all: watch::Sender::new(false),
            tailers: Mutex::default(),
            lender: EventMemoryPool::default(),
        }))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn tailers(&self) -> &Mutex<HashMap<ContextId, Tailer>> {
        &self.0.tailers
    }

    /// Pool of memory that tailers may share beyond what each may hold.
    pub(crate) fn lender(&self) -> &EventMemoryPool {
        &self.0.lender
    }

    /// Hints of more than events, from now on.
    pub(crate) fn hints(&self) -> broadcast::Receiver<Hint> {
        self.0.kinds.subscribe()
    }

    /// Flows for which there is something new, from now on.
    pub(crate) fn touches(&self) -> broadcast::Receiver<FlowHint> {
        self.0.touches.subscribe()
    }

    /// Inboxes into which something came, from now on.
    pub(crate) fn inboxes(&self) -> broadcast::Receiver<InboxHint> {
        self.0.inboxes.subscribe()
    }

    /// Subscription to changes of actors and of roles in contexts, from now on.
    pub(crate) fn identity_changes(&self) -> IdentityChangeFeed {
        IdentityChangeFeed::new(self.0.invalidations.subscribe())
    }

    /// Ready while hints arrive.
    pub(crate) fn readiness(&self) -> &Readiness {
        &self.0.readiness
    }

    /// Returns true if hints of every change of actors and contexts arrive now.
    pub(crate) fn receives_all(&self) -> bool {
        *self.0.receives_all.borrow()
    }

    /// Changes whenever the store was found to have lost changes.
    pub(crate) fn went_back(&self) -> &watch::Sender<u64> {
        self.0.store.went_back()
    }

    /// Listens until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let layout = self.0.store.layout();
        let mut subscription =
            self.0.store.kv().subscribe(vec![Topic::Pattern(layout.hint_pattern().to_owned())]);
        loop {
            let notice = tokio::select! {
                () = stop.cancelled() => return,
                notice = subscription.next() => notice,
            };
            match notice {
                KvSubscriptionEvent::Subscribed => {
                    for tailer in lock(&self.0.tailers).values() {
                        tailer.wake.miss();
                    }
                    self.0.redis.met();
                    self.0.receives_all.send_replace(true);
                    self.publish(Hint::Missed);
                    self.touch(FlowHint::Any);
                    self.publish_to_inboxes(InboxHint::Any);
                    self.publish_invalidation(DirectoryInvalidation::FeedRestored);
                }
                // An actor may lose a role or a key without a hint of it arriving here.
                KvSubscriptionEvent::Partial => {
                    self.0.receives_all.send_replace(false);
                    self.publish_invalidation(DirectoryInvalidation::FeedLost);
                }
                KvSubscriptionEvent::Lost(error) => {
                    self.0.redis.unmet(error.to_string());
                    self.0.receives_all.send_replace(false);
                    self.publish_invalidation(DirectoryInvalidation::FeedLost);
                    tracing::warn!(%error, "hints are missed until Redis is back");
                }
                KvSubscriptionEvent::Message { channel, payload } => {
                    if let Some(context) = layout.parse_hint_channel(&channel) {
                        self.handle_hint(context, &payload);
                    }
                }
            }
        }
    }

    fn handle_hint(&self, context: ContextId, kind: &[u8]) {
        if let Some(tailer) = lock(&self.0.tailers).get(&context) {
            tailer.wake.note(kind);
        }
        match kind {
            b"out" => self.publish(Hint::Out(context)),
            b"runner" => self.publish(Hint::Runner(context)),
            b"removal" => self.publish(Hint::Removal(context)),
            b"replicas" => self.publish(Hint::Replicas),
            b"active" => self.touch(FlowHint::Any),
            b"context" => {
                self.publish_to_inboxes(InboxHint::In(context));
                self.publish_invalidation(DirectoryInvalidation::Context(context));
            }
            inbox if inbox.starts_with(b"inbox:") => self.publish_to_inboxes(InboxHint::In(context)),
            other => {
                let flow = std::str::from_utf8(other).ok().and_then(|text| text.strip_prefix("flow:"));
                if let Some(flow) = flow.and_then(|flow| flow.parse().ok()) {
                    self.touch(FlowHint::Flow(context, flow));
                } else if let Some(invalidation) = identity_change_of(other) {
                    self.publish_invalidation(invalidation);
                }
            }
        }
    }

    fn touch(&self, touch: FlowHint) {
        // As below.
        let _ = self.0.touches.send(touch);
    }

    fn publish_to_inboxes(&self, hint: InboxHint) {
        // As below.
        let _ = self.0.inboxes.send(hint);
    }

    fn publish_invalidation(&self, invalidation: DirectoryInvalidation) {
        // As below.
        let _ = self.0.invalidations.send(invalidation);
    }

    fn publish(&self, hint: Hint) {
        // An error means that there is no receiver, which is fine.
        let _ = self.0.kinds.send(hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_one_spelling() {
        let position = EventPosition { revision: 12, n: 3, bits: 0xab };
        assert_eq!(position.to_string(), "12.3-00000000000000ab");
        assert_eq!(position.to_string().parse::<EventPosition>().expect("its own text"), position);
        for bad in ["", "12-3", "12.ab", "12.3-ab", "012.3-00000000000000ab", "12.3-00000000000000AB"] {
            assert!(bad.parse::<EventPosition>().is_err(), "{bad}");
        }
        assert!(EventPosition { n: 4, ..position }.is_after(position));
        assert!(!position.is_after(position));
    }
}
