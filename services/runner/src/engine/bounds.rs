//! Bounded replacements for standard functions of which one call could take unlimited memory, time or stack.
//!
//! The engine checks a value only after it was made. The originals could make a value that does not fit into memory
//! (`replace`, `split`), or recurse into values that are nested too deep for the stack (`print`, `==`).

use rhai::{Array, Dynamic, Engine, EvalAltResult, INT, ImmutableString, Map, Position};

use super::functions::EvalResult;
use super::value;
use crate::{RHAI_COLLECTION_LEN_MAX, RHAI_STRING_BYTES_MAX};

pub(super) fn register(engine: &mut Engine) {
    register_replace(engine);
    register_split(engine);
    register_text(engine);
    register_equality(engine);
}

fn too_large(what: &str) -> Box<EvalAltResult> {
    EvalAltResult::ErrorDataTooLarge(what.to_owned(), Position::NONE).into()
}

/// A pattern that standard functions take: a text or a character.
trait SearchPattern {
    /// Returns the pattern as text.
    fn text(&self) -> String;
}

impl SearchPattern for &str {
    fn text(&self) -> String {
        (*self).to_owned()
    }
}

impl SearchPattern for char {
    fn text(&self) -> String {
        self.to_string()
    }
}

fn register_replace(engine: &mut Engine) {
    fn replace(text: &mut ImmutableString, sought: &str, by: &str) -> EvalResult<()> {
        let grows = by.len().saturating_sub(sought.len());
        // An empty text is found around every character.
        if grows > 0 {
            let len = text.matches(sought).count().saturating_mul(grows).saturating_add(text.len());
            if len > RHAI_STRING_BYTES_MAX {
                return Err(too_large("Length of string"));
            }
        }
        *text = text.replace(sought, by).into();
        Ok(())
    }
    engine.register_fn("replace", |text: &mut ImmutableString, sought: &str, by: &str| {
        replace(text, sought, by)
    });
    engine.register_fn("replace", |text: &mut ImmutableString, sought: &str, by: char| {
        replace(text, sought, &by.text())
    });
    engine.register_fn("replace", |text: &mut ImmutableString, sought: char, by: &str| {
        replace(text, &sought.text(), by)
    });
}

/// The pieces of a text, unless there are too many of them.
fn pieces<'a>(pieces: impl Iterator<Item = &'a str>) -> EvalResult<Array> {
    let mut list = Array::new();
    for piece in pieces {
        if list.len() >= RHAI_COLLECTION_LEN_MAX {
            return Err(too_large("Size of array/BLOB"));
        }
        list.push(ImmutableString::from(piece).into());
    }
    Ok(list)
}

fn count(segments: INT) -> usize {
    // The standard functions treat it in the same way.
    usize::try_from(segments).unwrap_or(0).max(1)
}

fn register_split(engine: &mut Engine) {
    type Text<'a> = &'a mut ImmutableString;
    engine.register_fn("split", |text: Text| pieces(text.split_whitespace()));
    engine.register_fn("split", |text: Text, at: &str| pieces(text.split(at)));
    engine.register_fn("split", |text: Text, at: char| pieces(text.split(at)));
    engine.register_fn("split", |text: Text, at: &str, n: INT| pieces(text.splitn(count(n), at)));
    engine.register_fn("split", |text: Text, at: char, n: INT| pieces(text.splitn(count(n), at)));
    engine.register_fn("split_rev", |text: Text, at: &str| pieces(text.rsplit(at)));
    engine.register_fn("split_rev", |text: Text, at: char| pieces(text.rsplit(at)));
    engine.register_fn("split_rev", |text: Text, at: &str, n: INT| pieces(text.rsplitn(count(n), at)));
    engine.register_fn("split_rev", |text: Text, at: char, n: INT| pieces(text.rsplitn(count(n), at)));
    engine.register_fn("to_chars", |text: &str| -> EvalResult<Array> {
        if text.len() > RHAI_COLLECTION_LEN_MAX && text.chars().count() > RHAI_COLLECTION_LEN_MAX {
            return Err(too_large("Size of array/BLOB"));
        }
        Ok(text.chars().map(Dynamic::from).collect())
    });
}

fn register_text(engine: &mut Engine) {
    fn list(list: &mut Array) -> EvalResult<ImmutableString> {
        let mut text = String::new();
        value::write_list(list, &mut text, 0)?;
        Ok(text.into())
    }
    fn map(map: &mut Map) -> EvalResult<ImmutableString> {
        let mut text = String::new();
        value::write_map(map, &mut text, 0)?;
        Ok(text.into())
    }
    for name in ["print", "to_string", "debug", "to_debug"] {
        engine.register_fn(name, list).register_fn(name, map);
    }
}

fn register_equality(engine: &mut Engine) {
    engine
        .register_fn("==", |one: &mut Array, other: Array| value::equal_lists(one, &other))
        .register_fn("!=", |one: &mut Array, other: Array| !value::equal_lists(one, &other))
        .register_fn("==", |one: &mut Map, other: Map| value::equal_maps(one, &other))
        .register_fn("!=", |one: &mut Map, other: Map| !value::equal_maps(one, &other));
}
