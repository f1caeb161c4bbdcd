//! Results as expressions see them.

use expression::Operand;
use model::flow::is_number;

/// A result's text as a value: `true`, `false` and what [`is_number`] are that, everything else is a text.
/// `$MYCORA_INPUTS` follows the same rule.
pub(super) fn typed(text: &str) -> Operand {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        _ if is_number(text) => number(text).unwrap_or_else(|| text.into()),
        _ => text.into(),
    }
}

fn number(text: &str) -> Option<Operand> {
    let integer = text.parse::<i64>().ok().map(Operand::from);
    integer.or_else(|| text.parse::<f64>().ok().map(Operand::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind(text: &str) -> &'static str {
        typed(text).kind()
    }

    #[test]
    fn texts_that_are_values_are_values() {
        for text in ["7", "-3", "1226.0", "0.5"] {
            assert_eq!(kind(text), "a number", "{text}");
        }
        assert_eq!(typed("true").as_bool(), Some(true));
        let texts = [
            "007",
            "null",
            "NaN",
            "",
            " 1",
            "1.",
            ".5",
            "+1",
            "0x10",
            "1e",
            "true ",
            "[1]",
            "\"q\"",
            "-0",
            "1.10",
            "12e10",
            "1e3",
            "12345678901234567890",
            "7\n",
            "inf",
        ];
        for text in texts {
            assert_eq!(kind(text), "a text", "{text}");
        }
    }

    proptest! {
        /// Text that is read as a number is written as the same text again, and is JSON.
        #[test]
        fn numbers_lose_nothing(text in "-?[0-9.eE+\\-]{0,8}[ \n]?") {
            let value = typed(&text);
            if value.kind() != "a text" {
                prop_assert_eq!(value.written(), Some(text.clone()));
                prop_assert!(serde_json::from_str::<serde_json::Number>(&text).is_ok());
            }
        }
    }
}
