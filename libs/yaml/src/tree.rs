//! YAML as a tree in which every key and every value knows its place.
//!
//! The parser does not judge the content: the reader walks the whole tree and can therefore report every problem at once.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use crate::{Problem, SourcePosition};

/// Lists and maps within each other. A flow file needs six.
const DEPTH_MAX: usize = 32;
/// Values in one file.
const VALUES_MAX: usize = 4_000_000;
/// Values that aliases repeat, so that a short file cannot become a huge one.
const REPEATED_MAX: usize = 200_000;

/// A value and where it stands.
#[derive(Debug)]
pub struct YamlNode {
    /// Where it begins.
    pub place: SourcePosition,
    /// The value.
    pub value: YamlValue,
}

/// A value. Scalars keep the text they were written as: `1.0` in an
/// environment is those three characters.
#[derive(Debug)]
pub enum YamlValue {
    /// Nothing is written there, or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool, String),
    /// A number without a fraction.
    Int(i64, String),
    /// Any other number; one beyond those of 64 bits is the largest there is.
    Float(f64, String),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<YamlNode>),
    /// A mapping, in the order of the file. No key stands there twice.
    Map(Vec<YamlEntry>),
}

/// A key with its value.
#[derive(Debug)]
pub struct YamlEntry {
    /// Where the key stands.
    pub place: SourcePosition,
    /// The key.
    pub key: String,
    /// Value of the key.
    pub value: YamlNode,
}

impl YamlValue {
    /// Names the kind of the value, for messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(..) => "true or false",
            Self::Int(..) => "a number",
            Self::Float(..) => "a number with a fraction",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }

    /// The characters of a scalar.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Bool(_, text) | Self::Int(_, text) | Self::Float(_, text) | Self::Text(text) => Some(text),
            Self::Null | Self::List(_) | Self::Map(_) => None,
        }
    }
}

/// Parses one YAML document. `what` is what messages call it, such as `a flow file`.
///
/// # Errors
/// The syntax error, at its place.
pub fn parse(text: &str, what: &str) -> Result<YamlNode, Problem> {
    let raw = serde_saphyr::from_str_with_options(text, options());
    Ok(YamlNode::new(raw.map_err(|error| problem(&error, what))?, text))
}

/// Parses the YAML documents of a text, which `---` separates; leaves empty ones out.
///
/// # Errors
/// The syntax error, at its place.
pub fn parse_all(text: &str, what: &str) -> Result<Vec<YamlNode>, Problem> {
    let raws: Result<Vec<_>, _> = serde_saphyr::from_multiple_with_options(text, options());
    let raws = raws.map_err(|error| problem(&error, what))?;
    Ok(raws.into_iter().map(|raw| YamlNode::new(raw, text)).collect())
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: VALUES_MAX,
            max_events: 2 * VALUES_MAX,
            // Many jobs may share one anchor; the repeated values are bounded below.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPEATED_MAX },
        strict_booleans: true,
        with_snippet: false,
        // Read as texts, `1e400` and `.inf` are the characters that they were written as.
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
    }
}

fn problem(error: &serde_saphyr::Error, what: &str) -> Problem {
    let error = error.without_snippet();
    let place = error.location().map_or(SourcePosition::START, place);
    Problem::at(place, what_is_wrong(error, what))
}

/// Describes an error for the file's author: the library's message names Rust types.
fn what_is_wrong(error: &serde_saphyr::Error, what: &str) -> String {
    use serde_saphyr::Error;
    match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("`{key}` is written twice in the same mapping; rename or remove one of them")
        }
        Error::MultipleDocuments { .. } => {
            format!("a second document begins here; {what} has one, without `---` or `...` in it")
        }
        Error::Unexpected { .. } | Error::NullIntoString { .. } | Error::SerdeInvalidType { .. } => {
            "a key has to be a text".to_owned()
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => "`<<` takes a mapping, or an alias of one".to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias stands for what it is part of".to_owned()
        }
        Error::UnknownAnchor { .. } => {
            "no anchor of this name stands before it; `&name` makes one, quotes make a text of it".to_owned()
        }
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. } => {
            format!("aliases repeat more than {REPEATED_MAX} values; write less by alias")
        }
        Error::Budget { .. } => {
            format!(
                "the file has more than {VALUES_MAX} values, or more than {DEPTH_MAX} of them within each other"
            )
        }
        Error::InvalidBinaryBase64 { .. }
        | Error::BinaryNotUtf8 { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. }
        | Error::InvalidBooleanStrict { .. }
        | Error::InvalidScalar { .. }
        | Error::UnsupportedTag { .. } => {
            "the value does not fit its tag; leave tags such as `!!int` out".to_owned()
        }
        Error::AliasError { error, .. } => what_is_wrong(error, what),
        // Errors of the YAML itself, in the words of the YAML library.
        other => {
            let full = other.to_string();
            let end = full.find(" at line ").unwrap_or(full.len());
            format!("this is not YAML as {what} needs it: {}", &full[..end])
        }
    }
}

fn place(location: Location) -> SourcePosition {
    SourcePosition { line: location.line().max(1), column: location.column().max(1) }
}

impl YamlNode {
    fn new(raw: Spanned<RawYamlValue>, source: &str) -> Self {
        let defined = raw.defined;
        let written =
            |value: &dyn fmt::Display| written(defined, source).unwrap_or_else(|| value.to_string());
        let value = match raw.value {
            RawYamlValue::Null => YamlValue::Null,
            RawYamlValue::Bool(value) => YamlValue::Bool(value, written(&value)),
            RawYamlValue::Int(value) => YamlValue::Int(value, written(&value)),
            RawYamlValue::Float(value) => YamlValue::Float(value, written(&value)),
            RawYamlValue::Text(text) => YamlValue::Text(text),
            RawYamlValue::List(items) => {
                YamlValue::List(items.into_iter().map(|item| Self::new(item, source)).collect())
            }
            RawYamlValue::Map(entries) => YamlValue::Map(
                entries
                    .into_iter()
                    .map(|(key, value)| YamlEntry {
                        place: place(key.referenced),
                        key: key.value,
                        value: Self::new(value, source),
                    })
                    .collect(),
            ),
        };
        Self { place: place(raw.referenced), value }
    }
}

/// The characters that a plain scalar was read from.
fn written(at: Location, source: &str) -> Option<String> {
    let start = usize::try_from(at.span().byte_offset()?).ok()?;
    let end = start + usize::try_from(at.span().byte_len()?).ok()?;
    source.get(start..end).map(|text| text.trim().to_owned())
}

/// A value as the YAML library gives it.
enum RawYamlValue {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Spanned<RawYamlValue>>),
    Map(Vec<(Spanned<String>, Spanned<RawYamlValue>)>),
}

impl<'de> Deserialize<'de> for RawYamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawYamlVisitor)
    }
}

struct RawYamlVisitor;

impl<'de> Visitor<'de> for RawYamlVisitor {
    type Value = RawYamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Int(value))
    }

    // Numbers beyond i64 are beyond every limit; a value that is read as text keeps its characters.
    fn visit_u64<E>(self, value: u64) -> Result<RawYamlValue, E> {
        Ok(i64::try_from(value).map_or(RawYamlValue::Float(f64::MAX), RawYamlValue::Int))
    }

    fn visit_i128<E>(self, _: i128) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Float(f64::MAX))
    }

    fn visit_u128<E>(self, _: u128) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Float(f64::MAX))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<RawYamlValue, E> {
        Ok(RawYamlValue::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawYamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(RawYamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawYamlValue, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(RawYamlValue::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_keep_the_places_that_they_have_in_the_text() {
        let trees = parse_all("---\na: 1\n---\n---\nb: [2,\n  1.50]\n", "a manifest").expect("two documents");
        let [first, second] = trees.as_slice() else { panic!("{} documents", trees.len()) };
        let entry = |tree: &YamlNode| match &tree.value {
            YamlValue::Map(entries) => (entries[0].key.clone(), entries[0].place),
            other => panic!("{}", other.kind()),
        };
        assert_eq!(entry(first), ("a".to_owned(), SourcePosition { line: 2, column: 1 }));
        assert_eq!(entry(second), ("b".to_owned(), SourcePosition { line: 5, column: 1 }));
        let YamlValue::Map(entries) = &second.value else { panic!("no mapping") };
        let YamlValue::List(items) = &entries[0].value.value else { panic!("no list") };
        assert_eq!(items[1].value.as_text(), Some("1.50"));
        assert_eq!(items[1].place, SourcePosition { line: 6, column: 3 });
        let refused = parse_all("a: 1\n---\nb: {\n", "a manifest").expect_err("it does not end");
        assert!(refused.place.is_some_and(|place| place.line >= 3), "{refused:?}");
    }
}
