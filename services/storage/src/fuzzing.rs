//! What the fuzzer reads with: page tokens, which anybody may show, and hashes, which anybody who can reach Redis may write.

use std::collections::BTreeMap;

use kv::Value;
use model::id::Uid;
use model::{ActorId, ContextId, ContextUid, FlowSpec, MessageId, MessageKey, Violations};

use crate::error::Error;
use crate::messages::raw::jobs;
use crate::pages::{Page, PageOf};
use crate::record::letter::Extent;
use crate::record::message::{Found, Kind};
use crate::record::{Fields, Written, actor, context, flow, job, letter, message, runner};

/// The kinds of hashes that are read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// `actor:<id>`
    Actor,
    /// `context:<id>`
    Context,
    /// `flow:<id>`
    Flow,
    /// `job:<caller>:<id>`: what is to run.
    Job,
    /// The same with all that is known of it.
    KeptJob,
    /// `runner:<id>`
    Runner,
    /// `message:<caller>:<id>` as those see it who sent or received it.
    Letter,
    /// The same as a router sees it.
    Message,
}

/// The fields of a hash.
pub type Hash = BTreeMap<String, Vec<u8>>;

impl Record {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Actor,
        Self::Context,
        Self::Flow,
        Self::Job,
        Self::Runner,
        Self::Letter,
        Self::Message,
        Self::KeptJob,
    ];

    /// Reads a hash; gives it as it would be written again, without what only scripts write; nothing for one that is not
    /// there, and no fields where a record is never written as a whole.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(self, hash: &Hash) -> Result<Option<Hash>, String> {
        let of_hash = || Fields::of_hash("the record", all(hash)).map_err(|error| error.to_string());
        let of_some = |names: &[&str]| {
            Fields::of_some("the record", names, some(hash, names)).map_err(|error| error.to_string())
        };
        let text = |error: crate::record::BadRecord| error.to_string();
        let nothing = || Some(Hash::new());
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
            Self::KeptJob => match of_hash()? {
                Some(fields) => job::read_kept(fields).map(|_| nothing()).map_err(text)?,
                None => None,
            },
            Self::Letter => {
                let value = some(hash, letter::fields(Extent::Whole));
                letter::read(KEY, Extent::Whole, value)
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
fn all(hash: &Hash) -> Value {
    let pairs = hash.iter().flat_map(|(name, value)| [name.clone().into_bytes(), value.clone()]);
    Value::Array(pairs.map(Value::Bytes).collect())
}

/// The answer to `HMGET`.
fn some(hash: &Hash, names: &[&str]) -> Value {
    let value = |name: &&str| hash.get(*name).map_or(Value::Nil, |value| Value::Bytes(value.clone()));
    Value::Array(names.iter().map(value).collect())
}

fn written(written: &Written) -> Hash {
    let args: Vec<_> = written.args().collect();
    args.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].as_bytes().to_vec())).collect()
}

fn read_message(hash: &Hash) -> Result<Option<Hash>, String> {
    let context = ContextUid(Uid::from_bits(1));
    let found = message::read("the record", KEY, context, some(hash, &message::READ));
    match found.map_err(|error| error.to_string())? {
        None => Ok(None),
        Some(Found::Body(body)) => {
            let mut again = Hash::new();
            if let Kind::Nodes { nodes, .. } = &body.kind {
                again.insert("nodes".to_owned(), message::write_nodes(nodes));
                again.insert("job_keys".to_owned(), message::job_keys(nodes).into_bytes());
            }
            Ok(Some(again))
        }
        Some(Found::Raw(_)) => Ok(Some(Hash::new())),
    }
}

/// The jobs of a message that a program pushed, as the flow that they become.
///
/// # Errors
/// Everything that is wrong with it.
pub fn raw_jobs(hash: &Hash) -> Result<FlowSpec, Violations> {
    let mut violations = Violations::new();
    let fields = Fields::of_readable("the record", &message::READ, some(hash, &message::READ));
    let mut fields = fields.expect("several answers are given");
    let flow = jobs::read(KEY, ContextId(1), &mut fields, &mut violations);
    violations.into_result(flow.map(|(flow, _)| flow))
}

/// A token for the page that begins at `place`.
#[must_use]
pub fn page_token(secret: &str, filter: &str, place: &str) -> String {
    let page = Page::parse(0, "", &mut Violations::new());
    page.token_at(secret, PageOf::Messages, filter, Some(place))
}

/// The place that a token is for; nothing for none.
///
/// # Errors
/// It was not made for this.
pub fn page_place(token: &str, secret: &str, filter: &str) -> Result<Option<String>, String> {
    let page = page(token)?;
    page.place(secret, PageOf::Messages, filter).map_err(|error| whole(error.into()))
}

/// The same in a list whose places are numbers.
///
/// # Errors
/// It was not made for this.
pub fn page_cursor(token: &str, secret: &str, filter: &str) -> Result<Option<u64>, String> {
    let page = page(token)?;
    page.cursor(secret, PageOf::Messages, filter).map_err(|error| whole(error.into()))
}

fn page(token: &str) -> Result<Page, String> {
    let mut violations = Violations::new();
    let page = Page::parse(0, token, &mut violations);
    violations.into_result(Some(page)).map_err(|violations| violations.to_string())
}

/// All that a caller is told.
fn whole(error: Error) -> String {
    match error {
        Error::Invalid(violations) => violations.to_string(),
        other => other.to_string(),
    }
}
