//! The other end of a conversation: calls are joined with their answers, requests with a handler.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::bus::{Receipt, ReplyTo};
use crate::guard::Refused;

use super::parse::{Id, Invalid, Message, Payload, Response, parse};
use super::{Answer, Call, INVALID_REQUEST, PAYLOAD_BYTES_MAX, Request, RpcError, write};

/// Batches of calls that may wait for answers of one peer.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Payloads with requests of one peer that may be worked on at once. Beyond it they are refused as
/// `BUSY`: waiting would also hold up the answers that the work in hand may wait for.
pub const HANDLERS_MAX: usize = 256;

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The other side says no.
    #[error("refused: {0}")]
    Refused(RpcError),
    /// No answer in time. It may still have had its effect.
    #[error("no answer in time")]
    TimedOut,
    /// The conversation is over. It may still have had its effect.
    #[error("the connection was closed")]
    Closed,
    /// Beyond [`PAYLOAD_BYTES_MAX`]; was not sent.
    #[error("a request of {0} bytes is too large to be sent")]
    TooLarge(usize),
    /// Beyond [`IN_FLIGHT_MAX`]; was not sent.
    #[error("too many calls wait for their answers already")]
    TooMany,
    /// The parameters cannot be written as JSON; was not sent.
    #[error("the parameters cannot be written: {0}")]
    Unwritable(String),
}

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Takes what came in one payload, in its order. The call itself is made in the order in which
    /// payloads came; the future then runs beside others. It gives one answer for each request;
    /// those to notifications are dropped.
    fn handle(&self, from: &Peer, requests: Vec<Request>) -> BoxFuture<'static, Vec<Answer>>;
}

/// One conversation. Clones are the same.
#[derive(Clone)]
pub struct Peer(Arc<Shared>);

/// A payload that goes out, and until when it is of use.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// What goes out.
    pub payload: Bytes,
    /// When whoever waits for an answer stops waiting.
    pub deadline: Option<Instant>,
    /// The context that its calls are of, when they are of one.
    pub context: Option<u32>,
    /// What it answers, when whoever asked waits for a bare reply.
    pub reply_to: Option<ReplyTo>,
    /// Which calls it carries, when it carries calls.
    pub batch: Option<u64>,
}

/// The way out of a conversation that needs no task: whoever sends a payload goes it.
#[async_trait]
pub(crate) trait Exit: Send + Sync {
    /// Sends one; gives what became of it.
    async fn send(&self, outgoing: Outgoing) -> Fate;
}

/// Result of sending a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The payload is in the hands of the other side; it carried this batch of calls.
    Sent(Option<u64>),
    /// The payload did not arrive, and the batch that it carried is not answered.
    Lost(Option<u64>),
    /// The other side cannot be reached: nothing that waits for it is answered.
    Unreachable,
    /// The payload did not arrive, and nobody waits for it any more.
    Stale,
}

/// Where payloads go out.
enum Outbox {
    Bare(mpsc::Sender<Bytes>),
    Timed(mpsc::Sender<Outgoing>),
    Here(Box<dyn Exit>),
}

impl Outbox {
    fn is_closed(&self) -> bool {
        match self {
            Self::Bare(outbox) => outbox.is_closed(),
            Self::Timed(outbox) => outbox.is_closed(),
            Self::Here(_) => false,
        }
    }
}

struct Shared {
    outbox: Outbox,
    handler: Arc<dyn Handler>,
    handlers: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
}

/// The batches that wait, by the id of their first call. Ids within a batch follow each other, so that
/// one entry serves a whole batch.
#[derive(Default)]
struct Waiting {
    next_id: u64,
    closed: bool,
    batches: BTreeMap<u64, Batch>,
}

struct Batch {
    answers: Vec<Option<Answer>>,
    missing: usize,
    done: Option<oneshot::Sender<()>>,
    /// A part of it is in the hands of the other side.
    sent: Arc<AtomicBool>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} waiting)", self.waiting().batches.len())
    }
}

impl Peer {
    /// A conversation whose payloads go out through `outbox`, and come in through
    /// [`Peer::receive`]. Requests go to `handler`.
    #[must_use]
    pub fn new(outbox: mpsc::Sender<Bytes>, handler: Arc<dyn Handler>) -> Self {
        Self::over(Outbox::Bare(outbox), handler)
    }

    /// The same over a way that can make use of knowing how long a payload is wanted.
    #[must_use]
    pub fn timed(outbox: mpsc::Sender<Outgoing>, handler: Arc<dyn Handler>) -> Self {
        Self::over(Outbox::Timed(outbox), handler)
    }

    /// A conversation with no task that sends: payloads leave where their senders are.
    pub(crate) fn sending_here(exit: Box<dyn Exit>, handler: Arc<dyn Handler>) -> Self {
        Self::over(Outbox::Here(exit), handler)
    }

    fn over(outbox: Outbox, handler: Arc<dyn Handler>) -> Self {
        let handlers = Arc::new(Semaphore::new(HANDLERS_MAX));
        // What another life of this side had asked must not be taken for the answer to something else.
        let next_id = u64::from(rand::random::<u32>()) << 20;
        let waiting = Mutex::new(Waiting { next_id, ..Waiting::default() });
        Self(Arc::new(Shared { outbox, handler, handlers, waiting }))
    }

    /// Whether both are the same conversation.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Calls and waits for the result.
    ///
    /// # Errors
    /// Any [`CallError`]. Dropping the future leaves open whether the call had its effect.
    pub async fn call(
        &self,
        method: &'static str,
        params: &impl Serialize,
        timeout: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        let call = Call::new(method, params).map_err(|error| CallError::Unwritable(error.to_string()))?;
        self.call_batch(vec![call], timeout).await.pop().unwrap_or(Err(CallError::Closed))
    }

    /// Makes several calls as a batch; gives one outcome for each, in their order.
    pub async fn call_batch(
        &self,
        calls: Vec<Call>,
        timeout: Duration,
    ) -> Vec<Result<Box<RawValue>, CallError>> {
        let count = calls.len();
        let deadline = Instant::now() + timeout;
        match tokio::time::timeout_at(deadline, self.send_batch_until(calls, Some(deadline))).await {
            Ok(sent) => sent.outcomes(deadline).await,
            Err(_) => vec![Err(CallError::TimedOut); count],
        }
    }

    /// Sends several calls as a batch. When it returns they are on their way, in front of everything that
    /// is sent later; what becomes of them is told by [`SentBatch::outcomes`].
    pub async fn send_batch(&self, calls: Vec<Call>) -> SentBatch {
        self.send_batch_until(calls, None).await
    }

    /// The same for calls whose answers are of no use after `deadline`.
    pub async fn send_batch_until(&self, calls: Vec<Call>, deadline: Option<Instant>) -> SentBatch {
        let count = calls.len();
        let failed = |error| SentBatch { count, state: Err(error) };
        if let Some(large) = calls.iter().find(|call| call.params.get().len() > PAYLOAD_BYTES_MAX - 1024) {
            return failed(CallError::TooLarge(large.params.get().len()));
        }
        if count == 0 {
            return failed(CallError::Closed);
        }
        let (entry, done) = match self.register(count) {
            Ok(registered) => registered,
            Err(error) => return failed(error),
        };
        let context = calls.first().and_then(|call| call.context);
        let batch = Some(entry.first);
        for payload in write::requests(entry.first, &calls) {
            let outgoing = Outgoing { payload, deadline, context, reply_to: None, batch };
            if let Err(error) = self.leave(outgoing).await {
                return failed(error);
            }
        }
        SentBatch { count, state: Ok((entry, done)) }
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// [`CallError::Closed`], [`CallError::TooLarge`] or [`CallError::Unwritable`].
    pub async fn notify(&self, method: &'static str, params: &impl Serialize) -> Result<(), CallError> {
        let call = Call::new(method, params).map_err(|error| CallError::Unwritable(error.to_string()))?;
        let payload = write::notification(&call);
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(CallError::TooLarge(payload.len()));
        }
        let outgoing = Outgoing { payload, deadline: None, context: None, reply_to: None, batch: None };
        self.leave(outgoing).await
    }

    /// Takes a payload that came in. Never waits: answers wake their callers, requests are worked on in
    /// tasks of their own, whose answers to one batch go back together.
    ///
    /// Has to be called within a Tokio runtime.
    pub fn receive(&self, payload: &[u8]) {
        self.receive_with(payload, Receipt::default());
    }

    /// The same for a payload that the way it came keeps until `receipt` is dropped: after the handler has
    /// done its work, and before the answer leaves.
    pub fn receive_with(&self, payload: &[u8], receipt: Receipt) {
        let reply_to = receipt.reply_to();
        let (members, batch) = match parse(payload) {
            Ok(Payload::Single(member)) => (vec![member], false),
            Ok(Payload::Batch(members)) => (members, true),
            Err(error) => {
                self.reply_now(vec![(None, Err(error.into()))], false, reply_to);
                return;
            }
        };
        let mut requests = Vec::new();
        let mut refused = Vec::new();
        for member in members {
            match member {
                Ok(Message::Request(request)) => requests.push(request),
                Ok(Message::Response(response)) => self.answered(response),
                Err(Invalid { id, problem }) => {
                    refused.push((id, Err(RpcError::of_protocol(INVALID_REQUEST, problem))));
                }
            }
        }
        if requests.is_empty() {
            self.reply_now(refused, batch, reply_to);
            return;
        }
        let ids: Vec<_> = requests.iter().map(|request| request.id.clone()).collect();
        let Ok(permit) = Arc::clone(&self.0.handlers).try_acquire_owned() else {
            let busy = RpcError::refused("BUSY", false, "too many requests are being worked on");
            refused.extend(ids.into_iter().flatten().map(|id| (Some(id), Err(busy.clone()))));
            self.reply_now(refused, batch, reply_to);
            return;
        };
        let work = self.0.handler.handle(self, requests);
        let peer = self.clone();
        tokio::spawn(async move {
            let answers = work.await;
            drop(receipt);
            let answered = ids.into_iter().zip(answers).filter_map(|(id, answer)| Some((Some(id?), answer)));
            refused.extend(answered);
            peer.reply(refused, batch, reply_to).await;
            drop(permit);
        });
    }

    /// The same for a payload that somebody guarded: what was refused is answered where its sender may be told.
    pub fn receive_opened(&self, opened: Result<Bytes, Refused>, receipt: Receipt) {
        match opened {
            Ok(payload) => self.receive_with(&payload, receipt),
            Err(Refused { error, body, over }) => {
                tracing::warn!(reason = error.reason(), "something was not heard: {}", error.message);
                if let Some(body) = body {
                    self.refuse(&body, &error);
                }
                if over {
                    self.close();
                }
            }
        }
    }

    /// Answers every request in a payload that came in and is not taken with this error. Answers in it change nothing.
    fn refuse(&self, payload: &[u8], error: &RpcError) {
        // Whoever says much that is refused is not told of all of it.
        let Ok(permit) = Arc::clone(&self.0.handlers).try_acquire_owned() else { return };
        let (members, batch) = match parse(payload) {
            Ok(Payload::Single(member)) => (vec![member], false),
            Ok(Payload::Batch(members)) => (members, true),
            Err(_) => return,
        };
        let requests = members.into_iter().filter_map(|member| match member {
            Ok(Message::Request(request)) => request.id,
            Ok(Message::Response(_)) | Err(_) => None,
        });
        let answers = requests.map(|id| (Some(id), Err(error.clone()))).collect();
        let peer = self.clone();
        tokio::spawn(async move {
            peer.reply(answers, batch, None).await;
            drop(permit);
        });
    }

    /// Ends the conversation: whoever waits for an answer learns that there will be none.
    pub fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        waiting.batches.clear();
    }

    /// Sends a payload out, or hands it to the task that does.
    async fn leave(&self, outgoing: Outgoing) -> Result<(), CallError> {
        match &self.0.outbox {
            Outbox::Bare(outbox) => outbox.send(outgoing.payload).await.map_err(|_| CallError::Closed),
            Outbox::Timed(outbox) => outbox.send(outgoing).await.map_err(|_| CallError::Closed),
            Outbox::Here(exit) => {
                let fate = exit.send(outgoing).await;
                self.note(fate);
                Ok(())
            }
        }
    }

    /// Notes what became of a payload. Whoever waits for an answer that will not come learns so. The conversation goes on.
    pub(crate) fn note(&self, fate: Fate) {
        let mut waiting = self.waiting();
        match fate {
            Fate::Sent(batch) => {
                if let Some(batch) = batch.and_then(|batch| waiting.batches.get_mut(&batch)) {
                    batch.sent.store(true, Ordering::Relaxed);
                }
            }
            Fate::Lost(batch) => {
                batch.and_then(|batch| waiting.batches.remove(&batch));
            }
            Fate::Unreachable => waiting.batches.clear(),
            Fate::Stale => {}
        }
    }

    /// A handle that does not keep the conversation alive.
    pub(crate) fn downgrade(&self) -> WeakPeer {
        WeakPeer(Arc::downgrade(&self.0))
    }

    /// Whether [`Peer::close`] was called, or nobody takes its payloads any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.outbox.is_closed() || self.waiting().closed
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, count: usize) -> Result<(Entry, oneshot::Receiver<()>), CallError> {
        let sent = Arc::new(AtomicBool::new(false));
        let mut waiting = self.waiting();
        if waiting.closed {
            return Err(CallError::Closed);
        }
        if waiting.batches.len() >= IN_FLIGHT_MAX {
            return Err(CallError::TooMany);
        }
        let first = waiting.next_id;
        waiting.next_id += count as u64;
        let (done, receiver) = oneshot::channel();
        let answers = (0..count).map(|_| None).collect();
        waiting
            .batches
            .insert(first, Batch { answers, missing: count, done: Some(done), sent: Arc::clone(&sent) });
        Ok((Entry { peer: self.clone(), first, sent }, receiver))
    }

    /// Notes an answer. One that nobody waits for, or that came before, changes nothing.
    fn answered(&self, response: Response) {
        let Response { id: Some(Id::Number(id)), answer } = response else {
            tracing::debug!(id = ?response.id, "an answer to nobody");
            return;
        };
        let mut waiting = self.waiting();
        let Some((first, batch)) = waiting.batches.range_mut(..=id).next_back() else { return };
        let place = usize::try_from(id - *first).unwrap_or(usize::MAX);
        let Some(slot) = batch.answers.get_mut(place).filter(|slot| slot.is_none()) else { return };
        *slot = Some(answer);
        batch.missing -= 1;
        if batch.missing == 0
            && let Some(done) = batch.done.take()
            && done.send(()).is_err()
        {
            tracing::debug!(first, "answered after its caller had given up");
        }
    }

    fn reply_now(&self, answers: Vec<(Option<Id>, Answer)>, batch: bool, reply_to: Option<ReplyTo>) {
        if !answers.is_empty() {
            let peer = self.clone();
            tokio::spawn(async move { peer.reply(answers, batch, reply_to).await });
        }
    }

    async fn reply(&self, answers: Vec<(Option<Id>, Answer)>, batch: bool, reply_to: Option<ReplyTo>) {
        let payloads = match answers.as_slice() {
            [] => return,
            [(id, answer)] if !batch => vec![write::response(id.as_ref(), answer)],
            several => write::responses(several),
        };
        // There is one reply to a message; more than fits into it goes under the topic.
        let reply_to = reply_to.filter(|_| payloads.len() == 1);
        for payload in payloads {
            let outgoing =
                Outgoing { payload, deadline: None, context: None, reply_to: reply_to.clone(), batch: None };
            if self.leave(outgoing).await.is_err() {
                tracing::debug!("an answer was not sent: the connection is closed");
            }
        }
    }
}

/// See [`Peer::downgrade`].
pub(crate) struct WeakPeer(Weak<Shared>);

impl WeakPeer {
    pub(crate) fn upgrade(&self) -> Option<Peer> {
        self.0.upgrade().map(Peer)
    }
}

/// Calls that were sent. Dropping it forgets their answers.
pub struct SentBatch {
    count: usize,
    state: Result<(Entry, oneshot::Receiver<()>), CallError>,
}

impl SentBatch {
    /// How far it is.
    #[must_use]
    pub fn passage(&self) -> Passage {
        self.state.as_ref().map_or_else(|_| Passage::default(), |(entry, _)| Passage(Arc::clone(&entry.sent)))
    }

    /// Waits for the answers until `deadline`; gives one outcome for each call, in their order.
    pub async fn outcomes(self, deadline: Instant) -> Vec<Result<Box<RawValue>, CallError>> {
        let (entry, done) = match self.state {
            Ok(sent) => sent,
            Err(error) => return vec![Err(error); self.count],
        };
        let missing = match tokio::time::timeout_at(deadline, done).await {
            Ok(_) => CallError::Closed,
            Err(_) => CallError::TimedOut,
        };
        let outcome = |answer: Option<Answer>| match answer {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => Err(CallError::Refused(error)),
            None => Err(missing.clone()),
        };
        entry.take(self.count).into_iter().map(outcome).collect()
    }
}

/// Tells of one batch of calls how far it is.
#[derive(Debug, Clone, Default)]
pub struct Passage(Arc<AtomicBool>);

impl Passage {
    /// Whether a part of it came into the hands of the other side.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Forgets a batch when its caller is through, or gone.
struct Entry {
    peer: Peer,
    first: u64,
    sent: Arc<AtomicBool>,
}

impl Entry {
    fn take(&self, count: usize) -> Vec<Option<Answer>> {
        match self.peer.waiting().batches.remove(&self.first) {
            Some(batch) => batch.answers,
            None => (0..count).map(|_| None).collect(),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.peer.waiting().batches.remove(&self.first);
    }
}

#[cfg(test)]
mod tests;
