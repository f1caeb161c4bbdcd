//! Values of scripts as bytes: a tag each, numbers in little endian, texts and lists behind their length.

use rhai::{Array, Blob, Dynamic, FLOAT, INT, ImmutableString, Map};

use super::EngineProtocolError;
use crate::RHAI_COLLECTION_LEN_MAX;
use crate::engine::DEPTH_MAX;

/// How many values one frame carries at most: those of two of the largest lists.
const VALUES_MAX: usize = 2 * RHAI_COLLECTION_LEN_MAX;

const UNIT: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INTEGER: u8 = 3;
const NUMBER: u8 = 4;
const CHARACTER: u8 = 5;
const TEXT: u8 = 6;
const LIST: u8 = 7;
const MAP: u8 = 8;
const BLOB: u8 = 9;

/// A value that cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueEncodeError {
    /// The value has no form outside of the engine.
    #[error("a value of type {0} cannot be written as JSON")]
    Kind(String),
    /// The value is nested too deep.
    #[error("it is nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// The value is too large for one frame.
    #[error("it is too large")]
    TooMany,
}

/// Adds a value to bytes.
pub(super) fn write(value: &Dynamic, bytes: &mut Vec<u8>) -> Result<(), ValueEncodeError> {
    write_at(value, bytes, 0)
}

fn write_at(value: &Dynamic, bytes: &mut Vec<u8>, depth: usize) -> Result<(), ValueEncodeError> {
    if depth > DEPTH_MAX {
        return Err(ValueEncodeError::TooDeep);
    }
    if bytes.len() > super::FRAME_BYTES_MAX {
        return Err(ValueEncodeError::TooMany);
    }
    if let Ok(list) = value.as_array_ref() {
        bytes.push(LIST);
        write_length(list.len(), bytes)?;
        return list.iter().try_for_each(|item| write_at(item, bytes, depth + 1));
    }
    if let Ok(map) = value.as_map_ref() {
        bytes.push(MAP);
        write_length(map.len(), bytes)?;
        return map.iter().try_for_each(|(key, item)| {
            write_bytes(key.as_bytes(), bytes)?;
            write_at(item, bytes, depth + 1)
        });
    }
    if let Ok(blob) = value.as_blob_ref() {
        bytes.push(BLOB);
        return write_bytes(&blob, bytes);
    }
    if let Ok(text) = value.as_immutable_string_ref() {
        bytes.push(TEXT);
        return write_bytes(text.as_bytes(), bytes);
    }
    if let Ok(number) = value.as_int() {
        bytes.push(INTEGER);
        bytes.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = value.as_float() {
        bytes.push(NUMBER);
        bytes.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(truth) = value.as_bool() {
        bytes.push(if truth { TRUE } else { FALSE });
    } else if let Ok(character) = value.as_char() {
        bytes.push(CHARACTER);
        bytes.extend_from_slice(&u32::from(character).to_le_bytes());
    } else if value.is_unit() {
        bytes.push(UNIT);
    } else {
        return Err(ValueEncodeError::Kind(value.type_name().to_owned()));
    }
    Ok(())
}

fn write_length(length: usize, bytes: &mut Vec<u8>) -> Result<(), ValueEncodeError> {
    let length = u32::try_from(length).map_err(|_| ValueEncodeError::TooMany)?;
    bytes.extend_from_slice(&length.to_le_bytes());
    Ok(())
}

fn write_bytes(text: &[u8], bytes: &mut Vec<u8>) -> Result<(), ValueEncodeError> {
    write_length(text.len(), bytes)?;
    bytes.extend_from_slice(text);
    Ok(())
}

/// Reads values from bytes that anybody may have written.
pub(super) struct WireValueReader<'a> {
    rest: &'a [u8],
    /// How many values there may still be.
    left: usize,
}

impl<'a> WireValueReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, left: VALUES_MAX }
    }

    /// The one value that there is.
    pub(super) fn only(mut self) -> Result<Dynamic, EngineProtocolError> {
        let value = self.value(0)?;
        if self.rest.is_empty() {
            Ok(value)
        } else {
            Err(EngineProtocolError("something stands behind a value"))
        }
    }

    /// Every value that there is.
    pub(super) fn all(mut self) -> Result<Vec<Dynamic>, EngineProtocolError> {
        let mut values = Vec::new();
        while !self.rest.is_empty() {
            values.push(self.value(0)?);
        }
        Ok(values)
    }

    fn value(&mut self, depth: usize) -> Result<Dynamic, EngineProtocolError> {
        if depth > DEPTH_MAX {
            return Err(EngineProtocolError("a value is nested too deep"));
        }
        self.left = self.left.checked_sub(1).ok_or(EngineProtocolError("a frame has too many values"))?;
        let [tag] = self.array()?;
        Ok(match tag {
            UNIT => Dynamic::UNIT,
            FALSE => false.into(),
            TRUE => true.into(),
            INTEGER => INT::from_le_bytes(self.array()?).into(),
            NUMBER => FLOAT::from_le_bytes(self.array()?).into(),
            CHARACTER => {
                let character = char::from_u32(u32::from_le_bytes(self.array()?));
                character.ok_or(EngineProtocolError("a character is none"))?.into()
            }
            TEXT => ImmutableString::from(self.text()?).into(),
            BLOB => Dynamic::from_blob(Blob::from(self.bytes()?)),
            LIST => {
                // Nothing is allocated for a length that is only claimed.
                let mut list = Array::new();
                for _ in 0..self.length()? {
                    list.push(self.value(depth + 1)?);
                }
                list.into()
            }
            MAP => {
                let mut map = Map::new();
                for _ in 0..self.length()? {
                    let key = self.text()?;
                    map.insert(key.into(), self.value(depth + 1)?);
                }
                map.into()
            }
            _ => return Err(EngineProtocolError("a value of no kind")),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], EngineProtocolError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(EngineProtocolError("a value is cut off"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn length(&mut self) -> Result<usize, EngineProtocolError> {
        usize::try_from(u32::from_le_bytes(self.array()?))
            .map_err(|_| EngineProtocolError("a length is too large"))
    }

    fn bytes(&mut self) -> Result<&'a [u8], EngineProtocolError> {
        let length = self.length()?;
        let (taken, rest) =
            self.rest.split_at_checked(length).ok_or(EngineProtocolError("a value is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<&'a str, EngineProtocolError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| EngineProtocolError("a text is no text"))
    }
}
