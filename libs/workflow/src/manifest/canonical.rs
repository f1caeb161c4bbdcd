//! Canonical form of a document: JSON without blanks, in the order of the file.
//!
//! Comments, quotes and layout do not change a definition; the order of keys may, since work is ordered in it.

use std::fmt::Write as _;

use yaml::{YamlNode, YamlValue};

use crate::Json;

/// Writes a document in its one form, which is YAML as well.
pub(super) fn text(tree: &YamlNode) -> String {
    let mut text = String::new();
    write(tree, &mut text);
    text
}

fn write(tree: &YamlNode, text: &mut String) {
    match &tree.value {
        YamlValue::Null => text.push_str("null"),
        YamlValue::Bool(truth, _) => text.push_str(if *truth { "true" } else { "false" }),
        YamlValue::Int(number, _) => {
            // Writing to a text cannot fail.
            let _ = write!(text, "{number}");
        }
        // Only its digits count; it cannot be mistaken for a text, which has quotes.
        YamlValue::Float(_, written) => text.push_str(written),
        YamlValue::Text(written) => quote(written, text),
        YamlValue::List(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        YamlValue::Map(entries) => {
            text.push('{');
            for (i, entry) in entries.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                quote(&entry.key, text);
                text.push_str(": ");
                write(&entry.value, text);
            }
            text.push('}');
        }
    }
}

fn quote(written: &str, text: &mut String) {
    // Writing to a text cannot fail.
    let _ = write!(text, "{}", Json::Text(written.to_owned()));
}
