//! Receiving: finds messages without ever waiting in the daemon, hands them over, takes them out.
//!
//! Each message is peeked at, handed over, kept in the daemon until its receipt says that it is persisted
//! or [`Timings::hold`] has passed, popped, and acknowledged, in this order. The limit on that wait
//! lets a handler call its sender while it works: the answer stands behind the message in
//! the daemon. A process that dies in between finds the message again, and its sender, without an acknowledgement, sends it
//! again; a message that is handed over twice is recognized by its job key, in the layer above.
//!
//! [`Timings::hold`]: super::Timings::hold

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::bus::{
    BusError, BusInbox, INBOX_LEN, IncomingPayload, PayloadForm, PublicKey, Receipt, ReplyTo, check_topic,
};

use super::DaemonBusInner;
use super::api::{DaemonApi, DaemonApiError, DaemonMessage, DaemonMessageId, PopFilter};
use super::duplicates::{DuplicateCheck, DuplicateFilter};
use super::frame::{BusFrame, DaemonPayload, FrameAckStatus, FrameBody, read};
use super::outgoing::{AckMatch, unix_now_ms};
use super::reassembly::{Reassembler, ReassemblyResult};

/// How often a daemon that others use as well is polled for messages without a topic while none is expected.
const DRAIN_EVERY: Duration = Duration::from_secs(1);
/// How long an acknowledgement for another process on this daemon is left to it.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);
/// Plain messages that are known by the daemon's own number, for when a pop failed after they were
/// handed over.
const HANDED_OVER_MAX: usize = 256;

/// Listener to a topic.
#[derive(Debug)]
struct TopicListener {
    topic: String,
    payloads: mpsc::Sender<IncomingPayload>,
}

/// All listeners.
#[derive(Debug, Default)]
pub(super) struct TopicListeners {
    /// In the order in which they began to listen.
    topics: Mutex<Vec<TopicListener>>,
    /// There is something to look for.
    pub(super) wake: Notify,
}

impl TopicListeners {
    pub(super) fn listen(&self, topic: &str) -> Result<BusInbox, BusError> {
        check_topic(topic)?;
        let mut topics = self.topics();
        topics.retain(|listener| !listener.payloads.is_closed());
        if topics.iter().any(|listener| listener.topic == topic) {
            return Err(BusError::TopicTaken(topic.to_owned()));
        }
        let (payloads, receiver) = mpsc::channel(INBOX_LEN);
        topics.push(TopicListener { topic: topic.to_owned(), payloads });
        self.wake.notify_one();
        Ok(BusInbox::new(receiver))
    }

    /// The topics that are listened to.
    fn live(&self) -> Vec<String> {
        let mut topics = self.topics();
        topics.retain(|listener| !listener.payloads.is_closed());
        topics.iter().map(|listener| listener.topic.clone()).collect()
    }

    fn get(&self, topic: &[u8]) -> Option<mpsc::Sender<IncomingPayload>> {
        self.find(|listener| listener.topic.as_bytes() == topic)
    }

    fn first(&self) -> Option<mpsc::Sender<IncomingPayload>> {
        self.find(|_| true)
    }

    fn find(&self, wanted: impl Fn(&TopicListener) -> bool) -> Option<mpsc::Sender<IncomingPayload>> {
        let topics = self.topics();
        let mut found = topics.iter().filter(|listener| !listener.payloads.is_closed() && wanted(listener));
        found.next().map(|listener| listener.payloads.clone())
    }

    fn topics(&self) -> MutexGuard<'_, Vec<TopicListener>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the receive loop.
#[derive(Debug, Default)]
struct ReceiverState {
    seen: DuplicateFilter,
    joiner: Reassembler,
    /// Plain messages that were handed over last.
    handed_over: VecDeque<(PublicKey, DaemonMessageId)>,
    /// A message without topic that belongs to another process, and since when it is the oldest.
    foreign: Option<(DaemonMessageId, Instant)>,
    next_drain: Option<Instant>,
}

/// Decision about an incoming message.
enum ReceiveAction {
    /// The message is not ours, or there is no room for it now.
    Leave,
    /// The message was dealt with; the sender is sent this frame where it understands that.
    Take(Option<BusFrame>),
}

impl ReceiveAction {
    const DROP: Self = Self::Take(None);
}

impl DaemonBusInner {
    /// Looks for messages, for ever.
    pub(super) async fn receive(&self) {
        let mut memory = ReceiverState::default();
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
    async fn look(
        &self,
        api: &DaemonApi,
        topics: &[String],
        memory: &mut ReceiverState,
    ) -> Result<bool, DaemonApiError> {
        if self.alone && !topics.is_empty() {
            return self.look_for(api, PopFilter::Any, memory).await;
        }
        let mut any = false;
        for topic in topics {
            any |= self.look_for(api, PopFilter::Topic(topic), memory).await?;
        }
        if self.expects_replies() || memory.next_drain.is_none_or(|next| next <= Instant::now()) {
            memory.next_drain = Some(Instant::now() + DRAIN_EVERY);
            any |= self.look_for(api, PopFilter::NoTopic, memory).await?;
        }
        Ok(any)
    }

    fn expects_replies(&self) -> bool {
        self.acknowledgements.any() || self.late_answers.any()
    }

    async fn look_for(
        &self,
        api: &DaemonApi,
        filter: PopFilter<'_>,
        memory: &mut ReceiverState,
    ) -> Result<bool, DaemonApiError> {
        let message = match api.peek(filter).await {
            Ok(Some(message)) => message,
            Ok(None) => {
                self.metrics.empty_polls.inc();
                return Ok(false);
            }
            Err(DaemonApiError::AnswerTooLong) => {
                // It stands in front of everything else, and can only be taken out unread.
                self.dropped("unreadable", "too long to be read");
                return match api.pop(filter).await {
                    Ok(_) | Err(DaemonApiError::AnswerTooLong) => Ok(true),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let ReceiveAction::Take(answer) = self.take(&message, memory).await else { return Ok(false) };
        let popped = api.pop(filter).await?;
        self.metrics.pops.inc();
        self.answer(api, &message, answer).await;
        if let Some(other) = popped.filter(|popped| popped.id != message.id) {
            // Another process takes our messages out of this daemon.
            tracing::warn!("another process receives from the Mycelium daemon under the same topic");
            if let ReceiveAction::Take(answer) = self.take(&other, memory).await {
                self.answer(api, &other, answer).await;
            }
        }
        Ok(true)
    }

    /// Sends the acknowledgement. When that fails, or gets lost, the sender sends again and gets the same one.
    async fn answer(&self, api: &DaemonApi, message: &DaemonMessage, answer: Option<BusFrame>) {
        let Some(answer) = answer else { return };
        if let Err(error) = api.reply(&message.id, message.from, &answer.encode()).await {
            tracing::debug!(%error, to = %message.from, "an acknowledgement was not sent");
        }
    }

    async fn take(&self, message: &DaemonMessage, memory: &mut ReceiverState) -> ReceiveAction {
        let Some(topic) = &message.topic else { return self.take_reply(message, memory).await };
        let listener = self.listeners.get(topic);
        let content = match read(&message.payload) {
            Ok(content) => content,
            Err(error) => {
                self.dropped("unreadable", &format!("{error}, from {}", message.from));
                return ReceiveAction::DROP;
            }
        };
        match (content, listener) {
            (DaemonPayload::Framed(frame), Some(listener)) => {
                self.take_frame(message.from, frame, &listener, memory).await
            }
            (DaemonPayload::Framed(frame), None) => {
                self.dropped("unheard", "nobody listens to its topic");
                ReceiveAction::Take(Some(frame.acknowledge(FrameAckStatus::NoListener)))
            }
            (DaemonPayload::Plain(payload), Some(listener)) => {
                self.take_plain(message, payload, &listener, memory).await
            }
            (DaemonPayload::Plain(_), None) => {
                self.dropped("unheard", "nobody listens to its topic");
                ReceiveAction::DROP
            }
        }
    }

    async fn take_frame(
        &self,
        from: PublicKey,
        frame: BusFrame,
        listener: &mpsc::Sender<IncomingPayload>,
        memory: &mut ReceiverState,
    ) -> ReceiveAction {
        let reply = |verdict| ReceiveAction::Take(Some(frame.acknowledge(verdict)));
        let data = match &frame.body {
            FrameBody::Data(data) => data.clone(),
            FrameBody::Ping => return reply(FrameAckStatus::Taken),
            FrameBody::Acknowledgement(_) => return ReceiveAction::DROP,
        };
        let slack = u64::try_from(self.timings.clock_slack.as_millis()).unwrap_or(u64::MAX);
        if frame.deadline_ms != 0 && unix_now_ms() > frame.deadline_ms.saturating_add(slack) {
            self.metrics.expired.inc();
            return reply(FrameAckStatus::Expired);
        }
        match memory.seen.look(from, frame.id) {
            DuplicateCheck::New => {}
            DuplicateCheck::Seen => {
                self.metrics.duplicates.inc();
                return reply(FrameAckStatus::Taken);
            }
            DuplicateCheck::TooOld => {
                self.metrics.expired.inc();
                return reply(FrameAckStatus::Expired);
            }
        }
        let place = (frame.part, frame.parts);
        let whole = frame.parts == 1 || memory.joiner.completes(from, frame.id, frame.part);
        let room = match listener.try_reserve() {
            Ok(room) => room,
            Err(_) if whole => {
                self.metrics.inbox_full.inc();
                return ReceiveAction::Leave;
            }
            Err(_) => return self.hold(from, &frame, data, memory),
        };
        let payload = if frame.parts == 1 {
            data
        } else {
            match memory.joiner.add(from, frame.id, place, data, Instant::now()) {
                ReassemblyResult::Complete(payload) => payload,
                ReassemblyResult::Incomplete => return reply(FrameAckStatus::Partial),
                ReassemblyResult::Full => return reply(FrameAckStatus::Busy),
            }
        };
        memory.seen.note(from, frame.id);
        self.hand_over(room, from, payload, (PayloadForm::Framed, None)).await;
        reply(FrameAckStatus::Taken)
    }

    /// A part that others have to follow needs no room in the inbox yet.
    fn hold(
        &self,
        from: PublicKey,
        frame: &BusFrame,
        data: Bytes,
        memory: &mut ReceiverState,
    ) -> ReceiveAction {
        let place = (frame.part, frame.parts);
        let verdict = match memory.joiner.add(from, frame.id, place, data, Instant::now()) {
            ReassemblyResult::Full => FrameAckStatus::Busy,
            ReassemblyResult::Incomplete | ReassemblyResult::Complete(_) => FrameAckStatus::Partial,
        };
        ReceiveAction::Take(Some(frame.acknowledge(verdict)))
    }

    async fn take_plain(
        &self,
        message: &DaemonMessage,
        payload: Bytes,
        listener: &mpsc::Sender<IncomingPayload>,
        memory: &mut ReceiverState,
    ) -> ReceiveAction {
        let name = (message.from, message.id.clone());
        if memory.handed_over.contains(&name) {
            self.metrics.duplicates.inc();
            return ReceiveAction::DROP;
        }
        let Ok(room) = listener.try_reserve() else {
            self.metrics.inbox_full.inc();
            return ReceiveAction::Leave;
        };
        memory.handed_over.push_back(name);
        if memory.handed_over.len() > HANDED_OVER_MAX {
            memory.handed_over.pop_front();
        }
        let reply_to = Some(ReplyTo(message.id.0.clone()));
        self.hand_over(room, message.from, payload, (PayloadForm::Plain, reply_to)).await;
        ReceiveAction::DROP
    }

    /// A reply that came too late for its push, or nothing that concerns us.
    async fn take_reply(&self, message: &DaemonMessage, memory: &mut ReceiverState) -> ReceiveAction {
        let content = read(&message.payload);
        if let Ok(DaemonPayload::Framed(BusFrame {
            id,
            part,
            body: FrameBody::Acknowledgement(verdict),
            ..
        })) = content
        {
            match self.acknowledgements.take(message.from, id, part, verdict) {
                AckMatch::ByStranger => {
                    self.metrics.strangers.inc();
                    tracing::warn!(replied = %message.from, "a stranger's reply was refused");
                    return ReceiveAction::DROP;
                }
                AckMatch::Awaited => {
                    self.metrics.late_replies.inc();
                    self.channels.mark_present(message.from);
                    return ReceiveAction::DROP;
                }
                AckMatch::Unawaited if self.alone || self.channels.issued(id) => {
                    self.metrics.late_replies.inc();
                    self.channels.mark_present(message.from);
                    return ReceiveAction::DROP;
                }
                // Only its own process can use it, and that may be gone.
                AckMatch::Unawaited => return self.leave_for_a_while(message, memory),
            }
        }
        match self.late_answers.from(&message.id) {
            Some(callee) if callee == message.from => {
                self.metrics.late_replies.inc();
                self.late_answers.came(&message.id);
                self.hand_over_answer(message.clone()).await;
                ReceiveAction::DROP
            }
            Some(_) => {
                self.metrics.strangers.inc();
                ReceiveAction::DROP
            }
            None if self.alone => {
                self.dropped("foreign", "it has no topic and answers nothing");
                ReceiveAction::DROP
            }
            None => ReceiveAction::Leave,
        }
    }

    fn leave_for_a_while(&self, message: &DaemonMessage, memory: &mut ReceiverState) -> ReceiveAction {
        let now = Instant::now();
        match &memory.foreign {
            Some((id, since)) if *id == message.id => {
                if now.duration_since(*since) < OTHERS_PATIENCE {
                    return ReceiveAction::Leave;
                }
                self.dropped("foreign", "an acknowledgement that its process does not take");
                ReceiveAction::DROP
            }
            _ => {
                memory.foreign = Some((message.id.clone(), now));
                ReceiveAction::Leave
            }
        }
    }

    /// Hands over, and waits until it is persisted, for a while.
    async fn hand_over(
        &self,
        room: mpsc::Permit<'_, IncomingPayload>,
        from: PublicKey,
        payload: Bytes,
        (form, reply_to): (PayloadForm, Option<ReplyTo>),
    ) {
        let (receipt, persisted) = Receipt::new();
        let receipt = receipt.with_reply_to(reply_to);
        room.send(IncomingPayload { from, payload, form, receipt });
        self.metrics.received.inc();
        self.channels.mark_present(from);
        // A receipt dropped without a verdict counts as given; after `hold` we do not wait any more.
        let _ = tokio::time::timeout(self.timings.hold, persisted).await;
    }

    /// Hands over a plain node's reply to a plain message. A reply has no topic; it goes to the listener that
    /// has listened for longest, see [`crate::Bus::listen`].
    pub(super) async fn hand_over_answer(&self, reply: DaemonMessage) {
        let Ok(DaemonPayload::Plain(payload)) = read(&reply.payload) else {
            return self.dropped("unreadable", "a reply that is no JSON-RPC");
        };
        let Some(listener) = self.listeners.first() else {
            return self.dropped("unheard", "nobody listens to any topic");
        };
        // A receiver that is gone needs no answer either.
        if let Ok(room) = listener.reserve().await {
            room.send(IncomingPayload {
                from: reply.from,
                payload,
                form: PayloadForm::Plain,
                receipt: Receipt::default(),
            });
            self.metrics.received.inc();
        }
    }

    fn dropped(&self, reason: &str, what: &str) {
        tracing::debug!(reason, what, "a message was dropped");
        self.metrics.dropped.with_label_values(&[reason]).inc();
    }
}

/// Kept apart so that the loop can be ended with the bus.
pub(super) fn spawn(shared: &Arc<DaemonBusInner>) -> tokio::task::JoinHandle<()> {
    let shared = Arc::clone(shared);
    tokio::spawn(async move { shared.receive().await })
}
