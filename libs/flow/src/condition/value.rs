//! Values as expressions see them.

use rhai::{Array, Dynamic, Engine, ImmutableString};

/// A result's text as a value: a JSON number, `true` and `false` are that, everything else is a text.
/// `$MYCORA_INPUTS` follows the same rule.
pub(super) fn typed(text: &str) -> Dynamic {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        _ => number(text).unwrap_or_else(|| text.into()),
    }
}

fn number(text: &str) -> Option<Dynamic> {
    let digits = text.trim_end_matches([' ', '\t', '\n', '\r']);
    let whole = json_number(digits)?;
    let integer = whole.then(|| digits.parse::<i64>().ok()).flatten().map(Dynamic::from);
    integer.or_else(|| digits.parse::<f64>().ok().map(Dynamic::from))
}

/// Whether a text is a number by the grammar of JSON: then whether it has neither fraction nor exponent.
fn json_number(text: &str) -> Option<bool> {
    fn digits(text: &str) -> Option<&str> {
        let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
        (rest.len() < text.len()).then_some(rest)
    }
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let mut rest = match unsigned.strip_prefix('0') {
        Some(rest) => rest,
        None => digits(unsigned)?,
    };
    let whole = rest.is_empty();
    if let Some(fraction) = rest.strip_prefix('.') {
        rest = digits(fraction)?;
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        rest = digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))?;
    }
    rest.is_empty().then_some(whole)
}

/// What a value is, for people.
pub(super) fn kind(value: &Dynamic) -> &'static str {
    if value.is_unit() {
        "nothing"
    } else if value.is_int() || value.is_float() {
        "a number"
    } else if value.is_string() || value.is_char() {
        "a text"
    } else if value.is_bool() {
        "a truth"
    } else {
        "a list"
    }
}

/// The functions that `check` lets pass; `in` is `contains`.
pub(super) fn register(engine: &mut Engine) {
    engine
        .register_fn("len", |text: &mut ImmutableString| {
            i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
        })
        .register_fn("contains", |text: &mut ImmutableString, part: ImmutableString| {
            text.contains(part.as_str())
        })
        .register_fn("contains", |list: &mut Array, value: Dynamic| {
            list.iter().any(|element| are_equal(element, &value))
        })
        .register_fn("starts_with", |text: &mut ImmutableString, part: ImmutableString| {
            text.starts_with(part.as_str())
        })
        .register_fn("ends_with", |text: &mut ImmutableString, part: ImmutableString| {
            text.ends_with(part.as_str())
        });
}

/// As `==` has it: values of different kinds are never equal, numbers are one kind.
fn are_equal(one: &Dynamic, other: &Dynamic) -> bool {
    if let (Ok(one), Ok(other)) = (one.as_int(), other.as_int()) {
        return one == other;
    }
    if let (Some(one), Some(other)) = (float(one), float(other)) {
        return one.total_cmp(&other).is_eq();
    }
    if let (Ok(one), Ok(other)) = (one.as_immutable_string_ref(), other.as_immutable_string_ref()) {
        return *one == *other;
    }
    if let (Ok(one), Ok(other)) = (one.as_bool(), other.as_bool()) {
        return one == other;
    }
    one.is_unit() && other.is_unit()
}

fn float(value: &Dynamic) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "as the operators of the language compare them")]
    value.as_float().ok().or_else(|| value.as_int().ok().map(|int| int as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_that_are_values_are_values() {
        assert_eq!(typed("7").as_int(), Ok(7));
        assert_eq!(typed("-0").as_int(), Ok(0));
        assert_eq!(typed("1226.0").as_float(), Ok(1226.0));
        assert_eq!(typed("12345678901234567890").as_float(), Ok(12_345_678_901_234_567_890.0));
        assert_eq!(typed("true").as_bool(), Ok(true));
        for text in ["007", "null", "NaN", "", " 1", "1.", ".5", "+1", "0x10", "1e", "true ", "[1]", "\"q\""]
        {
            assert!(typed(text).is_string(), "{text}");
        }
    }

    proptest! {
        /// The rule of `$MYCORA_INPUTS`, which keeps the digits as they are.
        #[test]
        fn numbers_are_those_of_json(text in "-?[0-9.eE+\\-]{0,6}[ \n]?") {
            let begins = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            let raw = begins && serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            prop_assert_eq!(number(&text).is_some(), raw);
        }
    }
}
