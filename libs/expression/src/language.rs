//! Languages of expressions: one for conditions of nodes, one for sagas.

use rhai::{Array, Dynamic, Engine, EvalAltResult, INT, ImmutableString, Map};

/// A language: the operators that all have, and these functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Language {
    /// True if numbers may have a fraction.
    pub(crate) has_fractions: bool,
    /// Names of functions.
    pub(crate) functions: &'static [&'static str],
}

impl Language {
    /// Language of `when`, in flows.
    pub const CONDITIONS: Self =
        Self { has_fractions: true, functions: &["contains", "starts_with", "ends_with", "len"] };

    /// Language of sagas and effects: whole numbers only, so that nothing is rounded, and functions that make inputs.
    pub const SAGAS: Self = Self {
        has_fractions: false,
        functions: &[
            "contains",
            "starts_with",
            "ends_with",
            "len",
            "minutes",
            "hours",
            "days",
            "text",
            "int",
            "lower",
            "upper",
            "trim",
            "sum",
            "pluck",
        ],
    };

    /// Registers the functions that it has beside those of every language.
    pub(crate) fn register(self, engine: &mut Engine) {
        if self == Self::SAGAS {
            register_for_sagas(engine);
        }
    }

    /// Lists the functions of the language, for people.
    pub(crate) fn function_list(&self) -> String {
        let names: Vec<_> = self.functions.iter().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    }
}

type ExpressionText = ImmutableString;
type FunctionResult<T> = Result<T, Box<EvalAltResult>>;

/// Registers the functions that only sagas have.
fn register_for_sagas(engine: &mut Engine) {
    let length = |unit: INT| {
        move |count: INT| -> FunctionResult<INT> {
            count.checked_mul(unit).ok_or_else(|| "so long a time has no number".into())
        }
    };
    engine
        .register_fn("minutes", length(60_000))
        .register_fn("hours", length(3_600_000))
        .register_fn("days", length(24 * 3_600_000))
        .register_fn("text", |text: ExpressionText| text)
        .register_fn("text", |number: INT| number.to_string())
        .register_fn("text", |truth: bool| truth.to_string())
        .register_fn("int", |number: INT| number)
        .register_fn("int", |text: ExpressionText| -> FunctionResult<INT> {
            let number = text.parse::<INT>().ok().filter(|number| number.to_string() == text.as_str());
            number.ok_or_else(|| "`int` takes the digits of a whole number".into())
        })
        .register_fn("lower", |text: ExpressionText| text.to_lowercase())
        .register_fn("upper", |text: ExpressionText| text.to_uppercase())
        .register_fn("trim", |text: ExpressionText| ExpressionText::from(text.trim()))
        .register_fn("len", |list: &mut Array| INT::try_from(list.len()).unwrap_or(INT::MAX))
        .register_fn("sum", sum)
        .register_fn("pluck", pluck);
}

/// The sum of a list of numbers.
fn sum(list: &mut Array) -> FunctionResult<INT> {
    list.iter().try_fold(0, |sum: INT, item| {
        let number = item.as_int().map_err(|kind| format!("`sum` takes a list of numbers, not of {kind}"))?;
        sum.checked_add(number).ok_or_else(|| "the sum is too large a number".into())
    })
}

/// Returns the value of a key in each object of a list; `()` for objects that do not have the key.
#[expect(clippy::needless_pass_by_value, reason = "it is how the engine calls it")]
fn pluck(list: &mut Array, key: ExpressionText) -> FunctionResult<Array> {
    let field = |item: &Dynamic| -> FunctionResult<Dynamic> {
        let object =
            item.as_map_ref().map_err(|kind| format!("`pluck` takes a list of objects, not of {kind}"))?;
        Ok(Map::get(&object, key.as_str()).cloned().unwrap_or(Dynamic::UNIT))
    };
    list.iter().map(field).collect()
}
