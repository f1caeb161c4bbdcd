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
use crate::guard::RejectedPayload;

use super::parse::{
    InvalidJsonRpcMessage, JsonRpcId, JsonRpcMessage, JsonRpcPayload, JsonRpcResponse, parse,
};
use super::{
    INVALID_REQUEST, JsonRpcCall, JsonRpcError, JsonRpcRequest, JsonRpcResult, PAYLOAD_BYTES_MAX, write,
};

/// Batches of calls that may wait for answers of one peer.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Payloads with requests of one peer that may be worked on at once. Beyond it they are refused as
/// `BUSY`: waiting would also hold up the answers that the work in hand may wait for.
pub const HANDLERS_MAX: usize = 256;

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The other side refuses.
    #[error("refused: {0}")]
    Refused(JsonRpcError),
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
pub trait JsonRpcHandler: Send + Sync + 'static {
    /// Takes what came in one payload, in its order. The call itself is made in the order in which
    /// payloads came; the future then runs beside others. It gives one answer for each request;
    /// those to notifications are dropped.
    fn handle(
        &self,
        from: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>>;
}

/// One conversation. Clones are the same.
#[derive(Clone)]
pub struct JsonRpcPeer(Arc<JsonRpcPeerInner>);

/// A payload that goes out, and until when it is of use.
#[derive(Debug, Clone)]
pub struct OutgoingPayload {
    /// Bytes to send.
    pub payload: Bytes,
    /// Deadline of the waiting caller.
    pub deadline: Option<Instant>,
    /// Context of the calls, when they are of one.
    pub context: Option<u32>,
    /// Message that the payload answers, when its sender waits for a bare reply.
    pub reply_to: Option<ReplyTo>,
    /// Batch of calls in the payload, if any.
    pub batch: Option<u64>,
}

/// Outlet of a conversation that needs no task: senders call it directly.
#[async_trait]
pub(crate) trait DirectSender: Send + Sync {
    /// Sends one payload; returns the result.
    async fn send(&self, outgoing: OutgoingPayload) -> PayloadSendResult;
}

/// Result of sending a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadSendResult {
    /// The payload is in the hands of the other side; it carried this batch of calls.
    Sent(Option<u64>),
    /// The payload did not arrive, and the batch that it carried is not answered.
    Lost(Option<u64>),
    /// The other side cannot be reached: nothing that waits for it is answered.
    Unreachable,
    /// The payload did not arrive, and no caller waits for it any more.
    Stale,
}

/// Outlet for payloads.
enum PeerOutbox {
    Bare(mpsc::Sender<Bytes>),
    Timed(mpsc::Sender<OutgoingPayload>),
    Direct(Box<dyn DirectSender>),
}

impl PeerOutbox {
    fn is_closed(&self) -> bool {
        match self {
            Self::Bare(outbox) => outbox.is_closed(),
            Self::Timed(outbox) => outbox.is_closed(),
            Self::Direct(_) => false,
        }
    }
}

struct JsonRpcPeerInner {
    outbox: PeerOutbox,
    handler: Arc<dyn JsonRpcHandler>,
    handlers: Arc<Semaphore>,
    waiting: Mutex<PendingCallBatches>,
}

/// The batches that wait, by the id of their first call. Ids within a batch follow each other, so that
/// one entry serves a whole batch.
#[derive(Default)]
struct PendingCallBatches {
    next_id: u64,
    closed: bool,
    batches: BTreeMap<u64, PendingCallBatch>,
}

struct PendingCallBatch {
    answers: Vec<Option<JsonRpcResult>>,
    missing: usize,
    done: Option<oneshot::Sender<()>>,
    /// A part of the batch is in the hands of the other side.
    sent: Arc<AtomicBool>,
}

impl fmt::Debug for JsonRpcPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonRpcPeer({} waiting)", self.waiting().batches.len())
    }
}

impl JsonRpcPeer {
    /// Makes a conversation whose payloads go out through `outbox`, and come in through
    /// [`JsonRpcPeer::receive`]. Requests go to `handler`.
    #[must_use]
    pub fn new(outbox: mpsc::Sender<Bytes>, handler: Arc<dyn JsonRpcHandler>) -> Self {
        Self::over(PeerOutbox::Bare(outbox), handler)
    }

    /// Makes a conversation over an outlet that can make use of knowing how long a payload is wanted.
    #[must_use]
    pub fn timed(outbox: mpsc::Sender<OutgoingPayload>, handler: Arc<dyn JsonRpcHandler>) -> Self {
        Self::over(PeerOutbox::Timed(outbox), handler)
    }

    /// Makes a conversation without a sending task: payloads leave where their senders are.
    pub(crate) fn with_direct_sender(exit: Box<dyn DirectSender>, handler: Arc<dyn JsonRpcHandler>) -> Self {
        Self::over(PeerOutbox::Direct(exit), handler)
    }

    fn over(outbox: PeerOutbox, handler: Arc<dyn JsonRpcHandler>) -> Self {
        let handlers = Arc::new(Semaphore::new(HANDLERS_MAX));
        // An answer to a request of an earlier process must not be taken for the answer to another request.
        let next_id = u64::from(rand::random::<u32>()) << 20;
        let waiting = Mutex::new(PendingCallBatches { next_id, ..PendingCallBatches::default() });
        Self(Arc::new(JsonRpcPeerInner { outbox, handler, handlers, waiting }))
    }

    /// Returns true when both handles are of one conversation.
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
        let call =
            JsonRpcCall::new(method, params).map_err(|error| CallError::Unwritable(error.to_string()))?;
        self.call_batch(vec![call], timeout).await.pop().unwrap_or(Err(CallError::Closed))
    }

    /// Makes several calls as a batch; gives one outcome for each, in their order.
    pub async fn call_batch(
        &self,
        calls: Vec<JsonRpcCall>,
        timeout: Duration,
    ) -> Vec<Result<Box<RawValue>, CallError>> {
        let count = calls.len();
        let deadline = Instant::now() + timeout;
        match tokio::time::timeout_at(deadline, self.send_batch_until(calls, Some(deadline))).await {
            Ok(sent) => sent.outcomes(deadline).await,
            Err(_) => vec![Err(CallError::TimedOut); count],
        }
    }

    /// Sends several calls as a batch. On return they are on their way, in front of everything that
    /// is sent later; [`SentBatch::outcomes`] returns their results.
    pub async fn send_batch(&self, calls: Vec<JsonRpcCall>) -> SentBatch {
        self.send_batch_until(calls, None).await
    }

    /// Sends a batch of calls whose answers are of no use after `deadline`.
    pub async fn send_batch_until(&self, calls: Vec<JsonRpcCall>, deadline: Option<Instant>) -> SentBatch {
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
            let outgoing = OutgoingPayload { payload, deadline, context, reply_to: None, batch };
            if let Err(error) = self.send_payload(outgoing).await {
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
        let call =
            JsonRpcCall::new(method, params).map_err(|error| CallError::Unwritable(error.to_string()))?;
        let payload = write::notification(&call);
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(CallError::TooLarge(payload.len()));
        }
        let outgoing =
            OutgoingPayload { payload, deadline: None, context: None, reply_to: None, batch: None };
        self.send_payload(outgoing).await
    }

    /// Handles an incoming payload. Never waits: answers wake their callers, requests are worked on in
    /// tasks of their own, whose answers to one batch go back together.
    ///
    /// Has to be called within a Tokio runtime.
    pub fn receive(&self, payload: &[u8]) {
        self.receive_with(payload, Receipt::default());
    }

    /// Handles an incoming payload that the transport keeps until `receipt` is dropped: after the handler has
    /// done its work, and before the answer leaves.
    pub fn receive_with(&self, payload: &[u8], receipt: Receipt) {
        let reply_to = receipt.reply_to();
        let (members, batch) = match parse(payload) {
            Ok(JsonRpcPayload::Single(member)) => (vec![member], false),
            Ok(JsonRpcPayload::Batch(members)) => (members, true),
            Err(error) => {
                self.reply_now(vec![(None, Err(error.into()))], false, reply_to);
                return;
            }
        };
        let mut requests = Vec::new();
        let mut refused = Vec::new();
        for member in members {
            match member {
                Ok(JsonRpcMessage::Request(request)) => requests.push(request),
                Ok(JsonRpcMessage::Response(response)) => self.answered(response),
                Err(InvalidJsonRpcMessage { id, problem }) => {
                    refused.push((id, Err(JsonRpcError::of_protocol(INVALID_REQUEST, problem))));
                }
            }
        }
        if requests.is_empty() {
            self.reply_now(refused, batch, reply_to);
            return;
        }
        let ids: Vec<_> = requests.iter().map(|request| request.id.clone()).collect();
        let Ok(permit) = Arc::clone(&self.0.handlers).try_acquire_owned() else {
            let busy = JsonRpcError::refused("BUSY", false, "too many requests are being worked on");
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

    /// Handles a payload that a guard has opened; answers a rejected one where its sender may get an answer.
    pub fn receive_opened(&self, opened: Result<Bytes, RejectedPayload>, receipt: Receipt) {
        match opened {
            Ok(payload) => self.receive_with(&payload, receipt),
            Err(RejectedPayload { error, body, over }) => {
                tracing::warn!(reason = error.reason(), "a payload is rejected: {}", error.message);
                if let Some(body) = body {
                    self.refuse(&body, &error);
                }
                if over {
                    self.close();
                }
            }
        }
    }

    /// Rejects every request in an incoming payload with this error. Responses in the payload are ignored.
    fn refuse(&self, payload: &[u8], error: &JsonRpcError) {
        // A sender of many refused payloads does not get an answer to each.
        let Ok(permit) = Arc::clone(&self.0.handlers).try_acquire_owned() else { return };
        let (members, batch) = match parse(payload) {
            Ok(JsonRpcPayload::Single(member)) => (vec![member], false),
            Ok(JsonRpcPayload::Batch(members)) => (members, true),
            Err(_) => return,
        };
        let requests = members.into_iter().filter_map(|member| match member {
            Ok(JsonRpcMessage::Request(request)) => request.id,
            Ok(JsonRpcMessage::Response(_)) | Err(_) => None,
        });
        let answers = requests.map(|id| (Some(id), Err(error.clone()))).collect();
        let peer = self.clone();
        tokio::spawn(async move {
            peer.reply(answers, batch, None).await;
            drop(permit);
        });
    }

    /// Ends the conversation: callers that wait for an answer get an error.
    pub fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        waiting.batches.clear();
    }

    /// Sends a payload, or hands it to the sending task.
    async fn send_payload(&self, outgoing: OutgoingPayload) -> Result<(), CallError> {
        match &self.0.outbox {
            PeerOutbox::Bare(outbox) => outbox.send(outgoing.payload).await.map_err(|_| CallError::Closed),
            PeerOutbox::Timed(outbox) => outbox.send(outgoing).await.map_err(|_| CallError::Closed),
            PeerOutbox::Direct(exit) => {
                let fate = exit.send(outgoing).await;
                self.note_send_result(fate);
                Ok(())
            }
        }
    }

    /// Notes the result of a send. Callers whose answer will not come get an error. The conversation goes on.
    pub(crate) fn note_send_result(&self, fate: PayloadSendResult) {
        let mut waiting = self.waiting();
        match fate {
            PayloadSendResult::Sent(batch) => {
                if let Some(batch) = batch.and_then(|batch| waiting.batches.get_mut(&batch)) {
                    batch.sent.store(true, Ordering::Relaxed);
                }
            }
            PayloadSendResult::Lost(batch) => {
                batch.and_then(|batch| waiting.batches.remove(&batch));
            }
            PayloadSendResult::Unreachable => waiting.batches.clear(),
            PayloadSendResult::Stale => {}
        }
    }

    /// Makes a handle that does not keep the conversation alive.
    pub(crate) fn downgrade(&self) -> WeakJsonRpcPeer {
        WeakJsonRpcPeer(Arc::downgrade(&self.0))
    }

    /// Returns true after [`JsonRpcPeer::close`], or when the receiver of its payloads is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.outbox.is_closed() || self.waiting().closed
    }

    fn waiting(&self) -> MutexGuard<'_, PendingCallBatches> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, count: usize) -> Result<(CallBatchGuard, oneshot::Receiver<()>), CallError> {
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
        waiting.batches.insert(
            first,
            PendingCallBatch { answers, missing: count, done: Some(done), sent: Arc::clone(&sent) },
        );
        Ok((CallBatchGuard { peer: self.clone(), first, sent }, receiver))
    }

    /// Notes an answer. An unexpected or repeated one changes nothing.
    fn answered(&self, response: JsonRpcResponse) {
        let JsonRpcResponse { id: Some(JsonRpcId::Number(id)), answer } = response else {
            tracing::debug!(id = ?response.id, "an answer without an open call");
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

    fn reply_now(
        &self,
        answers: Vec<(Option<JsonRpcId>, JsonRpcResult)>,
        batch: bool,
        reply_to: Option<ReplyTo>,
    ) {
        if !answers.is_empty() {
            let peer = self.clone();
            tokio::spawn(async move { peer.reply(answers, batch, reply_to).await });
        }
    }

    async fn reply(
        &self,
        answers: Vec<(Option<JsonRpcId>, JsonRpcResult)>,
        batch: bool,
        reply_to: Option<ReplyTo>,
    ) {
        let payloads = match answers.as_slice() {
            [] => return,
            [(id, answer)] if !batch => vec![write::response(id.as_ref(), answer)],
            several => write::responses(several),
        };
        // There is one reply to a message; more than fits into it goes under the topic.
        let reply_to = reply_to.filter(|_| payloads.len() == 1);
        for payload in payloads {
            let outgoing = OutgoingPayload {
                payload,
                deadline: None,
                context: None,
                reply_to: reply_to.clone(),
                batch: None,
            };
            if self.send_payload(outgoing).await.is_err() {
                tracing::debug!("an answer was not sent: the connection is closed");
            }
        }
    }
}

/// See [`JsonRpcPeer::downgrade`].
pub(crate) struct WeakJsonRpcPeer(Weak<JsonRpcPeerInner>);

impl WeakJsonRpcPeer {
    pub(crate) fn upgrade(&self) -> Option<JsonRpcPeer> {
        self.0.upgrade().map(JsonRpcPeer)
    }
}

/// Calls that were sent. Dropping it forgets their answers.
pub struct SentBatch {
    count: usize,
    state: Result<(CallBatchGuard, oneshot::Receiver<()>), CallError>,
}

impl SentBatch {
    /// Progress of the batch.
    #[must_use]
    pub fn progress(&self) -> CallBatchProgress {
        self.state.as_ref().map_or_else(
            |_| CallBatchProgress::default(),
            |(entry, _)| CallBatchProgress(Arc::clone(&entry.sent)),
        )
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
        let outcome = |answer: Option<JsonRpcResult>| match answer {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => Err(CallError::Refused(error)),
            None => Err(missing.clone()),
        };
        entry.take(self.count).into_iter().map(outcome).collect()
    }
}

/// Progress of one batch of calls.
#[derive(Debug, Clone, Default)]
pub struct CallBatchProgress(Arc<AtomicBool>);

impl CallBatchProgress {
    /// Returns true when a part of the batch came into the hands of the other side.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Forgets a batch when its caller is through, or gone.
struct CallBatchGuard {
    peer: JsonRpcPeer,
    first: u64,
    sent: Arc<AtomicBool>,
}

impl CallBatchGuard {
    fn take(&self, count: usize) -> Vec<Option<JsonRpcResult>> {
        match self.peer.waiting().batches.remove(&self.first) {
            Some(batch) => batch.answers,
            None => (0..count).map(|_| None).collect(),
        }
    }
}

impl Drop for CallBatchGuard {
    fn drop(&mut self) {
        self.peer.waiting().batches.remove(&self.first);
    }
}

#[cfg(test)]
mod tests;
