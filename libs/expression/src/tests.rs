use super::*;

const BUDGET: ExpressionBudget =
    ExpressionBudget { bytes: 200, depth: 8, list: 4, text: 100, operations: 1000 };

/// `a.b` is a value, and nothing else is.
#[derive(Default)]
struct Known(Vec<String>);

impl Variables for Known {
    type Error = ExpressionError;

    fn refer(&mut self, variable: &str, names: &[&str]) -> Result<usize, ExpressionError> {
        self.0.push(format!("{variable} {names:?}"));
        match (variable, names) {
            ("a", ["b", ..]) => Ok(1),
            _ => Err(ExpressionError::NotAllowed { what: format!("`{variable}`"), functions: String::new() }),
        }
    }
}

fn evaluate(text: &str, b: Operand) -> Result<Operand, String> {
    evaluate_in(Language::CONDITIONS, text, b)
}

fn evaluate_in(language: Language, text: &str, b: Operand) -> Result<Operand, String> {
    let expressions = Expressions::new(language, &BUDGET);
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
fn a_variable_is_looked_up_with_the_field_names_behind_it() {
    let mut known = Known::default();
    let read = Expressions::new(Language::CONDITIONS, &BUDGET)
        .read("a[\"b\"].len() + a.b.contains(\"x\") + a.b.c + z", &mut known);
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

#[test]
fn operations_are_counted() {
    let sum = |count: usize| format!("1{}", "+1".repeat(count));
    let of = |operations: u64, text: &str| {
        let expressions =
            Expressions::new(Language::SAGAS, &ExpressionBudget { operations, bytes: 1024, ..BUDGET });
        let read = expressions.read(text, &mut Known::default()).expect("it can be read");
        expressions.evaluate(&read, []).map(|answer| answer.written()).map_err(|error| error.what)
    };
    assert_eq!(of(20, &sum(6)), Ok(Some("7".to_owned())));
    let refused = of(5, &sum(6));
    assert!(refused.as_ref().is_err_and(|why| why.contains("Too many operations")), "{refused:?}");
    // Each evaluation has its own budget.
    let expressions = Expressions::new(Language::SAGAS, &ExpressionBudget { operations: 20, ..BUDGET });
    let read = expressions.read(&sum(6), &mut Known::default()).expect("it can be read");
    for _ in 0..10 {
        assert!(expressions.evaluate(&read, []).is_ok());
    }
}

/// Evaluates an expression of a saga and returns its value as a text.
fn of_saga(text: &str, b: Operand) -> Result<String, String> {
    evaluate_in(Language::SAGAS, text, b).map(|answer| shown(answer.into_value()))
}

fn shown(shape: OperandValue) -> String {
    match shape {
        OperandValue::Nothing => "()".to_owned(),
        OperandValue::Bool(truth) => truth.to_string(),
        OperandValue::Int(number) => number.to_string(),
        OperandValue::Fraction(number) => format!("{number} of a kind that sagas have not"),
        OperandValue::Text(text) => format!("{text:?}"),
        OperandValue::List(items) => {
            let items: Vec<_> = items.into_iter().map(|item| shown(item.into_value())).collect();
            format!("[{}]", items.join(", "))
        }
        OperandValue::Object(fields) => {
            let fields: Vec<_> = fields
                .into_iter()
                .map(|(name, value)| format!("{name}: {}", shown(value.into_value())))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

fn items() -> Operand {
    let item = |count: i64| Operand::object([("count", count.into()), ("sku", "a".into())]);
    Operand::list([item(2), item(40)])
}

#[test]
fn sagas_have_functions_of_their_own() {
    for (text, b, expected) in [
        ("minutes(2) + hours(1) + days(1)", Operand::NOTHING, "90120000"),
        ("text(a.b) + text(true) + text(\"x\")", 7.into(), "\"7truex\""),
        ("int(a.b) * 2", "21".into(), "42"),
        ("int(a.b)", (-3).into(), "-3"),
        ("a.b.trim().lower() + upper(a.b)", " É ".into(), "\"é É \""),
        ("sum(a.b.pluck(\"count\")) + len(a.b)", items(), "44"),
        ("a.b.pluck(\"none\")", items(), "[(), ()]"),
        ("a.b", items(), "[{count: 2, sku: \"a\"}, {count: 40, sku: \"a\"}]"),
        ("7 / 2 + 2 ** 3", Operand::NOTHING, "11"),
        ("a.b ?? \"none\"", Operand::NOTHING, "\"none\""),
        ("'c'", Operand::NOTHING, "\"c\""),
    ] {
        assert_eq!(of_saga(text, b).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn sagas_have_whole_numbers_and_what_is_named() {
    for (text, b, expected) in [
        ("1.5 > 1", Operand::NOTHING, "a number with a fraction cannot stand"),
        (
            "pad(a.b, 3)",
            Operand::NOTHING,
            "`pad(…)` cannot stand in an expression: there are values, operators, `in` and `contains`, ",
        ),
        ("int(a.b)", "1.0".into(), "`int` takes the digits"),
        ("int(a.b)", "+1".into(), "`int` takes the digits"),
        ("days(9223372036854775807)", Operand::NOTHING, "so long a time"),
        ("sum(a.b)", items(), "`sum` takes a list of numbers, not of map"),
        ("sum([9223372036854775807, 1])", Operand::NOTHING, "too large a number"),
        ("pluck([1], \"x\")", Operand::NOTHING, "`pluck` takes a list of objects, not of i64"),
        ("text([1])", Operand::NOTHING, "Function not found: text"),
        ("2 ** -1", Operand::NOTHING, "negative"),
        ("1 / 0", Operand::NOTHING, "Division by zero"),
    ] {
        let refused = of_saga(text, b);
        assert!(refused.as_ref().is_err_and(|why| why.contains(expected)), "{text}: {refused:?}");
    }
    // Conditions of nodes have none of these.
    let refused = evaluate("minutes(1) > 1", Operand::NOTHING).map(|answer| answer.kind());
    assert!(
        refused.as_ref().is_err_and(|why| why.ends_with("`contains`, `starts_with`, `ends_with`, `len`")),
        "{refused:?}"
    );
    let refused = evaluate("len([1]) == 1", Operand::NOTHING).map(|answer| answer.kind());
    assert!(refused.as_ref().is_err_and(|why| why.contains("Function not found: len")), "{refused:?}");
    assert!(evaluate("1.5 > 1", Operand::NOTHING).is_ok_and(|answer| answer.as_bool() == Some(true)));
}
