//! Redis hashes as objects and back. The fields are a wire contract: other programs read and write them.

pub(crate) mod actor;
pub(crate) mod context;
pub(crate) mod flow;
pub(crate) mod job;
pub(crate) mod message_record;
pub(crate) mod routed_message;
pub(crate) mod runner;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use kv::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// A record that does not fit its description. Programs may write with plain Redis commands, so that this is no defect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MalformedRecord {
    /// One field of the record.
    #[error("field `{field}` of {what}: {problem}")]
    Field {
        /// Which record.
        what: String,
        /// Which field of it.
        field: String,
        /// Description of the problem with the field.
        problem: String,
    },
    /// The record as a whole.
    #[error("{what}: {problem}")]
    Whole {
        /// Which record.
        what: String,
        /// Description of the problem with the record.
        problem: String,
    },
}

/// Fails when the id in a record differs from that in its key.
pub(crate) fn check_id<T>(
    what: impl fmt::Display,
    found: T,
    of_key: T,
) -> std::result::Result<(), MalformedRecord>
where
    T: Copy + PartialEq + fmt::Display,
{
    if found == of_key {
        return Ok(());
    }
    let problem = format!("{found}, but its key says {of_key}");
    Err(MalformedRecord::Field { what: what.to_string(), field: "id".to_owned(), problem })
}

/// Skips a record that cannot be read, so that it does not hide the others of a list.
pub(crate) fn listed<T>(read: Result<Option<T>>) -> Result<Option<T>> {
    match read {
        Err(Error::Broken(record)) => {
            tracing::warn!(%record, "a record cannot be read, and is left out of a list");
            Ok(None)
        }
        read => read,
    }
}

/// Cuts a text to at most `max` bytes, at a character boundary.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=text.len().min(max)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// The fields of a hash that is being read.
#[derive(Debug)]
pub(crate) struct RecordFields {
    what: String,
    fields: BTreeMap<String, String>,
}

impl RecordFields {
    /// From the answer to `HGETALL`; nothing when there is no such hash.
    pub(crate) fn of_hash(what: impl fmt::Display, value: Value) -> Result<Option<Self>> {
        let mut read = Self { what: what.to_string(), fields: BTreeMap::new() };
        let whole = |problem: kv::Error| MalformedRecord::Whole {
            what: what.to_string(),
            problem: problem.to_string(),
        };
        for (field, value) in value.pairs().map_err(whole)? {
            let text =
                String::from_utf8(value.bytes()?).map_err(|error| read.bad(&field, error.utf8_error()))?;
            read.fields.insert(field, text);
        }
        Ok((!read.fields.is_empty()).then_some(read))
    }

    /// From the answer to `HMGET` of `names`, of which the first is in every such hash; nothing when it is not.
    pub(crate) fn of_some(what: impl fmt::Display, names: &[&str], value: Value) -> Result<Option<Self>> {
        let fields = Self::of_any(what, names, value)?;
        Ok(fields.fields.contains_key(names[0]).then_some(fields))
    }

    /// From the answer to `HMGET` of `names`, whatever of them is there.
    pub(crate) fn of_any(what: impl fmt::Display, names: &[&str], value: Value) -> Result<Self> {
        let mut read = Self { what: what.to_string(), fields: BTreeMap::new() };
        for (name, value) in names.iter().zip(value.array()?) {
            if !value.is_nil() {
                let text =
                    String::from_utf8(value.bytes()?).map_err(|error| read.bad(name, error.utf8_error()))?;
                read.fields.insert((*name).to_owned(), text);
            }
        }
        Ok(read)
    }

    /// Reads the answer to `HMGET` of `names` where others write as well: a value that is no text counts as missing.
    pub(crate) fn of_readable(what: impl fmt::Display, names: &[&str], value: Value) -> Result<Self> {
        let texts = names.iter().zip(value.array()?);
        let texts = texts.filter_map(|(name, value)| Some(((*name).to_owned(), value.text().ok()?)));
        Ok(Self { what: what.to_string(), fields: texts.collect() })
    }

    fn bad(&self, field: &str, problem: impl fmt::Display) -> MalformedRecord {
        MalformedRecord::Field {
            what: self.what.clone(),
            field: field.to_owned(),
            problem: problem.to_string(),
        }
    }

    /// A text; empty when it is not there.
    pub(crate) fn text(&mut self, field: &str) -> String {
        self.fields.remove(field).unwrap_or_default()
    }

    /// A value that has to be there.
    pub(crate) fn parse<T: FromStr<Err: fmt::Display>>(
        &self,
        field: &str,
    ) -> std::result::Result<T, MalformedRecord> {
        let text = self.fields.get(field).ok_or_else(|| self.bad(field, "missing"))?;
        text.parse().map_err(|error| self.bad(field, error))
    }

    /// A value that may be missing or empty.
    pub(crate) fn optional<T: FromStr<Err: fmt::Display>>(
        &self,
        field: &str,
    ) -> std::result::Result<Option<T>, MalformedRecord> {
        match self.fields.get(field) {
            None => Ok(None),
            Some(text) if text.is_empty() => Ok(None),
            Some(_) => self.parse(field).map(Some),
        }
    }

    /// A list or map; the empty one when it is not there.
    pub(crate) fn json<T: DeserializeOwned + Default>(
        &self,
        field: &str,
    ) -> std::result::Result<T, MalformedRecord> {
        match self.fields.get(field) {
            None => Ok(T::default()),
            Some(text) if text.is_empty() => Ok(T::default()),
            Some(text) => serde_json::from_str(text).map_err(|error| self.bad(field, error)),
        }
    }

    /// Bytes of a value; none when it is not there.
    pub(crate) fn len_of(&self, field: &str) -> usize {
        self.fields.get(field).map_or(0, String::len)
    }

    /// Returns true if the field exists, whatever its value.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// Returns true if a switch is on.
    pub(crate) fn flag(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(|text| text == "true" || text == "1")
    }
}

/// The fields of a hash that is to be written.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter(Vec<(&'static str, String)>);

impl FieldWriter {
    /// Adds a plain value.
    pub(crate) fn text(&mut self, field: &'static str, value: impl fmt::Display) -> &mut Self {
        self.0.push((field, value.to_string()));
        self
    }

    /// Adds a value that may be missing, which is written as an empty text.
    pub(crate) fn optional(&mut self, field: &'static str, value: Option<impl fmt::Display>) -> &mut Self {
        self.0.push((field, value.map(|value| value.to_string()).unwrap_or_default()));
        self
    }

    /// Adds a list or map.
    pub(crate) fn json(&mut self, field: &'static str, value: &impl Serialize) -> &mut Self {
        let json =
            serde_json::to_string(value).expect("maps with text keys, lists and plain values are JSON");
        self.0.push((field, json));
        self
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Names and values in turn.
    pub(crate) fn args(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|(field, value)| [*field, value.as_str()])
    }
}
