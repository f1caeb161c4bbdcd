//! `message:<caller>:<id>`: what a router needs of it. The hash itself is written by the commit script.

use bytes::Bytes;
use kv::Value;
use model::{FlowId, RunnerId, Timestamp};
use serde_json::value::RawValue;

use super::{BadRecord, Fields};
use crate::error::Result;

/// What is read of a message, in the order in which the scripts give it.
pub(crate) const READ: [&str; 5] = ["flow_id", "to", "timeout_ack", "nodes", "created_at"];

/// The part of a message that a router works with.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    /// The flow whose nodes it carries.
    pub(crate) flow: FlowId,
    /// The runner record it is for.
    pub(crate) runner: RunnerId,
    /// Seconds until it must be accepted, 0 for no limit.
    pub(crate) timeout_ack_secs: u32,
    /// The executions, each as JSON.
    pub(crate) nodes: Vec<Bytes>,
    /// When it was made.
    pub(crate) created_at: Timestamp,
}

/// The message in the answer to `HMGET` of [`READ`]; nothing for a 0, which stands for one
/// that is not there.
pub(crate) fn read(what: &str, value: Value) -> Result<Option<Body>> {
    if value == Value::Int(0) {
        return Ok(None);
    }
    // Anybody may have pushed the key of any hash: one that lacks something is broken, not missing.
    Ok(Some(read_fields(&Fields::of_any(what, &READ, value)?)?))
}

fn read_fields(fields: &Fields) -> std::result::Result<Body, BadRecord> {
    let nodes: Vec<Box<RawValue>> = fields.json("nodes")?;
    Ok(Body {
        flow: fields.parse("flow_id")?,
        runner: fields.parse("to")?,
        timeout_ack_secs: fields.optional("timeout_ack")?.unwrap_or_default(),
        nodes: nodes.into_iter().map(|node| Bytes::from(String::from(Box::<str>::from(node)))).collect(),
        created_at: fields.parse("created_at")?,
    })
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
