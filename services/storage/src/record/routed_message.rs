//! `message:<caller>:<id>`: what a router needs of it. This is the one reader of these hashes for routers; a message
//! that carries nodes is written by the commit script.
//!
//! Besides what every reader may rely on it has `revision` (every message that this service made or took up has one),
//! `open` (how many of the nodes that it carried are not ended; only such messages have it), `ended` (the jobs of those that
//! ended before it was known to have arrived, while others had not), and for chat and mail
//! `recipient` (the key of whom it is for), `addresses` (where that is reached, as JSON) and `expires_at`.
//!
//! What has neither `open` nor `recipient` was pushed by a program that knows nothing of all this: see [`crate::messages::raw`]. The
//! scripts give these three only where a list of ours names the message, since programs write into hashes what they like.

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

/// Fields read of a message. Scripts that take messages are given these names, and return the values in this order. They
/// know that the first three are those that only messages of ours have.
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
    Letter {
        /// The [`DirectMessage`] as JSON.
        letter: Bytes,
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
    /// At which revision their message was taken up: what tells it from another one that its program wrote under the same
    /// key before. Empty for one that was taken up before this was written.
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
    /// A letter for these addresses.
    pub(crate) fn letter(letter: &DirectMessage, addresses: Vec<String>) -> Self {
        let json = serde_json::to_vec(letter).expect("a letter is plain texts and numbers");
        let secs = letter.expires_at.since(letter.created_at).as_secs();
        Self {
            kind: RoutedMessagePayload::Letter { letter: json.into(), addresses },
            timeout_ack_secs: u32::try_from(secs).unwrap_or(u32::MAX),
            created_at: letter.created_at,
        }
    }

    /// Notes at which revision a message that was pushed was taken up; chat and mail have no use for it.
    pub(crate) fn set_taken(&mut self, revision: String) {
        if let RoutedMessagePayload::Jobs(jobs) = &mut self.kind {
            jobs.taken_revision = revision;
        }
    }

    /// Returns true if every attempt that the message carried has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(&self.kind, RoutedMessagePayload::Nodes { nodes, .. } if nodes.is_empty())
    }

    /// About how large it is.
    pub(crate) fn bytes(&self) -> usize {
        match &self.kind {
            RoutedMessagePayload::Nodes { nodes, .. } => nodes.iter().map(Bytes::len).sum(),
            RoutedMessagePayload::Letter { letter, .. } => letter.len(),
            RoutedMessagePayload::Jobs(jobs) => jobs.bytes,
        }
    }
}

/// The message in the answer to `HMGET` of [`READ`]; nothing for a 0, which stands for one that is not there.
pub(crate) fn read(
    what: &str,
    key: MessageKey,
    context: ContextUid,
    value: Value,
) -> Result<Option<ParsedMessageRecord>> {
    if value == Value::Int(0) {
        return Ok(None);
    }
    // Anybody may have pushed the key of any hash: one that lacks something is broken, not missing.
    let mut fields = RecordFields::of_any(what, &READ, value)?;
    let found = if fields.has("open") {
        ParsedMessageRecord::Body(read_nodes(&mut fields)?)
    } else if fields.has("recipient") {
        ParsedMessageRecord::Body(read_letter(&mut fields, key, context)?)
    } else {
        ParsedMessageRecord::Raw(fields)
    };
    Ok(Some(found))
}

fn read_nodes(fields: &mut RecordFields) -> std::result::Result<RoutedMessage, MalformedRecord> {
    let nodes: Vec<Box<RawValue>> = fields.json("nodes")?;
    let mut nodes: Vec<Bytes> =
        nodes.into_iter().map(|node| Bytes::from(String::from(Box::<str>::from(node)))).collect();
    // Nobody runs an attempt after its end, whether it was sent before or not.
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

/// The job of one execution, as it stands in its key.
fn job_of(node: &[u8]) -> Option<String> {
    let key: JobKey = job_key(node)?.parse().ok()?;
    Some(key.job.to_string())
}

fn read_letter(
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
    let letter = DirectMessage {
        origin: DirectMessageOrigin {
            // The gateway's to say: it has the key.
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
    Ok(RoutedMessage::letter(&letter, addresses))
}

/// The field `job_keys`, for whoever lists messages and does not want the executions themselves: those keys, with spaces
/// between them. What carries none has no place in it.
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

/// The key of one execution. It stands first in those of our own making, so that the rest is not even looked at.
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
