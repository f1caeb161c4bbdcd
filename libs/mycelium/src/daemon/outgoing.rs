//! Sends: pushes a payload until the bus at the other end says that it has it, or nobody wants it any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backoff::jittered;
use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bus::{BusError, Destination, Form, Parcel, PublicKey, ReplyTo, check_topic};

use super::Shared;
use super::api::{Api, ApiError, DaemonId, Progress, Pushed, Received};
use super::frame::{
    Body, Content, FRAME_BYTES_MAX, Frame, MESSAGE_BYTES_MAX, MessageId, Verdict, is_plain, pad_plain,
    padded, read, split,
};
use super::lane::Lane;

/// How long somebody who is short of something is left alone.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// How long a push to a node that may not be there waits for its acknowledgement, at most.
const PROBE_REPLY_SECS: u64 = 2;
/// Plain messages whose answers may still come.
const LATE_ANSWERS_MAX: usize = 1024;
/// How long they may: who knows nothing but JSON-RPC may answer when what it was asked to run has ended.
const LATE_ANSWERS_KEEP: Duration = Duration::from_secs(24 * 3600);

/// The acknowledgements that are waited for. An entry lives as long as its sender waits.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements(Mutex<HashMap<(MessageId, u16), Expected>>);

#[derive(Debug)]
struct Expected {
    from: PublicKey,
    verdict: watch::Sender<Option<Verdict>>,
}

/// What an acknowledgement turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledged {
    /// It was waited for.
    Awaited,
    /// It was not, any more.
    Unawaited,
    /// It is from somebody who was not asked.
    ByStranger,
}

impl Acknowledgements {
    /// Takes in an acknowledgement, wherever it came.
    pub(super) fn take(&self, from: PublicKey, id: MessageId, part: u16, verdict: Verdict) -> Acknowledged {
        match self.table().get(&(id, part)) {
            Some(expected) if expected.from != from => Acknowledged::ByStranger,
            Some(expected) => {
                expected.verdict.send_replace(Some(verdict));
                Acknowledged::Awaited
            }
            None => Acknowledged::Unawaited,
        }
    }

    /// Whether any is waited for.
    pub(super) fn any(&self) -> bool {
        !self.table().is_empty()
    }

    fn expect(&self, from: PublicKey, id: MessageId, part: u16) -> Awaiting<'_> {
        let verdict = watch::Sender::new(None);
        let receiver = verdict.subscribe();
        self.table().insert((id, part), Expected { from, verdict });
        Awaiting { table: self, place: (id, part), verdict: receiver }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<(MessageId, u16), Expected>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Awaiting<'a> {
    table: &'a Acknowledgements,
    place: (MessageId, u16),
    verdict: watch::Receiver<Option<Verdict>>,
}

impl Awaiting<'_> {
    async fn verdict(&mut self) -> Verdict {
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

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.table.table().remove(&self.place);
    }
}

/// Plain messages that were pushed a while ago, whose answers come without a topic.
#[derive(Debug, Default)]
pub(super) struct LateAnswers(Mutex<HashMap<DaemonId, (PublicKey, Instant)>>);

impl LateAnswers {
    /// Whom an answer with this id may come from.
    pub(super) fn from(&self, id: &DaemonId) -> Option<PublicKey> {
        self.table().get(id).map(|(from, _)| *from)
    }

    /// It came.
    pub(super) fn came(&self, id: &DaemonId) {
        self.table().remove(id);
    }

    /// Whether any is waited for.
    pub(super) fn any(&self) -> bool {
        !self.table().is_empty()
    }

    fn expect(&self, id: DaemonId, from: PublicKey, until: Instant) {
        let (now, mut table) = (Instant::now(), self.table());
        table.retain(|_, (_, until)| *until > now);
        if table.len() >= LATE_ANSWERS_MAX {
            let oldest = table.iter().min_by_key(|(_, (_, until))| *until).map(|(id, _)| id.clone());
            oldest.and_then(|id| table.remove(&id));
        }
        table.insert(id, (from, until));
    }

    fn table(&self) -> MutexGuard<'_, HashMap<DaemonId, (PublicKey, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// See [`crate::Bus::send`].
    pub(super) async fn send(&self, parcel: Parcel<'_>) -> Result<(), BusError> {
        let Parcel { to, topic, payload, form, deadline, reply_to } = parcel;
        check_topic(topic)?;
        let bytes_max = match form {
            Form::Framed => MESSAGE_BYTES_MAX,
            Form::Plain if !is_plain(&payload) => return Err(BusError::NotPlain),
            Form::Plain => FRAME_BYTES_MAX,
        };
        if padded(payload.len()) > bytes_max {
            return Err(BusError::TooLarge { bytes: payload.len(), bytes_max });
        }
        let deadline = deadline.unwrap_or_else(|| Instant::now() + self.timings.patience);
        let sending = async {
            let lane = self.lane(to, topic).await?;
            match form {
                Form::Framed => self.deliver(&lane, topic, &payload, deadline).await,
                Form::Plain => match reply_to {
                    Some(ReplyTo(id)) => self.reply_plain(&lane, &DaemonId(id), payload).await,
                    None => self.deliver_plain(&lane, topic, payload, deadline).await,
                },
            }
        };
        self.until(deadline, to, topic, sending).await
    }

    /// See [`crate::Bus::ping`].
    pub(super) async fn ping(&self, to: Destination, topic: &str, deadline: Instant) -> Result<(), BusError> {
        check_topic(topic)?;
        let pinging = async {
            let lane = self.lane(to, topic).await?;
            let ping = Frame {
                id: lane.number(),
                deadline_ms: unix_ms(deadline),
                part: 0,
                parts: 1,
                body: Body::Ping,
            };
            let verdict = self.deliver_part(&lane, topic, &ping).await?;
            judge(verdict, &lane, topic)
        };
        self.until(deadline, to, topic, pinging).await
    }

    async fn until(
        &self,
        deadline: Instant,
        to: Destination,
        topic: &str,
        sending: impl Future<Output = Result<(), BusError>>,
    ) -> Result<(), BusError> {
        self.metrics.in_flight.inc();
        let sent = {
            let _counted = Counted(&self.metrics.in_flight);
            tokio::time::timeout_at(deadline, sending).await
        };
        sent.unwrap_or_else(|_| {
            let down = self.connection.problem();
            if down.is_empty() { Err(unreachable(to, topic)) } else { Err(BusError::Down(down)) }
        })
    }

    async fn lane(&self, to: Destination, topic: &str) -> Result<Arc<Lane>, BusError> {
        let key = match to {
            Destination::Key(key) => key,
            Destination::Ip(ip) => self.key_of(ip).await?,
        };
        if self.own_key() == Some(key) {
            // The daemon takes such messages, and they never arrive.
            return Err(unreachable(to, &format!("{topic} (this node itself)")));
        }
        Ok(self.lanes.to(key))
    }

    /// Until all parts were taken by one and the same process at the other end.
    async fn deliver(
        &self,
        lane: &Lane,
        topic: &str,
        payload: &Bytes,
        deadline: Instant,
    ) -> Result<(), BusError> {
        let bodies = split(payload);
        let (id, deadline_ms) = (lane.number(), unix_ms(deadline));
        let parts = u16::try_from(bodies.len()).expect("messages are bounded");
        let frame = |(part, body)| Frame { id, deadline_ms, part, parts, body: Body::Data(body) };
        let frames: Vec<_> = (0..).zip(bodies).map(frame).collect();
        loop {
            let deliveries = frames.iter().map(|frame| self.deliver_part(lane, topic, frame));
            let verdicts = join_all(deliveries).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            if verdicts.contains(&Verdict::Taken) {
                return Ok(());
            }
            let decisive = verdicts.into_iter().find(|v| !matches!(v, Verdict::Held | Verdict::Busy));
            if let Some(verdict) = decisive {
                return judge(verdict, lane, topic);
            }
            // It has forgotten some, as when it was started again in between; or has no room now.
            tokio::time::sleep(jittered(BUSY_PAUSE)).await;
        }
    }

    /// Pushes one frame until the other end says something to it.
    async fn deliver_part(&self, lane: &Lane, topic: &str, frame: &Frame) -> Result<Verdict, BusError> {
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
            if verdict != Verdict::Busy {
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
        lane: &Lane,
        topic: &str,
        payload: &Bytes,
        pushes: &mut u64,
    ) -> Result<(), BusError> {
        let _leave = lane.enter(payload.len()).await;
        let here = lane.is_here();
        let (api, _place) = self.connection.place(here).await;
        if self.is_trying(&api, lane).await {
            return Ok(());
        }
        self.count_push(pushes);
        match api.push(lane.key, topic, payload, self.reply_secs(here)).await {
            Ok(Pushed::Reply(reply)) => {
                self.read_reply(lane, reply).await;
                Ok(())
            }
            Ok(Pushed::Silence(id)) => {
                lane.missed(Some(id));
                Ok(())
            }
            Err(error) => self.push_failed(&api, error).await,
        }
    }

    /// Whether the daemon is still busy with what it was given last for a node that is not there.
    async fn is_trying(&self, api: &Arc<Api>, lane: &Lane) -> bool {
        let Some(last) = lane.trying() else { return false };
        match api.progress(&last).await {
            Ok(Progress::Trying) => {
                lane.missed(Some(last));
                true
            }
            Ok(Progress::Sending | Progress::Received | Progress::Aborted) => false,
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

    /// Reads a reply. One that is not the acknowledgement of what was sent is no reason to send it
    /// again at once: the true one comes without a topic then.
    async fn read_reply(&self, lane: &Lane, reply: Received) {
        if reply.from != lane.key {
            self.metrics.strangers.inc();
            tracing::warn!(asked = %lane.key, replied = %reply.from, "a stranger's reply was refused");
        } else if let Ok(Content::Framed(Frame { id, part, body: Body::Acknowledgement(verdict), .. })) =
            read(&reply.payload)
            && self.acknowledgements.take(reply.from, id, part, verdict) == Acknowledged::Awaited
        {
            return;
        } else {
            self.metrics.dropped.with_label_values(&["reply"]).inc();
        }
        tokio::time::sleep(Duration::from_secs(self.timings.reply_secs)).await;
        lane.missed(Some(reply.id));
    }

    async fn push_failed(&self, api: &Arc<Api>, error: ApiError) -> Result<(), BusError> {
        self.connection.failed(api, &error);
        match error {
            ApiError::Down(_) => Ok(()),
            ApiError::Busy => {
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

    /// Until our daemon has it: whoever waits for a reply hears nothing else, and asks again when it gets lost.
    async fn reply_plain(&self, lane: &Lane, id: &DaemonId, payload: Bytes) -> Result<(), BusError> {
        let before = payload.len();
        let payload = pad_plain(payload);
        self.count_padding(before, &payload);
        loop {
            let (api, _place) = self.connection.place(lane.is_here()).await;
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
        lane: &Lane,
        topic: &str,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(), BusError> {
        let before = payload.len();
        let payload = pad_plain(payload);
        self.count_padding(before, &payload);
        let (mut pushes, mut last) = (0, None);
        loop {
            let _leave = lane.enter(payload.len()).await;
            let (api, _place) = self.connection.place(lane.is_here()).await;
            let id: DaemonId = match last.take() {
                Some(id) => id,
                None => {
                    if self.is_trying(&api, lane).await {
                        continue;
                    }
                    self.count_push(&mut pushes);
                    match api.push(lane.key, topic, &payload, self.timings.plain_reply_secs).await {
                        Ok(Pushed::Reply(reply)) if reply.from == lane.key => {
                            lane.answered();
                            self.hand_over_answer(reply).await;
                            return Ok(());
                        }
                        Ok(Pushed::Reply(Received { id, .. })) => {
                            self.metrics.strangers.inc();
                            id
                        }
                        Ok(Pushed::Silence(id)) => id,
                        Err(error) => {
                            self.push_failed(&api, error).await?;
                            continue;
                        }
                    }
                }
            };
            match api.progress(&id).await {
                Ok(Progress::Received) => {
                    lane.answered();
                    self.late_answers.expect(id, lane.key, deadline.max(Instant::now() + LATE_ANSWERS_KEEP));
                    self.listeners.wake.notify_one();
                    return Ok(());
                }
                Ok(Progress::Trying | Progress::Sending) => {
                    lane.missed(Some(id.clone()));
                    last = Some(id);
                }
                // The daemon gave up, or forgot it when it was started again.
                Ok(Progress::Aborted) | Err(ApiError::UnknownMessage) => lane.missed(None),
                Err(error) => {
                    self.connection.failed(&api, &error);
                    last = Some(id);
                }
            }
        }
    }
}

/// Counts down when whoever waits stops waiting, for whatever reason.
struct Counted<'a>(&'a prometheus::IntGauge);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn judge(verdict: Verdict, lane: &Lane, topic: &str) -> Result<(), BusError> {
    match verdict {
        Verdict::Taken | Verdict::Held | Verdict::Busy => Ok(()),
        Verdict::Unheard => Err(unreachable(Destination::Key(lane.key), topic)),
        Verdict::Expired => Err(BusError::Expired { destination: lane.key.to_string() }),
    }
}

pub(super) fn unreachable(to: Destination, topic: &str) -> BusError {
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
