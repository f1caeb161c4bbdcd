//! What may stand in an expression, and what it refers to.

use std::collections::BTreeSet;

use model::Name;
use rhai::{AST, ASTFlags, ASTNode, Expr, FnCallExpr, Stmt};

use super::ConditionError;
use crate::template::{FlowField, is_word};

/// Functions, and `in` behind the first of them.
const FUNCTIONS: [&str; 4] = ["contains", "starts_with", "ends_with", "len"];
pub(super) const FUNCTIONS_TEXT: &str = "`contains`, `starts_with`, `ends_with`, `len`";
const OPERATORS: [&str; 16] =
    ["+", "-", "*", "/", "%", "**", "==", "!=", "<", "<=", ">", ">=", "!", "&", "|", "^"];

const RESULTS: &str = "results";
const FLOW: &str = "flow";

/// Refuses `results.count-a`, which reads as a subtraction but never is one: a node is no number.
pub(super) fn dashes(text: &str) -> Result<(), ConditionError> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'' | '`') => quote = Some(c),
            (None, 'r') => dash_at(text, at)?,
            (None, _) => {}
        }
    }
    Ok(())
}

fn dash_at(text: &str, at: usize) -> Result<(), ConditionError> {
    let begins = !text[..at].ends_with(|c: char| is_word(c) || c == '.');
    let Some(name) = text[at..].strip_prefix("results.").filter(|_| begins) else { return Ok(()) };
    let word = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    let (node, rest) = name.split_at(word(name));
    if !node.contains('-') {
        return Ok(());
    }
    let key = rest.strip_prefix('.').map_or("<key>", |key| &key[..word(key)]);
    Err(ConditionError::Dash {
        written: format!("results.{node}"),
        instead: format!("results[\"{node}\"].{key}"),
    })
}

/// Checks the whole tree; gives the results that it refers to.
pub(super) fn references(ast: &AST) -> Result<BTreeSet<(Name, String)>, ConditionError> {
    let mut check = Check { references: BTreeSet::new() };
    let mut found = Ok(());
    // The first node is the statement that holds the expression; everything below is looked at from there.
    ast.walk(&mut |path: &[ASTNode<'_>]| {
        found = match path.first() {
            Some(ASTNode::Stmt(Stmt::Expr(expr))) => check.expr(expr),
            Some(ASTNode::Expr(expr)) => check.expr(expr),
            _ => Err(not_allowed("a statement")),
        };
        false
    });
    found.map(|()| check.references)
}

struct Check {
    references: BTreeSet<(Name, String)>,
}

/// One step of a chain such as `results.a["k"].len()`.
enum Link<'a> {
    Named(&'a str),
    Called(&'a FnCallExpr),
    Other,
}

impl Check {
    fn expr(&mut self, expr: &Expr) -> Result<(), ConditionError> {
        match expr {
            Expr::BoolConstant(..)
            | Expr::IntegerConstant(..)
            | Expr::FloatConstant(..)
            | Expr::CharConstant(..)
            | Expr::StringConstant(..)
            | Expr::Unit(..) => Ok(()),
            Expr::Array(elements, _) => elements.iter().try_for_each(|element| self.expr(element)),
            Expr::And(operands, _) | Expr::Or(operands, _) | Expr::Coalesce(operands, _) => {
                operands.iter().try_for_each(|operand| self.expr(operand))
            }
            Expr::FnCall(call, _) => self.call(call),
            Expr::Dot(..) | Expr::Index(..) => self.chain(expr),
            Expr::Variable(variable, ..) => Err(match variable.1.as_str() {
                known @ (RESULTS | FLOW) => ConditionError::Incomplete { written: known.to_owned() },
                name => unknown(name),
            }),
            Expr::Map(..) => Err(not_allowed("an object")),
            Expr::InterpolatedString(..) => Err(not_allowed("a text with `${…}` in it")),
            Expr::Stmt(..) => Err(not_allowed("a block such as `if` or `switch`")),
            Expr::DynamicConstant(..) => Err(not_allowed("a function of its own")),
            _ => Err(not_allowed("what stands there")),
        }
    }

    fn call(&mut self, call: &FnCallExpr) -> Result<(), ConditionError> {
        let name = call.name.as_str();
        let known = OPERATORS.contains(&name) || FUNCTIONS.contains(&name);
        if !known || call.is_qualified() {
            let what = if call.is_operator_call() { format!("`{name}`") } else { format!("`{name}(…)`") };
            return Err(ConditionError::NotAllowed { what });
        }
        call.args.iter().try_for_each(|argument| self.expr(argument))
    }

    /// `results.<node>.<key>`, `flow.<field>` or any value, and calls behind it.
    fn chain(&mut self, expr: &Expr) -> Result<(), ConditionError> {
        let mut links = Vec::new();
        let root = unchain(expr, &mut links);
        let rest = match root {
            Expr::Variable(variable, ..) if variable.1 == RESULTS => match links.as_slice() {
                [Link::Named(node), Link::Named(key), rest @ ..] => {
                    let Ok(name) = node.parse::<Name>() else {
                        return Err(ConditionError::Incomplete { written: format!("results[{node:?}]") });
                    };
                    self.references.insert((name, (*key).to_owned()));
                    rest
                }
                [Link::Named(node), ..] => {
                    return Err(ConditionError::Incomplete { written: format!("results.{node}") });
                }
                _ => return Err(ConditionError::Incomplete { written: RESULTS.to_owned() }),
            },
            Expr::Variable(variable, ..) if variable.1 == FLOW => match links.as_slice() {
                [Link::Named(field), rest @ ..] => {
                    if !FlowField::ALL.iter().any(|known| known.as_str() == *field) {
                        return Err(ConditionError::UnknownField { field: (*field).to_owned() });
                    }
                    rest
                }
                _ => return Err(ConditionError::Incomplete { written: FLOW.to_owned() }),
            },
            root => {
                self.expr(root)?;
                links.as_slice()
            }
        };
        rest.iter().try_for_each(|link| match link {
            Link::Called(call) => self.call(call),
            Link::Named(name) => Err(not_allowed(&format!("`.{name}` behind a value"))),
            Link::Other => Err(not_allowed("`[…]` behind a value")),
        })
    }
}

/// Takes a chain apart; gives what it begins with.
fn unchain<'a>(expr: &'a Expr, links: &mut Vec<Link<'a>>) -> &'a Expr {
    let (Expr::Dot(pair, flags, _) | Expr::Index(pair, flags, _)) = expr else { return expr };
    let mut rest = &pair.rhs;
    let mut indexed = matches!(expr, Expr::Index(..));
    let mut last = flags.contains(ASTFlags::BREAK);
    loop {
        match rest {
            Expr::Dot(pair, flags, _) | Expr::Index(pair, flags, _) if !last => {
                links.push(link(&pair.lhs, indexed));
                indexed = matches!(rest, Expr::Index(..));
                last = flags.contains(ASTFlags::BREAK);
                rest = &pair.rhs;
            }
            end => {
                links.push(link(end, indexed));
                return &pair.lhs;
            }
        }
    }
}

fn link(expr: &Expr, indexed: bool) -> Link<'_> {
    match expr {
        Expr::Property(property, _) if !indexed => Link::Named(property.2.as_str()),
        Expr::MethodCall(call, _) if !indexed => Link::Called(call),
        Expr::StringConstant(text, _) if indexed => Link::Named(text.as_str()),
        _ => Link::Other,
    }
}

fn unknown(name: &str) -> ConditionError {
    let hint =
        if name.contains("::") { "" } else { "; a key with `-` is written `results.<node>[\"<key>\"]`" };
    ConditionError::UnknownVariable { name: name.to_owned(), hint }
}

fn not_allowed(what: &str) -> ConditionError {
    ConditionError::NotAllowed { what: what.to_owned() }
}
