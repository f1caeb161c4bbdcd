//! `when`: expressions over results, checked when a flow is made and evaluated while it runs.

use flow::Condition;
use model::id::Uid;
use model::limits::WHEN_BYTES_MAX;
use model::{ActorId, ContextId, Flow, FlowId, FlowStatus, FlowUid};

use super::NOW;
use crate::input::{Input, join};
use crate::{Target, Verdict, check_refusal};

/// The reader of expressions.
pub const TARGET: Target = Target { name: "expression", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "results.a.n",
    "results[\"a\"][\"k\"]",
    "results[\"count-a\"].total",
    "results.a.",
    "flow.id",
    "flow.uid",
    "flow.name",
    "flow.context_id",
    "flow.caller_id",
    ".contains(",
    ".starts_with(",
    ".ends_with(",
    ".len()",
    "len(",
    " in [",
    "!in",
    "\"x\"",
    "'c'",
    "`t ${1}`",
    " == ",
    " != ",
    " < ",
    " <= ",
    " > ",
    " >= ",
    " && ",
    " || ",
    " ?? ",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " ** ",
    " & ",
    " | ",
    " ^ ",
    " << ",
    "!",
    "(",
    ")",
    "[",
    "]",
    "#{a: 1}",
    "if true { 1 } else { 2 }",
    "switch 1 { _ => 2 }",
    "|x| x",
    "loop {}",
    "eval(",
    "Fn(\"x\")",
    "this",
    "true",
    "false",
    "()",
    "1.5",
    "0b101",
    "0x7fff_ffff_ffff_ffff",
    "?.",
    "..",
    "::",
    ";",
    "//",
    "/*",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let text = input.text().into_owned();
    let condition = match Condition::parse(&text) {
        Ok(condition) => condition,
        Err(error) => {
            check_refusal(&error.to_string(), 2 * WHEN_BYTES_MAX, &[]);
            return Verdict::Refused;
        }
    };
    assert!(text.len() <= WHEN_BYTES_MAX, "{} bytes", text.len());
    let again = Condition::parse(&text).expect("it was read before");
    assert_eq!(again.references(), condition.references(), "two readings of one text");
    let values = input.parts();
    let values: Vec<_> = values.into_iter().map(String::from_utf8_lossy).collect();
    let flow = flow();
    // Where there are fewer values than references, the last nodes ended without a result.
    let holds = || condition.holds(&flow, |at| values.get(at).map(|value| &**value));
    let answer = holds();
    if let Err(error) = &answer {
        // The result of a node is not for everyone who sees why its dependant failed. Short values may be words of the refusal.
        let long =
            values.iter().map(|value| &**value).filter(|value| value.len() >= 40 && !text.contains(*value));
        check_refusal(&error.to_string(), 300, &long.collect::<Vec<_>>());
    }
    assert_eq!(holds(), answer, "two answers to one question");
    Verdict::of(&answer)
}

fn flow() -> Flow {
    let (id, uid, name) = (FlowId(4), FlowUid(Uid::from_bits(2)), "demo".parse().expect("a name"));
    Flow { status: FlowStatus::Started, ..Flow::new(id, uid, name, ContextId(3), ActorId(5), NOW) }
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        join(&[], &["results.a.n > 0 && results[\"count-a\"].total <= 2.5", "7", "2.0"]),
        join(&[], &["results.a.kind in [\"x\", \"y\"] || flow.name.starts_with(\"de\")", "x"]),
        join(&[], &["results.a.n.len() == 3 && !results.a.n.contains(\"b\")", "aéc"]),
        join(&[], &["(results.a.n ?? 7) % 2 == 1"]),
        join(&[], &["flow.id + flow.context_id ** 2 - -1 * 3 / 1 != 0"]),
        join(&[], &["true & false | true ^ true"]),
        join(&[], &["results.a.n + 1 > 0", "9223372036854775807"]),
        join(&[], &["results.a-b.n"]),
        join(&[], &["loop {}"]),
        join(&[], &["flow.id"]),
    ]
}
