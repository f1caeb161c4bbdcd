//! `when`: an expression over upstream results that decides whether a node runs.
//!
//! The language is Rhai's expression mode, cut down to what has an answer
//! without doing anything: values, operators and a few questions about texts.
//! The tree of an expression is checked before anything is evaluated, so that
//! what could loop, allocate or reach out is refused when the flow is made.

mod check;
mod value;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use model::limits::{RESULT_BYTES_MAX, WHEN_BYTES_MAX, WHEN_OPERATIONS_MAX};
use model::{Flow, Name};
use rhai::packages::{ArithmeticPackage, LogicPackage, Package as _};
use rhai::{AST, Dynamic, Engine, Map, OptimizationLevel, Scope};

use crate::template::FlowField;

/// How deep an expression may be nested.
const DEPTH_MAX: usize = 32;
/// Elements of a list, as in `results.a.kind in ["x", "y"]`.
const LIST_MAX: usize = 256;
/// What an evaluation says of itself is cut after so many characters.
const DETAIL_CHARS_MAX: usize = 200;

/// One for all: it keeps nothing between two evaluations.
static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let mut engine = Engine::new_raw();
    ArithmeticPackage::new().register_into_engine(&mut engine);
    LogicPackage::new().register_into_engine(&mut engine);
    value::register(&mut engine);
    // The language's own answer to values of different kinds is `false`, without a word.
    engine.set_fast_operators(false);
    // An expression has to stay as it was written until it was checked.
    engine.set_optimization_level(OptimizationLevel::None);
    engine.set_max_operations(WHEN_OPERATIONS_MAX);
    engine.set_max_expr_depths(DEPTH_MAX, DEPTH_MAX);
    engine.set_max_string_size(RESULT_BYTES_MAX);
    engine.set_max_array_size(LIST_MAX);
    engine.set_max_map_size(LIST_MAX);
    engine.disable_symbol("eval");
    engine
});

/// Why a text is no [`Condition`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It is longer than its limit.
    #[error("an expression has at most {WHEN_BYTES_MAX} bytes, this one has {bytes}")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It cannot be read.
    #[error("it is not an expression: {what}")]
    Syntax {
        /// What is wrong with it.
        what: String,
    },
    /// It uses something that expressions do not have.
    #[error(
        "{what} cannot stand in an expression: there are values, operators, `in` and {}",
        check::FUNCTIONS_TEXT
    )]
    NotAllowed {
        /// What it uses.
        what: String,
    },
    /// A name with `-` is read as a subtraction.
    #[error("`{written}` is a subtraction; write `{instead}`")]
    Dash {
        /// What stands there.
        written: String,
        /// What was meant.
        instead: String,
    },
    /// It names something unknown.
    #[error("`{name}` is not known: there are `results.<node>.<key>` and `flow.<field>`{hint}")]
    UnknownVariable {
        /// The name.
        name: String,
        /// What was meant, perhaps.
        hint: &'static str,
    },
    /// `flow` has no such field.
    #[error("`flow.{field}` is not known: the fields are id, uid, name, context_id and caller_id")]
    UnknownField {
        /// The field.
        field: String,
    },
    /// A reference without a node or a key.
    #[error("`{written}` is not a value; write `results.<node>.<key>` or `results[\"<node>\"].<key>`")]
    Incomplete {
        /// What stands there.
        written: String,
    },
}

/// Why a condition has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// It cannot be evaluated, or takes too long.
    #[error("`when` cannot be evaluated: {what}")]
    Failed {
        /// What happened.
        what: String,
    },
    /// What it gives is no answer.
    #[error("`when` gives {what}, not true or false")]
    NotABool {
        /// What it gives.
        what: &'static str,
    },
}

/// A checked expression.
#[derive(Debug, Clone)]
pub struct Condition {
    ast: AST,
    references: Box<[(Name, String)]>,
}

impl Condition {
    /// Parses and checks an expression. That the nodes it names come before is for the plan to check.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        if text.len() > WHEN_BYTES_MAX {
            return Err(ConditionError::TooLong { bytes: text.len() });
        }
        check::dashes(text)?;
        let ast = ENGINE
            .compile_expression(text)
            .map_err(|error| ConditionError::Syntax { what: cut(&error.to_string()) })?;
        let references = check::references(&ast)?.into_iter().collect();
        Ok(Self { ast, references })
    }

    /// The nodes and keys that it refers to, each once.
    #[must_use]
    pub fn references(&self) -> &[(Name, String)] {
        &self.references
    }

    /// Whether it is true. `lookup` gives the result of a reference, by its place among
    /// [`Condition::references`]: a text, or nothing when the node ended without one.
    ///
    /// # Errors
    /// It has no answer: types that do not fit, numbers out of range, its budget used up.
    pub fn holds<'a>(
        &self,
        flow: &Flow,
        lookup: impl Fn(usize) -> Option<&'a str>,
    ) -> Result<bool, EvaluationError> {
        let mut results: BTreeMap<&str, Map> = BTreeMap::new();
        for (at, (node, key)) in self.references.iter().enumerate() {
            let value = lookup(at).map_or(Dynamic::UNIT, value::typed);
            results.entry(node.as_str()).or_default().insert(key.as_str().into(), value);
        }
        let results: Map = results.into_iter().map(|(node, keys)| (node.into(), keys.into())).collect();
        let mut scope = Scope::new();
        scope.push_constant("results", results);
        scope.push_constant("flow", flow_fields(flow));
        let answer = ENGINE
            .eval_ast_with_scope::<Dynamic>(&mut scope, &self.ast)
            .map_err(|error| EvaluationError::Failed { what: cut(&error.to_string()) })?;
        answer.as_bool().map_err(|_| EvaluationError::NotABool { what: value::kind(&answer) })
    }
}

fn flow_fields(flow: &Flow) -> Map {
    let field = |field: FlowField| -> Dynamic {
        match field {
            FlowField::Id => i64::from(flow.id.0).into(),
            FlowField::Uid => flow.uid.to_string().into(),
            FlowField::Name => flow.name.to_string().into(),
            FlowField::ContextId => i64::from(flow.context_id.0).into(),
            FlowField::CallerId => i64::from(flow.caller_id.0).into(),
        }
    };
    FlowField::ALL.into_iter().map(|known| (known.as_str().into(), field(known))).collect()
}

fn cut(text: &str) -> String {
    let mut kept: String = text.chars().take(DETAIL_CHARS_MAX).collect();
    if kept.len() < text.len() {
        // Writing to a text cannot fail.
        let _ = kept.write_str("…");
    }
    kept
}

#[cfg(test)]
mod tests;
