//! Content of frames: parsed from the wire, and written to it.

use model::actor::{ActorKey, is_key};
use model::id::Uid;
use model::{ActorId, Address, ContextId, ContextUid, Timestamp};
use proto::convert::time;
use proto::v1;

use crate::{FRAME_ACTORS_MAX, FRAME_RECORDS_MAX};

/// Content of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum ArchiveFrame {
    /// The first frame: which context this is.
    Manifest(ArchiveManifest),
    /// Actors that the records name.
    Actors {
        /// The actors.
        actors: Vec<ArchivedActor>,
        /// Position from which the export goes on behind this frame.
        position: String,
    },
    /// Records of the context.
    Records {
        /// The records.
        records: Vec<ArchiveRecord>,
        /// Position from which the export goes on behind this frame.
        position: String,
    },
    /// The last frame.
    End {
        /// Number of frames before it.
        frames: u64,
    },
}

/// Which context a file has, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveManifest {
    /// Coordinator that exported it, 32 hex digits.
    pub coordinator: String,
    /// Number of the context.
    pub context: ContextId,
    /// Uid of the context.
    pub uid: ContextUid,
    /// Snapshot, 32 hex digits.
    pub snapshot: String,
    /// Time of the snapshot.
    pub time: Timestamp,
    /// Change counter of the context at that time.
    pub revision: u64,
    /// Values of environment variables and references to secrets are left out.
    pub without_secrets: bool,
}

/// An actor that records name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedActor {
    /// Number of the actor.
    pub id: ActorId,
    /// Keys that it has or had, the key in force last. Never empty.
    pub keys: Vec<ActorKey>,
    /// Where messages to it can be delivered.
    pub addresses: Vec<Address>,
    /// When it was removed.
    pub deleted_at: Option<Timestamp>,
}

/// A key of a context with its value, or with a part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ArchiveRecord {
    /// Name of the key, without the beginning that a layout adds.
    pub key: String,
    /// The value continues that of an earlier record.
    pub continued: bool,
    /// Milliseconds until the key expires; absent: never.
    pub expires_in_millis: Option<u64>,
    /// The value, or the part of it.
    pub value: ArchiveValue,
}

/// Value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum ArchiveValue {
    /// Fields and their values.
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
    /// Members.
    Set(Vec<Vec<u8>>),
    /// Members and their scores, as Redis writes them.
    SortedSet(Vec<(Vec<u8>, String)>),
    /// Items, from the left.
    List(Vec<Vec<u8>>),
    /// Bytes.
    Text(Vec<u8>),
    /// Entries, from the oldest on.
    Stream(Vec<ArchiveStreamEntry>),
}

/// Entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveStreamEntry {
    /// `<number>-<number>`
    pub id: String,
    /// Fields in their order. Never empty.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ArchiveRecord {
    /// Size of the key and its value, in bytes, without what separates them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let pairs = |pairs: &[(Vec<u8>, Vec<u8>)]| -> usize {
            pairs.iter().map(|(name, value)| name.len() + value.len()).sum()
        };
        let value = match &self.value {
            ArchiveValue::Hash(fields) => pairs(fields),
            ArchiveValue::Set(items) | ArchiveValue::List(items) => items.iter().map(Vec::len).sum(),
            ArchiveValue::SortedSet(members) => {
                members.iter().map(|(member, score)| member.len() + score.len()).sum()
            }
            ArchiveValue::Text(bytes) => bytes.len(),
            ArchiveValue::Stream(entries) => {
                entries.iter().map(|entry| entry.id.len() + pairs(&entry.fields)).sum()
            }
        };
        self.key.len() + value
    }
}

fn pairs_to_wire(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<v1::ArchivePair> {
    pairs
        .into_iter()
        .map(|(name, value)| v1::ArchivePair { name: name.into(), value: value.into() })
        .collect()
}

fn pairs_from_wire(pairs: Vec<v1::ArchivePair>) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.into_iter().map(|v1::ArchivePair { name, value }| (name.into(), value.into())).collect()
}

fn items_to_wire(items: Vec<Vec<u8>>) -> v1::ArchiveItems {
    v1::ArchiveItems { items: items.into_iter().map(Into::into).collect() }
}

fn items_from_wire(items: v1::ArchiveItems) -> Vec<Vec<u8>> {
    let v1::ArchiveItems { items } = items;
    items.into_iter().map(Into::into).collect()
}

impl From<ArchiveFrame> for v1::ArchiveFrame {
    fn from(frame: ArchiveFrame) -> Self {
        use v1::archive_frame::Content;
        let content = match frame {
            ArchiveFrame::Manifest(manifest) => Content::Manifest(manifest.into()),
            ArchiveFrame::Actors { actors, position } => {
                let actors = actors.into_iter().map(Into::into).collect();
                Content::Actors(v1::ArchiveActors { actors, position })
            }
            ArchiveFrame::Records { records, position } => {
                let records = records.into_iter().map(Into::into).collect();
                Content::Records(v1::ArchiveRecords { records, position })
            }
            ArchiveFrame::End { frames } => Content::End(v1::ArchiveEnd { frames }),
        };
        Self { content: Some(content) }
    }
}

impl TryFrom<v1::ArchiveFrame> for ArchiveFrame {
    type Error = String;
    fn try_from(frame: v1::ArchiveFrame) -> Result<Self, String> {
        use v1::archive_frame::Content;
        let v1::ArchiveFrame { content } = frame;
        Ok(match content.ok_or("it says nothing that this version knows")? {
            Content::Manifest(manifest) => Self::Manifest(manifest.try_into()?),
            Content::Actors(v1::ArchiveActors { actors, position }) => {
                at_most("actors", actors.len(), FRAME_ACTORS_MAX)?;
                let actors = actors.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
                Self::Actors { actors, position }
            }
            Content::Records(v1::ArchiveRecords { records, position }) => {
                at_most("records", records.len(), FRAME_RECORDS_MAX)?;
                let records = records.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
                Self::Records { records, position }
            }
            Content::End(v1::ArchiveEnd { frames }) => Self::End { frames },
        })
    }
}

fn at_most(what: &str, found: usize, max: usize) -> Result<(), String> {
    if found <= max { Ok(()) } else { Err(format!("it has {found} {what}, and at most {max} are taken")) }
}

impl From<ArchiveManifest> for v1::ArchiveManifest {
    fn from(manifest: ArchiveManifest) -> Self {
        let ArchiveManifest { coordinator, context, uid, snapshot, time, revision, without_secrets } =
            manifest;
        Self {
            coordinator,
            context_id: context.0,
            context_uid: uid.to_string(),
            snapshot_id: snapshot,
            time: Some(time::to_wire(time)),
            revision,
            without_secrets,
        }
    }
}

impl TryFrom<v1::ArchiveManifest> for ArchiveManifest {
    type Error = String;
    fn try_from(manifest: v1::ArchiveManifest) -> Result<Self, String> {
        let v1::ArchiveManifest {
            coordinator,
            context_id,
            context_uid,
            snapshot_id,
            time,
            revision,
            without_secrets,
        } = manifest;
        let bad = |field: &str| format!("its `{field}` is wrong");
        if context_id == 0 {
            return Err(bad("context_id"));
        }
        coordinator.parse::<Uid>().map_err(|_| bad("coordinator"))?;
        snapshot_id.parse::<Uid>().map_err(|_| bad("snapshot_id"))?;
        Ok(Self {
            coordinator,
            context: ContextId(context_id),
            uid: context_uid.parse().map_err(|_| bad("context_uid"))?,
            snapshot: snapshot_id,
            time: time::required(time),
            revision,
            without_secrets,
        })
    }
}

impl From<ArchivedActor> for v1::ArchiveActor {
    fn from(actor: ArchivedActor) -> Self {
        let ArchivedActor { id, keys, addresses, deleted_at } = actor;
        let keys = keys.into_iter().map(|ActorKey { key, not_before, revoked_at }| v1::ArchiveActorKey {
            key,
            start_time: Some(time::to_wire(not_before)),
            end_time: revoked_at.map(time::to_wire),
        });
        Self {
            id: id.0,
            keys: keys.collect(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            delete_time: deleted_at.map(time::to_wire),
        }
    }
}

impl TryFrom<v1::ArchiveActor> for ArchivedActor {
    type Error = String;
    fn try_from(actor: v1::ArchiveActor) -> Result<Self, String> {
        let v1::ArchiveActor { id, keys, addresses, delete_time } = actor;
        if id == 0 || keys.is_empty() {
            return Err("an actor has a number and a key".to_owned());
        }
        let parse_key = |v1::ArchiveActorKey { key, start_time, end_time }| {
            if !is_key(&key) {
                return Err(format!("actor {id} has a key that is none"));
            }
            let (not_before, revoked_at) = (time::required(start_time), end_time.map(time::from_wire));
            Ok(ActorKey { key, not_before, revoked_at })
        };
        let parse_address = |text: &String| {
            Address::from_input(text).map_err(|error| format!("an address of actor {id}: {error}"))
        };
        Ok(Self {
            id: ActorId(id),
            keys: keys.into_iter().map(parse_key).collect::<Result<_, _>>()?,
            addresses: addresses.iter().map(parse_address).collect::<Result<_, _>>()?,
            deleted_at: delete_time.map(time::from_wire),
        })
    }
}

impl From<ArchiveRecord> for v1::ArchiveRecord {
    fn from(record: ArchiveRecord) -> Self {
        use v1::archive_record::Value;
        let ArchiveRecord { key, continued, expires_in_millis, value } = record;
        let value = match value {
            ArchiveValue::Hash(fields) => Value::Hash(v1::ArchivePairs { pairs: pairs_to_wire(fields) }),
            ArchiveValue::Set(members) => Value::Set(items_to_wire(members)),
            ArchiveValue::SortedSet(members) => {
                let pairs = members.into_iter().map(|(member, score)| (member, score.into_bytes()));
                Value::SortedSet(v1::ArchivePairs { pairs: pairs_to_wire(pairs.collect()) })
            }
            ArchiveValue::List(items) => Value::List(items_to_wire(items)),
            ArchiveValue::Text(bytes) => Value::Text(bytes.into()),
            ArchiveValue::Stream(entries) => {
                let entries = entries.into_iter().map(|ArchiveStreamEntry { id, fields }| v1::ArchiveEntry {
                    id,
                    fields: pairs_to_wire(fields),
                });
                Value::Stream(v1::ArchiveEntries { entries: entries.collect() })
            }
        };
        Self { key, continued, expires_in_millis: expires_in_millis.unwrap_or_default(), value: Some(value) }
    }
}

impl TryFrom<v1::ArchiveRecord> for ArchiveRecord {
    type Error = String;
    fn try_from(record: v1::ArchiveRecord) -> Result<Self, String> {
        use v1::archive_record::Value;
        let v1::ArchiveRecord { key, continued, expires_in_millis, value } = record;
        let value = match value.ok_or_else(|| format!("the key `{}` has no value", shown(&key)))? {
            Value::Hash(v1::ArchivePairs { pairs }) => ArchiveValue::Hash(pairs_from_wire(pairs)),
            Value::Set(members) => ArchiveValue::Set(items_from_wire(members)),
            Value::SortedSet(v1::ArchivePairs { pairs }) => {
                let score = |(member, score)| Some((member, score_of(score)?));
                let members = pairs_from_wire(pairs).into_iter().map(score).collect::<Option<_>>();
                let bad = || format!("the key `{}` has a score that is no number", shown(&key));
                ArchiveValue::SortedSet(members.ok_or_else(bad)?)
            }
            Value::List(items) => ArchiveValue::List(items_from_wire(items)),
            Value::Text(bytes) => ArchiveValue::Text(bytes.into()),
            Value::Stream(v1::ArchiveEntries { entries }) => {
                let parse_entry = |v1::ArchiveEntry { id, fields }| {
                    if fields.is_empty() || !is_entry_id(&id) {
                        return Err(format!("the stream `{}` has an entry that is none", shown(&key)));
                    }
                    Ok(ArchiveStreamEntry { id, fields: pairs_from_wire(fields) })
                };
                ArchiveValue::Stream(entries.into_iter().map(parse_entry).collect::<Result<_, _>>()?)
            }
        };
        let expires_in_millis = (expires_in_millis != 0).then_some(expires_in_millis);
        Ok(Self { key, continued, expires_in_millis, value })
    }
}

/// A score as text; nothing for bytes that are none.
fn score_of(bytes: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(bytes).ok()?;
    let is_score = matches!(text.as_str(), "inf" | "-inf") || text.parse().is_ok_and(f64::is_finite);
    is_score.then_some(text)
}

fn is_entry_id(id: &str) -> bool {
    let is_number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok();
    id.split_once('-').is_some_and(|(revision, n)| is_number(revision) && is_number(n))
}

/// A name from a file, short enough for a message.
fn shown(name: &str) -> String {
    name.escape_debug().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_survives_the_wire() {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let fields = vec![(bytes("a"), vec![0xff, 0]), (bytes("b"), Vec::new())];
        let entry = ArchiveStreamEntry { id: "7-1".to_owned(), fields: fields.clone() };
        for value in [
            ArchiveValue::Hash(fields),
            ArchiveValue::Set(vec![bytes("x")]),
            ArchiveValue::SortedSet(vec![(bytes("x"), "-inf".to_owned()), (bytes("y"), "1.5".to_owned())]),
            ArchiveValue::List(vec![bytes("y"), bytes("x")]),
            ArchiveValue::Text(vec![0; 9]),
            ArchiveValue::Stream(vec![entry]),
        ] {
            let record =
                ArchiveRecord { key: "k".to_owned(), continued: true, expires_in_millis: Some(5), value };
            let wire = v1::ArchiveRecord::from(record.clone());
            assert_eq!(ArchiveRecord::try_from(wire), Ok(record));
        }
    }

    #[test]
    fn values_that_redis_could_not_take_are_refused() {
        use v1::archive_record::Value;
        let pair = |name: &'static str, value: &'static str| v1::ArchivePair {
            name: name.into(),
            value: value.into(),
        };
        let entry = |id: &str, fields| v1::ArchiveEntry { id: id.to_owned(), fields };
        let stream = |entry| Value::Stream(v1::ArchiveEntries { entries: vec![entry] });
        for value in [
            Value::SortedSet(v1::ArchivePairs { pairs: vec![pair("x", "nan")] }),
            Value::SortedSet(v1::ArchivePairs { pairs: vec![pair("x", "")] }),
            stream(entry("7-1", Vec::new())),
            stream(entry("*", vec![pair("a", "b")])),
            stream(entry("7", vec![pair("a", "b")])),
            stream(entry("99999999999999999999-1", vec![pair("a", "b")])),
        ] {
            let record = v1::ArchiveRecord { key: "k".to_owned(), value: Some(value), ..Default::default() };
            let refused = ArchiveRecord::try_from(record.clone());
            assert!(refused.is_err_and(|problem| problem.contains("`k`")), "{record:?}");
        }
        assert!(ArchiveRecord::try_from(v1::ArchiveRecord::default()).is_err(), "no value");
    }

    #[test]
    fn actors_without_a_key_are_refused() {
        let key = v1::ArchiveActorKey { key: "ab".repeat(32), ..Default::default() };
        let actor = v1::ArchiveActor { id: 3, keys: vec![key.clone()], ..Default::default() };
        assert_eq!(ArchivedActor::try_from(actor.clone()).map(|actor| actor.id), Ok(ActorId(3)));
        for bad in [
            v1::ArchiveActor { id: 0, ..actor.clone() },
            v1::ArchiveActor { keys: Vec::new(), ..actor.clone() },
            v1::ArchiveActor {
                keys: vec![v1::ArchiveActorKey { key: "x".to_owned(), ..key }],
                ..actor.clone()
            },
            v1::ArchiveActor { addresses: vec!["nowhere".to_owned()], ..actor },
        ] {
            assert!(ArchivedActor::try_from(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
