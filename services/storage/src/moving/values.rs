//! Reading of what a context's keys have, in parts of a bounded size.

use archive::{ArchiveStreamEntry, ArchiveValue};
use keys::{ContextKey, ContextKeys, RedisType};
use kv::{Cmd, KvConnection, StreamEntry, Value};

use super::records::archived_type;

/// Values of a hash, or entries of a stream, that are read at once.
const LARGE_READ: u64 = 200;
/// Members or items that are read at once.
const SMALL_READ: u64 = 1000;
/// Answers of a page of names for each key.
const ANSWERS_EACH: usize = 4;

/// A key that has something to export.
#[derive(Debug)]
pub(super) struct FoundKey {
    /// Name of the key in Redis.
    pub(super) name: String,
    pub(super) key: ContextKey,
    pub(super) kind: RedisType,
    /// Bytes of a text, else the number of values.
    pub(super) size: u64,
    pub(super) expires_in_millis: Option<u64>,
}

/// A part of a value, and how the next one is read; nothing behind the last.
pub(super) struct ValuePart {
    pub(super) value: ArchiveValue,
    pub(super) next: Option<NextPart>,
}

/// Where the next part of a value begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextPart {
    /// At this cursor of the server.
    Cursor(String),
    /// At this index.
    Index(u64),
    /// Behind this entry.
    Behind(String),
}

impl FoundKey {
    /// Reads the answer to a page of names. Keys that archives do not have, or that programs have given another type, are left out.
    pub(super) fn of_page(keys: &ContextKeys, answers: impl Iterator<Item = Value>) -> kv::Result<Vec<Self>> {
        let answers: Vec<Value> = answers.collect();
        let mut found = Vec::with_capacity(answers.len() / ANSWERS_EACH);
        let mut answers = answers.into_iter();
        while let (Some(name), Some(kind), Some(size), Some(millis)) =
            (answers.next(), answers.next(), answers.next(), answers.next())
        {
            // Our keys are texts.
            let Ok(name) = name.text() else { continue };
            let Some(key) = keys.parse(&name) else { continue };
            let is_held = key == ContextKey::MsgOutCoordinator;
            let expected = if is_held { Some(RedisType::SortedSet) } else { archived_type(&key) };
            let Some(expected) = expected else { continue };
            if kind.text()? != expected.name() {
                tracing::warn!(
                    key = name,
                    "a key has another type than it should, and is left out of an export"
                );
                continue;
            }
            let expires_in_millis = u64::try_from(millis.int()?).ok();
            found.push(Self { name, key, kind: expected, size: size.uint()?, expires_in_millis });
        }
        Ok(found)
    }

    /// Returns true if the whole value is read at once.
    pub(super) const fn is_small(&self) -> bool {
        match self.kind {
            RedisType::Text => true,
            RedisType::Hash | RedisType::Stream => self.size <= LARGE_READ,
            RedisType::Set | RedisType::SortedSet | RedisType::List => self.size <= SMALL_READ,
        }
    }

    /// Bytes that reading the value takes, about.
    pub(super) const fn weight(&self) -> u64 {
        match self.kind {
            RedisType::Text => self.size,
            RedisType::Hash | RedisType::Stream => 256 * self.size,
            RedisType::Set | RedisType::SortedSet | RedisType::List => 64 * self.size,
        }
    }

    /// Command that reads a whole small value.
    pub(super) fn query(&self) -> Cmd {
        let (name, all) = (&self.name, |name: &str, key: &String| Cmd::new(name).arg(key));
        match self.kind {
            RedisType::Hash => all("HGETALL", name),
            RedisType::Set => all("SMEMBERS", name),
            RedisType::SortedSet => all("ZRANGE", name).arg(0).arg(-1).arg("WITHSCORES"),
            RedisType::List => all("LRANGE", name).arg(0).arg(-1),
            RedisType::Text => all("GET", name),
            RedisType::Stream => all("XRANGE", name).arg("-").arg("+"),
        }
    }

    /// Reads a part of a large value: the first without `from`.
    pub(super) async fn read_part(
        &self,
        connection: &KvConnection,
        from: Option<NextPart>,
    ) -> kv::Result<ValuePart> {
        match self.kind {
            RedisType::Hash | RedisType::Set => self.scan_part(connection, from).await,
            RedisType::SortedSet | RedisType::List => self.indexed_part(connection, from).await,
            RedisType::Stream => self.stream_part(connection, from).await,
            RedisType::Text => {
                let value = self.value_of(connection.cmd(self.query()).await?)?;
                Ok(ValuePart { value, next: None })
            }
        }
    }

    /// Reads by a cursor. Nothing is missed while nothing changes; values may come twice.
    async fn scan_part(&self, connection: &KvConnection, from: Option<NextPart>) -> kv::Result<ValuePart> {
        let cursor = match from {
            Some(NextPart::Cursor(cursor)) => cursor,
            _ => "0".to_owned(),
        };
        let (command, count) =
            if self.kind == RedisType::Hash { ("HSCAN", LARGE_READ) } else { ("SSCAN", SMALL_READ) };
        let query = Cmd::new(command).arg(&self.name).arg(&cursor).arg("COUNT").arg(count);
        let [next, values] = connection.cmd(query).await?.tuple()?;
        let next = next.text()?;
        let next = (next != "0").then_some(NextPart::Cursor(next));
        Ok(ValuePart { value: self.value_of(values)?, next })
    }

    async fn indexed_part(&self, connection: &KvConnection, from: Option<NextPart>) -> kv::Result<ValuePart> {
        let from = match from {
            Some(NextPart::Index(index)) => index,
            _ => 0,
        };
        let to = from + SMALL_READ;
        let query = match self.kind {
            RedisType::List => Cmd::new("LRANGE").arg(&self.name).arg(from).arg(to - 1),
            _ => Cmd::new("ZRANGE").arg(&self.name).arg(from).arg(to - 1).arg("WITHSCORES"),
        };
        let value = self.value_of(connection.cmd(query).await?)?;
        Ok(ValuePart { value, next: (to < self.size).then_some(NextPart::Index(to)) })
    }

    async fn stream_part(&self, connection: &KvConnection, from: Option<NextPart>) -> kv::Result<ValuePart> {
        let start = match from {
            Some(NextPart::Behind(id)) => format!("({id}"),
            _ => "-".to_owned(),
        };
        let query = Cmd::new("XRANGE").arg(&self.name).arg(&start).arg("+").arg("COUNT").arg(LARGE_READ);
        let value = self.value_of(connection.cmd(query).await?)?;
        let last = match &value {
            ArchiveValue::Stream(entries) => entries.last().map(|entry| entry.id.clone()),
            _ => None,
        };
        Ok(ValuePart { value, next: last.map(NextPart::Behind) })
    }

    /// The value in an answer.
    pub(super) fn value_of(&self, answer: Value) -> kv::Result<ArchiveValue> {
        Ok(match self.kind {
            RedisType::Hash => ArchiveValue::Hash(in_pairs(answer)?),
            RedisType::Set => ArchiveValue::Set(all_bytes(answer)?),
            RedisType::List => ArchiveValue::List(all_bytes(answer)?),
            RedisType::SortedSet => {
                let scored = in_pairs(answer)?.into_iter();
                let scored = scored.map(|(member, score)| Ok((member, Value::Bytes(score).text()?)));
                ArchiveValue::SortedSet(scored.collect::<kv::Result<_>>()?)
            }
            // A key that has expired meanwhile is as good as empty.
            RedisType::Text if answer.is_nil() => ArchiveValue::Text(Vec::new()),
            RedisType::Text => ArchiveValue::Text(answer.bytes()?),
            RedisType::Stream => {
                let entries = answer.entries()?.into_iter().filter(|entry| !entry.fields.is_empty());
                ArchiveValue::Stream(entries.map(entry_of).collect())
            }
        })
    }
}

/// Returns true if a key with this value would not exist.
pub(super) fn is_empty(value: &ArchiveValue) -> bool {
    match value {
        ArchiveValue::Hash(fields) => fields.is_empty(),
        ArchiveValue::Set(items) | ArchiveValue::List(items) => items.is_empty(),
        ArchiveValue::SortedSet(members) => members.is_empty(),
        ArchiveValue::Text(_) => false,
        ArchiveValue::Stream(entries) => entries.is_empty(),
    }
}

fn all_bytes(answer: Value) -> kv::Result<Vec<Vec<u8>>> {
    answer.array()?.into_iter().map(Value::bytes).collect()
}

/// Pairs of values, which protocol versions give in turn or as arrays.
fn in_pairs(answer: Value) -> kv::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut values = Vec::new();
    for value in answer.array()? {
        match value {
            Value::Array(pair) => values.extend(pair),
            single => values.push(single),
        }
    }
    let (mut pairs, mut values) = (Vec::with_capacity(values.len() / 2), values.into_iter());
    while let (Some(name), Some(value)) = (values.next(), values.next()) {
        pairs.push((name.bytes()?, value.bytes()?));
    }
    Ok(pairs)
}

fn entry_of(entry: StreamEntry) -> ArchiveStreamEntry {
    let StreamEntry { id, fields } = entry;
    let fields = fields.into_iter().map(|(name, value)| (name.into_bytes(), value));
    ArchiveStreamEntry { id, fields: fields.collect() }
}
