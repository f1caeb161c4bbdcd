//! The one form of a document: JSON without blanks, in the order of the file.
//!
//! Comments, quotes and layout make no other definition; the order of keys may, since work is ordered in it.

use std::fmt::Write as _;

use yaml::{Tree, Value};

use crate::Json;

/// Writes a document in its one form, which is YAML as well.
pub(super) fn text(tree: &Tree) -> String {
    let mut text = String::new();
    write(tree, &mut text);
    text
}

fn write(tree: &Tree, text: &mut String) {
    match &tree.value {
        Value::Null => text.push_str("null"),
        Value::Bool(truth, _) => text.push_str(if *truth { "true" } else { "false" }),
        Value::Int(number, _) => {
            // Writing to a text cannot fail.
            let _ = write!(text, "{number}");
        }
        // Its digits are what counts, and a text cannot be taken for it.
        Value::Float(_, written) => text.push_str(written),
        Value::Text(written) => quote(written, text),
        Value::List(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        Value::Map(entries) => {
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
