//! Expressions that have an answer and do nothing else.
//!
//! The language is Rhai's expression mode, reduced to what has a value and no side effects: values, operators and a few
//! functions on texts. The tree of an expression is checked before anything is evaluated, so an expression that could loop,
//! allocate or reach out is refused when it is read.
//!
//! The caller defines the variables ([`Variables`]), and the [`Language`] the functions.

mod check;
mod language;
mod operand;

use std::fmt::Write as _;

use rhai::packages::{ArithmeticPackage, LogicPackage, Package as _};
use rhai::{AST, Dynamic, Engine, OptimizationLevel, Scope};

pub use language::Language;
pub use operand::{Operand, OperandValue};

/// Characters after which the message of an error is cut.
const DETAIL_CHARS_MAX: usize = 200;

/// Limits of the size and the cost of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpressionBudget {
    /// Bytes of its text.
    pub bytes: usize,
    /// How deep it may be nested.
    pub depth: usize,
    /// Elements of a list, as in `results.a.kind in ["x", "y"]`.
    pub list: usize,
    /// Bytes of a text that it makes.
    pub text: usize,
    /// Steps of one evaluation.
    pub operations: u64,
}

/// Why a text is no [`Expression`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The text is longer than the limit.
    #[error("an expression has at most {most} bytes, this one has {bytes}")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// The text cannot be parsed.
    #[error("it is not an expression: {what}")]
    Syntax {
        /// Message of the parser.
        what: String,
    },
    /// The expression uses something that expressions do not have.
    #[error("{what} cannot stand in an expression: there are values, operators, `in` and {functions}")]
    NotAllowed {
        /// The element that is not allowed.
        what: String,
        /// The functions that there are, for people.
        functions: String,
    },
}

/// An evaluation came to nothing: types that do not fit, numbers out of range, its budget used up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct ExpressionRuntimeError {
    /// Description of the error, in at most some hundred characters.
    pub what: String,
}

/// Variables that an expression may refer to.
pub trait Variables {
    /// Why an expression is refused.
    type Error: From<ExpressionError>;

    /// Resolves a variable with the names behind it: `results.a["k"].len()` has `results`, `a` and `k`. Returns how many of
    /// these names belong to the variable; no others may follow them.
    ///
    /// # Errors
    /// There is no such variable, or it is no value by itself.
    fn refer(&mut self, variable: &str, names: &[&str]) -> Result<usize, Self::Error>;
}

/// Reads and evaluates expressions within a budget. Keeps no state between two of them.
#[derive(Debug)]
pub struct Expressions {
    engine: Engine,
    language: Language,
    bytes_max: usize,
}

/// A checked expression.
#[derive(Debug, Clone)]
pub struct Expression(AST);

impl Expressions {
    /// Those of this language that keep within this budget.
    #[must_use]
    pub fn new(language: Language, budget: &ExpressionBudget) -> Self {
        let mut engine = Engine::new_raw();
        ArithmeticPackage::new().register_into_engine(&mut engine);
        LogicPackage::new().register_into_engine(&mut engine);
        operand::register(&mut engine);
        language.register(&mut engine);
        // With fast operators, Rhai would compare values of different kinds as `false`, without an error.
        engine.set_fast_operators(false);
        // The optimizer must not change an expression before it was checked.
        engine.set_optimization_level(OptimizationLevel::None);
        engine.set_max_operations(budget.operations);
        engine.set_max_expr_depths(budget.depth, budget.depth);
        engine.set_max_string_size(budget.text);
        engine.set_max_array_size(budget.list);
        engine.set_max_map_size(budget.list);
        engine.disable_symbol("eval");
        Self { engine, language, bytes_max: budget.bytes }
    }

    /// Checks that a text is short enough to be read.
    ///
    /// # Errors
    /// [`ExpressionError::TooLong`].
    pub fn check_length(&self, text: &str) -> Result<(), ExpressionError> {
        let (bytes, most) = (text.len(), self.bytes_max);
        if bytes > most { Err(ExpressionError::TooLong { bytes, most }) } else { Ok(()) }
    }

    /// Reads an expression and checks it, its variables as well.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn read<V: Variables>(&self, text: &str, variables: &mut V) -> Result<Expression, V::Error> {
        self.check_length(text)?;
        let ast = self.engine.compile_expression(text);
        let ast = ast.map_err(|error| ExpressionError::Syntax { what: cut(&error.to_string()) })?;
        check::tree(&ast, self.language, variables)?;
        Ok(Expression(ast))
    }

    /// Evaluates an expression with these values of its variables.
    ///
    /// # Errors
    /// [`ExpressionRuntimeError`].
    pub fn evaluate<'a>(
        &self,
        expression: &Expression,
        variables: impl IntoIterator<Item = (&'a str, Operand)>,
    ) -> Result<Operand, ExpressionRuntimeError> {
        let mut scope = Scope::new();
        for (name, value) in variables {
            scope.push_constant_dynamic(name, value.0);
        }
        let answer = self.engine.eval_ast_with_scope::<Dynamic>(&mut scope, &expression.0);
        answer.map(Operand).map_err(|error| ExpressionRuntimeError { what: cut(&error.to_string()) })
    }
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
