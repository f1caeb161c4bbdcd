//! Answers of lane owners to their callers.

use broker::BrokerError;
use bytes::Bytes;
use model::CorrelationId;
use serde::{Deserialize, Serialize};
use store::{CommitOutcome, RowCondition, RowOperation};
use workflow::LaneRowKey;
use workflow::instance::encode;
use workflow::message::{self, AnswerMessage, ReplyAddress};
use workflow::step::RequestRefusal;

use super::LaneEnvironment;
use super::LaneExit;
use super::rows::{LaneStore, row};

/// How long answers to requests are kept, in milliseconds: longer than the stream keeps the requests.
const KEPT_MILLIS: u64 = 8 * 24 * 3_600_000;

/// Answer to a request, as it is stored and sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRequestAnswer {
    /// Hash of the request and its caller.
    #[serde(default)]
    pub request_hash: String,
    /// Outcome of the request.
    pub outcome: LaneRequestOutcome,
    /// Correlation that the request was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<CorrelationId>,
    /// Dead letter that parks the correlation now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<u64>,
    /// Number of inputs that are still held back.
    #[serde(default)]
    pub held: u64,
    /// Number of inputs that were removed with the dead letter.
    #[serde(default)]
    pub removed: u64,
}

/// Outcome of a request to a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneRequestOutcome {
    /// Request was done; if it is about a dead letter, that was removed without being applied.
    Done,
    /// Content of the letter was applied.
    Applied,
    /// Content of the letter waits behind another letter or a pause.
    Held,
    /// Content of the letter waits for its step, or for the start.
    Kept,
    /// Content of the letter failed again, for this reason.
    Dead(String),
    /// Content of the letter changed nothing, for this reason.
    Ignored(String),
    /// Request was passed on to the lane of this correlation, which answers.
    PassedOn(CorrelationId),
    /// Request was refused.
    Refused(RequestRefusal),
}

impl LaneRequestAnswer {
    /// Makes an answer that has no more than the outcome.
    pub(crate) fn new(request_hash: &str, outcome: LaneRequestOutcome) -> Self {
        let request_hash = request_hash.to_owned();
        Self { request_hash, outcome, correlation: None, front: None, held: 0, removed: 0 }
    }

    /// Makes an answer that refuses.
    pub(crate) fn refused(request_hash: &str, reason: &str, message: String) -> Self {
        let refusal = RequestRefusal { reason: reason.to_owned(), message };
        Self::new(request_hash, LaneRequestOutcome::Refused(refusal))
    }

    /// Returns this answer, if it was given to the same request; otherwise a refusal.
    pub(crate) fn again(self, request_hash: &str) -> Self {
        if self.request_hash == request_hash {
            return self;
        }
        let message = "this request_id came with another body before".to_owned();
        Self::refused(request_hash, "REQUEST_ID_REUSED", message)
    }

    /// The row of the answer to a request.
    pub(crate) fn key(request: &str) -> LaneRowKey {
        LaneRowKey::request(&format!("word/{request}"))
    }

    /// The change that stores the answer.
    pub(crate) fn put(&self, request: &str, millis: u64) -> RowOperation {
        RowOperation::PutUntil(
            row(&Self::key(request)),
            encode(self).into(),
            millis.saturating_add(KEPT_MILLIS),
        )
    }
}

/// Commits a change together with the answer to the request for it; a repeated request gets its first answer.
pub(crate) async fn commit_answer(
    rows: &LaneStore,
    request: &str,
    millis: u64,
    answer: LaneRequestAnswer,
    mut expect: Vec<RowCondition>,
    mut ops: Vec<RowOperation>,
) -> Result<LaneRequestAnswer, LaneExit> {
    let key = LaneRequestAnswer::key(request);
    expect.insert(0, RowCondition::Absent(row(&key)));
    ops.push(answer.put(request, millis));
    match rows.commit(expect, ops).await? {
        CommitOutcome::Exists(_) => match rows.get(&key).await? {
            Some(known) => Ok(rows.decode::<LaneRequestAnswer>(&known)?.again(&answer.request_hash)),
            None => Ok(answer),
        },
        CommitOutcome::Committed(_) | CommitOutcome::Conflict { .. } | CommitOutcome::Fenced { .. } => {
            Ok(answer)
        }
    }
}

/// Sends an answer to the caller. The caller reads an answer that is too large for a message, or gets lost on its way, from its row,
/// which therefore has to be committed before.
pub(crate) async fn answer<T: Serialize + Sync>(around: &LaneEnvironment, to: &ReplyAddress, answer: &T) {
    let write =
        |answer: Option<&T>| Bytes::from(message::write(&AnswerMessage { token: to.token.clone(), answer }));
    let sent = match around.broker.reply(&to.subject, write(Some(answer))).await {
        Err(BrokerError::TooLarge { .. }) => around.broker.reply(&to.subject, write(None)).await,
        sent => sent,
    };
    if let Err(error) = sent {
        tracing::debug!("an answer was not sent to its caller: {error}");
    }
}
