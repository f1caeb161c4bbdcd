//! Records of archives: which keys they may have, and how names of keys in their values are written.
//!
//! An archive names keys without the beginning that a layout adds, in values as well, so that both layouts can take it.

use std::collections::BTreeSet;

use archive::{ArchiveRecord, ArchiveValue};
use keys::{ContextKey, ContextKeys, RedisType};
use kv::Value;
use model::{ContextId, ContextState, ContextUid};

use crate::error::Error;
use crate::record::{self, RecordFields};

/// Fields of hashes that hold values of environment variables, executions with such values, or references to secrets.
const ENVIRONMENT: &[u8] = b"env_vars";
const EXECUTIONS: &[u8] = b"nodes";
const SECRET_REF: &[u8] = b"secret_ref";
/// Characters of a message that repeats what a file says.
const MESSAGE_CHARS_MAX: usize = 300;

/// Keys that are named by the values of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedKeys {
    Messages,
    Jobs,
}

/// Type in Redis of the value that a record has.
pub(crate) const fn type_of_value(value: &ArchiveValue) -> RedisType {
    match value {
        ArchiveValue::Hash(_) => RedisType::Hash,
        ArchiveValue::Set(_) => RedisType::Set,
        ArchiveValue::SortedSet(_) => RedisType::SortedSet,
        ArchiveValue::List(_) => RedisType::List,
        ArchiveValue::Text(_) => RedisType::Text,
        ArchiveValue::Stream(_) => RedisType::Stream,
    }
}

/// Name that the script which writes records gives a type.
const fn script_name(kind: RedisType) -> &'static str {
    match kind {
        RedisType::Hash => "hash",
        RedisType::Set => "set",
        RedisType::SortedSet => "sorted_set",
        RedisType::List => "list",
        RedisType::Text => "text",
        RedisType::Stream => "stream",
    }
}

/// Type of a key that archives have; nothing for one that is left out: parts of uploads, and what a removal or a router holds.
pub(crate) const fn archived_type(key: &ContextKey) -> Option<RedisType> {
    match key {
        ContextKey::MsgOutCoordinator | ContextKey::BlobPart(..) | ContextKey::Drops => None,
        _ => Some(key.redis_type()),
    }
}

const fn named_by(key: &ContextKey) -> Option<NamedKeys> {
    match key {
        ContextKey::FlowMessages(_)
        | ContextKey::Letters
        | ContextKey::LettersDone
        | ContextKey::DeadLetters
        | ContextKey::MsgOut
        | ContextKey::MsgIn
        | ContextKey::MsgOutCoordinator
        | ContextKey::Inbox(_) => Some(NamedKeys::Messages),
        ContextKey::BlobRefs(_) => Some(NamedKeys::Jobs),
        _ => None,
    }
}

/// Returns true if the name is that of a key of this kind.
fn is_key_of(kind: NamedKeys, name: &str) -> bool {
    match ContextKey::parse(name) {
        Some(ContextKey::Message(_)) => kind == NamedKeys::Messages,
        Some(ContextKey::Job(..)) => kind == NamedKeys::Jobs,
        _ => false,
    }
}

/// Makes a value that was read from Redis one of an archive: names of keys lose the beginning that the layout adds. Texts that
/// programs have left where keys are named are left out.
pub(crate) fn to_archive(keys: &ContextKeys, key: &ContextKey, value: ArchiveValue) -> ArchiveValue {
    let Some(kind) = named_by(key) else { return value };
    let neutral = |name: Vec<u8>| {
        let name = String::from_utf8(name).ok()?;
        let name = name.strip_prefix(keys.prefix())?;
        is_key_of(kind, name).then(|| name.as_bytes().to_vec())
    };
    match value {
        ArchiveValue::Set(members) => ArchiveValue::Set(members.into_iter().filter_map(neutral).collect()),
        ArchiveValue::List(items) => ArchiveValue::List(items.into_iter().filter_map(neutral).collect()),
        ArchiveValue::SortedSet(members) => {
            let members = members.into_iter().filter_map(|(member, score)| Some((neutral(member)?, score)));
            ArchiveValue::SortedSet(members.collect())
        }
        other => other,
    }
}

/// Leaves out values of environment variables, and references to secrets. Names of variables stay.
pub(crate) fn without_secrets(key: &ContextKey, value: ArchiveValue) -> ArchiveValue {
    let ArchiveValue::Hash(fields) = value else { return value };
    let emptied = |(name, value): (Vec<u8>, Vec<u8>)| {
        let value = match (key, &name[..]) {
            (ContextKey::Job(..) | ContextKey::Flow(_), ENVIRONMENT) => without_values(&value),
            (ContextKey::Message(_), EXECUTIONS) => executions_without_values(&value),
            (ContextKey::Runner(_), SECRET_REF) => Vec::new(),
            _ => value,
        };
        (name, value)
    };
    ArchiveValue::Hash(fields.into_iter().map(emptied).collect())
}

/// Executions of a message that is under way have the variables of their jobs.
fn executions_without_values(json: &[u8]) -> Vec<u8> {
    let executions = serde_json::from_slice::<Vec<serde_json::Map<String, serde_json::Value>>>(json);
    let mut executions = executions.unwrap_or_default();
    let variables =
        executions.iter_mut().filter_map(|execution| execution.get_mut("env_vars")?.as_object_mut());
    for value in variables.flat_map(serde_json::Map::values_mut) {
        *value = serde_json::Value::String(String::new());
    }
    serde_json::to_vec(&executions).unwrap_or_default()
}

fn without_values(json: &[u8]) -> Vec<u8> {
    let variables = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(json);
    let emptied = |(name, _): (String, serde_json::Value)| (name, serde_json::Value::String(String::new()));
    // A text that cannot be read has no values to keep either.
    let emptied: serde_json::Map<_, _> = variables.unwrap_or_default().into_iter().map(emptied).collect();
    serde_json::to_vec(&emptied).unwrap_or_default()
}

/// Context that records of an archive belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ArchivedContext {
    pub(crate) id: ContextId,
    pub(crate) uid: ContextUid,
}

/// A record that may be written: its key is one of the context, and its value is of the key's type.
#[derive(Debug)]
pub(crate) struct ImportedRecord {
    key: String,
    kind: RedisType,
    continued: bool,
    expires_in_millis: Option<u64>,
    values: Vec<Vec<u8>>,
    /// Number of values, or of entries of a stream.
    count: usize,
}

impl ImportedRecord {
    /// Checks a record of an archive.
    ///
    /// # Errors
    /// Why it is not one of this context.
    pub(crate) fn parse(
        keys: &ContextKeys,
        context: ArchivedContext,
        record: ArchiveRecord,
    ) -> Result<Self, String> {
        let ArchiveRecord { key: name, continued, expires_in_millis, value } = record;
        let shown: String = name.escape_debug().take(80).collect();
        let key = ContextKey::parse(&name).ok_or_else(|| format!("`{shown}` is no key of a context"))?;
        let kind =
            archived_type(&key).ok_or_else(|| format!("the key `{shown}` is not taken from exports"))?;
        if type_of_value(&value) != kind {
            return Err(format!("the key `{shown}` is no {}", kind.name()));
        }
        if continued && kind == RedisType::Text {
            return Err(format!("the text `{shown}` is continued"));
        }
        let value = match &key {
            ContextKey::Context(id) if *id != context.id => {
                return Err(format!("the key `{shown}` is of another context"));
            }
            ContextKey::Context(_) => context_fields(context, value)?,
            key if !is_own(context.id, key, &value) => {
                return Err(format!("the record `{shown}` is of another context"));
            }
            key => from_archive(keys, key, &shown, value)?,
        };
        let (values, count) = flat(value);
        // Messages that routers held are among those that wait, and are given with a record of their own.
        let continued = continued || key == ContextKey::MsgOut;
        Ok(Self { key: name, kind, continued, expires_in_millis, values, count })
    }

    /// Arguments of the script that writes records.
    pub(crate) fn args(self) -> Vec<Vec<u8>> {
        let Self { key, kind, continued, expires_in_millis, values, count } = self;
        let millis = expires_in_millis.map(|millis| millis.to_string()).unwrap_or_default();
        let mut args: Vec<Vec<u8>> = vec![
            key.into_bytes(),
            script_name(kind).as_bytes().to_vec(),
            u8::from(continued).to_string().into_bytes(),
            millis.into_bytes(),
            count.to_string().into_bytes(),
        ];
        args.extend(values);
        args
    }
}

/// Adds to names of keys the beginning that the layout here adds.
fn from_archive(
    keys: &ContextKeys,
    key: &ContextKey,
    shown: &str,
    value: ArchiveValue,
) -> Result<ArchiveValue, String> {
    let Some(kind) = named_by(key) else { return Ok(value) };
    let own = |name: Vec<u8>| {
        let name = String::from_utf8(name).ok().filter(|name| is_key_of(kind, name));
        let name = name.ok_or_else(|| format!("the key `{shown}` names a key that is none"))?;
        Ok::<_, String>(format!("{}{name}", keys.prefix()).into_bytes())
    };
    let all = |names: Vec<Vec<u8>>| names.into_iter().map(own).collect::<Result<Vec<_>, _>>();
    Ok(match value {
        ArchiveValue::Set(members) => ArchiveValue::Set(all(members)?),
        ArchiveValue::List(items) => ArchiveValue::List(all(items)?),
        ArchiveValue::SortedSet(members) => {
            let members = members.into_iter().map(|(member, score)| Ok((own(member)?, score)));
            ArchiveValue::SortedSet(members.collect::<Result<_, String>>()?)
        }
        other => other,
    })
}

/// Returns false for a job or a flow that says it belongs to another context. Programs may say so in messages, which are judged when
/// they are sent.
pub(crate) fn is_own(id: ContextId, key: &ContextKey, value: &ArchiveValue) -> bool {
    let (ContextKey::Job(..) | ContextKey::Flow(_), ArchiveValue::Hash(fields)) = (key, value) else {
        return true;
    };
    let own = id.to_string();
    !fields.iter().any(|(name, value)| name == b"context_id" && value != own.as_bytes())
}

/// Fields of the context's own record that are taken.
fn context_fields(of: ArchivedContext, value: ArchiveValue) -> Result<ArchiveValue, String> {
    let ArchiveValue::Hash(fields) = value else { return Err("the context has no record".to_owned()) };
    let pairs = fields.into_iter().flat_map(|(name, value)| [Value::Bytes(name), Value::Bytes(value)]);
    let what = format!("context {}", of.id);
    let unreadable = |error: Error| match error {
        Error::Broken(record) => shortened(&record.to_string()),
        error => shortened(&error.to_string()),
    };
    let fields = RecordFields::of_hash(&what, Value::Array(pairs.collect())).map_err(unreadable)?;
    let fields = fields.ok_or_else(|| format!("{what} has no fields"))?;
    let context = record::context::read(&fields).map_err(|error| unreadable(error.into()))?;
    if (context.id, context.uid) != (of.id, of.uid) || context.state != ContextState::Active {
        return Err(format!("the record of {what} is of another context"));
    }
    if context.admins.is_empty() {
        return Err(format!("{what} has no admin"));
    }
    let left_out = BTreeSet::from(["id", "uid", "state"]);
    let written = record::context::write(&context);
    let written: Vec<&str> = written.args().collect();
    let pairs = written.chunks_exact(2).filter(|pair| !left_out.contains(pair[0]));
    Ok(ArchiveValue::Hash(
        pairs.map(|pair| (pair[0].as_bytes().to_vec(), pair[1].as_bytes().to_vec())).collect(),
    ))
}

/// Cuts a message that may repeat what a file says.
fn shortened(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// Values in the order in which the script takes them, and their number, or that of the entries.
fn flat(value: ArchiveValue) -> (Vec<Vec<u8>>, usize) {
    let in_turn = |pairs: Vec<(Vec<u8>, Vec<u8>)>| pairs.into_iter().flat_map(|(name, value)| [name, value]);
    let values: Vec<Vec<u8>> = match value {
        ArchiveValue::Hash(fields) => in_turn(fields).collect(),
        ArchiveValue::Set(items) | ArchiveValue::List(items) => items,
        ArchiveValue::SortedSet(members) => {
            members.into_iter().flat_map(|(member, score)| [score.into_bytes(), member]).collect()
        }
        ArchiveValue::Text(bytes) => vec![bytes],
        ArchiveValue::Stream(entries) => {
            let count = entries.len();
            let mut values = Vec::new();
            for entry in entries {
                values.push(entry.id.into_bytes());
                values.push((2 * entry.fields.len()).to_string().into_bytes());
                values.extend(in_turn(entry.fields));
            }
            return (values, count);
        }
    };
    let count = values.len();
    (values, count)
}

#[cfg(test)]
mod tests {
    use keys::Layout;

    use super::*;

    const ID: ContextId = ContextId(7);

    fn parse(layout: Layout, key: &str, value: ArchiveValue) -> Result<ImportedRecord, String> {
        let record = ArchiveRecord { key: key.to_owned(), continued: false, expires_in_millis: None, value };
        let uid = "0123456789abcdef0123456789abcdef".parse().expect("a uid");
        ImportedRecord::parse(&ContextKeys::new(layout, ID), ArchivedContext { id: ID, uid }, record)
    }

    fn hash(fields: &[(&str, &str)]) -> ArchiveValue {
        let bytes = |text: &str| text.as_bytes().to_vec();
        ArchiveValue::Hash(fields.iter().map(|(name, value)| (bytes(name), bytes(value))).collect())
    }

    #[test]
    fn messages_under_way_lose_the_variables_of_their_jobs() {
        let key =
            ContextKey::Message(model::MessageKey { caller: model::ActorId(1), id: model::MessageId(2) });
        let nodes = r#"[{"node":"a","env_vars":{"TOKEN":"secret"}},{"node":"b"}]"#;
        let emptied = without_secrets(&key, hash(&[("nodes", nodes), ("to", "7")]));
        let ArchiveValue::Hash(fields) = emptied else { panic!("a hash stays one") };
        let executions: serde_json::Value = serde_json::from_slice(&fields[0].1).expect("JSON");
        let expected = serde_json::json!([{"node": "a", "env_vars": {"TOKEN": ""}}, {"node": "b"}]);
        assert_eq!((executions, &fields[1].1[..]), (expected, &b"7"[..]));
        let broken = without_secrets(&key, hash(&[("nodes", "[{secret")]));
        assert_eq!(broken, hash(&[("nodes", "[]")]));
    }

    #[test]
    fn names_of_keys_change_with_the_layout() {
        let (from, to) = (ContextKeys::new(Layout::HashTag, ID), Layout::Database);
        let members =
            ["{7}:message:1:2", "{8}:message:1:3", "{7}:jobs", "x"].map(|name| name.as_bytes().to_vec());
        let value =
            to_archive(&from, &ContextKey::FlowMessages(model::FlowId(1)), ArchiveValue::Set(members.into()));
        assert_eq!(
            value,
            ArchiveValue::Set(vec![b"message:1:2".to_vec()]),
            "others are no keys of messages here"
        );
        let there = parse(to, "flow:1:messages", value.clone()).expect("a message");
        assert_eq!(there.values, [b"message:1:2"]);
        let back = parse(Layout::HashTag, "flow:1:messages", value).expect("a message");
        assert_eq!(back.values, [b"{7}:message:1:2"]);
    }

    #[test]
    fn foreign_keys_and_other_types_are_refused() {
        let set = || ArchiveValue::Set(vec![b"message:1:2".to_vec()]);
        for (key, value) in [
            ("{8}:flow:1", hash(&[("id", "1")])),
            ("actor:1", hash(&[("id", "1")])),
            ("coordinator", hash(&[("id", "1")])),
            ("context:8", hash(&[("id", "8")])),
            ("flow:01", hash(&[("id", "1")])),
            ("drops", set()),
            ("blob_part:x:1", ArchiveValue::Text(Vec::new())),
            ("msg_out_coordinator", ArchiveValue::SortedSet(Vec::new())),
            ("flow:1", set()),
            ("runners", hash(&[])),
            ("flow:1", hash(&[("context_id", "8")])),
            ("flow:1:messages", ArchiveValue::Set(vec![b"{8}:message:1:2".to_vec()])),
            ("blob_refs:x", set()),
            ("msg_out", ArchiveValue::List(vec![b"jobs".to_vec()])),
        ] {
            assert!(parse(Layout::Database, key, value.clone()).is_err(), "{key} {value:?}");
        }
        parse(Layout::Database, "flow:1", hash(&[("context_id", "7")])).expect("its own");
    }

    #[test]
    fn a_context_is_taken_with_its_members_alone() {
        let fields = [
            ("id", "7"),
            ("uid", "0123456789abcdef0123456789abcdef"),
            ("state", "active"),
            ("admins", "[1]"),
            ("created_at", "5"),
            ("updated_at", "5"),
            ("revision", "9"),
            ("frozen_until", "99"),
        ];
        let record = parse(Layout::Database, "context:7", hash(&fields)).expect("a context");
        let texts: Vec<String> =
            record.values.into_iter().map(|value| String::from_utf8(value).expect("text")).collect();
        assert!(texts.contains(&"admins".to_owned()), "{texts:?}");
        for left_out in ["id", "uid", "state", "frozen_until", "snapshot"] {
            assert!(!texts.contains(&left_out.to_owned()), "{left_out} in {texts:?}");
        }
        for (name, value) in [
            ("id", "8"),
            ("uid", "ff23456789abcdef0123456789abcdef"),
            ("state", "deleting"),
            ("admins", "[]"),
        ] {
            let other: Vec<_> =
                fields.into_iter().map(|field| if field.0 == name { (name, value) } else { field }).collect();
            assert!(parse(Layout::Database, "context:7", hash(&other)).is_err(), "{name}");
        }
    }

    #[test]
    fn secrets_are_left_out_and_names_stay() {
        let job = hash(&[("env_vars", r#"{"TOKEN":"secret"}"#), ("script", "secret_ref")]);
        let key = ContextKey::parse("job:1:1").expect("a job");
        assert_eq!(
            without_secrets(&key, job),
            hash(&[("env_vars", r#"{"TOKEN":""}"#), ("script", "secret_ref")])
        );
        let runner = hash(&[("secret_ref", "vault:x"), ("group", "a")]);
        let key = ContextKey::parse("runner:1").expect("a runner");
        assert_eq!(without_secrets(&key, runner), hash(&[("secret_ref", ""), ("group", "a")]));
    }
}
