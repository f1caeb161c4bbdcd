//! Scripts of the embedded languages: as text, or as choices of a generator that knows the language.

use testkit::scripts::{ByteChoices, ScriptDialect, ScriptGenerator, SeededChoices};

use crate::input::Input;
use crate::{Target, Verdict};

/// The engine of scripts.
pub const TARGET: Target = Target { name: "script", run, seeds, dictionary: DICTIONARY };

/// Steps that a script may take: the engine is looked at, not its patience.
const STEPS_MAX: u64 = 2000;
/// The stack that a script has. It is as little as its few steps need.
const STACK_BYTES: usize = 64 * 1024 * 1024;

const DICTIONARY: &[&str] = &[
    ".sort()",
    ".sort(|x, y| ",
    ".order_by(|x, y| x % 3 - y % 2)",
    ".sort_desc()",
    "0.0 / 0.0",
    "9223372036854775807",
    "timestamp()",
    " - timestamp()",
    ".elapsed",
    ".sub_string(",
    ".splice(",
    ".extract(",
    ".split_at(",
    ".pad(",
    "blob(9, 255)",
    ".write_be(",
    ".parse_le_float(",
    ".get_bits(",
    ".set_bits(",
    "range(0, 10, -3)",
    "(3..=9)",
    ".step(",
    "parse_int(\"z\", 36)",
    "parse_json(",
    "to_json(",
    ".to_float()",
    ".to_int()",
    " ** ",
    " << ",
    "fn f(x) { ",
    "f(",
    "this",
    "|x| ",
    ".map(",
    ".filter(",
    ".reduce(",
    ".dedup(",
    ".drain(",
    ".chop(",
    ".truncate(",
    "[1, 2.5, \"é\", 'x', ()]",
    "#{ a: 1 }",
    "try { ",
    " } catch (why) { ",
    "throw ",
    "switch x { ",
    "for n in ",
    "let x = ",
    "result(\"k\", ",
    "exit(",
    "`t ${x}`",
    ";",
    "{",
    "}",
    "-",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let script = match input.choice(3) {
        0 => input.text().into_owned(),
        1 => ScriptGenerator::new(ByteChoices(input.rest()), ScriptDialect::Rhai).script(),
        _ => ScriptGenerator::new(ByteChoices(input.rest()), ScriptDialect::Rhai).hostile(),
    };
    let engine = std::thread::Builder::new().stack_size(STACK_BYTES);
    let running = engine.spawn(move || runner::fuzzing::run_script(&script, STEPS_MAX)).expect("a thread");
    match running.join() {
        Ok(ended) => Verdict::of(&ended),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let text = |script: &str| [b"\0", script.as_bytes()].concat();
    let mut seeds: Vec<_> = (0..20)
        .map(|seed| text(&ScriptGenerator::new(SeededChoices::new(seed), ScriptDialect::Rhai).script()))
        .filter(|script| script.len() < 4000)
        .collect();
    seeds
        .extend((0..20).map(|seed| {
            text(&ScriptGenerator::new(SeededChoices::new(seed), ScriptDialect::Rhai).hostile())
        }));
    seeds
        .push(text("let a = [3.5, 0.0 / 0.0, 1.5]; a.sort(); a.sort(|x, y| x > y); result(\"a\", a.len());"));
    seeds.push(b"\x01choices of a generator that knows the language".to_vec());
    seeds.push(b"\x02harm".to_vec());
    seeds
}
