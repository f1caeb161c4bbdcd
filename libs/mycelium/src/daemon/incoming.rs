//! Receives: looks for messages without ever waiting in the daemon, hands them over, takes them out.
//!
//! Each message is peeked at, handed over, kept in the daemon until its receipt says that it is persisted
//! or [`Timings::hold`] has passed, popped, and acknowledged, in this order. The limit on that wait
//! is what lets a handler ask its sender something while it works: the answer stands behind the message in
//! the daemon. Whoever dies in between finds the message again, and its sender hears nothing and sends it
//! again; what is handed over twice then is told apart by its job key, above.
//!
//! [`Timings::hold`]: super::Timings::hold

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::bus::{BusError, Form, INBOX_LEN, Inbox, Incoming, PublicKey, Receipt, ReplyTo, check_topic};

use super::Shared;
use super::api::{Api, ApiError, DaemonId, Filter, Received};
use super::frame::{Body, Content, Frame, Verdict, read};
use super::joiner::{Joined, Joiner};
use super::outgoing::{Acknowledged, unix_now_ms};
use super::seen::{Known, SeenMessages};

/// How often a daemon that others use as well is asked for messages without a topic while none is expected.
const DRAIN_EVERY: Duration = Duration::from_secs(1);
/// How long an acknowledgement for another process on this daemon is left to it.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);
/// Plain messages that are known by the daemon's own number, for when a pop failed after they were
/// handed over.
const HANDED_OVER_MAX: usize = 256;

/// Who listens to a topic.
#[derive(Debug)]
struct Listener {
    topic: String,
    payloads: mpsc::Sender<Incoming>,
}

/// Who listens.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// In the order in which that began.
    topics: Mutex<Vec<Listener>>,
    /// There is something to look for.
    pub(super) wake: Notify,
}

impl Listeners {
    pub(super) fn listen(&self, topic: &str) -> Result<Inbox, BusError> {
        check_topic(topic)?;
        let mut topics = self.topics();
        topics.retain(|listener| !listener.payloads.is_closed());
        if topics.iter().any(|listener| listener.topic == topic) {
            return Err(BusError::TopicTaken(topic.to_owned()));
        }
        let (payloads, receiver) = mpsc::channel(INBOX_LEN);
        topics.push(Listener { topic: topic.to_owned(), payloads });
        self.wake.notify_one();
        Ok(Inbox::new(receiver))
    }

    /// The topics that are listened to.
    fn live(&self) -> Vec<String> {
        let mut topics = self.topics();
        topics.retain(|listener| !listener.payloads.is_closed());
        topics.iter().map(|listener| listener.topic.clone()).collect()
    }

    fn get(&self, topic: &[u8]) -> Option<mpsc::Sender<Incoming>> {
        self.find(|listener| listener.topic.as_bytes() == topic)
    }

    fn first(&self) -> Option<mpsc::Sender<Incoming>> {
        self.find(|_| true)
    }

    fn find(&self, wanted: impl Fn(&Listener) -> bool) -> Option<mpsc::Sender<Incoming>> {
        let topics = self.topics();
        let mut found = topics.iter().filter(|listener| !listener.payloads.is_closed() && wanted(listener));
        found.next().map(|listener| listener.payloads.clone())
    }

    fn topics(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the loop remembers.
#[derive(Debug, Default)]
struct Memory {
    seen: SeenMessages,
    joiner: Joiner,
    /// Plain messages that were handed over last.
    handed_over: VecDeque<(PublicKey, DaemonId)>,
    /// A message without topic that is somebody else's, and since when it is the oldest.
    foreign: Option<(DaemonId, Instant)>,
    next_drain: Option<Instant>,
}

/// What to do with a message that was looked at.
enum Disposal {
    /// It is not ours, or there is no room for it now.
    Leave,
    /// It was dealt with; the sender is told so where it understands that.
    Take(Option<Frame>),
}

impl Disposal {
    const DROP: Self = Self::Take(None);
}

impl Shared {
    /// Looks for messages, for ever.
    pub(super) async fn receive(&self) {
        let mut memory = Memory::default();
        let mut pause = self.timings.poll_min;
        loop {
            let topics = self.listeners.live();
            if topics.is_empty() && !self.expects_replies() {
                self.listeners.wake.notified().await;
                continue;
            }
            let api = self.connection.up().await;
            match self.look(&api, &topics, &mut memory).await {
                Ok(true) => pause = self.timings.poll_min,
                Ok(false) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(self.timings.poll_max);
                }
                Err(error) => {
                    tracing::debug!(%error, "the Mycelium daemon cannot be asked for messages");
                    self.connection.failed(&api, &error);
                    tokio::time::sleep(self.timings.poll_max).await;
                }
            }
        }
    }

    /// Asks once for everything that may be there; true when something was.
    async fn look(&self, api: &Api, topics: &[String], memory: &mut Memory) -> Result<bool, ApiError> {
        if self.alone && !topics.is_empty() {
            return self.look_for(api, Filter::Any, memory).await;
        }
        let mut any = false;
        for topic in topics {
            any |= self.look_for(api, Filter::Topic(topic), memory).await?;
        }
        if self.expects_replies() || memory.next_drain.is_none_or(|next| next <= Instant::now()) {
            memory.next_drain = Some(Instant::now() + DRAIN_EVERY);
            any |= self.look_for(api, Filter::NoTopic, memory).await?;
        }
        Ok(any)
    }

    fn expects_replies(&self) -> bool {
        self.acknowledgements.any() || self.late_answers.any()
    }

    async fn look_for(&self, api: &Api, filter: Filter<'_>, memory: &mut Memory) -> Result<bool, ApiError> {
        let message = match api.peek(filter).await {
            Ok(Some(message)) => message,
            Ok(None) => {
                self.metrics.empty_polls.inc();
                return Ok(false);
            }
            Err(ApiError::AnswerTooLong) => {
                // It stands in front of everything else, and can only be taken out unread.
                self.dropped("unreadable", "too long to be read");
                return match api.pop(filter).await {
                    Ok(_) | Err(ApiError::AnswerTooLong) => Ok(true),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let Disposal::Take(answer) = self.take(&message, memory).await else { return Ok(false) };
        let popped = api.pop(filter).await?;
        self.metrics.pops.inc();
        self.answer(api, &message, answer).await;
        if let Some(other) = popped.filter(|popped| popped.id != message.id) {
            // Somebody else takes messages of ours out of this daemon.
            tracing::warn!("another process receives from the Mycelium daemon under the same topic");
            if let Disposal::Take(answer) = self.take(&other, memory).await {
                self.answer(api, &other, answer).await;
            }
        }
        Ok(true)
    }

    /// Tells the sender. When that fails, or gets lost, it sends again and hears the same.
    async fn answer(&self, api: &Api, message: &Received, answer: Option<Frame>) {
        let Some(answer) = answer else { return };
        if let Err(error) = api.reply(&message.id, message.from, &answer.encode()).await {
            tracing::debug!(%error, to = %message.from, "an acknowledgement was not sent");
        }
    }

    async fn take(&self, message: &Received, memory: &mut Memory) -> Disposal {
        let Some(topic) = &message.topic else { return self.take_reply(message, memory).await };
        let listener = self.listeners.get(topic);
        let content = match read(&message.payload) {
            Ok(content) => content,
            Err(error) => {
                self.dropped("unreadable", &format!("{error}, from {}", message.from));
                return Disposal::DROP;
            }
        };
        match (content, listener) {
            (Content::Framed(frame), Some(listener)) => {
                self.take_frame(message.from, frame, &listener, memory).await
            }
            (Content::Framed(frame), None) => {
                self.dropped("unheard", "nobody listens to its topic");
                Disposal::Take(Some(frame.acknowledge(Verdict::Unheard)))
            }
            (Content::Plain(payload), Some(listener)) => {
                self.take_plain(message, payload, &listener, memory).await
            }
            (Content::Plain(_), None) => {
                self.dropped("unheard", "nobody listens to its topic");
                Disposal::DROP
            }
        }
    }

    async fn take_frame(
        &self,
        from: PublicKey,
        frame: Frame,
        listener: &mpsc::Sender<Incoming>,
        memory: &mut Memory,
    ) -> Disposal {
        let said = |verdict| Disposal::Take(Some(frame.acknowledge(verdict)));
        let data = match &frame.body {
            Body::Data(data) => data.clone(),
            Body::Ping => return said(Verdict::Taken),
            Body::Acknowledgement(_) => return Disposal::DROP,
        };
        let slack = u64::try_from(self.timings.clock_slack.as_millis()).unwrap_or(u64::MAX);
        if frame.deadline_ms != 0 && unix_now_ms() > frame.deadline_ms.saturating_add(slack) {
            self.metrics.expired.inc();
            return said(Verdict::Expired);
        }
        match memory.seen.look(from, frame.id) {
            Known::New => {}
            Known::Seen => {
                self.metrics.duplicates.inc();
                return said(Verdict::Taken);
            }
            Known::TooOld => {
                self.metrics.expired.inc();
                return said(Verdict::Expired);
            }
        }
        let place = (frame.part, frame.parts);
        let whole = frame.parts == 1 || memory.joiner.completes(from, frame.id, frame.part);
        let room = match listener.try_reserve() {
            Ok(room) => room,
            Err(_) if whole => {
                self.metrics.inbox_full.inc();
                return Disposal::Leave;
            }
            Err(_) => return self.hold(from, &frame, data, memory),
        };
        let payload = if frame.parts == 1 {
            data
        } else {
            match memory.joiner.add(from, frame.id, place, data, Instant::now()) {
                Joined::Whole(payload) => payload,
                Joined::Held => return said(Verdict::Held),
                Joined::Full => return said(Verdict::Busy),
            }
        };
        memory.seen.note(from, frame.id);
        self.hand_over(room, from, payload, (Form::Framed, None)).await;
        said(Verdict::Taken)
    }

    /// A part that others have to follow needs no room in the inbox yet.
    fn hold(&self, from: PublicKey, frame: &Frame, data: Bytes, memory: &mut Memory) -> Disposal {
        let place = (frame.part, frame.parts);
        let verdict = match memory.joiner.add(from, frame.id, place, data, Instant::now()) {
            Joined::Full => Verdict::Busy,
            Joined::Held | Joined::Whole(_) => Verdict::Held,
        };
        Disposal::Take(Some(frame.acknowledge(verdict)))
    }

    async fn take_plain(
        &self,
        message: &Received,
        payload: Bytes,
        listener: &mpsc::Sender<Incoming>,
        memory: &mut Memory,
    ) -> Disposal {
        let name = (message.from, message.id.clone());
        if memory.handed_over.contains(&name) {
            self.metrics.duplicates.inc();
            return Disposal::DROP;
        }
        let Ok(room) = listener.try_reserve() else {
            self.metrics.inbox_full.inc();
            return Disposal::Leave;
        };
        memory.handed_over.push_back(name);
        if memory.handed_over.len() > HANDED_OVER_MAX {
            memory.handed_over.pop_front();
        }
        let reply_to = Some(ReplyTo(message.id.0.clone()));
        self.hand_over(room, message.from, payload, (Form::Plain, reply_to)).await;
        Disposal::DROP
    }

    /// A reply that came too late for its push, or nothing that concerns us.
    async fn take_reply(&self, message: &Received, memory: &mut Memory) -> Disposal {
        let content = read(&message.payload);
        if let Ok(Content::Framed(Frame { id, part, body: Body::Acknowledgement(verdict), .. })) = content {
            match self.acknowledgements.take(message.from, id, part, verdict) {
                Acknowledged::ByStranger => {
                    self.metrics.strangers.inc();
                    tracing::warn!(replied = %message.from, "a stranger's reply was refused");
                    return Disposal::DROP;
                }
                Acknowledged::Awaited => {
                    self.metrics.late_replies.inc();
                    self.lanes.heard(message.from);
                    return Disposal::DROP;
                }
                Acknowledged::Unawaited if self.alone || self.lanes.gave(id) => {
                    self.metrics.late_replies.inc();
                    self.lanes.heard(message.from);
                    return Disposal::DROP;
                }
                // Nobody but its process has a use for it; that one may be gone.
                Acknowledged::Unawaited => return self.leave_for_a_while(message, memory),
            }
        }
        match self.late_answers.from(&message.id) {
            Some(asked) if asked == message.from => {
                self.metrics.late_replies.inc();
                self.late_answers.came(&message.id);
                self.hand_over_answer(message.clone()).await;
                Disposal::DROP
            }
            Some(_) => {
                self.metrics.strangers.inc();
                Disposal::DROP
            }
            None if self.alone => {
                self.dropped("foreign", "it has no topic and answers nothing");
                Disposal::DROP
            }
            None => Disposal::Leave,
        }
    }

    fn leave_for_a_while(&self, message: &Received, memory: &mut Memory) -> Disposal {
        let now = Instant::now();
        match &memory.foreign {
            Some((id, since)) if *id == message.id => {
                if now.duration_since(*since) < OTHERS_PATIENCE {
                    return Disposal::Leave;
                }
                self.dropped("foreign", "an acknowledgement that its process does not take");
                Disposal::DROP
            }
            _ => {
                memory.foreign = Some((message.id.clone(), now));
                Disposal::Leave
            }
        }
    }

    /// Hands over, and waits until it is persisted, for a while.
    async fn hand_over(
        &self,
        room: mpsc::Permit<'_, Incoming>,
        from: PublicKey,
        payload: Bytes,
        (form, reply_to): (Form, Option<ReplyTo>),
    ) {
        let (receipt, persisted) = Receipt::new();
        let receipt = receipt.answered_by_reply(reply_to);
        room.send(Incoming { from, payload, form, receipt });
        self.metrics.received.inc();
        self.lanes.heard(from);
        // Gone without a word means as much as a receipt; later than that nobody waits.
        let _ = tokio::time::timeout(self.timings.hold, persisted).await;
    }

    /// Hands over what a node that knows no frames replied to a plain message. It has no topic; it goes to whoever began
    /// to listen first, see [`crate::Bus::listen`].
    pub(super) async fn hand_over_answer(&self, reply: Received) {
        let Ok(Content::Plain(payload)) = read(&reply.payload) else {
            return self.dropped("unreadable", "a reply that is no JSON-RPC");
        };
        let Some(listener) = self.listeners.first() else {
            return self.dropped("unheard", "nobody listens to any topic");
        };
        // A receiver that is gone needs no answer either.
        if let Ok(room) = listener.reserve().await {
            room.send(Incoming { from: reply.from, payload, form: Form::Plain, receipt: Receipt::default() });
            self.metrics.received.inc();
        }
    }

    fn dropped(&self, reason: &str, what: &str) {
        tracing::debug!(reason, what, "a message was dropped");
        self.metrics.dropped.with_label_values(&[reason]).inc();
    }
}

/// Kept apart so that the loop can be ended with the bus.
pub(super) fn spawn(shared: &Arc<Shared>) -> tokio::task::JoinHandle<()> {
    let shared = Arc::clone(shared);
    tokio::spawn(async move { shared.receive().await })
}
