use model::id::Uid;
use model::{ActorId, ContextId, FlowId, FlowStatus, FlowUid, Timestamp};

use super::*;

fn flow() -> Flow {
    let (id, uid, name) = (FlowId(4), FlowUid(Uid::from_bits(2)), "demo".parse().expect("a name"));
    Flow {
        status: FlowStatus::Started,
        ..Flow::new(id, uid, name, ContextId(3), ActorId(5), Timestamp::default())
    }
}

/// Evaluates with `results.a` as given; every other node ended without results.
fn evaluate(text: &str, a: &[(&str, &str)]) -> Result<bool, EvaluationError> {
    let condition = Condition::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    condition.holds(&flow(), |at| {
        let (node, key) = &condition.references()[at];
        a.iter().find(|(known, _)| node.as_str() == "a" && known == key).map(|(_, value)| *value)
    })
}

#[test]
fn expressions_have_answers() {
    let a = [("rows", "12"), ("rate", "0.5"), ("ok", "true"), ("kind", "rain"), ("x-y", "007")];
    for (text, expected) in [
        ("results.a.rows > 0", true),
        ("results.a.rows == 12.0 && results.a.rate < 1", true),
        ("results.a.ok", true),
        ("!results.a.ok || false", false),
        ("results.a.kind == \"rain\"", true),
        ("results[\"a\"][\"x-y\"] == \"007\"", true),
        ("results.a[\"x-y\"] == 7", false),
        ("results.a.kind in [\"sun\", \"rain\"]", true),
        ("results.a.rows !in [1, 12.0]", false),
        ("\"ai\" in results.a.kind", true),
        ("results.a.kind.starts_with(\"ra\") && results.a.kind.ends_with(\"in\")", true),
        ("results.a.kind.len() == 4 && len(results.a.kind) % 2 == 0", true),
        ("results.gone.rows == ()", true),
        ("results.gone.rows > 0", false),
        ("(results.gone.rows ?? 7) * 2 - 1 == 13", true),
        ("results.a.rows-1 == 11", true),
        ("flow.name == \"demo\" && flow.id == 4 && flow.context_id + flow.caller_id == 8", true),
        ("results.a.rows == \"12\" && \"0.5\" == results.a.rate && results.a.ok == \"true\"", true),
        ("results.a.rows != \"12.0\" && \"13\" != results.a.rows", true),
        ("results.a.rows in [\"12\"] && \"true\" in [results.a.ok]", true),
        ("-results.a.rows == -12 && 2 ** 3 == 8", true),
    ] {
        assert_eq!(evaluate(text, &a), Ok(expected), "{text}");
    }
}

#[test]
fn references_are_listed_once() {
    let condition =
        Condition::parse("results.b.k > 1 && results[\"a-1\"].k < 2 || results.b[\"k\"] == flow.id");
    let condition = condition.expect("well-formed");
    let found: Vec<String> =
        condition.references().iter().map(|(node, key)| format!("{node}.{key}")).collect();
    assert_eq!(found, ["a-1.k", "b.k"]);
}

#[test]
fn a_condition_without_a_truth_value_fails_with_the_reason() {
    let a = [("rows", "12"), ("kind", "rain"), ("big", "9223372036854775807")];
    for (text, expected) in [
        ("results.a.rows", "`when` gives a number, not true or false"),
        ("results.a.kind", "`when` gives a text, not true or false"),
        ("results.gone.x", "`when` gives nothing, not true or false"),
        ("results.gone.x + 1 > 0", "Function not found: + ((), i64)"),
        ("results.a.big + 1 > 0", "overflow"),
        ("results.a.rows / 0 == 1", "Division by zero"),
        ("results.a.rows.len() == 1", "Function not found: len"),
        ("results.a.rows && true", "cannot be evaluated"),
        ("results.a.kind < 3", "`<` does not compare a text with a number"),
        ("0.5 >= results.a.kind", "`>=` does not compare a text with a number"),
        ("results.a.kind > true", "`>` does not compare a text with a truth"),
    ] {
        let error = evaluate(text, &a).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn what_loops_allocates_or_reaches_out_is_refused() {
    for (text, expected) in [
        ("while true {}", "not an expression: Unexpected 'while'"),
        ("loop { }", "not an expression: Unexpected 'loop'"),
        ("for x in [1] { }", "not an expression: Unexpected 'for'"),
        ("let x = 1; x > 0", "not an expression: Unexpected 'let'"),
        ("fn f() { true }", "not an expression: Unexpected 'fn'"),
        ("|x| x > 1", "a function of its own cannot stand"),
        ("if results.a.x { true } else { false }", "a block such as `if` or `switch` cannot"),
        ("switch 1 { 1 => true }", "a block such as"),
        ("eval(\"1 == 1\")", "eval"),
        ("import \"x\"", "Unexpected 'import'"),
        ("print(\"x\")", "`print(…)` cannot stand in an expression"),
        ("timestamp() > 1", "`timestamp(…)` cannot"),
        ("\"x\".pad(1000000, \"y\") == \"\"", "`pad(…)` cannot"),
        ("`${results.a.x}` == \"\"", "a text with `${…}` in it cannot"),
        ("#{ a: 1 } == 1", "an object cannot"),
        ("1 in 0..10", "`..` cannot"),
        ("1 << 40 > 0", "`<<` cannot"),
        ("results.a.x[0] == 1", "`[…]` behind a value cannot"),
        ("results.a.x.y == 1", "`.y` behind a value cannot"),
        ("global::x", "not known"),
        ("results.a.x = 1", "not an expression"),
        ("", "not an expression"),
    ] {
        let error = Condition::parse(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let deep = format!("{}true{}", "(".repeat(60), ")".repeat(60));
    assert!(matches!(
        Condition::parse(&deep),
        Err(ConditionError::Expression(ExpressionError::Syntax { .. }))
    ));
    let long = "1+".repeat(WHEN_BYTES_MAX / 2) + "1 > 0";
    let refused = Condition::parse(&long).expect_err("too long");
    let too_long = ExpressionError::TooLong { bytes: WHEN_BYTES_MAX + 5, most: WHEN_BYTES_MAX };
    assert_eq!(refused, ConditionError::Expression(too_long));
}

#[test]
fn names_are_checked() {
    for (text, expected) in [
        (
            "results.count-a.total > 0",
            "`results.count-a` is a subtraction; write `results[\"count-a\"].total`",
        ),
        ("1 < results.count-a", "`results.count-a` is a subtraction; write `results[\"count-a\"].<key>`"),
        ("results", "`results` is not a value; write"),
        ("results.a > 1", "`results.a` is not a value; write"),
        ("results[flow.name].x", "`results` is not a value; write"),
        ("results[\"a b\"].x", "`results[\"a b\"]` is not a value; write"),
        ("rows > 0", "`rows` is not known"),
        ("results.a.row-count > 0", "`count` is not known"),
        ("flow.status == 1", "`flow.status` is not known: the fields are"),
        ("flow", "`flow` is not a value"),
    ] {
        let error = Condition::parse(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for text in ["\"results.count-a\" == flow.name", "results.a.b-1 > 0", "`results.a-b` == \"x\""] {
        Condition::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

#[test]
fn budgets_hold() {
    let large = "x".repeat(RESULT_BYTES_MAX);
    let a = [("t", large.as_str()), ("u", large.as_str()), ("v", large.as_str())];
    assert_eq!(evaluate("results.a.t == results.a.u && results.a.v.len() > 1", &a), Ok(true));
    let error = evaluate("results.a.t + results.a.u == results.a.v", &a).expect_err("too long");
    assert!(error.to_string().contains("Length of string too large"), "{error}");
    let list = format!("1 in [{}]", vec!["1"; BUDGET.list + 1].join(","));
    let refused = Condition::parse(&list).map(|_| ()).map_err(|error| error.to_string());
    assert!(refused.as_ref().is_err_and(|error| error.contains("array")), "{refused:?}");
}
