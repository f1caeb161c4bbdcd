//! Answers of owners to whoever asked them.

use broker::BrokerError;
use bytes::Bytes;
use model::CorrelationId;
use serde::{Deserialize, Serialize};
use store::{Expect, Op, Outcome};
use workflow::Key;
use workflow::instance::encode;
use workflow::message::{self, AnswerMessage, ReplyAddress};
use workflow::step::Refusal;

use super::Ended;
use super::Surroundings;
use super::rows::{Rows, row};

/// Answers to words are kept so long, in milliseconds: longer than their stream keeps the words.
const KEPT_MILLIS: u64 = 8 * 24 * 3_600_000;

/// Answer to a word, as it is kept and sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordAnswer {
    /// Hash of what was asked, and by whom.
    #[serde(default)]
    pub request_hash: String,
    /// What became of it.
    pub outcome: WordOutcome,
    /// The correlation that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<CorrelationId>,
    /// The letter that stands in front of its correlation now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<u64>,
    /// Inputs that are held back still.
    #[serde(default)]
    pub held: u64,
    /// Inputs that were removed with a letter.
    #[serde(default)]
    pub removed: u64,
}

/// What became of a word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WordOutcome {
    /// It was done; of a letter: it is gone, and was not applied.
    Done,
    /// What the letter has was applied.
    Applied,
    /// What the letter has waits behind another letter or a pause.
    Held,
    /// What the letter has waits for its step, or for the start.
    Kept,
    /// What the letter has failed again: why.
    Dead(String),
    /// What the letter has changed nothing: why.
    Ignored(String),
    /// The lane of this correlation answers, to which it was passed on.
    PassedOn(CorrelationId),
    /// It was refused.
    Refused(Refusal),
}

impl WordAnswer {
    /// The answer that says no more than what became of it.
    pub(crate) fn new(request_hash: &str, outcome: WordOutcome) -> Self {
        let request_hash = request_hash.to_owned();
        Self { request_hash, outcome, correlation: None, front: None, held: 0, removed: 0 }
    }

    /// The answer that refuses.
    pub(crate) fn refused(request_hash: &str, reason: &str, message: String) -> Self {
        let refusal = Refusal { reason: reason.to_owned(), message };
        Self::new(request_hash, WordOutcome::Refused(refusal))
    }

    /// This answer, if it was given to the same request.
    pub(crate) fn again(self, request_hash: &str) -> Self {
        if self.request_hash == request_hash {
            return self;
        }
        let message = "this request_id came with another body before".to_owned();
        Self::refused(request_hash, "REQUEST_ID_REUSED", message)
    }

    /// The row of the answer to a request.
    pub(crate) fn key(request: &str) -> Key {
        Key::request(&format!("word/{request}"))
    }

    /// The change that keeps it.
    pub(crate) fn put(&self, request: &str, millis: u64) -> Op {
        Op::PutUntil(row(&Self::key(request)), encode(self).into(), millis.saturating_add(KEPT_MILLIS))
    }
}

/// Commits a change together with the answer to the word that asked for it; gives what was answered first where it came before.
pub(crate) async fn commit_answer(
    rows: &Rows,
    request: &str,
    millis: u64,
    answer: WordAnswer,
    mut expect: Vec<Expect>,
    mut ops: Vec<Op>,
) -> Result<WordAnswer, Ended> {
    let key = WordAnswer::key(request);
    expect.insert(0, Expect::Absent(row(&key)));
    ops.push(answer.put(request, millis));
    match rows.commit(expect, ops).await? {
        Outcome::Exists(_) => match rows.get(&key).await? {
            Some(known) => Ok(rows.decode::<WordAnswer>(&known)?.again(&answer.request_hash)),
            None => Ok(answer),
        },
        Outcome::Committed(_) | Outcome::Conflict { .. } | Outcome::Fenced { .. } => Ok(answer),
    }
}

/// Answers whoever asked. An answer that is too large for a message is to be read from its row, which has to be committed by then.
/// Nobody waits for one that gets lost on its way: whoever asked reads the row.
pub(crate) async fn answer<T: Serialize + Sync>(around: &Surroundings, to: &ReplyAddress, answer: &T) {
    let write =
        |answer: Option<&T>| Bytes::from(message::write(&AnswerMessage { token: to.token.clone(), answer }));
    let sent = match around.broker.reply(&to.subject, write(Some(answer))).await {
        Err(BrokerError::TooLarge { .. }) => around.broker.reply(&to.subject, write(None)).await,
        sent => sent,
    };
    if let Err(error) = sent {
        tracing::debug!("an answer did not reach who asked: {error}");
    }
}
