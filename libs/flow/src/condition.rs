//! `when`: an expression over upstream results that decides whether a node runs.
//!
//! Read and checked by [`expression`] when the flow is made.

mod operands;
mod references;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use expression::{Expression, ExpressionBudget, ExpressionError, Expressions, Language, Operand};
use model::limits::{RESULT_BYTES_MAX, WHEN_BYTES_MAX, WHEN_OPERATIONS_MAX};
use model::{Flow, Name};

use self::operands::typed;
use self::references::{FLOW, RESULTS, ReferenceCollector};
use crate::template::FlowField;

/// Limits on the cost of a condition.
const BUDGET: ExpressionBudget = ExpressionBudget {
    bytes: WHEN_BYTES_MAX,
    depth: 32,
    list: 256,
    text: RESULT_BYTES_MAX,
    operations: WHEN_OPERATIONS_MAX,
};

/// Shared by all conditions: evaluations keep no state.
static EXPRESSIONS: LazyLock<Expressions> = LazyLock::new(|| Expressions::new(Language::CONDITIONS, &BUDGET));

/// Why a text is no [`Condition`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// The text is not an expression.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// A name with `-` is read as a subtraction.
    #[error("`{written}` is a subtraction; write `{instead}`")]
    Dash {
        /// The name as written.
        written: String,
        /// The spelling to use instead.
        instead: String,
    },
    /// The expression names an unknown variable.
    #[error("`{name}` is not known: there are `results.<node>.<key>` and `flow.<field>`{hint}")]
    UnknownVariable {
        /// The name.
        name: String,
        /// A hint at the likely spelling; may be empty.
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
        /// The incomplete reference as written.
        written: String,
    },
}

/// Why a condition has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The expression cannot be evaluated, or takes too long.
    #[error("`when` cannot be evaluated: {what}")]
    Failed {
        /// The evaluator's message.
        what: String,
    },
    /// The expression gives a value that is not a boolean.
    #[error("`when` gives {what}, not true or false")]
    NotABool {
        /// Kind of the value.
        what: &'static str,
    },
}

/// A checked expression.
#[derive(Debug, Clone)]
pub struct Condition {
    expression: Expression,
    references: Box<[(Name, String)]>,
}

impl Condition {
    /// Parses and checks an expression. The plan checks that the nodes it names come before.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        EXPRESSIONS.check_length(text)?;
        references::dashes(text)?;
        let mut references = ReferenceCollector::default();
        let expression = EXPRESSIONS.read(text, &mut references)?;
        Ok(Self { expression, references: references.0.into_iter().collect() })
    }

    /// The nodes and keys that it refers to, each once.
    #[must_use]
    pub fn references(&self) -> &[(Name, String)] {
        &self.references
    }

    /// Returns true if the condition holds. `lookup` returns the result of a reference by its index in
    /// [`Condition::references`]: a text, or nothing when the node ended without one.
    ///
    /// # Errors
    /// It has no answer: types that do not fit, numbers out of range, its budget used up.
    pub fn holds<'a>(
        &self,
        flow: &Flow,
        lookup: impl Fn(usize) -> Option<&'a str>,
    ) -> Result<bool, EvaluationError> {
        let mut results: BTreeMap<&str, Vec<(&str, Operand)>> = BTreeMap::new();
        for (at, (node, key)) in self.references.iter().enumerate() {
            let value = lookup(at).map_or(Operand::NOTHING, typed);
            results.entry(node.as_str()).or_default().push((key.as_str(), value));
        }
        let results = results.into_iter().map(|(node, keys)| (node, Operand::object(keys)));
        let variables = [(RESULTS, Operand::object(results)), (FLOW, flow_fields(flow))];
        let answer = EXPRESSIONS
            .evaluate(&self.expression, variables)
            .map_err(|error| EvaluationError::Failed { what: error.what })?;
        answer.as_bool().ok_or_else(|| EvaluationError::NotABool { what: answer.kind() })
    }
}

fn flow_fields(flow: &Flow) -> Operand {
    let field = |field: FlowField| -> Operand {
        match field {
            FlowField::Id => i64::from(flow.id.0).into(),
            FlowField::Uid => flow.uid.to_string().into(),
            FlowField::Name => flow.name.to_string().into(),
            FlowField::ContextId => i64::from(flow.context_id.0).into(),
            FlowField::CallerId => i64::from(flow.caller_id.0).into(),
        }
    };
    Operand::object(FlowField::ALL.into_iter().map(|known| (known.as_str(), field(known))))
}

#[cfg(test)]
mod tests;
