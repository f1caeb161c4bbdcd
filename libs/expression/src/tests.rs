use super::*;

const BUDGET: Budget = Budget { bytes: 200, depth: 8, list: 4, text: 100, operations: 1000 };

/// `a.b` is a value, and nothing else is.
#[derive(Default)]
struct Known(Vec<String>);

impl Variables for Known {
    type Error = ExpressionError;

    fn refer(&mut self, variable: &str, names: &[&str]) -> Result<usize, ExpressionError> {
        self.0.push(format!("{variable} {names:?}"));
        match (variable, names) {
            ("a", ["b", ..]) => Ok(1),
            _ => Err(ExpressionError::NotAllowed { what: format!("`{variable}`") }),
        }
    }
}

fn evaluate(text: &str, b: Operand) -> Result<Operand, String> {
    let expressions = Expressions::new(&BUDGET);
    let read = expressions.read(text, &mut Known::default()).map_err(|error| error.to_string())?;
    let answer = expressions.evaluate(&read, [("a", Operand::object([("b", b)]))]);
    answer.map_err(|error| error.to_string())
}

#[test]
fn values_go_in_and_come_out() {
    for (text, b, kind, written) in [
        ("a.b + 1", Operand::from(2), "a number", Some("3")),
        ("a.b * 2", Operand::from(0.5), "a number", Some("1.0")),
        ("!a.b", Operand::from(true), "a truth", Some("false")),
        ("a.b + \"y\"", Operand::from("x"), "a text", None),
        ("a.b ?? 7", Operand::NOTHING, "a number", Some("7")),
        ("a.b", Operand::NOTHING, "nothing", None),
        ("[a.b]", Operand::from(String::new()), "a list", None),
    ] {
        let answer = evaluate(text, b).expect(text);
        assert_eq!((answer.kind(), answer.written().as_deref()), (kind, written), "{text}");
    }
}

#[test]
fn a_variable_is_asked_for_with_the_names_behind_it() {
    let mut known = Known::default();
    let read = Expressions::new(&BUDGET).read("a[\"b\"].len() + a.b.contains(\"x\") + a.b.c + z", &mut known);
    assert!(read.is_err_and(|error| error.to_string().starts_with("`.c` behind a value cannot stand")));
    assert_eq!(known.0, ["a [\"b\"]", "a [\"b\"]", "a [\"b\", \"c\"]"]);
    assert!(evaluate("z > 1", Operand::NOTHING).is_err_and(|why| why.starts_with("`z` cannot")));
}

#[test]
fn budgets_hold() {
    let long = "x".repeat(BUDGET.text);
    for (text, part) in [
        (format!("\"{}\" == a.b", "x".repeat(BUDGET.bytes)), "at most 200 bytes"),
        (format!("{}1{}", "(".repeat(20), ")".repeat(20)), "not an expression"),
        ("[1, 2, 3, 4, 5]".to_owned(), "not an expression"),
        ("a.b + a.b".to_owned(), "Length of string too large"),
    ] {
        let refused = evaluate(&text, Operand::from(long.as_str()));
        assert!(refused.as_ref().is_err_and(|why| why.contains(part)), "{text}: {refused:?}");
    }
}
