//! `message:<caller>:<id>` as routers need it. This is the one reader of these hashes for routers; the commit script writes
//! messages that carry nodes.
//!
//! Besides the fields that every reader may rely on, the hash has `revision` (of every message that this service created or took up),
//! `open` (number of carried nodes that have not ended; only messages with nodes have it), `ended` (jobs of nodes that ended before
//! the message was known to have arrived, while others had not), and for chat and mail `recipient` (the recipient's key),
//! `addresses` (of the recipient, as JSON) and `expires_at`.
//!
//! A message with neither `open` nor `recipient` was pushed by another program: see [`crate::messages::raw`]. The scripts return
//! these three fields only if one of our lists names the message, since programs may write anything into a hash.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use kv::Value;
use model::{
    ActorId, ContextUid, DirectMessage, DirectMessageOrigin, FlowId, FlowSpec, JobKey, MessageFormat,
    MessageKey, RunnerId, Timestamp, limits,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{MalformedRecord, RecordFields};
use crate::error::Result;

/// Fields read of a message. Scripts that take messages receive these names and return the values in this order. They
/// rely on the first three being the fields that only our messages have.
pub(crate) const READ: [&str; 26] = [
    "revision",
    "open",
    "recipient",
    "flow_id",
    "to",
    "timeout_ack",
    "nodes",
    "created_at",
    "addresses",
    "expires_at",
    "from_pubkey",
    "caller_id",
    "id",
    "context_id",
    "target_context",
    "topic",
    "message",
    "message_type",
    "message_format_type",
    "signature",
    "timeout",
    "timeout_result",
    "job",
    "jobs",
    "taken_revision",
    "ended",
];

/// Bytes of a job's key.
pub(crate) const JOB_KEY_BYTES_MAX: usize = 200;

/// The part of a message that a router works with.
#[derive(Debug, Clone)]
pub(crate) struct RoutedMessage {
    /// Payload of the message.
    pub(crate) kind: RoutedMessagePayload,
    /// Seconds until it must be accepted, 0 for no limit.
    pub(crate) timeout_ack_secs: u32,
    /// When it was made.
    pub(crate) created_at: Timestamp,
}

/// Payload of a message.
#[derive(Debug, Clone)]
pub(crate) enum RoutedMessagePayload {
    /// Attempts of nodes of a flow.
    Nodes {
        /// The flow.
        flow: FlowId,
        /// The runner record that they are for.
        runner: RunnerId,
        /// The executions, each as JSON.
        nodes: Vec<Bytes>,
    },
    /// Chat or mail.
    DirectMessage {
        /// The [`DirectMessage`] as JSON.
        json: Bytes,
        /// Where its recipient is reached, in the order in which that is tried; empty: here.
        addresses: Vec<String>,
    },
    /// Jobs that were pushed to Redis and become a flow.
    Jobs(Box<RawJobs>),
}

/// Jobs that were pushed to Redis.
#[derive(Debug, Clone)]
pub(crate) struct RawJobs {
    /// Actor that the jobs belong to.
    pub(crate) caller: ActorId,
    /// The flow that they become.
    pub(crate) flow: FlowSpec,
    /// How large they were as text.
    pub(crate) bytes: usize,
    /// Revision at which the message was taken up, which distinguishes it from an earlier one that its program wrote under the
    /// same key. Empty for messages taken up by older versions.
    pub(crate) taken_revision: String,
}

/// Parsed hash of a message.
#[derive(Debug)]
pub(crate) enum ParsedMessageRecord {
    /// A message of ours.
    Body(RoutedMessage),
    /// Fields of a message that a program pushed.
    Raw(RecordFields),
}

impl RoutedMessage {
    /// Creates the body of a direct message for these addresses.
    pub(crate) fn direct_message(message: &DirectMessage, addresses: Vec<String>) -> Self {
        let json = serde_json::to_vec(message).expect("a direct message is plain texts and numbers");
        let secs = message.expires_at.since(message.created_at).as_secs();
        Self {
            kind: RoutedMessagePayload::DirectMessage { json: json.into(), addresses },
            timeout_ack_secs: u32::try_from(secs).unwrap_or(u32::MAX),
            created_at: message.created_at,
        }
    }

    /// Sets the revision at which a pushed message was taken up; chat and mail do not need it.
    pub(crate) fn set_taken(&mut self, revision: String) {
        if let RoutedMessagePayload::Jobs(jobs) = &mut self.kind {
            jobs.taken_revision = revision;
        }
    }

    /// Returns true if every attempt that the message carried has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(&self.kind, RoutedMessagePayload::Nodes { nodes, .. } if nodes.is_empty())
    }

    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.kind {
            RoutedMessagePayload::Nodes { nodes, .. } => nodes.iter().map(Bytes::len).sum(),
            RoutedMessagePayload::DirectMessage { json, .. } => json.len(),
            RoutedMessagePayload::Jobs(jobs) => jobs.bytes,
        }
    }
}

/// Parses a message from the answer to `HMGET` of [`READ`]; nothing for a 0, which stands for a missing message.
pub(crate) fn read(
    what: &str,
    key: MessageKey,
    context: ContextUid,
    value: Value,
) -> Result<Option<ParsedMessageRecord>> {
    if value == Value::Int(0) {
        return Ok(None);
    }
    // Programs may push the key of any hash, so a hash that lacks fields is broken, not missing.
    let mut fields = RecordFields::of_any(what, &READ, value)?;
    let found = if fields.has("open") {
        ParsedMessageRecord::Body(read_nodes(&mut fields)?)
    } else if fields.has("recipient") {
        ParsedMessageRecord::Body(read_direct_message(&mut fields, key, context)?)
    } else {
        ParsedMessageRecord::Raw(fields)
    };
    Ok(Some(found))
}

fn read_nodes(fields: &mut RecordFields) -> std::result::Result<RoutedMessage, MalformedRecord> {
    let nodes: Vec<Box<RawValue>> = fields.json("nodes")?;
    let mut nodes: Vec<Bytes> =
        nodes.into_iter().map(|node| Bytes::from(String::from(Box::<str>::from(node)))).collect();
    // An attempt must not run after its end, whether it was sent before or not.
    let ended = fields.text("ended");
    if fields.optional::<i64>("open")?.is_some_and(|open| open <= 0) {
        nodes.clear();
    } else if !ended.is_empty() {
        nodes.retain(|node| job_of(node).is_none_or(|job| ended.split(' ').all(|text| text != job)));
    }
    Ok(RoutedMessage {
        kind: RoutedMessagePayload::Nodes {
            flow: fields.parse("flow_id")?,
            runner: fields.parse("to")?,
            nodes,
        },
        timeout_ack_secs: fields.optional("timeout_ack")?.unwrap_or_default(),
        created_at: fields.parse("created_at")?,
    })
}

/// The job of one execution, from its job key.
fn job_of(node: &[u8]) -> Option<String> {
    let key: JobKey = job_key(node)?.parse().ok()?;
    Some(key.job.to_string())
}

fn read_direct_message(
    fields: &mut RecordFields,
    key: MessageKey,
    context_uid: ContextUid,
) -> std::result::Result<RoutedMessage, MalformedRecord> {
    let created_at: Timestamp = fields.parse("created_at")?;
    let timeout = fields.optional("timeout_ack")?.unwrap_or(limits::LETTER_TIMEOUT_SECS_DEFAULT);
    let expires_at = match fields.optional("expires_at")? {
        Some(at) => at,
        None => created_at + Duration::from_secs(timeout.into()),
    };
    let addresses = fields.json("addresses")?;
    let message = DirectMessage {
        origin: DirectMessageOrigin {
            // The gateway fills this in: it has the key.
            coordinator: String::new(),
            context_uid,
            caller_id: key.caller,
            message_id: key.id,
        },
        target_context: fields.optional("target_context")?,
        message_type: fields.parse("message_type")?,
        format: fields.optional("message_format_type")?.unwrap_or(MessageFormat::Text),
        created_at,
        expires_at,
        signature: fields.optional("signature")?,
        from: fields.text("from_pubkey"),
        to: fields.text("recipient"),
        topic: fields.text("topic"),
        text: fields.text("message"),
    };
    Ok(RoutedMessage::direct_message(&message, addresses))
}

/// Builds the field `job_keys`: the keys of the executions, separated by spaces, for lists of messages without the executions
/// themselves. An execution without a key is left out.
pub(crate) fn job_keys(nodes: &[Bytes]) -> String {
    let mut keys = String::with_capacity(nodes.len() * 64);
    for key in nodes.iter().filter_map(|node| job_key(node)) {
        if !keys.is_empty() {
            keys.push(' ');
        }
        keys.push_str(&key);
    }
    keys
}

/// Reads the key of one execution. Our own executions have it first, so the rest is not even parsed.
fn job_key(node: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct ExecutionJobKey<'a> {
        #[serde(borrow)]
        job_key: Cow<'a, str>,
    }
    let first = node.strip_prefix(br#"{"job_key":""#).and_then(|rest| {
        let end = rest.iter().take(JOB_KEY_BYTES_MAX + 1).position(|byte| *byte == b'"')?;
        std::str::from_utf8(&rest[..end]).ok().filter(|key| !key.contains('\\'))
    });
    let key = match first {
        Some(key) => Cow::Borrowed(key),
        None => serde_json::from_slice::<ExecutionJobKey<'_>>(node).ok()?.job_key,
    };
    let is_key = !key.is_empty() && key.len() <= JOB_KEY_BYTES_MAX && !key.contains(' ');
    is_key.then_some(key)
}

/// The field `nodes`: the executions as one JSON array, their bytes untouched.
pub(crate) fn write_nodes(nodes: &[Bytes]) -> Vec<u8> {
    let mut json = Vec::with_capacity(nodes.iter().map(|node| node.len() + 1).sum::<usize>() + 2);
    json.push(b'[');
    for (i, node) in nodes.iter().enumerate() {
        if i > 0 {
            json.push(b',');
        }
        json.extend_from_slice(node);
    }
    json.push(b']');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_keys_are_found_wherever_they_stand() {
        let node = |json: &'static str| Bytes::from_static(json.as_bytes());
        let nodes = [
            node(r#"{"job_key":"a-1-2","script":"x \"job_key\":\"no\""}"#),
            node(r#"{"n":1}"#),
            node(r#"{"script":{"job_key":"no"}, "job_key": "b"}"#),
            node(r#"{"job_key":"\u0063","n":1}"#),
            node(r#"{"job_key":"d e"}"#),
            node("{"),
        ];
        assert_eq!(job_keys(&nodes), "a-1-2 b c");
        assert_eq!(job_keys(&[]), "");
    }
}
