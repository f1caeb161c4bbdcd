//! `message:<caller>:<id>` as its sender and recipient see it, and the fields written for chat and mail.
//!
//! Other programs write such hashes as well, so fields that cannot be read count as missing: one broken message does not
//! hide the others of a list.

use std::str::FromStr;

use kv::Value;
use model::{
    ActorId, ContextId, DirectMessage, DirectMessageOrigin, FlowId, MessageFormat, MessageKey, MessageStatus,
    MessageType, Revision, Timestamp, TransportStatus, limits,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::routed_message::JOB_KEY_BYTES_MAX;
use super::{FieldWriter, RecordFields};
use crate::error::Result;
use crate::flows::commits::COMMIT_NODES_MAX;

/// Fields read of a message; the last of them only when the text is wanted.
const READ: [&str; 23] = [
    "caller_id",
    "from_pubkey",
    "to",
    "target_context",
    "topic",
    "message_type",
    "message_format_type",
    "flow_id",
    "job_keys",
    "timeout_ack",
    "status",
    "error",
    "transport_status",
    "origin",
    "foreign",
    "verified",
    "logs",
    "created_at",
    "updated_at",
    "revision",
    "expires_at",
    "recipient",
    "message",
];

/// How much of a message is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageProjection {
    /// All of it.
    Whole,
    /// All but the text.
    WithoutText,
}

/// The fields to ask for.
pub(crate) fn fields(extent: MessageProjection) -> &'static [&'static str] {
    match extent {
        MessageProjection::Whole => &READ,
        MessageProjection::WithoutText => &READ[..READ.len() - 1],
    }
}

/// Something that happened to a message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct MessageHistoryEntry {
    /// Time of the entry.
    pub(crate) time: Timestamp,
    /// Description of what happened, for people.
    pub(crate) text: String,
}

/// A message as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MessageRecord {
    /// Key of the message in its context.
    pub(crate) key: MessageKey,
    /// The sender's public key; empty for one that carries nodes.
    pub(crate) from_pubkey: String,
    /// Recipient as the sender wrote it; a runner record if the message carries nodes.
    pub(crate) to: String,
    /// The context at the recipient's coordinator.
    pub(crate) target_context: Option<ContextId>,
    /// Topic of the message.
    pub(crate) topic: String,
    /// Type of the message, by what it carries.
    pub(crate) message_type: MessageType,
    /// How the text is written.
    pub(crate) format: MessageFormat,
    /// The text; empty when it was not read.
    pub(crate) text: String,
    /// The flow whose nodes it carried, or that was made of it.
    pub(crate) flow: Option<FlowId>,
    /// The attempts that it carries.
    pub(crate) job_keys: Vec<String>,
    /// Seconds until it must have arrived.
    pub(crate) timeout_ack_secs: u32,
    /// Where it stands.
    pub(crate) status: MessageStatus,
    /// Why it will not arrive.
    pub(crate) error: String,
    /// Where it stands on the wire.
    pub(crate) transport_status: TransportStatus,
    /// Where it came from; nothing for one that was sent here.
    pub(crate) origin: Option<DirectMessageOrigin>,
    /// Another coordinator has brought the message, or may have: older records do not say.
    pub(crate) foreign: bool,
    /// The sender's signature fits.
    pub(crate) verified: bool,
    /// History of the message, oldest first.
    pub(crate) logs: Vec<MessageHistoryEntry>,
    /// When it was made.
    pub(crate) created_at: Timestamp,
    /// When it last changed.
    pub(crate) updated_at: Timestamp,
    /// The change counter at its last change.
    pub(crate) revision: Revision,
}

impl MessageRecord {
    /// Returns the actor of this coordinator that the message is for; nothing for a runner record or an actor elsewhere.
    pub(crate) fn recipient(&self) -> Option<ActorId> {
        let is_direct_message = self.message_type != MessageType::Job;
        self.to.parse().ok().filter(|id| is_direct_message && *id != ActorId(0))
    }

    /// Returns true if the message is `actor`'s own. A received copy belongs to its recipient, a sent message to its sender.
    pub(crate) fn is_owned_by(&self, actor: ActorId) -> bool {
        let owner = if self.key.caller == ActorId(0) { self.recipient() } else { Some(self.key.caller) };
        owner == Some(actor)
    }

    /// Returns true if `actor` sent or received the message.
    pub(crate) fn is_of(&self, actor: ActorId) -> bool {
        (self.key.caller == actor && actor != ActorId(0)) || self.recipient() == Some(actor)
    }
}

/// The message in the answer to `HMGET` of [`fields`]; nothing when there is none.
pub(crate) fn read(
    key: MessageKey,
    extent: MessageProjection,
    value: Value,
) -> Result<Option<MessageRecord>> {
    let mut fields =
        RecordFields::of_readable(crate::messages::message_holds::message_key(key), fields(extent), value)?;
    if fields.fields.is_empty() {
        return Ok(None);
    }
    let flow = fields.lenient("flow_id").filter(|flow| *flow != FlowId(0));
    Ok(Some(MessageRecord {
        key,
        target_context: fields.lenient("target_context").filter(|context| *context != ContextId(0)),
        message_type: fields.lenient("message_type").unwrap_or(MessageType::Job),
        format: fields.lenient("message_format_type").unwrap_or(MessageFormat::Text),
        flow,
        job_keys: job_keys(&fields.text("job_keys")),
        timeout_ack_secs: fields.lenient("timeout_ack").unwrap_or_default(),
        status: fields.lenient("status").unwrap_or(MessageStatus::Dispatched),
        transport_status: fields.lenient("transport_status").unwrap_or(TransportStatus::Queued),
        origin: fields.short_json("origin").unwrap_or_default(),
        foreign: fields.text("foreign") != "false",
        verified: fields.flag("verified"),
        logs: fields.short_json("logs").unwrap_or_default(),
        created_at: fields.lenient("created_at").unwrap_or_default(),
        updated_at: fields.lenient("updated_at").unwrap_or_default(),
        revision: fields.lenient("revision").unwrap_or_default(),
        from_pubkey: fields.cut("from_pubkey", SHORT_BYTES_MAX),
        to: fields.cut("to", SHORT_BYTES_MAX),
        topic: fields.cut("topic", 4 * limits::MESSAGE_TOPIC_CHARS_MAX),
        text: fields.cut("message", TEXT_BYTES_MAX),
        error: fields.cut("error", LONG_BYTES_MAX),
    }))
}

fn job_keys(text: &str) -> Vec<String> {
    let keys = text.split_ascii_whitespace().filter(|key| key.len() <= JOB_KEY_BYTES_MAX);
    keys.take(COMMIT_NODES_MAX).map(str::to_owned).collect()
}

/// Bytes of an address, and of what else is short.
const SHORT_BYTES_MAX: usize = 1024;
/// Bytes of why a message will not arrive.
const LONG_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a text. The outcome of jobs is longer than what is sent.
const TEXT_BYTES_MAX: usize = 2 * limits::PAGE_BYTES_MAX;

impl RecordFields {
    /// Takes a text, shortened so that no other program can make an answer too long.
    fn cut(&mut self, field: &str, max: usize) -> String {
        let mut text = self.text(field);
        text.truncate(super::cut(&text, max).len());
        text
    }

    /// A list or record that is not too long; nothing in the place of any other.
    fn short_json<T: DeserializeOwned + Default>(&self, field: &str) -> Option<T> {
        self.json(field).ok().filter(|_| self.len_of(field) <= limits::PAGE_BYTES_MAX)
    }

    /// A value that may be missing or be anything.
    fn lenient<T: FromStr<Err: std::fmt::Display>>(&self, field: &str) -> Option<T> {
        self.optional(field).ok().flatten()
    }
}

/// Metadata of a direct message besides its own content.
#[derive(Debug)]
pub(crate) struct DirectMessageMetadata<'a> {
    /// The context that keeps it.
    pub(crate) context: ContextId,
    /// Recipient as the sender wrote it, or the actor that received the message.
    pub(crate) to: &'a str,
    /// Addresses to try, in this order.
    pub(crate) addresses: &'a [String],
    /// Seconds until it must have arrived; 0 for one that has.
    pub(crate) timeout_ack_secs: u32,
    /// The sender's signature fits.
    pub(crate) verified: bool,
}

/// Fields written for a direct message that leaves, but for its number, its router and the revision.
pub(crate) fn write_sent(
    message: &DirectMessage,
    posting: &DirectMessageMetadata<'_>,
    now: Timestamp,
) -> FieldWriter {
    let mut written = write(message, posting, now);
    written
        .text("caller_id", message.origin.caller_id)
        .text("origin", "")
        .text("status", MessageStatus::Dispatched)
        .text("transport_status", TransportStatus::Queued);
    written
}

/// Fields written for a direct message that has arrived, but for its number and the revision.
pub(crate) fn write_received(
    message: &DirectMessage,
    posting: &DirectMessageMetadata<'_>,
    foreign: bool,
    now: Timestamp,
) -> FieldWriter {
    let mut written = write(message, posting, now);
    written
        .text("caller_id", 0)
        .text("router", "")
        .json("origin", &message.origin)
        .text("foreign", foreign)
        .text("status", MessageStatus::Acknowledged)
        .text("transport_status", TransportStatus::Delivered);
    written
}

fn write(message: &DirectMessage, posting: &DirectMessageMetadata<'_>, now: Timestamp) -> FieldWriter {
    let DirectMessage {
        origin: _,
        from,
        to,
        target_context,
        message_type,
        format,
        topic,
        text,
        created_at,
        expires_at,
        signature,
    } = message;
    let DirectMessageMetadata { context, to: written_to, addresses, timeout_ack_secs, verified } = posting;
    let mut written = FieldWriter::default();
    written
        .text("context_id", context)
        .text("flow_id", "")
        .text("to", written_to)
        .optional("target_context", *target_context)
        .text("topic", topic)
        .text("from_pubkey", from)
        .optional("signature", signature.as_ref())
        .text("message", text)
        .text("message_type", message_type)
        .text("message_format_type", format)
        .text("timeout", 0)
        .text("timeout_ack", timeout_ack_secs)
        .text("timeout_result", 0)
        .text("nodes", "[]")
        .text("logs", "[]")
        .text("created_at", created_at)
        .text("updated_at", now)
        .text("error", "")
        .text("transport_id", "")
        .text("recipient", to)
        .json("addresses", addresses)
        .text("expires_at", expires_at)
        .text("verified", verified);
    written
}
