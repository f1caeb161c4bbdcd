//! A sender's signature over chat and mail.

use std::time::Duration;

use identity::{SigningKey, VerifyingKey};
use model::id::Uid;
use model::{BlobHash, ContextId, DirectMessage, MessageFormat, MessageType, Timestamp, limits};
use serde::{Deserialize, Serialize};

use super::{check_expiry, open, same, sign};
use crate::Refusal;

/// Payload type of an envelope with a direct message's terms.
pub const DIRECT_MESSAGE_TYPE: &str = "application/vnd.mycora.letter+json";

/// Terms of a direct message, as its sender states them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectMessageTerms<'a> {
    /// The recipient's key, 64 lower-case hex digits.
    pub to: &'a str,
    /// The context at the recipient's coordinator; nothing for its home context.
    pub target_context: Option<ContextId>,
    /// Chat or mail.
    pub message_type: MessageType,
    /// How the text is written.
    pub format: MessageFormat,
    /// Subject of the message.
    pub topic: &'a str,
    /// The text.
    pub text: &'a str,
}

/// Statement that is signed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectMessageStatement {
    /// Id of the message: 32 hex digits.
    id: String,
    to: String,
    /// Absent for the recipient's home context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_context: Option<ContextId>,
    #[serde(rename = "type")]
    message_type: MessageType,
    format: MessageFormat,
    topic: String,
    text_sha256: BlobHash,
    /// Until when it may arrive, in milliseconds since 1970.
    expires: u64,
}

/// Signer of a direct message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedDirectMessage {
    /// The key: the one that the message names as its sender's.
    pub signer: VerifyingKey,
    /// Which of the signer's messages it is: the same in another message is a repetition.
    pub id: Uid,
    /// Moment from which on the message is not taken.
    pub expires: Timestamp,
}

/// Signs a direct message, which may arrive until `expires`: at most [`limits::LETTER_TIMEOUT_SECS_MAX`] from now.
#[must_use]
pub fn sign_direct_message(message: &DirectMessageTerms<'_>, key: &SigningKey, expires: Timestamp) -> String {
    let statement = DirectMessageStatement {
        id: Uid::random().to_string(),
        to: message.to.to_owned(),
        target_context: message.target_context,
        message_type: message.message_type,
        format: message.format,
        topic: message.topic.to_owned(),
        text_sha256: BlobHash::of(message.text.as_bytes()),
        expires: expires.as_millis(),
    };
    sign(DIRECT_MESSAGE_TYPE, &statement, key)
}

/// Checks the signature of a direct message and returns its signer; none, when there is no signature. Whose key that is, and
/// whether the message itself is over, is for the caller to find out.
///
/// # Errors
/// [`Refusal::Malformed`], [`Refusal::OtherType`], [`Refusal::BadSignature`]; [`Refusal::OtherActor`] when the key is not
/// the one that the message names; [`Refusal::OtherContent`], [`Refusal::Expired`], [`Refusal::BadTimes`].
pub fn check_direct_message(
    message: &DirectMessage,
    now: Timestamp,
) -> Result<Option<SignedDirectMessage>, Refusal> {
    let Some(signature) = &message.signature else { return Ok(None) };
    let (signer, statement): (_, DirectMessageStatement) = open(DIRECT_MESSAGE_TYPE, signature)?;
    let DirectMessageStatement { id, to, target_context, message_type, format, topic, text_sha256, expires } =
        statement;
    if signer.to_string() != message.from {
        let claimed = message.from.chars().take(64).collect();
        return Err(Refusal::OtherActor { signer: signer.to_string(), claimed });
    }
    same("to", &to, &message.to)?;
    same("target_context", &target_context, &message.target_context)?;
    same("type", &message_type, &message.message_type)?;
    same("format", &format, &message.format)?;
    same("topic", &topic, &message.topic)?;
    same("text", &text_sha256, &BlobHash::of(message.text.as_bytes()))?;
    let expires = Timestamp::from_millis(expires);
    check_expiry(expires, Duration::from_secs(limits::LETTER_TIMEOUT_SECS_MAX.into()), now)?;
    let id = id.parse().map_err(|_| Refusal::Malformed("`id` is not 32 hex digits".to_owned()))?;
    Ok(Some(SignedDirectMessage { signer, id, expires }))
}
