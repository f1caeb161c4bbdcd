//! How long values are as JSON, without writing them.

use model::flow::ResultMap;

/// Bytes of `text` as a JSON string, with its quotation marks.
pub(crate) fn text(text: &str) -> usize {
    2 + text
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..=0x1f => 6,
            _ => 1,
        })
        .sum::<usize>()
}

/// Bytes of a member `key: value` of an object, with the comma that may follow.
pub(crate) fn member(key: &str, value_bytes: usize) -> usize {
    text(key) + 1 + value_bytes + 1
}

/// Bytes of a result as a JSON object.
pub(crate) fn result(result: &ResultMap) -> usize {
    let members = result.iter().map(|(key, value)| member(key, text(value))).sum::<usize>();
    // Behind the last member there is no comma.
    2 + members.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sizes_are_those_of_the_json(map: std::collections::BTreeMap<String, String>) {
            let written = serde_json::to_string(&map).expect("texts").len();
            prop_assert_eq!(result(&map), written);
        }
    }
}
