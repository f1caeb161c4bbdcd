//! What a script gave: `key=value` lines, or one JSON object.

use model::flow::ResultMap;
use model::limits::RESULT_BYTES_MAX;
use model::{Reason, ReasonCode};
use serde_json::Value;

/// The longest key.
const KEY_BYTES_MAX: usize = 256;

/// Reads the text of a result file.
///
/// # Errors
/// `RUNTIME_ERROR` with the line that is neither, or `RESULT_TOO_LARGE`.
pub(crate) fn parse(text: &str) -> Result<ResultMap, Reason> {
    let trimmed = text.trim();
    let result = if trimmed.starts_with('{') { parse_json(trimmed)? } else { parse_lines(text)? };
    check_size(&result)?;
    Ok(result)
}

/// A value as a result keeps it: texts as they are, everything else as its JSON.
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
    let size = serde_json::to_string(result).map_or(usize::MAX, |json| json.len());
    if size > RESULT_BYTES_MAX {
        let detail = format!("the result has {size} bytes as JSON, the limit is {RESULT_BYTES_MAX}");
        return Err(Reason::new(ReasonCode::ResultTooLarge, detail));
    }
    Ok(())
}

fn parse_json(text: &str) -> Result<ResultMap, Reason> {
    let object: serde_json::Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| wrong(format!("$MYCORA_RESULT begins like a JSON object and is none: {error}")))?;
    object
        .into_iter()
        .map(|(key, value)| {
            check_key(&key).map_err(|why| wrong(format!("$MYCORA_RESULT has a key that {why}")))?;
            Ok((key, text_of(value)))
        })
        .collect()
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
