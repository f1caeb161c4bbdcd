//! Requests to owners of lanes: a message, and the answer to it.
//!
//! A request is published like any other message of a lane, and the owner answers to the single inbox of this process. A repeated
//! request gets its first answer, so a request may be published as often as necessary: even if the broker knows its id but the sender
//! that waited for the answer is gone.

use std::collections::HashMap;
use std::time::Duration;

use ::rpc::{Deadline, Error, ErrorKind, RpcReason};
use broker::{BrokerError, BrokerInbox, Headers, Publication};
use rand::Rng as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{LaneKey, StoreError};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use workflow::instance::decode;
use workflow::message::{AnswerMessage, ReplyAddress};
use workflow::{LaneRowKey, WorkflowLane};

use crate::lane::LaneEnvironment;
use crate::lane::rows::row;

/// How long to wait for an answer if the caller sets no deadline.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest part of a call's time that is left to read the stored answer.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Request to the owner of a lane.
pub(crate) struct LaneOwnerRequest<'a> {
    /// Subject that the lane reads.
    pub(crate) subject: String,
    /// Id by which the broker recognises repeats of the message; unique to the request.
    pub(crate) message_id: String,
    /// Writes the body, given the address of the answer.
    pub(crate) body: &'a (dyn Fn(ReplyAddress) -> Vec<u8> + Send + Sync),
    /// Lane and row in which the owner stores its answer; `None` where it stores none.
    pub(crate) stored: Option<(&'a WorkflowLane, LaneRowKey)>,
}

/// Client for requests to owners of lanes. One inbox serves all requests of the process.
pub(crate) struct LaneOwnerClient {
    around: LaneEnvironment,
    open: tokio::sync::Mutex<Option<ReplyInbox>>,
}

/// An inbox with the task that reads it.
struct ReplyInbox {
    subject: String,
    waiting: Arc<PendingReplies>,
    /// Task that reads the inbox; aborted on drop.
    _reader: JoinSet<()>,
}

/// Requests that wait for their answers, by token; `None` once the inbox has ended.
#[derive(Default)]
struct PendingReplies(Mutex<Option<ReplySenders>>);

type ReplySenders = HashMap<String, oneshot::Sender<Option<Value>>>;

/// Guard of one waiting request, which removes its token on drop.
struct PendingReplyGuard {
    waiting: Arc<PendingReplies>,
    token: String,
}

impl Drop for PendingReplyGuard {
    fn drop(&mut self) {
        if let Some(tokens) = self.waiting.tokens().as_mut() {
            tokens.remove(&self.token);
        }
    }
}

impl PendingReplies {
    fn tokens(&self) -> MutexGuard<'_, Option<ReplySenders>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.tokens().is_none()
    }

    /// Delivers answers to the waiting requests, until the inbox ends.
    async fn read(self: Arc<Self>, mut inbox: BrokerInbox) {
        while let Some(bytes) = inbox.next().await {
            match serde_json::from_slice::<AnswerMessage<Value>>(&bytes) {
                Ok(AnswerMessage { token, answer }) => {
                    let waiting = self.tokens().as_mut().and_then(|tokens| tokens.remove(&token));
                    // The waiting call may be gone.
                    waiting.map(|waiting| waiting.send(answer).ok());
                }
                Err(error) => tracing::warn!("an answer to a request cannot be read: {error}"),
            }
        }
        *self.tokens() = None;
    }
}

impl LaneOwnerClient {
    pub(crate) fn new(around: LaneEnvironment) -> Self {
        Self { around, open: tokio::sync::Mutex::default() }
    }

    /// Publishes a request and waits for its answer until the deadline of the call; then looks once for the stored answer. `is_it` checks
    /// that a stored answer belongs to this request. Cancel-safe: the request may still be carried out, and may be repeated.
    ///
    /// # Errors
    /// UNAVAILABLE when the broker or the store does not answer, DEADLINE_EXCEEDED when no owner does.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        question: &LaneOwnerRequest<'_>,
        is_it: impl Fn(&T) -> bool,
    ) -> Result<T, Status> {
        let end = Deadline::current().map_or_else(|| Instant::now() + PATIENCE, |deadline| deadline.0);
        let left = end.saturating_duration_since(Instant::now());
        let last_look = end.checked_sub(LAST_LOOK.min(left / 4)).unwrap_or(end);
        match timeout_at(last_look, self.answered(question)).await {
            Ok(Ok(Some(answer))) => {
                return serde_json::from_value(answer).map_err(|error| Error::internal(error).into());
            }
            // The answer is too large for a message: it is read from its row.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return Err(unavailable(&error)),
            Err(_) => tracing::debug!(subject = question.subject, "no owner answered in time"),
        }
        self.stored(question).await?.filter(is_it).ok_or_else(too_late)
    }

    /// Publishes until there is an answer: again if the inbox ended meanwhile, and if the broker dropped the message as a repeat, since
    /// the first sender may be gone.
    async fn answered(&self, question: &LaneOwnerRequest<'_>) -> Result<Option<Value>, BrokerError> {
        let mut message_id = question.message_id.clone();
        loop {
            let (address, token, answer) = self.address().await?;
            let again = format!("{}.{}", question.message_id, address.token);
            let mut outgoing = Publication {
                subject: question.subject.clone(),
                message_id,
                headers: Headers::new(),
                payload: (question.body)(address).into(),
            };
            let published = self.around.broker.publish(outgoing.clone()).await?.await?;
            if published.is_duplicate {
                outgoing.message_id.clone_from(&again);
                self.around.broker.publish(outgoing).await?.await?;
            }
            service::crash_point("verb.published");
            let answer = answer.await;
            drop(token);
            match answer {
                Ok(answer) => return Ok(answer),
                // The inbox ended with its connection: publish again under a new id.
                Err(_) => message_id = again,
            }
        }
    }

    /// Opens the inbox unless it is open, and makes a token in it.
    async fn address(
        &self,
    ) -> Result<(ReplyAddress, PendingReplyGuard, oneshot::Receiver<Option<Value>>), BrokerError> {
        let token = format!("{:032x}", rand::rng().random::<u128>());
        let (sender, answer) = oneshot::channel();
        let mut open = self.open.lock().await;
        let opened = match open.take().filter(|opened| !opened.waiting.has_ended()) {
            Some(opened) => opened,
            None => self.opened().await?,
        };
        let (subject, waiting) = (opened.subject.clone(), Arc::clone(&opened.waiting));
        *open = Some(opened);
        if let Some(tokens) = waiting.tokens().as_mut() {
            tokens.insert(token.clone(), sender);
        }
        Ok((ReplyAddress { subject, token: token.clone() }, PendingReplyGuard { waiting, token }, answer))
    }

    async fn opened(&self) -> Result<ReplyInbox, BrokerError> {
        let inbox = self.around.broker.inbox().await?;
        let subject = inbox.subject().to_owned();
        let waiting = Arc::new(PendingReplies(Mutex::new(Some(ReplySenders::new()))));
        let mut reader = JoinSet::new();
        reader.spawn(Arc::clone(&waiting).read(inbox));
        Ok(ReplyInbox { subject, waiting, _reader: reader })
    }

    /// Reads the answer that the owner has stored.
    async fn stored<T: DeserializeOwned>(
        &self,
        question: &LaneOwnerRequest<'_>,
    ) -> Result<Option<T>, Status> {
        let Some((lane, key)) = &question.stored else { return Ok(None) };
        let rows = self.around.store.read(&LaneKey::new(&lane.to_string()), &[row(key)]).await;
        let rows = rows.map_err(|error| store_unavailable(&error))?;
        let Some(found) = rows.into_iter().next().flatten() else { return Ok(None) };
        Ok(Some(decode(&found.value).map_err(Error::internal)?))
    }
}

/// Maps a broker error to a status: UNAVAILABLE, or RESOURCE_EXHAUSTED for a message that is too large.
pub(super) fn unavailable(error: &BrokerError) -> Status {
    match error {
        BrokerError::TooLarge { size, most, .. } => {
            let message = format!("the request has {size} bytes as a message, {most} are taken at most");
            let error = Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message);
            error.with("limit", "message_bytes").with("max", most).with("asked", size).into()
        }
        error => {
            tracing::warn!("a request did not reach its lane: {error}");
            let message = "the broker does not answer; repeat the call with the same request_id";
            Error::unavailable(RpcReason::PeerUnavailable, message).into()
        }
    }
}

/// UNAVAILABLE: the store does not answer.
pub(crate) fn store_unavailable(error: &StoreError) -> Status {
    tracing::warn!("rows cannot be read for a request: {error}");
    Error::unavailable(RpcReason::StoreUnavailable, "the store does not answer").into()
}

fn too_late() -> Status {
    let message = "no owner of the lane answered in time; whether the change was made is not known: repeat the call with the \
                   same request_id";
    Error::new(ErrorKind::DeadlineExceeded, RpcReason::DeadlineExceeded, message).into()
}
