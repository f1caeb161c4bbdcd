//! Values as expressions see them.

use rhai::{Array, Dynamic, Engine, EvalAltResult, ImmutableString, Map, Variant};

/// A value: a text, a number, a truth, a list, an object, or nothing.
#[derive(Debug, Clone)]
pub struct Operand(pub(super) Dynamic);

impl Operand {
    /// Nothing, which is written `()`.
    pub const NOTHING: Self = Self(Dynamic::UNIT);

    /// An object with these fields.
    pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let fields: Map = fields.into_iter().map(|(name, value)| (name.into(), value.0)).collect();
        Self(fields.into())
    }

    /// A list of these.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        let items: Array = items.into_iter().map(|item| item.0).collect();
        Self(items.into())
    }

    /// Converts the operand to its kind and its content.
    #[must_use]
    pub fn into_value(self) -> OperandValue {
        let value = self.0;
        if value.is_array() {
            return OperandValue::List(value.cast::<Array>().into_iter().map(Self).collect());
        }
        if value.is_map() {
            let fields = value.cast::<Map>().into_iter();
            return OperandValue::Object(
                fields.map(|(name, value)| (name.to_string(), Self(value))).collect(),
            );
        }
        if let Ok(number) = value.as_int() {
            return OperandValue::Int(number);
        }
        if let Ok(number) = value.as_float() {
            return OperandValue::Fraction(number);
        }
        if let Ok(truth) = value.as_bool() {
            return OperandValue::Bool(truth);
        }
        if value.is_unit() {
            return OperandValue::Nothing;
        }
        // A character is a text of length one.
        OperandValue::Text(value.to_string())
    }

    /// A truth.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        self.0.as_bool().ok()
    }

    /// A number or a truth as the text that it was given as.
    #[must_use]
    pub fn written(&self) -> Option<String> {
        written(&self.0)
    }

    /// Names the kind of the operand, for people.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        kind(&self.0)
    }
}

/// Kind and content of an [`Operand`].
#[derive(Debug, Clone)]
pub enum OperandValue {
    /// `()`.
    Nothing,
    /// A truth.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction; none where the language has none.
    Fraction(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Operand>),
    /// An object, in the order of its fields.
    Object(Vec<(String, Operand)>),
}

impl From<&str> for Operand {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Operand {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<i64> for Operand {
    fn from(number: i64) -> Self {
        Self(number.into())
    }
}

impl From<f64> for Operand {
    fn from(number: f64) -> Self {
        Self(number.into())
    }
}

impl From<bool> for Operand {
    fn from(truth: bool) -> Self {
        Self(truth.into())
    }
}

/// Names the kind of a value, for people.
fn kind(value: &Dynamic) -> &'static str {
    if value.is_unit() {
        "nothing"
    } else if value.is_int() || value.is_float() {
        "a number"
    } else if value.is_string() || value.is_char() {
        "a text"
    } else if value.is_bool() {
        "a truth"
    } else if value.is_map() {
        "an object"
    } else {
        "a list"
    }
}

/// Operators and functions that every language has; `in` is `contains`. Compared with a text, a number or a boolean counts
/// as the text it was given as; ordering the two is an error.
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

/// Comparisons of a text with a value that is not a text.
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

/// Compares two values as `==` does: numbers are one kind, and beside a text everything counts as a text.
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
