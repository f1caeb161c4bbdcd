//! Answers of owners to whoever asked them.

use broker::BrokerError;
use bytes::Bytes;
use serde::Serialize;
use workflow::message::{self, AnswerMessage, ReplyAddress};

use super::Surroundings;

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
