//! Checks that an expression has only permitted elements.

use rhai::{AST, ASTFlags, ASTNode, Expr, FnCallExpr, Stmt};

use crate::{ExpressionError, Language, Variables};

const OPERATORS: [&str; 16] =
    ["+", "-", "*", "/", "%", "**", "==", "!=", "<", "<=", ">", ">=", "!", "&", "|", "^"];

/// Checks the whole tree.
pub(super) fn tree<V: Variables>(ast: &AST, language: Language, variables: &mut V) -> Result<(), V::Error> {
    let mut check = ExpressionChecker { language, variables };
    let mut found = Ok(());
    // The first node is the statement that holds the expression; everything below is looked at from there.
    ast.walk(&mut |path: &[ASTNode<'_>]| {
        found = match path.first() {
            Some(ASTNode::Stmt(Stmt::Expr(expr))) => check.expr(expr),
            Some(ASTNode::Expr(expr)) => check.expr(expr),
            _ => Err(check.not_allowed("a statement")),
        };
        false
    });
    found
}

struct ExpressionChecker<'a, V> {
    language: Language,
    variables: &'a mut V,
}

/// One step of a chain such as `results.a["k"].len()`.
enum MemberAccess<'a> {
    Named(&'a str),
    Called(&'a FnCallExpr),
    Other,
}

impl<V: Variables> ExpressionChecker<'_, V> {
    fn expr(&mut self, expr: &Expr) -> Result<(), V::Error> {
        match expr {
            Expr::BoolConstant(..)
            | Expr::IntegerConstant(..)
            | Expr::CharConstant(..)
            | Expr::StringConstant(..)
            | Expr::Unit(..) => Ok(()),
            Expr::FloatConstant(..) if self.language.has_fractions => Ok(()),
            Expr::FloatConstant(..) => Err(self.not_allowed("a number with a fraction")),
            Expr::Array(elements, _) => elements.iter().try_for_each(|element| self.expr(element)),
            Expr::And(operands, _) | Expr::Or(operands, _) | Expr::Coalesce(operands, _) => {
                operands.iter().try_for_each(|operand| self.expr(operand))
            }
            Expr::FnCall(call, _) => self.call(call),
            Expr::Dot(..) | Expr::Index(..) => self.chain(expr),
            Expr::Variable(variable, ..) => self.variables.refer(variable.1.as_str(), &[]).map(drop),
            Expr::Map(..) => Err(self.not_allowed("an object")),
            Expr::InterpolatedString(..) => Err(self.not_allowed("a text with `${…}` in it")),
            Expr::Stmt(..) => Err(self.not_allowed("a block such as `if` or `switch`")),
            Expr::DynamicConstant(..) => Err(self.not_allowed("a function of its own")),
            _ => Err(self.not_allowed("what stands there")),
        }
    }

    fn not_allowed(&self, what: &str) -> V::Error {
        ExpressionError::NotAllowed { what: what.to_owned(), functions: self.language.function_list() }.into()
    }

    fn call(&mut self, call: &FnCallExpr) -> Result<(), V::Error> {
        let name = call.name.as_str();
        let known = OPERATORS.contains(&name) || self.language.functions.contains(&name);
        if !known || call.is_qualified() {
            let what = if call.is_operator_call() { format!("`{name}`") } else { format!("`{name}(…)`") };
            return Err(self.not_allowed(&what));
        }
        call.args.iter().try_for_each(|argument| self.expr(argument))
    }

    /// A variable with names behind it, or any value; and calls behind that.
    fn chain(&mut self, expr: &Expr) -> Result<(), V::Error> {
        let mut links = Vec::new();
        let taken = match unchain(expr, &mut links) {
            Expr::Variable(variable, ..) => {
                let names = links.iter().map_while(|link| match link {
                    MemberAccess::Named(name) => Some(*name),
                    MemberAccess::Called(_) | MemberAccess::Other => None,
                });
                self.variables.refer(variable.1.as_str(), &names.collect::<Vec<_>>())?
            }
            root => {
                self.expr(root)?;
                0
            }
        };
        links.iter().skip(taken).try_for_each(|link| match link {
            MemberAccess::Called(call) => self.call(call),
            MemberAccess::Named(name) => Err(self.not_allowed(&format!("`.{name}` behind a value"))),
            MemberAccess::Other => Err(self.not_allowed("`[…]` behind a value")),
        })
    }
}

/// Takes a chain apart; gives what it begins with.
fn unchain<'a>(expr: &'a Expr, links: &mut Vec<MemberAccess<'a>>) -> &'a Expr {
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

fn link(expr: &Expr, indexed: bool) -> MemberAccess<'_> {
    match expr {
        Expr::Property(property, _) if !indexed => MemberAccess::Named(property.2.as_str()),
        Expr::MethodCall(call, _) if !indexed => MemberAccess::Called(call),
        Expr::StringConstant(text, _) if indexed => MemberAccess::Named(text.as_str()),
        _ => MemberAccess::Other,
    }
}
