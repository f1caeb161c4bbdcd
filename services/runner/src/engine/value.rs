//! Values between scripts and JSON, and as text: bounded in depth and size, since scripts make them.

use std::fmt::Write as _;

use rhai::{Array, Dynamic, FLOAT, INT, ImmutableString, Map};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::EngineLimits;
use crate::RHAI_STRING_BYTES_MAX;

/// How deep lists and maps may stand in each other where a value becomes text or JSON.
pub(crate) const DEPTH_MAX: usize = 120;

/// A value as JSON.
///
/// # Errors
/// When it has no form in JSON, or is nested too deep.
pub(crate) fn to_json(value: &Dynamic) -> Result<Value, String> {
    to_json_at(value, 0)
}

fn to_json_at(value: &Dynamic, depth: usize) -> Result<Value, String> {
    if depth > DEPTH_MAX {
        return Err(format!("it is nested deeper than {DEPTH_MAX} levels"));
    }
    if let Ok(list) = value.as_array_ref() {
        return Ok(Value::Array(
            list.iter().map(|item| to_json_at(item, depth + 1)).collect::<Result<_, _>>()?,
        ));
    }
    if let Ok(map) = value.as_map_ref() {
        let members = map.iter().map(|(key, item)| Ok((key.to_string(), to_json_at(item, depth + 1)?)));
        return Ok(Value::Object(members.collect::<Result<_, String>>()?));
    }
    if let Ok(bytes) = value.as_blob_ref() {
        return Ok(Value::Array(bytes.iter().map(|byte| Value::from(*byte)).collect()));
    }
    scalar(value).ok_or_else(|| format!("a value of type {} cannot be written as JSON", value.type_name()))
}

fn scalar(value: &Dynamic) -> Option<Value> {
    if value.is_unit() {
        return Some(Value::Null);
    }
    if let Ok(text) = value.as_immutable_string_ref() {
        return Some(Value::String(text.to_string()));
    }
    if let Ok(character) = value.as_char() {
        return Some(Value::String(character.to_string()));
    }
    if let Ok(truth) = value.as_bool() {
        return Some(Value::Bool(truth));
    }
    if let Ok(number) = value.as_int() {
        return Some(Value::from(number));
    }
    // NaN and infinity have no form in JSON; as elsewhere they become null.
    value.as_float().ok().map(|number| Number::from_f64(number).map_or(Value::Null, Value::Number))
}

/// Reads JSON into a value, and stops where the script has no room for it.
///
/// # Errors
/// What is wrong with the text.
pub(super) fn from_json(text: &str, limits: &EngineLimits) -> serde_json::Result<Dynamic> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = ScriptJsonReader(limits).deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct ScriptJsonReader<'a>(&'a EngineLimits);

impl ScriptJsonReader<'_> {
    fn look<E: de::Error>(self) -> Result<(), E> {
        if self.0.exceeded() {
            Err(E::custom("the script has no room or no time left for it"))
        } else {
            Ok(())
        }
    }
}

impl<'de> DeserializeSeed<'de> for ScriptJsonReader<'_> {
    type Value = Dynamic;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Dynamic, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ScriptJsonReader<'_> {
    type Value = Dynamic;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Dynamic, E> {
        Ok(Dynamic::UNIT)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Dynamic, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Dynamic, E> {
        Ok(INT::from(value).into())
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "no integer of a script is as large; as a float it is near"
    )]
    fn visit_u64<E>(self, value: u64) -> Result<Dynamic, E> {
        Ok(INT::try_from(value).map_or_else(|_| Dynamic::from(value as FLOAT), Dynamic::from))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Dynamic, E> {
        Ok(FLOAT::from(value).into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Dynamic, E> {
        Ok(ImmutableString::from(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Dynamic, A::Error> {
        let mut list = Array::new();
        while let Some(item) = access.next_element_seed(self)? {
            self.look()?;
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Dynamic, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.look()?;
            map.insert(key.into(), access.next_value_seed(self)?);
        }
        Ok(map.into())
    }
}

/// Writes a value as it stands inside of a list or a map that is printed: texts in quotes.
fn write(value: &Dynamic, text: &mut String, depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("it is nested deeper than {DEPTH_MAX} levels"));
    }
    if text.len() > RHAI_STRING_BYTES_MAX {
        return Err(format!("its text has more than {RHAI_STRING_BYTES_MAX} bytes"));
    }
    if let Ok(list) = value.as_array_ref() {
        write_list(&list, text, depth)
    } else if let Ok(map) = value.as_map_ref() {
        write_map(&map, text, depth)
    } else {
        // Writing to a string cannot fail.
        let _ = write!(text, "{value:?}");
        Ok(())
    }
}

/// Writes a list as it is printed.
///
/// # Errors
/// When it is nested too deep, or its text would be too long.
pub(super) fn write_list(list: &Array, text: &mut String, depth: usize) -> Result<(), String> {
    text.push('[');
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        write(item, text, depth + 1)?;
    }
    text.push(']');
    Ok(())
}

/// Writes a map as it is printed.
///
/// # Errors
/// As [`write_list`].
pub(super) fn write_map(map: &Map, text: &mut String, depth: usize) -> Result<(), String> {
    text.push_str("#{");
    for (index, (key, item)) in map.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        let _ = write!(text, "{:?}: ", key.as_str());
        write(item, text, depth + 1)?;
    }
    text.push('}');
    Ok(())
}

/// Returns true if two values are equal, by the rules of `==` for their elements.
#[expect(clippy::cast_precision_loss, reason = "as the engine compares an integer with a float")]
#[expect(clippy::float_cmp, reason = "what a script asks for")]
pub(super) fn equal(one: &Dynamic, other: &Dynamic) -> bool {
    if let (Ok(one), Ok(other)) = (one.as_array_ref(), other.as_array_ref()) {
        return equal_lists(&one, &other);
    }
    if let (Ok(one), Ok(other)) = (one.as_map_ref(), other.as_map_ref()) {
        return equal_maps(&one, &other);
    }
    if let (Ok(one), Ok(other)) = (one.as_blob_ref(), other.as_blob_ref()) {
        return one.as_slice() == other.as_slice();
    }
    match (one.as_int(), other.as_int()) {
        (Ok(one), Ok(other)) => return one == other,
        (Ok(one), Err(_)) => return other.as_float().is_ok_and(|other| one as FLOAT == other),
        (Err(_), Ok(other)) => return one.as_float().is_ok_and(|one| one == other as FLOAT),
        _ => {}
    }
    matches!((scalar(one), scalar(other)), (Some(one), Some(other)) if one == other)
}

/// Compares two lists, as [`equal`] does.
pub(super) fn equal_lists(one: &Array, other: &Array) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
}

/// Compares two maps, as [`equal`] does.
pub(super) fn equal_maps(one: &Map, other: &Map) -> bool {
    one.len() == other.len()
        && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| equal(value, other)))
}
