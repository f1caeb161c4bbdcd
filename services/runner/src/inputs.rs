//! Upstream results as scripts read them.

use std::collections::BTreeMap;

use model::flow::{ResultMap, is_number};
use model::limits::INPUTS_BYTES_MAX;
use model::{Name, Reason, ReasonCode};
use serde::Serialize;
use serde_json::value::RawValue;

/// Writes `{node: {key: value}}` as JSON. A text that is `true`, `false`, a JSON array or a JSON object becomes that
/// value, and so does a number that would be written as exactly this text (an integer of 64 bits, or a float); every
/// other text becomes a string.
///
/// # Errors
/// `INPUTS_TOO_LARGE`.
pub(crate) fn to_json(inputs: &BTreeMap<Name, ResultMap>) -> Result<String, Reason> {
    let typed: BTreeMap<&str, BTreeMap<&str, TypedInput<'_>>> = inputs
        .iter()
        .map(|(node, result)| {
            (node.as_str(), result.iter().map(|(key, text)| (key.as_str(), typed(text))).collect())
        })
        .collect();
    let json = serde_json::to_string(&typed).map_err(|error| {
        Reason::new(ReasonCode::RuntimeError, format!("inputs cannot be written: {error}"))
    })?;
    if json.len() > INPUTS_BYTES_MAX {
        let detail = format!("the inputs have {} bytes, the limit is {INPUTS_BYTES_MAX}", json.len());
        return Err(Reason::new(ReasonCode::InputsTooLarge, detail));
    }
    Ok(json)
}

#[derive(Serialize)]
#[serde(untagged)]
enum TypedInput<'a> {
    Value(&'a RawValue),
    Text(&'a str),
}

fn typed(text: &str) -> TypedInput<'_> {
    let looks_typed = match text.as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => is_number(text),
        Some(b'{' | b'[') => true,
        _ => matches!(text, "true" | "false"),
    };
    if looks_typed && let Ok(raw) = serde_json::from_str::<&RawValue>(text) {
        return TypedInput::Value(raw);
    }
    TypedInput::Text(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_values_are_values() {
        let texts = [
            ("a", "1226.0"),
            ("b", "12345678901234567890123"),
            ("c", "true"),
            ("d", "[1, {\"x\": null}]"),
            ("e", "rain"),
            ("f", "007"),
            ("g", "null"),
            ("h", "\"q\""),
            ("i", "NaN"),
            ("j", ""),
            ("k", " 1"),
            ("l", "9223372036854775807"),
        ];
        let result = texts.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        let inputs = BTreeMap::from([("node-1".parse().expect("a name"), result)]);
        let expected = concat!(
            r#"{"node-1":{"a":1226.0,"b":"12345678901234567890123","c":true,"d":[1, {"x": null}],"e":"rain","#,
            r#""f":"007","g":"null","h":"\"q\"","i":"NaN","j":"","k":" 1","l":9223372036854775807}}"#
        );
        assert_eq!(to_json(&inputs), Ok(expected.to_owned()));
    }

    #[test]
    fn no_text_is_lost_in_a_number() {
        for text in ["7", "0", "-3", "0.5", "-0.0", "1226.0", "0.1", "5e-324", "-9223372036854775808"] {
            assert!(matches!(typed(text), TypedInput::Value(raw) if raw.get() == text), "{text}");
        }
        for text in [
            "1.10",
            "12e10",
            "01234",
            "1e3",
            "1E3",
            "-0",
            "+1",
            "1.",
            "-",
            "-inf",
            "7 ",
            "0.10000000000000000001",
            "9223372036854775808",
            "18446744073709551616",
        ] {
            assert!(matches!(typed(text), TypedInput::Text(same) if same == text), "{text}");
        }
    }

    #[test]
    fn too_much_is_refused_by_name() {
        let result = ResultMap::from([("k".to_owned(), "x".repeat(INPUTS_BYTES_MAX))]);
        let inputs = BTreeMap::from([("n".parse().expect("a name"), result)]);
        assert_eq!(to_json(&inputs).map_err(|reason| reason.code), Err(ReasonCode::InputsTooLarge));
    }
}
