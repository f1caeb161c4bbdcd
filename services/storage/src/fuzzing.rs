//! Readers for the fuzzer: of page tokens, which any client may show, of hashes, which any Redis client may write, and of records in
//! exports of contexts, which anybody may have written.

use std::collections::BTreeMap;

use archive::ArchiveRecord;
use keys::{ContextKeys, Layout};
use kv::Value;
use model::id::Uid;
use model::{ActorId, ContextId, ContextUid, FlowSpec, MessageId, MessageKey, Violations};

use crate::error::Error;
use crate::messages::raw::jobs;
use crate::moving::records::{ArchivedContext, ImportedRecord};
use crate::pages::{PageRequest, PagedCollection};
use crate::record::message_record::MessageProjection;
use crate::record::routed_message::{ParsedMessageRecord, RoutedMessagePayload};
use crate::record::{
    FieldWriter, RecordFields, actor, context, flow, job, message_record, routed_message, runner,
};

/// The kinds of hashes that are read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredRecordKind {
    /// `actor:<id>`
    Actor,
    /// `context:<id>`
    Context,
    /// `flow:<id>`
    Flow,
    /// `job:<caller>:<id>`: the job's specification.
    Job,
    /// `job:<caller>:<id>` with all that is known of the job.
    StoredJob,
    /// `runner:<id>`
    Runner,
    /// `message:<caller>:<id>`, as its sender and its recipient see it.
    Letter,
    /// `message:<caller>:<id>`, as a router sees it.
    Message,
}

/// The fields of a hash.
pub type RedisHash = BTreeMap<String, Vec<u8>>;

impl StoredRecordKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Actor,
        Self::Context,
        Self::Flow,
        Self::Job,
        Self::Runner,
        Self::Letter,
        Self::Message,
        Self::StoredJob,
    ];

    /// Reads a hash and returns it as it would be written again, without the fields that only scripts write; nothing for a
    /// missing hash, and no fields where a record is never written as a whole.
    ///
    /// # Errors
    /// Describes what is wrong with the hash.
    pub fn read(self, hash: &RedisHash) -> Result<Option<RedisHash>, String> {
        let of_hash = || RecordFields::of_hash("the record", all(hash)).map_err(|error| error.to_string());
        let of_some = |names: &[&str]| {
            RecordFields::of_some("the record", names, some(hash, names)).map_err(|error| error.to_string())
        };
        let text = |error: crate::record::MalformedRecord| error.to_string();
        let nothing = || Some(RedisHash::new());
        Ok(match self {
            Self::Actor => match of_hash()? {
                Some(fields) => Some(written(&actor::write(&actor::read(fields).map_err(text)?))),
                None => None,
            },
            Self::Context => match of_hash()? {
                Some(fields) => Some(written(&context::write(&context::read(&fields).map_err(text)?))),
                None => None,
            },
            Self::Runner => match of_hash()? {
                Some(fields) => Some(written(&runner::write(&runner::read(fields).map_err(text)?))),
                None => None,
            },
            Self::Flow => match of_some(&flow::READ)? {
                Some(mut fields) => flow::read(&mut fields).map_err(text)?.and_then(|_| nothing()),
                None => None,
            },
            Self::Job => match of_some(&job::READ)? {
                Some(fields) => job::read(fields).map(|_| nothing()).map_err(text)?,
                None => None,
            },
            Self::StoredJob => match of_hash()? {
                Some(fields) => job::read_stored(fields).map(|_| nothing()).map_err(text)?,
                None => None,
            },
            Self::Letter => {
                let value = some(hash, message_record::fields(MessageProjection::Whole));
                message_record::read(KEY, MessageProjection::Whole, value)
                    .map_err(|error| error.to_string())?
                    .and_then(|_| nothing())
            }
            Self::Message => return read_message(hash),
        })
    }
}

/// The key under which messages are read.
const KEY: MessageKey = MessageKey { caller: ActorId(3), id: MessageId(7) };

/// The answer to `HGETALL`.
fn all(hash: &RedisHash) -> Value {
    let pairs = hash.iter().flat_map(|(name, value)| [name.clone().into_bytes(), value.clone()]);
    Value::Array(pairs.map(Value::Bytes).collect())
}

/// The answer to `HMGET`.
fn some(hash: &RedisHash, names: &[&str]) -> Value {
    let value = |name: &&str| hash.get(*name).map_or(Value::Nil, |value| Value::Bytes(value.clone()));
    Value::Array(names.iter().map(value).collect())
}

fn written(written: &FieldWriter) -> RedisHash {
    let args: Vec<_> = written.args().collect();
    args.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].as_bytes().to_vec())).collect()
}

fn read_message(hash: &RedisHash) -> Result<Option<RedisHash>, String> {
    let context = ContextUid(Uid::from_bits(1));
    let found = routed_message::read("the record", KEY, context, some(hash, &routed_message::READ));
    match found.map_err(|error| error.to_string())? {
        None => Ok(None),
        Some(ParsedMessageRecord::Body(body)) => {
            let mut again = RedisHash::new();
            if let RoutedMessagePayload::Nodes { nodes, .. } = &body.kind {
                again.insert("nodes".to_owned(), routed_message::write_nodes(nodes));
                again.insert("job_keys".to_owned(), routed_message::job_keys(nodes).into_bytes());
            }
            Ok(Some(again))
        }
        Some(ParsedMessageRecord::Raw(_)) => Ok(Some(RedisHash::new())),
    }
}

/// The jobs of a message that a program pushed, as the flow that they become.
///
/// # Errors
/// Everything that is wrong with it.
pub fn raw_jobs(hash: &RedisHash) -> Result<FlowSpec, Violations> {
    let mut violations = Violations::new();
    let fields =
        RecordFields::of_readable("the record", &routed_message::READ, some(hash, &routed_message::READ));
    let mut fields = fields.expect("several answers are given");
    let flow = jobs::read(KEY, ContextId(1), &mut fields, &mut violations);
    violations.into_result(flow.map(|(flow, _)| flow))
}

/// A token for the page that begins at `place`.
#[must_use]
pub fn page_token(secret: &str, filter: &str, place: &str) -> String {
    let page = PageRequest::parse(0, "", &mut Violations::new());
    page.token_at(secret, PagedCollection::Messages, filter, Some(place))
}

/// The place that a token is for; nothing for none.
///
/// # Errors
/// It was not made for this.
pub fn page_place(token: &str, secret: &str, filter: &str) -> Result<Option<String>, String> {
    let page = page(token)?;
    page.place(secret, PagedCollection::Messages, filter).map_err(|error| whole(error.into()))
}

/// Number that a token is for, in a list whose positions are numbers; nothing for no token.
///
/// # Errors
/// It was not made for this.
pub fn page_cursor(token: &str, secret: &str, filter: &str) -> Result<Option<u64>, String> {
    let page = page(token)?;
    page.cursor(secret, PagedCollection::Messages, filter).map_err(|error| whole(error.into()))
}

fn page(token: &str) -> Result<PageRequest, String> {
    let mut violations = Violations::new();
    let page = PageRequest::parse(0, token, &mut violations);
    violations.into_result(Some(page)).map_err(|violations| violations.to_string())
}

/// Renders an error with everything that its caller receives.
fn whole(error: Error) -> String {
    match error {
        Error::Invalid(violations) => violations.to_string(),
        other => other.to_string(),
    }
}

/// Context of the exports whose records are read.
pub const ARCHIVED_CONTEXT: ContextId = ContextId(7);

/// Reads a record of an export. Returns the arguments with which it is written.
///
/// # Errors
/// Why it is none of the context.
pub fn archived_record(record: ArchiveRecord) -> Result<Vec<Vec<u8>>, String> {
    let context = ArchivedContext { id: ARCHIVED_CONTEXT, uid: ContextUid(Uid::from_bits(7)) };
    let keys = ContextKeys::new(Layout::HashTag, ARCHIVED_CONTEXT);
    ImportedRecord::parse(&keys, context, record).map(ImportedRecord::args)
}
