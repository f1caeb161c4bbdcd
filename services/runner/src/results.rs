//! Result of a script: `key=value` lines, or one JSON object.

use std::collections::BTreeMap;

use model::flow::ResultMap;
use model::limits::RESULT_BYTES_MAX;
use model::{Reason, ReasonCode};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// The longest key.
const KEY_BYTES_MAX: usize = 256;

/// Reads the text of a result file.
///
/// # Errors
/// `RUNTIME_ERROR` with the invalid line, or `RESULT_TOO_LARGE`.
pub(crate) fn parse(text: &str) -> Result<ResultMap, Reason> {
    let trimmed = text.trim();
    let result = if trimmed.starts_with('{') { parse_json(trimmed)? } else { parse_lines(text)? };
    check_size(&result)?;
    Ok(result)
}

/// Converts a value to its text in a result: texts as they are, everything else as JSON.
pub(crate) fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Refuses a result beyond the limit.
///
/// # Errors
/// `RESULT_TOO_LARGE`.
pub(crate) fn check_size(result: &ResultMap) -> Result<(), Reason> {
    let size = size_of(result);
    if size > RESULT_BYTES_MAX { Err(too_large(size as u64)) } else { Ok(()) }
}

/// The bytes of a result as JSON.
pub(crate) fn size_of(result: &ResultMap) -> usize {
    serde_json::to_string(result).map_or(usize::MAX, |json| json.len())
}

/// The reason of a result with this many bytes.
pub(crate) fn too_large(bytes: u64) -> Reason {
    let detail = format!("the result has {bytes} bytes as JSON, the limit is {RESULT_BYTES_MAX}");
    Reason::new(ReasonCode::ResultTooLarge, detail)
}

fn parse_json(text: &str) -> Result<ResultMap, Reason> {
    let object = parse_object(text).map_err(|error| {
        wrong(format!("$MYCORA_RESULT begins like a JSON object, but is not valid JSON: {error}"))
    })?;
    for key in object.keys() {
        check_key(key).map_err(|why| wrong(format!("$MYCORA_RESULT has a key that {why}")))?;
    }
    Ok(object)
}

fn parse_object(text: &str) -> serde_json::Result<ResultMap> {
    // Parsed twice: raw values are bounded neither in depth nor in the size of numbers; these are.
    let values: BTreeMap<String, Value> = serde_json::from_str(text)?;
    let mut written: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    values
        .into_iter()
        .map(|(key, value)| {
            let text = match (value, written.remove(&key)) {
                (Value::Number(_) | Value::Array(_) | Value::Object(_), Some(raw)) => {
                    compact(raw)?.to_string()
                }
                (value, _) => text_of(value),
            };
            Ok((key, text))
        })
        .collect()
}

/// Returns the value without spaces and in order, its numbers digit for digit: a [`Value`] would round them.
fn compact(raw: &RawValue) -> serde_json::Result<Box<RawValue>> {
    match raw.get().as_bytes().first() {
        Some(b'{') => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(raw.get())?;
            let members = members.into_iter().map(|(key, member)| Ok((key, compact(member)?)));
            to_raw_value(&members.collect::<serde_json::Result<BTreeMap<_, _>>>()?)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(raw.get())?;
            to_raw_value(&items.into_iter().map(compact).collect::<serde_json::Result<Vec<_>>>()?)
        }
        Some(b'"') => to_raw_value(&serde_json::from_str::<String>(raw.get())?),
        _ => Ok(raw.to_owned()),
    }
}

fn parse_lines(text: &str) -> Result<ResultMap, Reason> {
    let mut result = ResultMap::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let number = at + 1;
        let Some((key, value)) = line.split_once('=') else {
            let shown: String = line.chars().take(80).collect();
            return Err(wrong(format!("line {number} of $MYCORA_RESULT is not key=value: {shown}")));
        };
        let key = key.trim();
        check_key(key)
            .map_err(|why| wrong(format!("line {number} of $MYCORA_RESULT has a key that {why}")))?;
        result.insert(key.to_owned(), value.to_owned());
    }
    Ok(result)
}

fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        Err("is empty")
    } else if key.len() > KEY_BYTES_MAX {
        Err("is longer than 256 bytes")
    } else if key.chars().any(char::is_control) {
        Err("contains control characters")
    } else {
        Ok(())
    }
}

fn wrong(detail: String) -> Reason {
    Reason::new(ReasonCode::RuntimeError, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let lines = parse("a=1\n\n b = x=y \r\nempty=\n").expect("lines");
        let pairs: Vec<_> = lines.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("a", "1"), ("b", " x=y "), ("empty", "")]);

        let json = parse("\n{\"n\": 1226.0, \"t\": true, \"s\": \"x\", \"l\": [1], \"o\": null}")
            .expect("an object");
        let pairs: Vec<_> = json.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("l", "[1]"), ("n", "1226.0"), ("o", ""), ("s", "x"), ("t", "true")]);
        assert_eq!(parse(" \n"), Ok(ResultMap::new()));
    }

    #[test]
    fn json_keeps_its_numbers() {
        let text = r#"{"n": 12345678901234567890123, "f": 0.10000000000000000001, "e": 1E2, "m": -0, "twice": 1,
            "l": [ 98765432109876543210 , {"b" : [1.10, null], "a": "x \u00e9 \" 1.0", "a": "y z"} ], "twice": 2.50}"#;
        let json = parse(text).expect("an object");
        let pairs: Vec<_> = json.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let expected = [
            ("e", "1E2"),
            ("f", "0.10000000000000000001"),
            ("l", r#"[98765432109876543210,{"a":"y z","b":[1.10,null]}]"#),
            ("m", "-0"),
            ("n", "12345678901234567890123"),
            ("twice", "2.50"),
        ];
        assert_eq!(pairs, expected);
        let text = r#"{"l": ["\u00e9 \" [1.0"]}"#;
        assert_eq!(parse(text).expect("an object")["l"], "[\"é \\\" [1.0\"]");
        let depth = 100_000;
        let deep = format!("{{\"l\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&deep).is_err_and(|reason| reason.detail.contains("recursion limit")));
        assert!(parse("{\"n\": 1e999}").is_err_and(|reason| reason.detail.contains("out of range")));
    }

    #[test]
    fn what_is_neither_is_named() {
        for (text, part) in [
            ("a=1\nnonsense", "line 2"),
            ("=1", "is empty"),
            ("{\"a\": 1", "JSON object"),
            ("{\"\": 1}", "is empty"),
            (&format!("{}=1", "k".repeat(300)), "longer"),
        ] {
            let reason = parse(text).expect_err(text);
            assert_eq!(reason.code, ReasonCode::RuntimeError);
            assert!(reason.detail.contains(part), "{reason}");
        }
        let large = format!("k={}", "x".repeat(RESULT_BYTES_MAX));
        assert_eq!(parse(&large).map_err(|reason| reason.code), Err(ReasonCode::ResultTooLarge));
    }
}
