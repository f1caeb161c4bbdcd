//! Values as expressions see them.

use model::flow::is_number;
use rhai::{Array, Dynamic, Engine, EvalAltResult, ImmutableString, Variant};

/// A result's text as a value: `true`, `false` and what [`is_number`] are that, everything else is a text.
/// `$MYCORA_INPUTS` follows the same rule.
pub(super) fn typed(text: &str) -> Dynamic {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        _ if is_number(text) => number(text).unwrap_or_else(|| text.into()),
        _ => text.into(),
    }
}

fn number(text: &str) -> Option<Dynamic> {
    let integer = text.parse::<i64>().ok().map(Dynamic::from);
    integer.or_else(|| text.parse::<f64>().ok().map(Dynamic::from))
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

/// The functions that `check` lets pass; `in` is `contains`. Beside a text, a number or a truth counts as
/// the text it was given as; which of the two comes first has no answer.
pub(super) fn register(engine: &mut Engine) {
    beside_texts::<i64>(engine);
    beside_texts::<f64>(engine);
    beside_texts::<bool>(engine);
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

/// Comparisons of a text with what is none.
fn beside_texts<T: Variant + Clone + Into<Dynamic>>(engine: &mut Engine) {
    type Text = ImmutableString;
    type Answer = Result<bool, Box<EvalAltResult>>;
    let same = |text: Text, value: T| written(&value.into()).is_some_and(|written| text == written);
    engine
        .register_fn("==", move |text: Text, value: T| same(text, value))
        .register_fn("==", move |value: T, text: Text| same(text, value))
        .register_fn("!=", move |text: Text, value: T| !same(text, value))
        .register_fn("!=", move |value: T, text: Text| !same(text, value));
    for operator in ["<", "<=", ">", ">="] {
        let none = move |kind: &str| -> Answer {
            Err(format!("`{operator}` does not compare a text with {kind}").into())
        };
        engine
            .register_fn(operator, move |_: Text, value: T| none(kind(&value.into())))
            .register_fn(operator, move |value: T, _: Text| none(kind(&value.into())));
    }
}

/// A number or a truth as the text that it was given as.
fn written(value: &Dynamic) -> Option<String> {
    if let Ok(float) = value.as_float() {
        return serde_json::to_string(&float).ok();
    }
    (value.is_int() || value.is_bool()).then(|| value.to_string())
}

/// As `==` has it: numbers are one kind, and beside a text everything counts as a text.
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
    for (text, value) in [(one, other), (other, one)] {
        if let (Ok(text), Some(written)) = (text.as_immutable_string_ref(), written(value)) {
            return *text == written;
        }
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
        assert_eq!(typed("-3").as_int(), Ok(-3));
        assert_eq!(typed("1226.0").as_float(), Ok(1226.0));
        assert_eq!(typed("0.5").as_float(), Ok(0.5));
        assert_eq!(typed("true").as_bool(), Ok(true));
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
            assert!(typed(text).is_string(), "{text}");
        }
    }

    proptest! {
        /// What is read as a number is written as the same text again, and is JSON.
        #[test]
        fn numbers_lose_nothing(text in "-?[0-9.eE+\\-]{0,8}[ \n]?") {
            let value = typed(&text);
            if !value.is_string() {
                prop_assert_eq!(written(&value), Some(text.clone()));
                prop_assert!(serde_json::from_str::<serde_json::Number>(&text).is_ok());
            }
        }
    }
}
