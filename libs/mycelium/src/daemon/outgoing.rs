//! Sends: pushes a payload until the bus at the other end acknowledges it, or its deadline is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backoff::jittered;
use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bus::{BusDestination, BusError, Datagram, PayloadForm, PublicKey, ReplyTo, check_topic};

use super::DaemonBusInner;
use super::api::{DaemonApi, DaemonApiError, DaemonMessage, DaemonMessageId, PushProgress, PushResult};
use super::frame::{
    BusFrame, BusMessageId, DaemonPayload, FRAME_BYTES_MAX, FrameAckStatus, FrameBody, MESSAGE_BYTES_MAX,
    is_plain, pad_plain, padded, read, split,
};
use super::node_channel::NodeChannel;

/// Pause before a node or daemon that lacks room or parts is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// How long a push to a node that may not be there waits for its acknowledgement, at most.
const PROBE_REPLY_SECS: u64 = 2;
/// Plain messages whose answers may still come.
const LATE_ANSWERS_MAX: usize = 1024;
/// How long they may come: a node that knows only JSON-RPC may answer when the job that it was given has ended.
const LATE_ANSWERS_KEEP: Duration = Duration::from_secs(24 * 3600);

/// The acknowledgements that are waited for. An entry lives as long as its sender waits.
#[derive(Debug, Default)]
pub(super) struct AwaitedAcks(Mutex<HashMap<(BusMessageId, u16), AwaitedAck>>);

#[derive(Debug)]
struct AwaitedAck {
    from: PublicKey,
    verdict: watch::Sender<Option<FrameAckStatus>>,
}

/// Match of an acknowledgement with the awaited ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckMatch {
    /// The acknowledgement was awaited.
    Awaited,
    /// The acknowledgement was not awaited, or not any more.
    Unawaited,
    /// The acknowledgement is from another node than the one that was sent to.
    ByStranger,
}

impl AwaitedAcks {
    /// Takes in an acknowledgement, wherever it came.
    pub(super) fn take(
        &self,
        from: PublicKey,
        id: BusMessageId,
        part: u16,
        verdict: FrameAckStatus,
    ) -> AckMatch {
        match self.table().get(&(id, part)) {
            Some(expected) if expected.from != from => AckMatch::ByStranger,
            Some(expected) => {
                expected.verdict.send_replace(Some(verdict));
                AckMatch::Awaited
            }
            None => AckMatch::Unawaited,
        }
    }

    /// Returns true when any acknowledgement is awaited.
    pub(super) fn any(&self) -> bool {
        !self.table().is_empty()
    }

    fn expect(&self, from: PublicKey, id: BusMessageId, part: u16) -> AckWaiter<'_> {
        let verdict = watch::Sender::new(None);
        let receiver = verdict.subscribe();
        self.table().insert((id, part), AwaitedAck { from, verdict });
        AckWaiter { table: self, place: (id, part), verdict: receiver }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<(BusMessageId, u16), AwaitedAck>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct AckWaiter<'a> {
    table: &'a AwaitedAcks,
    place: (BusMessageId, u16),
    verdict: watch::Receiver<Option<FrameAckStatus>>,
}

impl AckWaiter<'_> {
    async fn verdict(&mut self) -> FrameAckStatus {
        loop {
            if let Some(verdict) = *self.verdict.borrow_and_update() {
                return verdict;
            }
            // The sender is in the table until this is dropped.
            if self.verdict.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn forget(&mut self) {
        self.table.table().entry(self.place).and_modify(|expected| {
            expected.verdict.send_replace(None);
        });
    }
}

impl Drop for AckWaiter<'_> {
    fn drop(&mut self) {
        self.table.table().remove(&self.place);
    }
}

/// Plain messages that were pushed a while ago, whose answers come without a topic.
#[derive(Debug, Default)]
pub(super) struct LateAnswers(Mutex<HashMap<DaemonMessageId, (PublicKey, Instant)>>);

impl LateAnswers {
    /// Returns the node that an answer with this id may come from.
    pub(super) fn from(&self, id: &DaemonMessageId) -> Option<PublicKey> {
        self.table().get(id).map(|(from, _)| *from)
    }

    /// Notes that the answer came.
    pub(super) fn came(&self, id: &DaemonMessageId) {
        self.table().remove(id);
    }

    /// Returns true when any answer is awaited.
    pub(super) fn any(&self) -> bool {
        !self.table().is_empty()
    }

    fn expect(&self, id: DaemonMessageId, from: PublicKey, until: Instant) {
        let (now, mut table) = (Instant::now(), self.table());
        table.retain(|_, (_, until)| *until > now);
        if table.len() >= LATE_ANSWERS_MAX {
            let oldest = table.iter().min_by_key(|(_, (_, until))| *until).map(|(id, _)| id.clone());
            oldest.and_then(|id| table.remove(&id));
        }
        table.insert(id, (from, until));
    }

    fn table(&self) -> MutexGuard<'_, HashMap<DaemonMessageId, (PublicKey, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DaemonBusInner {
    /// See [`crate::Bus::send`].
    pub(super) async fn send(&self, parcel: Datagram<'_>) -> Result<(), BusError> {
        let Datagram { to, topic, payload, form, deadline, reply_to } = parcel;
        check_topic(topic)?;
        let bytes_max = match form {
            PayloadForm::Framed => MESSAGE_BYTES_MAX,
            PayloadForm::Plain if !is_plain(&payload) => return Err(BusError::NotPlain),
            PayloadForm::Plain => FRAME_BYTES_MAX,
        };
        if padded(payload.len()) > bytes_max {
            return Err(BusError::TooLarge { bytes: payload.len(), bytes_max });
        }
        let deadline = deadline.unwrap_or_else(|| Instant::now() + self.timings.patience);
        let sending = async {
            let lane = self.lane(to, topic).await?;
            match form {
                PayloadForm::Framed => self.deliver(&lane, topic, &payload, deadline).await,
                PayloadForm::Plain => match reply_to {
                    Some(ReplyTo(id)) => self.reply_plain(&lane, &DaemonMessageId(id), payload).await,
                    None => self.deliver_plain(&lane, topic, payload, deadline).await,
                },
            }
        };
        self.until(deadline, to, topic, sending).await
    }

    /// See [`crate::Bus::ping`].
    pub(super) async fn ping(
        &self,
        to: BusDestination,
        topic: &str,
        deadline: Instant,
    ) -> Result<(), BusError> {
        check_topic(topic)?;
        let pinging = async {
            let lane = self.lane(to, topic).await?;
            let ping = BusFrame {
                id: lane.number(),
                deadline_ms: unix_ms(deadline),
                part: 0,
                parts: 1,
                body: FrameBody::Ping,
            };
            let verdict = self.deliver_part(&lane, topic, &ping).await?;
            judge(verdict, &lane, topic)
        };
        self.until(deadline, to, topic, pinging).await
    }

    async fn until(
        &self,
        deadline: Instant,
        to: BusDestination,
        topic: &str,
        sending: impl Future<Output = Result<(), BusError>>,
    ) -> Result<(), BusError> {
        self.metrics.in_flight.inc();
        let sent = {
            let _counted = BusInFlightGuard(&self.metrics.in_flight);
            tokio::time::timeout_at(deadline, sending).await
        };
        sent.unwrap_or_else(|_| {
            let down = self.connection.problem();
            if down.is_empty() { Err(unreachable(to, topic)) } else { Err(BusError::Down(down)) }
        })
    }

    async fn lane(&self, to: BusDestination, topic: &str) -> Result<Arc<NodeChannel>, BusError> {
        let key = match to {
            BusDestination::Key(key) => key,
            BusDestination::Ip(ip) => self.key_of(ip).await?,
        };
        if self.own_key() == Some(key) {
            // The daemon takes such messages, and they never arrive.
            return Err(unreachable(to, &format!("{topic} (this node itself)")));
        }
        Ok(self.channels.to(key))
    }

    /// Until all parts were taken by one and the same process at the other end.
    async fn deliver(
        &self,
        lane: &NodeChannel,
        topic: &str,
        payload: &Bytes,
        deadline: Instant,
    ) -> Result<(), BusError> {
        let bodies = split(payload);
        let (id, deadline_ms) = (lane.number(), unix_ms(deadline));
        let parts = u16::try_from(bodies.len()).expect("messages are bounded");
        let frame = |(part, body)| BusFrame { id, deadline_ms, part, parts, body: FrameBody::Data(body) };
        let frames: Vec<_> = (0..).zip(bodies).map(frame).collect();
        loop {
            let deliveries = frames.iter().map(|frame| self.deliver_part(lane, topic, frame));
            let verdicts = join_all(deliveries).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            if verdicts.contains(&FrameAckStatus::Taken) {
                return Ok(());
            }
            let decisive =
                verdicts.into_iter().find(|v| !matches!(v, FrameAckStatus::Partial | FrameAckStatus::Busy));
            if let Some(verdict) = decisive {
                return judge(verdict, lane, topic);
            }
            // It has forgotten some, as when it was started again in between; or has no room now.
            tokio::time::sleep(jittered(BUSY_PAUSE)).await;
        }
    }

    /// Pushes one frame until the other end says something to it.
    async fn deliver_part(
        &self,
        lane: &NodeChannel,
        topic: &str,
        frame: &BusFrame,
    ) -> Result<FrameAckStatus, BusError> {
        let payload = frame.encode();
        self.count_padding(frame.length(), &payload);
        let mut awaiting = self.acknowledgements.expect(lane.key, frame.id, frame.part);
        self.listeners.wake.notify_one();
        let mut pushes = 0;
        loop {
            let verdict = tokio::select! {
                biased;
                verdict = awaiting.verdict() => verdict,
                attempt = self.attempt(lane, topic, &payload, &mut pushes) => {
                    attempt?;
                    continue;
                }
            };
            lane.answered();
            if verdict != FrameAckStatus::Busy {
                return Ok(verdict);
            }
            awaiting.forget();
            tokio::time::sleep(jittered(BUSY_PAUSE)).await;
        }
    }

    /// One push, when its time has come. While the node is not there the daemon may still be trying to hand
    /// over what it was given last: then it is given nothing more.
    async fn attempt(
        &self,
        lane: &NodeChannel,
        topic: &str,
        payload: &Bytes,
        pushes: &mut u64,
    ) -> Result<(), BusError> {
        let _leave = lane.acquire(payload.len()).await;
        let here = lane.is_here();
        let (api, _place) = self.connection.permit(here).await;
        if self.is_trying(&api, lane).await {
            return Ok(());
        }
        self.count_push(pushes);
        match api.push(lane.key, topic, payload, self.reply_secs(here)).await {
            Ok(PushResult::Reply(reply)) => {
                self.read_reply(lane, reply).await;
                Ok(())
            }
            Ok(PushResult::Silence(id)) => {
                lane.missed(Some(id));
                Ok(())
            }
            Err(error) => self.push_failed(&api, error).await,
        }
    }

    /// Returns true while the daemon is still busy with the last message for an absent node.
    async fn is_trying(&self, api: &Arc<DaemonApi>, lane: &NodeChannel) -> bool {
        let Some(last) = lane.pending_probe() else { return false };
        match api.progress(&last).await {
            Ok(PushProgress::Trying) => {
                lane.missed(Some(last));
                true
            }
            Ok(PushProgress::Sending | PushProgress::Received | PushProgress::Aborted) => false,
            Err(error) => {
                self.connection.failed(api, &error);
                false
            }
        }
    }

    /// How long a push waits. What comes later is found among the late replies: with a node that may not be
    /// there it is not worth a connection.
    fn reply_secs(&self, here: bool) -> u64 {
        if here { self.timings.reply_secs } else { self.timings.reply_secs.min(PROBE_REPLY_SECS) }
    }

    /// Reads a reply. A reply that is not the acknowledgement of the message is no reason to send the message
    /// again at once: the true one comes without a topic then.
    async fn read_reply(&self, lane: &NodeChannel, reply: DaemonMessage) {
        if reply.from != lane.key {
            self.metrics.strangers.inc();
            tracing::warn!(asked = %lane.key, replied = %reply.from, "a stranger's reply was refused");
        } else if let Ok(DaemonPayload::Framed(BusFrame {
            id,
            part,
            body: FrameBody::Acknowledgement(verdict),
            ..
        })) = read(&reply.payload)
            && self.acknowledgements.take(reply.from, id, part, verdict) == AckMatch::Awaited
        {
            return;
        } else {
            self.metrics.dropped.with_label_values(&["reply"]).inc();
        }
        tokio::time::sleep(Duration::from_secs(self.timings.reply_secs)).await;
        lane.missed(Some(reply.id));
    }

    async fn push_failed(&self, api: &Arc<DaemonApi>, error: DaemonApiError) -> Result<(), BusError> {
        self.connection.failed(api, &error);
        match error {
            DaemonApiError::Down(_) => Ok(()),
            DaemonApiError::Busy => {
                tokio::time::sleep(jittered(BUSY_PAUSE)).await;
                Ok(())
            }
            lasting => Err(BusError::Refused(lasting.to_string())),
        }
    }

    fn count_push(&self, pushes: &mut u64) {
        self.metrics.pushes.inc();
        if *pushes > 0 {
            self.metrics.resent.inc();
        }
        *pushes += 1;
    }

    fn count_padding(&self, before: usize, payload: &Bytes) {
        if payload.len() > before {
            self.metrics.padded.inc();
        }
    }

    /// Sends a reply until our daemon has it: its receiver confirms nothing, and asks again when it gets lost.
    async fn reply_plain(
        &self,
        lane: &NodeChannel,
        id: &DaemonMessageId,
        payload: Bytes,
    ) -> Result<(), BusError> {
        let before = payload.len();
        let payload = pad_plain(payload);
        self.count_padding(before, &payload);
        loop {
            let (api, _place) = self.connection.permit(lane.is_here()).await;
            match api.reply(id, lane.key, &payload).await {
                Ok(()) => return Ok(()),
                Err(error) => self.push_failed(&api, error).await?,
            }
        }
    }

    /// Until the daemon at the other end has it. Nothing more can be known of a node that knows no frames;
    /// what it answers by a reply is handed over like what it pushes.
    async fn deliver_plain(
        &self,
        lane: &NodeChannel,
        topic: &str,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(), BusError> {
        let before = payload.len();
        let payload = pad_plain(payload);
        self.count_padding(before, &payload);
        let (mut pushes, mut last) = (0, None);
        loop {
            let _leave = lane.acquire(payload.len()).await;
            let (api, _place) = self.connection.permit(lane.is_here()).await;
            let id: DaemonMessageId = match last.take() {
                Some(id) => id,
                None => {
                    if self.is_trying(&api, lane).await {
                        continue;
                    }
                    self.count_push(&mut pushes);
                    match api.push(lane.key, topic, &payload, self.timings.plain_reply_secs).await {
                        Ok(PushResult::Reply(reply)) if reply.from == lane.key => {
                            lane.answered();
                            self.hand_over_answer(reply).await;
                            return Ok(());
                        }
                        Ok(PushResult::Reply(DaemonMessage { id, .. })) => {
                            self.metrics.strangers.inc();
                            id
                        }
                        Ok(PushResult::Silence(id)) => id,
                        Err(error) => {
                            self.push_failed(&api, error).await?;
                            continue;
                        }
                    }
                }
            };
            match api.progress(&id).await {
                Ok(PushProgress::Received) => {
                    lane.answered();
                    self.late_answers.expect(id, lane.key, deadline.max(Instant::now() + LATE_ANSWERS_KEEP));
                    self.listeners.wake.notify_one();
                    return Ok(());
                }
                Ok(PushProgress::Trying | PushProgress::Sending) => {
                    lane.missed(Some(id.clone()));
                    last = Some(id);
                }
                // The daemon gave up, or forgot it when it was started again.
                Ok(PushProgress::Aborted) | Err(DaemonApiError::UnknownMessage) => lane.missed(None),
                Err(error) => {
                    self.connection.failed(&api, &error);
                    last = Some(id);
                }
            }
        }
    }
}

/// Counts down when a sender stops waiting, for whatever reason.
struct BusInFlightGuard<'a>(&'a prometheus::IntGauge);

impl Drop for BusInFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn judge(verdict: FrameAckStatus, lane: &NodeChannel, topic: &str) -> Result<(), BusError> {
    match verdict {
        FrameAckStatus::Taken | FrameAckStatus::Partial | FrameAckStatus::Busy => Ok(()),
        FrameAckStatus::NoListener => Err(unreachable(BusDestination::Key(lane.key), topic)),
        FrameAckStatus::Expired => Err(BusError::Expired { destination: lane.key.to_string() }),
    }
}

pub(super) fn unreachable(to: BusDestination, topic: &str) -> BusError {
    BusError::Unreachable { destination: to.to_string(), topic: topic.to_owned() }
}

/// The wall clock, which two machines share as far as they share one.
pub(super) fn unix_now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn unix_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    unix_now_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
}
