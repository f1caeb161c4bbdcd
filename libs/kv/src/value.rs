//! Answers.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// An answer, reduced to what differs for a reader: status lines are bytes, truth is 0 or 1, maps are
/// arrays of keys and values in turn, whatever protocol version brought them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Nil,
    /// A number.
    Int(i64),
    /// A text or other bytes.
    Bytes(Vec<u8>),
    /// Several answers.
    Array(Vec<Value>),
}

/// One entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    /// `<milliseconds>-<n>`.
    pub id: String,
    /// Names and values in the order they were written. Empty for an entry that was deleted
    /// while it was still pending for a consumer.
    pub fields: Vec<(String, Vec<u8>)>,
}

impl StreamEntry {
    /// The value of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    /// The value of a field that has to be there and be a text.
    ///
    /// # Errors
    /// [`Error::Protocol`] that names the field.
    pub fn text(&self, name: &str) -> Result<&str> {
        self.field(name)
            .and_then(|value| std::str::from_utf8(value).ok())
            .ok_or_else(|| Error::Protocol(format!("stream entry {} has no text `{name}`", self.id)))
    }
}

impl Value {
    pub(crate) fn from_redis(endpoint: &str, value: redis::Value) -> Result<Self> {
        use redis::Value as R;
        let list = |values: Vec<R>| -> Result<Self> {
            values
                .into_iter()
                .map(|value| Self::from_redis(endpoint, value))
                .collect::<Result<_>>()
                .map(Self::Array)
        };
        Ok(match value {
            R::Nil => Self::Nil,
            R::Int(number) => Self::Int(number),
            R::BulkString(bytes) => Self::Bytes(bytes),
            R::SimpleString(text) | R::VerbatimString { text, .. } => Self::Bytes(text.into_bytes()),
            R::Okay => Self::Bytes(b"OK".to_vec()),
            R::Boolean(truth) => Self::Int(i64::from(truth)),
            R::Double(number) => Self::Bytes(number.to_string().into_bytes()),
            R::BigNumber(number) => Self::Bytes(number),
            R::Array(values) | R::Set(values) => list(values)?,
            R::Map(pairs) => list(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())?,
            R::Attribute { data, .. } => Self::from_redis(endpoint, *data)?,
            R::ServerError(error) => return Err(Error::of_reply(endpoint, error)),
            other => return Err(Error::Protocol(format!("{other:?}"))),
        })
    }

    /// Returns true for an empty answer.
    #[must_use]
    pub const fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// A number, also when it came as a text.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is none.
    pub fn int(&self) -> Result<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()),
            _ => None,
        }
        .ok_or_else(|| Error::shape("a number", self))
    }

    /// A number that cannot be negative.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is none.
    pub fn uint(&self) -> Result<u64> {
        u64::try_from(self.int()?).map_err(|_| Error::shape("a number that is not negative", self))
    }

    /// Bytes; a number as its text.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is neither.
    pub fn bytes(self) -> Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Int(number) => Ok(number.to_string().into_bytes()),
            other => Err(Error::shape("bytes", &other)),
        }
    }

    /// A text; a number as its digits.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is neither, or not UTF-8.
    pub fn text(self) -> Result<String> {
        String::from_utf8(self.bytes()?)
            .map_err(|error| Error::shape("a text in UTF-8", &Self::Bytes(error.into_bytes())))
    }

    /// A text, or nothing.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is something else.
    pub fn optional_text(self) -> Result<Option<String>> {
        if self.is_nil() { Ok(None) } else { self.text().map(Some) }
    }

    /// Several answers; nothing counts as none of them.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is a single answer.
    pub fn array(self) -> Result<Vec<Self>> {
        match self {
            Self::Array(values) => Ok(values),
            Self::Nil => Ok(Vec::new()),
            other => Err(Error::shape("an array", &other)),
        }
    }

    /// Exactly `N` answers.
    ///
    /// # Errors
    /// [`Error::Protocol`] when there are more or fewer.
    pub fn tuple<const N: usize>(self) -> Result<[Self; N]> {
        let values = self.array()?;
        <[Self; N]>::try_from(values)
            .map_err(|values| Error::shape(&format!("{N} answers"), &Self::Array(values)))
    }

    /// Several texts.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is something else.
    pub fn texts(self) -> Result<Vec<String>> {
        self.array()?.into_iter().map(Self::text).collect()
    }

    /// Keys and values in turn, in the order they came.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the count is odd or a key is no text.
    pub fn pairs(self) -> Result<Vec<(String, Self)>> {
        let values = self.array()?;
        if values.len() % 2 != 0 {
            return Err(Error::shape("keys and values in turn", &Self::Array(values)));
        }
        let mut pairs = Vec::with_capacity(values.len() / 2);
        let mut values = values.into_iter();
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            pairs.push((key.text()?, value));
        }
        Ok(pairs)
    }

    /// A hash of texts, as `HGETALL` gives it.
    ///
    /// # Errors
    /// As [`Value::pairs`], and when a value is no text.
    pub fn hash(self) -> Result<BTreeMap<String, String>> {
        self.pairs()?.into_iter().map(|(key, value)| Ok((key, value.text()?))).collect()
    }

    /// Entries of one stream, as `XRANGE` gives them.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is something else.
    pub fn entries(self) -> Result<Vec<StreamEntry>> {
        let entry = |value: Self| -> Result<StreamEntry> {
            let [id, fields] = value.tuple()?;
            let fields = fields.pairs()?.into_iter().map(|(name, value)| Ok((name, value.bytes()?)));
            Ok(StreamEntry { id: id.text()?, fields: fields.collect::<Result<_>>()? })
        };
        self.array()?.into_iter().map(entry).collect()
    }

    /// Entries by stream, as `XREAD` and `XREADGROUP` give them.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is something else.
    pub fn streams(self) -> Result<Vec<(String, Vec<StreamEntry>)>> {
        let values = self.array()?;
        // RESP2 gives an array of pairs, RESP3 a map, which arrives here as keys and values in turn.
        if values.iter().all(|value| matches!(value, Self::Array(pair) if pair.len() == 2)) {
            let pair = |value: Self| -> Result<_> {
                let [name, entries] = value.tuple()?;
                Ok((name.text()?, entries.entries()?))
            };
            return values.into_iter().map(pair).collect();
        }
        let pairs = Self::Array(values).pairs()?;
        pairs.into_iter().map(|(name, entries)| Ok((name, entries.entries()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn shapes_are_checked() {
        assert_eq!(text("12").int(), Ok(12));
        assert_eq!(Value::Int(12).text(), Ok("12".to_owned()));
        assert!(text("x").int().is_err());
        assert!(Value::Int(-1).uint().is_err());
        assert!(Value::Nil.array().is_ok_and(|values| values.is_empty()));
        assert!(Value::Array(vec![text("a")]).pairs().is_err());
        assert!(Value::Bytes(vec![0xff]).text().is_err());
        let long = Value::Bytes(vec![1; 10_000]);
        assert!(long.int().is_err_and(|error| error.to_string().len() < 400));
    }

    #[test]
    fn streams_of_both_protocol_versions() {
        let entries = || {
            let fields = Value::Array(vec![text("kind"), text("log")]);
            Value::Array(vec![Value::Array(vec![text("1-0"), fields])])
        };
        let two = Value::Array(vec![Value::Array(vec![text("s"), entries()])]);
        let three = Value::Array(vec![text("s"), entries()]);
        let streams = two.streams().expect("RESP2");
        assert_eq!(streams, three.streams().expect("RESP3"));
        assert_eq!(streams[0].1[0].text("kind"), Ok("log"));
        assert!(streams[0].1[0].text("other").is_err());
    }
}
