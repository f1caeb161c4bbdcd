//! Expressions of manifests, and values with expressions in them.
//!
//! A formula sees values by name and gives a value. A template is a value in which `${{ … }}` holds a formula: alone it keeps
//! the type of its answer, within a text it becomes a part of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use expression::{
    Expression, ExpressionBudget, ExpressionError, ExpressionRuntimeError, Expressions, Language, Operand,
    OperandValue, Variables,
};
use yaml::did_you_mean;

use crate::Json;

const OPEN: &str = "${{";
const CLOSE: &str = "}}";

/// An expression, in bytes.
pub const FORMULA_BYTES_MAX: usize = 1024;
/// Steps of one evaluation.
pub const FORMULA_OPERATIONS_MAX: u64 = 20_000;
/// A text that an evaluation makes, in bytes.
const TEXT_BYTES_MAX: usize = 256 * 1024;

const BUDGET: ExpressionBudget = ExpressionBudget {
    bytes: FORMULA_BYTES_MAX,
    depth: 32,
    list: 10_000,
    text: TEXT_BYTES_MAX,
    operations: FORMULA_OPERATIONS_MAX,
};

/// Shared by all formulas: evaluations keep no state.
static EXPRESSIONS: LazyLock<Expressions> = LazyLock::new(|| Expressions::new(Language::SAGAS, &BUDGET));

/// A variable that formulas of one place may use.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Name of the variable.
    pub name: &'static str,
    /// The fields that it has; nothing where they are not known.
    pub fields: Option<BTreeSet<String>>,
}

impl Variable {
    /// A variable whose fields are not known.
    #[must_use]
    pub const fn open(name: &'static str) -> Self {
        Self { name, fields: None }
    }

    /// A variable with these fields.
    #[must_use]
    pub fn with(name: &'static str, fields: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { name, fields: Some(fields.into_iter().map(Into::into).collect()) }
    }
}

/// Why a text is no [`Formula`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormulaError {
    /// Not an expression.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// A variable that there is not.
    #[error("`{name}` is not known here: there are {known}{hint}")]
    UnknownVariable {
        /// Name that the text uses.
        name: String,
        /// The variables, for people.
        known: String,
        /// Suggestion of a name that was perhaps meant.
        hint: String,
    },
    /// A field that a variable has not.
    #[error("`{variable}` has no field `{field}`{hint}")]
    UnknownField {
        /// The variable.
        variable: String,
        /// Name of the field that the text uses.
        field: String,
        /// Suggestion of the field that was meant, or a list of the fields that exist.
        hint: String,
    },
    /// `${{` without `}}`.
    #[error("`${{{{` has no `}}}}`")]
    Unclosed,
}

/// A checked expression.
#[derive(Debug, Clone)]
pub struct Formula {
    expression: Expression,
    text: String,
    uses: BTreeSet<&'static str>,
}

/// The variables that one expression uses.
struct VariableCollector<'a> {
    known: &'a [Variable],
    found: BTreeSet<&'static str>,
}

impl Variables for VariableCollector<'_> {
    type Error = FormulaError;

    fn refer(&mut self, variable: &str, names: &[&str]) -> Result<usize, FormulaError> {
        let Some(known) = self.known.iter().find(|known| known.name == variable) else {
            let names: Vec<_> = self.known.iter().map(|known| known.name).collect();
            let hint = did_you_mean(variable, &names);
            return Err(FormulaError::UnknownVariable {
                name: variable.to_owned(),
                known: names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
                hint,
            });
        };
        if let (Some(fields), Some(field)) = (&known.fields, names.first())
            && !fields.contains(*field)
        {
            let fields: Vec<_> = fields.iter().map(String::as_str).collect();
            let hint = match did_you_mean(field, &fields) {
                hint if hint.is_empty() && fields.is_empty() => "; it has none".to_owned(),
                hint if hint.is_empty() => format!("; there are {}", fields.join(", ")),
                hint => hint,
            };
            return Err(FormulaError::UnknownField {
                variable: variable.to_owned(),
                field: (*field).to_owned(),
                hint,
            });
        }
        self.found.insert(known.name);
        Ok(names.len())
    }
}

/// Values of variables, by their names.
#[derive(Debug, Clone, Default)]
pub struct VariableScope<'a>(Vec<(&'static str, &'a Json)>);

impl<'a> VariableScope<'a> {
    /// A scope without variables.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &'a Json) -> Self {
        self.0.push((name, value));
        self
    }
}

/// An evaluation that came to nothing, and of what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: {what}")]
pub struct FormulaValueError {
    /// Text of the formula that was evaluated.
    pub text: String,
    /// Why.
    pub what: String,
}

impl Formula {
    /// Reads an expression that uses these variables.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn read(text: &str, known: &[Variable]) -> Result<Self, FormulaError> {
        let text = text.trim();
        let mut uses = VariableCollector { known, found: BTreeSet::new() };
        let expression = EXPRESSIONS.read(text, &mut uses)?;
        Ok(Self { expression, text: text.to_owned(), uses: uses.found })
    }

    /// The text that was read.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether it uses a variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        self.uses.contains(variable)
    }

    /// Evaluates it. A variable that is missing in the scope is null.
    ///
    /// # Errors
    /// Types that do not fit, numbers out of range, its budget used up.
    pub fn value(&self, scope: &VariableScope<'_>) -> Result<Json, FormulaValueError> {
        let variables = self.uses.iter().map(|name| {
            let value = scope.0.iter().find(|(known, _)| known == name);
            (*name, value.map_or(Operand::NOTHING, |(_, value)| operand(value)))
        });
        let answer = EXPRESSIONS.evaluate(&self.expression, variables);
        answer.map_err(|ExpressionRuntimeError { what }| self.no_value(what)).and_then(|answer| {
            json(answer).ok_or_else(|| self.no_value("the answer has a fraction".to_owned()))
        })
    }

    /// Evaluates a condition.
    ///
    /// # Errors
    /// As [`Formula::value`], and an answer that is no truth.
    pub fn is_true(&self, scope: &VariableScope<'_>) -> Result<bool, FormulaValueError> {
        match self.value(scope)? {
            Json::Bool(truth) => Ok(truth),
            other => Err(self.no_value(format!("a condition is true or false, this is {}", other.kind()))),
        }
    }

    /// Makes the error of this formula.
    pub(crate) fn no_value(&self, what: String) -> FormulaValueError {
        FormulaValueError { text: self.text.clone(), what }
    }
}

fn operand(value: &Json) -> Operand {
    match value {
        Json::Null => Operand::NOTHING,
        Json::Bool(truth) => (*truth).into(),
        Json::Int(number) => (*number).into(),
        Json::Text(text) => text.as_str().into(),
        Json::List(items) => Operand::list(items.iter().map(operand)),
        Json::Map(entries) => {
            Operand::object(entries.iter().map(|(key, value)| (key.as_str(), operand(value))))
        }
    }
}

/// The answer as a value; `None` for one that contains a fraction.
fn json(answer: Operand) -> Option<Json> {
    Some(match answer.into_value() {
        OperandValue::Nothing => Json::Null,
        OperandValue::Bool(truth) => Json::Bool(truth),
        OperandValue::Int(number) => Json::Int(number),
        OperandValue::Fraction(_) => return None,
        OperandValue::Text(text) => Json::Text(text),
        OperandValue::List(items) => Json::List(items.into_iter().map(json).collect::<Option<_>>()?),
        OperandValue::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| Some((name, json(value)?)));
            Json::Map(fields.collect::<Option<_>>()?)
        }
    })
}

/// A value with formulas in it.
#[derive(Debug, Clone)]
pub enum ValueTemplate {
    /// A value as it was written.
    Literal(Json),
    /// The answer of a formula.
    Formula(Formula),
    /// A text with answers in it.
    Text(Vec<TemplatePart>),
    /// A list.
    List(Vec<Self>),
    /// An object.
    Map(BTreeMap<String, Self>),
}

/// A part of a text.
#[derive(Debug, Clone)]
pub enum TemplatePart {
    /// Characters as they were written.
    Written(String),
    /// The answer of a formula.
    Formula(Formula),
}

impl ValueTemplate {
    /// Reads a text, in which `${{ … }}` holds formulas.
    ///
    /// # Errors
    /// Everything that is wrong with its formulas.
    pub fn read_text(text: &str, known: &[Variable]) -> Result<Self, Vec<FormulaError>> {
        let (mut pieces, mut errors) = (Vec::new(), Vec::new());
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once(OPEN) {
            if !before.is_empty() {
                pieces.push(TemplatePart::Written(before.to_owned()));
            }
            let Some(end) = end_of_formula(behind) else {
                errors.push(FormulaError::Unclosed);
                return Err(errors);
            };
            match Formula::read(&behind[..end], known) {
                Ok(formula) => pieces.push(TemplatePart::Formula(formula)),
                Err(error) => errors.push(error),
            }
            rest = &behind[end + CLOSE.len()..];
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        if !rest.is_empty() {
            pieces.push(TemplatePart::Written(rest.to_owned()));
        }
        let is_alone = pieces.len() == 1;
        Ok(match pieces.pop() {
            None => Self::empty_text(),
            Some(TemplatePart::Formula(formula)) if is_alone => Self::Formula(formula),
            Some(TemplatePart::Written(text)) if is_alone => Self::Literal(Json::Text(text)),
            Some(last) => {
                pieces.push(last);
                Self::Text(pieces)
            }
        })
    }

    /// An empty text.
    #[must_use]
    pub const fn empty_text() -> Self {
        Self::Literal(Json::Text(String::new()))
    }

    /// Returns whether one of its formulas uses a variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        match self {
            Self::Literal(_) => false,
            Self::Formula(formula) => formula.uses(variable),
            Self::Text(pieces) => pieces
                .iter()
                .any(|piece| matches!(piece, TemplatePart::Formula(formula) if formula.uses(variable))),
            Self::List(items) => items.iter().any(|item| item.uses(variable)),
            Self::Map(entries) => entries.values().any(|value| value.uses(variable)),
        }
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// A formula without an answer, or within a text one whose answer is no text, number or truth.
    pub fn value(&self, scope: &VariableScope<'_>) -> Result<Json, FormulaValueError> {
        Ok(match self {
            Self::Literal(value) => value.clone(),
            Self::Formula(formula) => formula.value(scope)?,
            Self::Text(pieces) => {
                let mut text = String::new();
                for piece in pieces {
                    piece.append(&mut text, scope)?;
                }
                Json::Text(text)
            }
            Self::List(items) => {
                Json::List(items.iter().map(|item| item.value(scope)).collect::<Result<_, _>>()?)
            }
            Self::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| Ok((key.clone(), value.value(scope)?)));
                Json::Map(entries.collect::<Result<_, FormulaValueError>>()?)
            }
        })
    }

    /// Evaluates a text for people: a formula that fails is shown as `?`.
    #[must_use]
    pub fn shown(&self, scope: &VariableScope<'_>) -> String {
        let answer = |formula: &Formula| match formula.value(scope) {
            Ok(Json::Text(text)) => text,
            Ok(other) => other.to_string(),
            Err(_) => "?".to_owned(),
        };
        match self {
            Self::Text(pieces) => pieces
                .iter()
                .map(|piece| match piece {
                    TemplatePart::Written(text) => text.clone(),
                    TemplatePart::Formula(formula) => answer(formula),
                })
                .collect(),
            Self::Formula(formula) => answer(formula),
            other => match other.value(scope) {
                Ok(Json::Text(text)) => text,
                Ok(value) => value.to_string(),
                Err(_) => "?".to_owned(),
            },
        }
    }
}

impl TemplatePart {
    fn append(&self, text: &mut String, scope: &VariableScope<'_>) -> Result<(), FormulaValueError> {
        let formula = match self {
            Self::Written(written) => {
                text.push_str(written);
                return Ok(());
            }
            Self::Formula(formula) => formula,
        };
        match formula.value(scope)? {
            Json::Text(answer) => text.push_str(&answer),
            Json::Int(number) => text.push_str(&number.to_string()),
            Json::Bool(truth) => text.push_str(if truth { "true" } else { "false" }),
            other => return Err(formula.no_value(format!("{} cannot stand within a text", other.kind()))),
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(formula.no_value(format!("the text has more than {TEXT_BYTES_MAX} bytes")));
        }
        Ok(())
    }
}

/// Where the formula ends that a text begins with: at the first `}}` outside its own texts.
fn end_of_formula(text: &str) -> Option<usize> {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if open == c => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'' | '`') => quote = Some(c),
            None if text[at..].starts_with(CLOSE) => return Some(at),
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<Variable> {
        vec![Variable::with("state", ["id", "cents"]), Variable::open("event")]
    }

    fn json(text: &str) -> Json {
        crate::json::read(text.as_bytes(), 1000).expect(text)
    }

    fn value(text: &str) -> Result<String, String> {
        let template = ValueTemplate::read_text(text, &known())
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let (state, event) =
            (json(r#"{"id":"o-1","cents":1250}"#), json(r#"{"data":{"list":[1,2],"x":null}}"#));
        let scope = VariableScope::new().with("state", &state).with("event", &event);
        template.value(&scope).map(|value| value.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn alone_a_formula_keeps_its_type_and_within_a_text_it_is_text() {
        for (text, expected) in [
            ("plain", "\"plain\""),
            ("", "\"\""),
            ("${{ state.cents }}", "1250"),
            ("order-${{ state.id }}-${{state.cents}}", "\"order-o-1-1250\""),
            ("${{ event.data.list }}", "[1,2]"),
            ("${{ event.data.x ?? \"}}\" }}", "\"}}\""),
            ("${{ event.data.none }}", "null"),
            ("${{ event.none?.deep }}", "null"),
            ("a $ { } }} b", "\"a $ { } }} b\""),
        ] {
            assert_eq!(value(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_wrong_formula_is_refused_when_it_is_read() {
        for (text, expected) in [
            ("${{ stat.id }}", "`stat` is not known here: there are `state`, `event`; did you mean `state`?"),
            ("${{ state.ids }}", "`state` has no field `ids`; did you mean `id`?"),
            ("${{ state.zzz }}", "`state` has no field `zzz`; there are cents, id"),
            ("${{ 1.5 }}", "a number with a fraction cannot stand in an expression"),
            ("${{ state.id", "`${{` has no `}}`"),
            ("${{ pad(state.id) }} ${{ x }}", "`x` is not known here"),
        ] {
            let refused = value(text).expect_err(text);
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }

    #[test]
    fn what_has_no_answer_names_the_formula() {
        for (text, expected) in [
            ("${{ state.id + 1 > 2 }}", "`state.id + 1 > 2`: "),
            ("a ${{ event.data }}", "`event.data`: an object cannot stand within a text"),
            ("a ${{ event.data.x }}", "`event.data.x`: nothing cannot stand within a text"),
            ("${{ event.none.deep }}", "`event.none.deep`: "),
        ] {
            let refused = value(text).expect_err(text);
            assert!(refused.contains(expected), "{text}: {refused}");
        }
        let template =
            ValueTemplate::read_text("a ${{ event.data.x }} ${{ 1 / 0 }}", &known()).expect("good");
        assert_eq!(
            template.shown(&VariableScope::new().with("event", &json(r#"{"data":{"x":null}}"#))),
            "a null ?"
        );
    }

    /// The least budget within which an expression comes to its answer.
    fn cost(text: &str) -> u64 {
        let known = known();
        let (state, event) = (json(r#"{"id":"o-1","cents":1250}"#), json(r#"{"data":{"x":null,"t":true}}"#));
        let mut within: Vec<_> = (0..15).map(|power| 1 << power).collect();
        let comes = |operations: &u64| {
            let expressions =
                Expressions::new(Language::SAGAS, &ExpressionBudget { operations: *operations, ..BUDGET });
            let mut uses = VariableCollector { known: &known, found: BTreeSet::new() };
            let read = expressions.read(text, &mut uses).unwrap_or_else(|error| panic!("{text}: {error}"));
            let variables = [("state", operand(&state)), ("event", operand(&event))];
            match expressions.evaluate(&read, variables) {
                Ok(_) => true,
                Err(ExpressionRuntimeError { what }) => {
                    assert!(what.contains("Too many operations"), "{text}: {what}");
                    false
                }
            }
        };
        let power = within.partition_point(|operations| !comes(operations));
        assert!(power > 0, "{text} costs something");
        within = (within[power - 1]..=within[power]).collect();
        within[within.partition_point(|operations| !comes(operations))]
    }

    /// Nothing loops, so each part of an expression is evaluated once at most: what fits into an expression stays far below the budget,
    /// which is there for the day on which the language has more.
    #[test]
    fn no_expression_is_long_enough_to_use_its_operations_up() {
        // What begins, what is repeated until the text is as long as it may be, and what ends.
        let shapes = [
            ("1", "+1", ""),
            ("true", "&&true", ""),
            ("false", "||false", ""),
            ("len([1", ",1", "])"),
            ("[1", ",-1", "]"),
            ("sum([1", ",int(1)", "])"),
            ("()", "??()", ""),
            ("event.data.x", "??event.data.x", ""),
            ("event.data.t", "&&event.data.t", ""),
            ("state.cents", "+state.cents", ""),
            ("\"\"", "+text(1)", ""),
            ("1", "+\"\".len()", ""),
            ("[1", ",1+1+1+1+1", "]"),
            ("[true", ",!!!true", "]"),
            ("1==1", "&&!false", ""),
            ("1", "*2%3", ""),
        ];
        let mut most = 0;
        for (begin, again, end) in shapes {
            let room = FORMULA_BYTES_MAX - begin.len() - end.len();
            // As much of it as can be read: some shapes are too deep before they are too long.
            let texts = (1..=room / again.len()).rev();
            let mut texts = texts.map(|count| format!("{begin}{}{end}", again.repeat(count)));
            let text = texts.find(|text| Formula::read(text, &known()).is_ok()).expect("one is short enough");
            let cost = cost(&text);
            println!("{cost} operations for {} bytes of {begin}{again}{end}", text.len());
            most = most.max(cost);
        }
        assert!(most > 100, "they cost something: {most}");
        assert!(most * 4 < FORMULA_OPERATIONS_MAX, "{most} of {FORMULA_OPERATIONS_MAX}");
    }

    #[test]
    fn an_answer_keeps_within_its_budget() {
        let state = Json::Map(BTreeMap::from([
            ("id".to_owned(), Json::Text("x".repeat(200_000))),
            ("cents".to_owned(), Json::List(vec![Json::Int(1); 9_999])),
        ]));
        let scope = VariableScope::new().with("state", &state);
        for text in ["state.id + state.id", "state.cents + state.cents"] {
            let refused = Formula::read(text, &known()).expect(text).value(&scope);
            assert!(refused.is_err(), "{text}");
        }
    }
}
