//! Direct messages: chat and mail as they travel from one coordinator to another, or to itself.

use serde::{Deserialize, Serialize};

use crate::id::{ActorId, ContextId, ContextUid, MessageId};
use crate::message::{MessageFormat, MessageType};
use crate::time::Timestamp;

/// Recipient that stands for the admins of the context in which a message is sent.
pub const TO_ADMINS: &str = "admins";

/// Origin of a message, which identifies it, however often it arrives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DirectMessageOrigin {
    /// The coordinator's root key, 64 lower-case hex digits.
    pub coordinator: String,
    /// The context that it was sent in.
    pub context_uid: ContextUid,
    /// Actor that sent the message, by its number there.
    pub caller_id: ActorId,
    /// Number of the message within the caller.
    pub message_id: MessageId,
}

/// Chat or mail on its way: the parameters of `message.deliver`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectMessage {
    /// Where it was sent.
    pub origin: DirectMessageOrigin,
    /// The sender's Ed25519 key, 64 lower-case hex digits.
    pub from: String,
    /// The recipient's, the same: between coordinators an actor is its key. [`TO_ADMINS`] in its place never leaves the
    /// coordinator that it was sent at.
    pub to: String,
    /// The context at the recipient's coordinator; absent for the recipient's home context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_context: Option<ContextId>,
    /// Chat or mail.
    #[serde(rename = "type")]
    pub message_type: MessageType,
    /// How the text is written.
    pub format: MessageFormat,
    /// Topic of the message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub topic: String,
    /// The text.
    pub text: String,
    /// When it was sent.
    pub created_at: Timestamp,
    /// Time from which on the message is not taken any more.
    pub expires_at: Timestamp,
    /// The sender's signature, an envelope as JSON, if it made one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// Answer to `message.deliver`: the message is in its recipient's inbox, now or since before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectMessageAccepted {
    /// Always true: a refusal is an error.
    pub accepted: bool,
}
