//! The hashes of a coordinator's Redis, into which programs write what they like, and the JSON of nodes, jobs and events.

use std::fmt::Debug;

use model::execution::AttemptEnd;
use model::{Execution, FlowInput, FlowNode, JobSpec, NodeReport};
use serde::Serialize;
use serde::de::DeserializeOwned;
use storage::fuzzing::{RedisHash, StoredRecordKind};

use crate::input::{Input, join};
use crate::{Target, Verdict};

/// The reader of a coordinator's records.
pub const TARGET: Target = Target { name: "storage_record", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "id",
    "uid",
    "pubkey",
    "address",
    "keys",
    "revision",
    "created_at",
    "updated_at",
    "admins",
    "settings",
    "state",
    "status",
    "open",
    "recipient",
    "nodes",
    "job_keys",
    "script",
    "script_size",
    "script_type",
    "env_vars",
    "files",
    "outputs",
    "deleting",
    "active",
    "deleting",
    "dispatched",
    "1800000000.125",
    "00000000000000000000000000000007",
    "[1,2]",
    "{\"a\":\"b\"}",
    "sha256:",
    "mycelium:",
    "http://a:1",
    "true",
    "null",
    "[]",
    "{}",
    "\u{fffd}",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let kind = usize::from(input.choice(StoredRecordKind::ALL.len() as u8 + 6));
    let Some(record) = StoredRecordKind::ALL.get(kind).copied() else {
        let json = input.rest();
        let known = match kind - StoredRecordKind::ALL.len() {
            0 => again::<FlowNode>(json),
            1 => again::<JobSpec>(json),
            2 => again::<Execution>(json),
            3 => again::<AttemptEnd>(json),
            4 => again::<FlowInput>(json),
            _ => again::<NodeReport>(json),
        };
        return if known { Verdict::Accepted } else { Verdict::Refused };
    };
    let hash = hash(input);
    match record.read(&hash) {
        Err(problem) => {
            assert!(!problem.is_empty(), "refused without a word");
            Verdict::Refused
        }
        Ok(None) => Verdict::Refused,
        Ok(Some(written)) => {
            is_the_same(record, &hash, written);
            Verdict::Accepted
        }
    }
}

/// Asserts that a written record is read as the same, and written as the same.
fn is_the_same(record: StoredRecordKind, hash: &RedisHash, mut written: RedisHash) {
    if written.is_empty() {
        return;
    }
    // Scripts write the revision; of a message only its nodes are written again.
    for (field, value) in hash {
        if field == "revision" || record == StoredRecordKind::Message && !written.contains_key(field) {
            written.insert(field.clone(), value.clone());
        }
    }
    let again = record.read(&written).expect("as it was written").expect("it is there");
    for (field, value) in again {
        assert_eq!(written.get(&field), Some(&value), "`{field}` changes when it is written again");
    }
}

fn again<T: DeserializeOwned + Serialize + PartialEq + Debug>(json: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<T>(json) else { return false };
    let json = serde_json::to_vec(&value).expect("what was read can be written");
    let again: T = serde_json::from_slice(&json).expect("as it was written");
    assert_eq!(again, value, "it changes when it is written again");
    true
}

/// Names and values in turn.
pub(super) fn hash(input: Input<'_>) -> RedisHash {
    let pairs = input.parts();
    let pair = |pair: &[&[u8]]| (String::from_utf8_lossy(pair[0]).into_owned(), pair[1].to_vec());
    pairs.chunks_exact(2).map(pair).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    let time = "1800000000.125";
    let uid = "00000000000000000000000000000007";
    let key = "ab".repeat(32);
    let keys = format!(r#"[{{"key":"{key}","not_before":1800000000.125,"revoked_at":null}}]"#);
    let mycelium = format!("mycelium:{key}");
    let address = format!(r#"["{mycelium}"]"#);
    let origin = format!(r#"{{"coordinator":"{key}","context_uid":"{uid}","caller_id":3,"message_id":1}}"#);
    let node = r#"{"job_key":"00000000000000000000000000000007-00000000000000000000000000000001-1-1","n":1}"#;
    let nodes = format!("[{node}, {node}]");
    let records: [&[(&str, &str)]; 8] = [
        &[
            ("id", "7"),
            ("pubkey", &key),
            ("address", &address),
            ("keys", &keys),
            ("home_context", "1"),
            ("created_at", time),
            ("updated_at", time),
            ("revision", "9"),
        ],
        &[
            ("id", "1"),
            ("uid", uid),
            ("state", "active"),
            ("admins", "[7]"),
            ("readers", "[]"),
            ("executors", "[8,9]"),
            ("settings", r#"{"raw_publish":true}"#),
            ("created_at", time),
            ("updated_at", time),
            ("revision", "9"),
        ],
        &[
            ("id", "4"),
            ("uid", uid),
            ("name", "demo"),
            ("caller_id", "7"),
            ("context_id", "1"),
            ("env_vars", r#"{"A":"b"}"#),
            ("result", "{}"),
            ("result_truncated", "false"),
            ("fail_fast", "true"),
            ("deadline", time),
            ("cancel_timeout", "30"),
            ("created_at", time),
            ("updated_at", time),
            ("status", "started"),
            ("generation", "1"),
            ("revision", "9"),
            ("owner", ""),
            ("epoch", "2"),
            ("node_count", "3"),
            ("first_job_id", "1"),
            ("rerun", ""),
            ("cancel_grace_secs", "5"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("last_commit", "x"),
        ],
        &[
            ("script_type", "shell"),
            ("script", "true"),
            ("env_vars", r#"{"A":"b"}"#),
            ("files", "{}"),
            ("outputs", r#"["o"]"#),
            ("signature", ""),
        ],
        &[
            ("id", "2"),
            ("pubkey", &key),
            ("address", &mycelium),
            ("topic", "supervisor.rpc"),
            ("signing_key", &key),
            ("script_types", r#"["shell"]"#),
            ("group", "gpu"),
            ("labels", r#"{"zone":"a"}"#),
            ("local", "true"),
            ("envelope", "plain"),
            ("secret_ref", "s"),
            ("created_at", time),
            ("updated_at", time),
            ("revision", "9"),
        ],
        &[
            ("caller_id", "3"),
            ("from_pubkey", &key),
            ("to", "8"),
            ("topic", "t"),
            ("message", "text"),
            ("message_type", "chat"),
            ("message_format_type", "md"),
            ("job_keys", "a b"),
            ("status", "acknowledged"),
            ("transport_status", "delivered"),
            ("origin", &origin),
            ("logs", r#"[{"time":1800000000.5,"text":"sent"}]"#),
            ("created_at", time),
            ("revision", "9"),
            ("recipient", &key),
        ],
        &[
            ("open", "2"),
            ("flow_id", "4"),
            ("to", "2"),
            ("timeout_ack", "60"),
            ("nodes", &nodes),
            ("created_at", time),
            ("revision", "9"),
        ],
        &[
            ("id", "5"),
            ("caller_id", "3"),
            ("context_id", "1"),
            ("flow_id", ""),
            ("script_type", "shell"),
            ("script", "true"),
            ("status", "finished"),
            ("result", r#"{"a":"b"}"#),
            ("created_at", time),
            ("updated_at", time),
        ],
    ];
    let mut seeds: Vec<_> = records
        .iter()
        .enumerate()
        .map(|(i, fields)| {
            let parts: Vec<&str> = fields.iter().flat_map(|(name, value)| [*name, *value]).collect();
            join(&[i as u8], &parts)
        })
        .collect();
    // Mail as a router takes it, and a script that is a blob.
    let letter = ["recipient", &key, "created_at", time, "message_type", "mail", "addresses", r#"["a"]"#];
    seeds.push(join(&[6], &letter));
    let hash = format!("sha256:{key}");
    seeds.push(join(&[3], &["script_type", "python", "script", &hash, "script_size", "5"]));
    seeds.extend(json_seeds(&key));
    seeds
}

fn json_seeds(hash: &str) -> Vec<Vec<u8>> {
    let key = "00000000000000000000000000000007-00000000000000000000000000000001-1-1";
    let execution = format!(
        r#"{{"job_key":"{key}","context_id":1,"flow_id":1,"caller_id":3,"flow_name":"f","node":"n","script_type":"python","script":{{"inline":"x"}},"files":{{"in":{{"sha256":"{hash}","size":2}}}},"timeout_secs":60,"priority":1}}"#
    );
    let end = r#"{"outcome":"succeeded","exit_code":0,"result":{"a":"b"},"end_time":1800000001.25}"#;
    let report = format!(
        r#"{{"job_key":"{key}","context_id":1,"flow_id":1,"kind":{{"kind":"accepted","supervisor":"s"}}}}"#
    );
    let node = r#"{"job_id":1,"name":"n","depends":[2],"attempt":1,"generation":1,"state":"pending"}"#;
    let spec = r#"{"script_type":"shell","script":{"inline":"true"},"env_vars":{},"files":{},"outputs":[]}"#;
    vec![
        join(&[8], &[node]),
        join(&[8], &["{}"]),
        join(&[9], &[spec]),
        join(&[10], &[execution.as_str()]),
        join(&[11], &[end]),
        join(&[12], &[r#"{"input":"cancel","grace_secs":5}"#]),
        join(&[13], &[report.as_str()]),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reader_takes_one_of_its_seeds() {
        let good = seeds().into_iter().filter(|seed| run(seed) == Verdict::Accepted);
        let readers: BTreeSet<u8> = good.map(|seed| seed[0]).collect();
        assert_eq!(readers, (0..StoredRecordKind::ALL.len() as u8 + 6).collect());
    }
}
