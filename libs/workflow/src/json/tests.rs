use proptest::prelude::*;

use super::*;

fn form(text: &str) -> Result<String, String> {
    read(text.as_bytes(), 1 << 20).map(|value| value.to_string()).map_err(|error| error.to_string())
}

#[test]
fn every_value_has_one_form() {
    for (written, expected) in [
        (" { \"b\" : 1 , \"a\" : [ true , null ] } ", "{\"a\":[true,null],\"b\":1}"),
        ("\"\\u0041\\u00e9\\ud83d\\ude00\\/\\b\\f\\u001f\"", "\"Aé😀/\\u0008\\u000c\\u001f\""),
        ("\"\\n\\r\\t\\\\\\\"\"", "\"\\n\\r\\t\\\\\\\"\""),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        // Numbers of other kinds keep their digits.
        ("9223372036854775808", "\"9223372036854775808\""),
        ("[1.50,1e3,-0,0.1]", "[\"1.50\",\"1e3\",\"-0\",\"0.1\"]"),
        ("{\"é\":1,\"z\":2,\"\":3}", "{\"\":3,\"z\":2,\"é\":1}"),
        ("[]", "[]"),
        ("{}", "{}"),
    ] {
        assert_eq!(form(written).as_deref(), Ok(expected), "{written}");
    }
}

#[test]
fn what_two_readers_might_differ_about_is_refused() {
    for (written, expected) in [
        ("", "byte 0: expected a value"),
        ("nul", "byte 0: expected a value"),
        ("NaN", "byte 0: expected a value"),
        ("{\"a\":1,\"a\":2}", "byte 10: the key \"a\" occurs twice"),
        ("{\"a\":1,\"\\u0061\":2}", "the key \"a\" occurs twice"),
        ("{\"a\":1,}", "byte 7: expected a key"),
        ("{a:1}", "byte 1: expected a key"),
        ("{\"a\" 1}", "byte 5: expected `:`"),
        ("[1,]", "byte 3: expected a value"),
        ("[1 2]", "byte 3: expected `,` or `]`"),
        ("[1}", "byte 2: expected `,` or `]`"),
        ("1 2", "byte 2: expected the end"),
        ("01", "byte 1: expected the end"),
        ("+1", "byte 0: expected a value"),
        ("1.", "byte 2: expected a digit"),
        (".5", "byte 0: expected a value"),
        ("1e", "byte 2: expected a digit"),
        ("-", "byte 1: expected a digit"),
        ("\"a", "byte 2: expected `\"`"),
        ("\"a\nb\"", "byte 2: expected `\"`, or a character"),
        ("\"\\x\"", "byte 1: expected an escape that JSON knows"),
        ("\"\\u00g0\"", "byte 1: expected `\\u` with four"),
        ("\"\\ud83d\"", "byte 1: this is half"),
        ("\"\\ud83d\\u0041\"", "byte 1: this is half"),
        ("\"\\ude00\"", "byte 1: this is half"),
        ("\u{feff}1", "byte 0: expected a value"),
        ("// x\n1", "byte 0: expected a value"),
    ] {
        let refused = form(written);
        assert!(refused.as_ref().is_err_and(|why| why.contains(expected)), "{written}: {refused:?}");
    }
    assert_eq!(read(b"\"\xff\"", 9), Err(JsonError::NotUtf8 { at: 1 }));
    assert_eq!(read(b"1234", 3), Err(JsonError::TooLong { bytes: 4, most: 3 }));
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(form(&nested(DEPTH_MAX)), Ok(nested(DEPTH_MAX)));
    let refused = read(nested(DEPTH_MAX + 1).as_bytes(), 1 << 20);
    assert_eq!(refused, Err(JsonError::TooDeep { at: DEPTH_MAX }));
    assert!(read("[".repeat(1 << 20).as_bytes(), 1 << 20).is_err());
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        any::<i64>().prop_map(Json::Int),
        ".{0,12}".prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Json::List),
            proptest::collection::btree_map(".{0,8}", inner, 0..8).prop_map(Json::Map),
        ]
    })
}

/// Converts the value of another reader; nothing where it has a number that is no integer.
fn of_serde(value: &serde_json::Value) -> Option<Json> {
    Some(match value {
        serde_json::Value::Null => Json::Null,
        serde_json::Value::Bool(truth) => Json::Bool(*truth),
        serde_json::Value::Number(number) => Json::Int(number.as_i64()?),
        serde_json::Value::String(text) => Json::Text(text.clone()),
        serde_json::Value::Array(items) => Json::List(items.iter().map(of_serde).collect::<Option<_>>()?),
        serde_json::Value::Object(entries) => Json::Map(
            entries
                .iter()
                .map(|(key, value)| Some((key.clone(), of_serde(value)?)))
                .collect::<Option<_>>()?,
        ),
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(value in any_json()) {
        let form = value.to_string();
        prop_assert_eq!(read(form.as_bytes(), form.len()), Ok(value.clone()));
        let other = serde_json::from_str::<serde_json::Value>(&form).expect("JSON");
        prop_assert_eq!(of_serde(&other), Some(value));
    }

    /// Nothing is taken that others refuse, and what both take means the same.
    #[test]
    fn others_read_the_same(text in "[\\[\\]{}\",:0-9eE.+\\-a-z\\\\ ]{0,24}") {
        let ours = read(text.as_bytes(), 1000);
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        if let Ok(value) = &ours {
            let integers = theirs.as_ref().ok().and_then(of_serde);
            prop_assert!(theirs.is_ok() || text.contains(['e', 'E']), "{text}");
            if let Some(other) = integers.filter(|_| !text.contains("-0")) {
                prop_assert_eq!(value, &other);
            }
        }
    }
}
