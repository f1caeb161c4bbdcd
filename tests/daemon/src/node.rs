//! A node: its messages, in and out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::identity::{Identity, ip_of};
use crate::mesh::{Mesh, Neighbor};
use crate::overlay::Overlay;
use crate::packet::{Message, MessageId, Packet, What};
use crate::traps::Traps;

/// How often what was not delivered is repeated.
pub const TICK: Duration = Duration::from_millis(100);
/// When it is given up …
const ABORT_AFTER: Duration = Duration::from_secs(300);
/// … and forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Messages for one absent node that get stuck when it returns.
const STUCK_FROM: usize = 20;
/// Repetitions after which a node counts as absent.
const ABSENT_AFTER: u32 = 3;
/// How far messages are scattered that overtake each other.
const SCATTER: Duration = Duration::from_millis(5);
const HOPS: u8 = 3;

/// The time as the node sees it, which tests can push on.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<Mutex<Duration>>);

impl Clock {
    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    fn now(&self) -> Instant {
        Instant::now() + *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a message stands that was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Sending { pending: u64, sent: u64, acked: u64 },
    Received,
    Read,
    Aborted,
}

#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) to: IpAddr,
    pub(crate) state: State,
    pub(crate) created: u64,
    pub(crate) message: Message,
    since: Instant,
    tries: u32,
    stuck: bool,
}

/// A message that came in.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) from: [u8; 32],
    pub(crate) message: Message,
}

#[derive(Debug)]
enum Medium {
    Overlay(Overlay),
    Mesh(Mesh),
}

/// Clones are the same.
#[derive(Debug, Clone)]
pub struct Node(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    identity: Identity,
    pub(crate) traps: Traps,
    clock: Clock,
    medium: Medium,
    runtime: tokio::runtime::Handle,
    start_secs: u64,
    arrived: Notify,
    boxes: Mutex<Boxes>,
}

/// Everything that is in memory only.
#[derive(Debug, Default)]
pub(crate) struct Boxes {
    outbox: HashMap<MessageId, Sent>,
    queue: VecDeque<Received>,
    waiting: HashMap<MessageId, oneshot::Sender<Received>>,
    /// Messages that have arrived already, so that a repetition is recognized.
    known: HashSet<(MessageId, bool)>,
    rejects: bool,
    topics: BTreeMap<Vec<u8>, BTreeSet<Ipv6Addr>>,
}

impl Node {
    /// A node of an overlay within this process. Must be created within a runtime.
    #[must_use]
    pub fn on_overlay(identity: Identity, traps: Traps, clock: Clock, overlay: Overlay) -> Self {
        Self::new(identity, traps, clock, Medium::Overlay(overlay))
    }

    /// A node that is joined with others by connections. Must be created within a runtime.
    #[must_use]
    pub fn on_mesh(identity: Identity, traps: Traps, mesh: Mesh) -> Self {
        Self::new(identity, traps, Clock::default(), Medium::Mesh(mesh))
    }

    fn new(identity: Identity, traps: Traps, clock: Clock, medium: Medium) -> Self {
        let node = Self(Arc::new(Shared {
            identity,
            traps,
            clock,
            medium,
            runtime: tokio::runtime::Handle::current(),
            start_secs: unix_secs(),
            arrived: Notify::new(),
            boxes: Mutex::default(),
        }));
        let weak = Arc::downgrade(&node.0);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            loop {
                ticks.tick().await;
                let Some(shared) = weak.upgrade() else { return };
                Self(shared).tick();
            }
        });
        node
    }

    /// Returns the identity of the node.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    pub(crate) fn traps(&self) -> Traps {
        self.0.traps
    }

    pub(crate) fn start_secs(&self) -> u64 {
        self.0.start_secs
    }

    pub(crate) fn neighbors(&self) -> Vec<Neighbor> {
        match &self.0.medium {
            Medium::Overlay(_) => Vec::new(),
            Medium::Mesh(mesh) => mesh.named(),
        }
    }

    pub(crate) fn key_of(&self, ip: IpAddr) -> Option<[u8; 32]> {
        match &self.0.medium {
            Medium::Overlay(overlay) => overlay.key_of(ip),
            Medium::Mesh(mesh) => mesh.key_of(ip),
        }
    }

    /// Takes a message to be sent; `wait` for the reply to come by it.
    pub(crate) fn push(
        &self,
        to: IpAddr,
        topic: Bytes,
        payload: Bytes,
        wait: bool,
    ) -> (MessageId, oneshot::Receiver<Received>) {
        let id = MessageId::random();
        let (sender, reply) = oneshot::channel();
        if wait {
            self.boxes().waiting.insert(id, sender);
        }
        self.post(to, Message { id, is_reply: false, topic, payload });
        (id, reply)
    }

    /// Stops waiting for the reply.
    pub(crate) fn stop_waiting(&self, id: MessageId) {
        self.boxes().waiting.remove(&id);
    }

    /// Takes a reply to be sent, whatever it replies to.
    pub(crate) fn reply(&self, id: MessageId, to: IpAddr, payload: Bytes) {
        self.post(to, Message { id, is_reply: true, topic: Bytes::new(), payload });
    }

    fn post(&self, to: IpAddr, message: Message) {
        let sent = Sent {
            to,
            state: State::Sending { pending: 1, sent: 0, acked: 0 },
            created: unix_secs(),
            since: self.0.clock.now(),
            tries: 1,
            stuck: false,
            message: message.clone(),
        };
        self.boxes().outbox.insert(message.id, sent);
        // Its own messages never come back to a node.
        if to != IpAddr::from(self.0.identity.ip) {
            self.say(to, What::Message(message));
        }
    }

    /// Where a message stands.
    pub(crate) fn sent(&self, id: MessageId) -> Option<Sent> {
        self.age();
        self.boxes().outbox.get(&id).cloned()
    }

    /// The oldest message that fits; `topic` absent means any.
    pub(crate) fn oldest(&self, peek: bool, topic: Option<&[u8]>) -> Option<Received> {
        let found = {
            let mut boxes = self.boxes();
            let fits = |message: &Received| topic.is_none_or(|topic| message.message.topic == topic);
            let place = boxes.queue.iter().position(fits)?;
            if peek { boxes.queue.get(place).cloned() } else { boxes.queue.remove(place) }
        }?;
        let (to, id) = (IpAddr::from(ip_of(&found.from)), found.message.id);
        if !self.0.traps.received_early && !peek {
            self.say(to, What::Received(id));
        }
        // Best effort, as it was measured: half of them never get there.
        if rand::random() {
            self.say(to, What::Read(id));
        }
        Some(found)
    }

    /// Returns the oldest message that fits; waits for one up to `timeout`.
    pub(crate) async fn oldest_within(
        &self,
        peek: bool,
        topic: Option<&[u8]>,
        timeout: Duration,
    ) -> Option<Received> {
        let deadline = Instant::now() + timeout;
        loop {
            let arrived = self.0.arrived.notified();
            if let Some(found) = self.oldest(peek, topic) {
                return Some(found);
            }
            if tokio::time::timeout_at(deadline, arrived).await.is_err() {
                return None;
            }
        }
    }

    /// Something came over the overlay.
    pub(crate) fn take(&self, packet: Packet) {
        let (from, back) = (packet.from, IpAddr::from(ip_of(&packet.from)));
        match packet.what {
            What::Message(message) => self.take_message(from, message),
            What::Received(id) => self.change(id, State::Received),
            What::Stuck(id) => self.change(id, State::Sending { pending: 0, sent: 1, acked: 1 }),
            What::Read(id) => self.change(id, State::Read),
            What::Knock => self.say(back, What::Here),
            What::Here => self.is_back(back),
        }
    }

    fn take_message(&self, from: [u8; 32], message: Message) {
        let (back, id) = (IpAddr::from(ip_of(&from)), message.id);
        if !message.is_reply && self.is_denied(&message.topic, ip_of(&from)) {
            return;
        }
        if self.0.traps.sizes && never_arrives(message.payload.len()) {
            return self.say(back, What::Stuck(id));
        }
        if self.0.traps.received_early || message.is_reply {
            self.say(back, What::Received(id));
        }
        {
            let mut boxes = self.boxes();
            let destination = boxes.outbox.get(&id).map(|sent| sent.to);
            if message.is_reply && !self.0.traps.strangers && destination != Some(back) {
                return;
            }
            if !boxes.known.insert((id, message.is_reply)) {
                return;
            }
            let received = Received { from, message };
            if received.message.is_reply {
                // Replies without a request are among the messages too.
                let undelivered = match boxes.waiting.remove(&id) {
                    Some(waiting) => waiting.send(received).err(),
                    None => Some(received),
                };
                // Another reply with this number is another message.
                boxes.known.remove(&(id, true));
                boxes.queue.extend(undelivered.filter(|_| self.0.traps.late_replies));
            } else {
                boxes.queue.push_back(received);
            }
        }
        self.0.arrived.notify_waiters();
    }

    fn change(&self, id: MessageId, to: State) {
        if let Some(sent) = self.boxes().outbox.get_mut(&id)
            && !sent.stuck
            && sent.state != State::Read
            && sent.state != State::Aborted
        {
            sent.state = to;
        }
    }

    /// Marks as stuck what piled up for a node that was away: it is flushed another way than fresh messages.
    fn is_back(&self, ip: IpAddr) {
        for sent in self.boxes().outbox.values_mut().filter(|sent| sent.to == ip && sent.is_old()) {
            sent.stuck = true;
            sent.state = State::Sending { pending: 0, sent: 0, acked: 1 };
        }
    }

    /// Gives up, and forgets, what is old.
    fn age(&self) {
        let (now, mut boxes) = (self.0.clock.now(), self.boxes());
        if self.0.traps.aborts {
            boxes.outbox.retain(|_, sent| now.duration_since(sent.since) < FORGET_AFTER);
            for sent in boxes.outbox.values_mut() {
                if sent.is_open() && now.duration_since(sent.since) >= ABORT_AFTER {
                    sent.state = State::Aborted;
                }
            }
        }
    }

    /// Repeats what was not delivered.
    fn tick(&self) {
        self.age();
        let mut out = Vec::new();
        {
            let mut boxes = self.boxes();
            let mut old: HashMap<IpAddr, usize> = HashMap::new();
            for sent in boxes.outbox.values().filter(|sent| sent.is_old()) {
                *old.entry(sent.to).or_default() += 1;
            }
            let piled = |to: &IpAddr| {
                self.0.traps.loss_on_return && old.get(to).is_some_and(|count| *count >= STUCK_FROM)
            };
            for sent in boxes.outbox.values_mut().filter(|sent| sent.is_open() && !sent.stuck) {
                sent.tries += 1;
                if !(sent.is_old() && piled(&sent.to)) {
                    out.push((sent.to, What::Message(sent.message.clone())));
                }
            }
            out.extend(old.keys().filter(|to| piled(to)).map(|to| (*to, What::Knock)));
        }
        let own = IpAddr::from(self.0.identity.ip);
        for (to, what) in out.into_iter().filter(|(to, _)| *to != own) {
            self.say(to, what);
        }
    }

    /// Lets neighbors know whose address this is.
    pub(crate) fn introduce(&self) {
        self.say(IpAddr::from(Ipv6Addr::UNSPECIFIED), What::Here);
    }

    fn say(&self, to: IpAddr, what: What) {
        let scatter = self.0.traps.reorders && matches!(what, What::Message(_));
        let packet = Packet { from: self.0.identity.key, to, hops: HOPS, what };
        let node = self.clone();
        // Never from within a call: the other end may send something at once.
        self.0.runtime.spawn(async move {
            if scatter {
                let by = SCATTER.mul_f64(rand::random());
                tokio::time::sleep_until(Instant::now() + by).await;
            }
            match &node.0.medium {
                Medium::Overlay(overlay) => overlay.carry(packet),
                Medium::Mesh(mesh) => mesh.carry(&packet),
            }
        });
    }

    fn is_denied(&self, topic: &[u8], from: Ipv6Addr) -> bool {
        let boxes = self.boxes();
        match boxes.topics.get(topic) {
            Some(sources) => !sources.iter().any(|allowed| allowed.octets()[..8] == from.octets()[..8]),
            None => boxes.rejects,
        }
    }

    pub(crate) fn accepts_by_default(&self) -> bool {
        !self.boxes().rejects
    }

    pub(crate) fn accept_by_default(&self, accept: bool) {
        self.boxes().rejects = !accept;
    }

    pub(crate) fn with_topics<R>(
        &self,
        f: impl FnOnce(&mut BTreeMap<Vec<u8>, BTreeSet<Ipv6Addr>>) -> R,
    ) -> R {
        f(&mut self.boxes().topics)
    }

    /// Takes over the state that survives a restart, where any does.
    pub(crate) fn inherit(&self, former: &Self) {
        let mut before = former.boxes();
        let mut boxes = self.boxes();
        boxes.outbox = std::mem::take(&mut before.outbox);
        boxes.queue = std::mem::take(&mut before.queue);
        boxes.known = std::mem::take(&mut before.known);
    }

    fn boxes(&self) -> MutexGuard<'_, Boxes> {
        self.0.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sent {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Sending { .. })
    }

    fn is_old(&self) -> bool {
        self.is_open() && !self.stuck && self.tries >= ABSENT_AFTER
    }
}

/// The receiver drops a last piece of less than 250 bytes, unless it is the only one.
pub(crate) const fn never_arrives(length: usize) -> bool {
    let last = length % 1300;
    length > 1300 && last >= 1 && last <= 249
}

fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
