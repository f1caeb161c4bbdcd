//! Upstream results as scripts read them.

use std::collections::BTreeMap;

use model::flow::ResultMap;
use model::limits::INPUTS_BYTES_MAX;
use model::{Name, Reason, ReasonCode};
use serde::Serialize;
use serde_json::value::RawValue;

/// `{node: {key: value}}` as JSON. A text that is a JSON number, `true`, `false`, an array or an object
/// stands there as such, digit for digit; everything else as a string.
///
/// # Errors
/// `INPUTS_TOO_LARGE`.
pub(crate) fn to_json(inputs: &BTreeMap<Name, ResultMap>) -> Result<String, Reason> {
    let typed: BTreeMap<&str, BTreeMap<&str, Typed<'_>>> = inputs
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
enum Typed<'a> {
    Value(&'a RawValue),
    Text(&'a str),
}

fn typed(text: &str) -> Typed<'_> {
    let looks_typed = matches!(text.as_bytes().first(), Some(b'-' | b'0'..=b'9' | b'{' | b'['))
        || matches!(text, "true" | "false");
    if looks_typed && let Ok(raw) = serde_json::from_str::<&RawValue>(text) {
        return Typed::Value(raw);
    }
    Typed::Text(text)
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
        ];
        let result = texts.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        let inputs = BTreeMap::from([("node-1".parse().expect("a name"), result)]);
        let expected = concat!(
            r#"{"node-1":{"a":1226.0,"b":12345678901234567890123,"c":true,"d":[1, {"x": null}],"e":"rain","#,
            r#""f":"007","g":"null","h":"\"q\"","i":"NaN","j":"","k":" 1"}}"#
        );
        assert_eq!(to_json(&inputs), Ok(expected.to_owned()));
    }

    #[test]
    fn too_much_is_refused_by_name() {
        let result = ResultMap::from([("k".to_owned(), "x".repeat(INPUTS_BYTES_MAX))]);
        let inputs = BTreeMap::from([("n".parse().expect("a name"), result)]);
        assert_eq!(to_json(&inputs).map_err(|reason| reason.code), Err(ReasonCode::InputsTooLarge));
    }
}
