//! Scripts in the language of `rhai`, `osis` and `sal`, made up by chance: well formed, and some of them hostile.
//!
//! A generator knows the grammar, the types, and what there is to be called; it asks a source of choices for everything else.
//! From a seed it makes the same scripts each time; from the bytes of a fuzzer, whatever these say.

/// How deep expressions and blocks stand in each other.
const DEPTH_MAX: usize = 3;
/// How many statements a block has.
const STATEMENTS_MAX: usize = 4;

/// Which functions a script may call beside the standard ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptDialect {
    /// None.
    Rhai,
    /// The objects of the context.
    Osis,
    /// Files and programs.
    Sal,
}

/// Makes scripts up.
#[derive(Debug)]
pub struct ScriptGenerator<S> {
    source: S,
    dialect: ScriptDialect,
    text: String,
    /// Variables in sight, by the type of what they hold.
    variables: Vec<(String, ScriptValueKind)>,
    names: usize,
}

/// Says how it goes on.
pub trait ChoiceSource {
    /// A number below `ways`, which is not 0.
    fn choose(&mut self, ways: usize) -> usize;
}

/// Choices that follow from a seed.
#[derive(Debug, Clone)]
pub struct SeededChoices(u64);

impl SeededChoices {
    /// Makes a source that gives the same choices for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl ChoiceSource for SeededChoices {
    fn choose(&mut self, ways: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % ways as u64).unwrap_or(0)
    }
}

/// Choices that bytes say; the first way when there are no more.
#[derive(Debug, Clone)]
pub struct ByteChoices<'a>(pub &'a [u8]);

impl ChoiceSource for ByteChoices<'_> {
    fn choose(&mut self, ways: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % ways
    }
}

/// Type of an expression's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptValueKind {
    Int,
    Float,
    Text,
    Truth,
    List,
    Map,
    Blob,
    Char,
    Time,
}

const KINDS: [ScriptValueKind; 9] = [
    ScriptValueKind::Int,
    ScriptValueKind::Float,
    ScriptValueKind::Text,
    ScriptValueKind::Truth,
    ScriptValueKind::List,
    ScriptValueKind::Map,
    ScriptValueKind::Blob,
    ScriptValueKind::Char,
    ScriptValueKind::Time,
];

/// Scripts that mean harm, each with `§` for a number of its own.
const HOSTILE: &[&str] = &[
    // Orders that are none.
    "let a = []; for n in 0..(80 + §) { a.push(if n % 3 == 0 { 0.0 / 0.0 } else { (n * 7919 % 101).to_float() }); } a.sort();",
    "let a = []; for n in 0..(80 + §) { a.push(n); } a.sort(|x, y| if (x * 7 + y * 13) % 5 < 2 { -1 } else { 1 });",
    "let a = []; for n in 0..(50 + §) { a.push(n); } a.sort_by(|x, y| true); a = a.order_by(|x, y| x % 3 - y % 2); a.dedup(|x, y| x % 2 == y % 3);",
    "let a = []; for n in 0..99 { a.push(n); } a.sort(|x, y| { if x == § { throw \"no\"; } y - x });",
    // Depth.
    "let a = []; loop { a = [a, §]; }",
    "let a = #{}; for n in 0..20_000 { a = #{ a: a }; } print(a); let b = a; print(a == b);",
    "fn f(n) { f(n + 1) + § } f(0)",
    "fn f(n) { try { f(n + 1) } catch { f(n + 2) } } f(§)",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((§",
    // Size.
    "let s = \"x§\"; loop { s += s; }",
    "let s = \"\"; s.pad(9_000_000 + §, 'x'); let t = s; t.replace(\"x\", s);",
    "let a = []; loop { let s = \"\"; s.pad(500_000 + §, 'x'); a.push(s); }",
    "let b = blob(10_000_000, §); loop { b += b; }",
    "let a = [1]; loop { a += a; }",
    "let m = #{}; let n = §; loop { m[`k${n}`] = [n, n, n]; n += 1; }",
    "for n in 0..1000 { result(`k${n}`, `${n}` * 1000); } let s = \"\"; s.pad(400_000, 'r'); result(\"§\", s);",
    // Time.
    "loop { }",
    "let n = §; while true { n += 1; n %= 1000; }",
    "for n in 0..9_000_000_000_000 { }",
    "for n in range(0.0, 1e300, 0.1) { }",
    "sleep(3600 + §);",
    "sleep(1e308); sleep(0.0 / 0.0); sleep(-1.0 / 0.0);",
    "[2, 1].sort(|x, y| { loop { } });",
    // Words.
    "loop { print(\"flood§\"); }",
    "let s = \"\"; s.pad(1_000_000, 'p'); for n in 0..40 { print(s); debug(s); }",
    "print(\"\\x1b[2J\\x07\\x00§\"); throw \"\\u202e\";",
    // Arithmetic at its ends.
    "let t = timestamp(); t += 9_000_000_000_000_000; t += 1e18; t -= 9_223_372_036_854_775_807; t.elapsed",
    "let a = 9_223_372_036_854_775_807; print(-a - 2); a + §",
    "print(1 / (§ - §)); print(1 % (§ - §)); print((-9_223_372_036_854_775_807 - 1) / -1);",
    "print(2 ** 70); print(1 << 200); print(1 >> -200); print((-9_223_372_036_854_775_807 - 1).abs());",
    "print(parse_int(\"zz\", 99)); print(parse_int(\"12\", -1));",
    "let n = 1; print(n.get_bits(0..64)); n.set_bits(0..64, -1); n.get_bit(99);",
    "let n = §; print(n.get_bits(-64, 64)); n.set_bits(60..=99, 7);",
    "let b = blob(8); b.write_be(-9_223_372_036_854_775_807, 8, 1.5); print(b.parse_le_int(7, 900)); b.write_utf8(3..99, \"ééé\");",
    "let s = \"éü€😀\"; for n in -9..9 { print(s.sub_string(n, §)); print(s.index_of('€', n)); s.crop(n, 2); }",
    "let s = \"é😀\"; s.truncate(-1); s.set(9, 'x'); s[-3] = 'y'; print(s.split_at(-2)); print(s[1..99]);",
    "let a = [1, 2, 3]; a.splice(-9, 99, a); a.drain(-1..99); a.chop(-3); a.insert(-99, a); print(a.extract(-2, 9));",
    "let a = [1]; a.pad(-5, a); a.shift(); a.pop(); a.pop(); a.reduce(|x, y| x + y); a[99] = 1;",
    "for n in range(9_223_372_036_854_775_800, 9_223_372_036_854_775_807, 5) { } for n in range(0, -10, -3).step(0) { }",
    "print('\\U0010ffff' + 'x' + §); print('a'.to_int() + §);",
    // Things that do not exist.
    "import \"evil\" as e; e::f(§)",
    "eval(\"loop { }\")",
    "let f = Fn(\"print\"); f.call(f); f.curry(f)",
    "exit(§); print(\"still here\");",
];

impl<S: ChoiceSource> ScriptGenerator<S> {
    /// Makes scripts of one dialect.
    pub fn new(source: S, dialect: ScriptDialect) -> Self {
        Self { source, dialect, text: String::new(), variables: Vec::new(), names: 0 }
    }

    /// A script that means harm.
    pub fn hostile(&mut self) -> String {
        let which = self.source.choose(HOSTILE.len());
        let number = self.source.choose(1000).to_string();
        let harm = HOSTILE[which].replace('§', &number);
        if self.source.choose(3) > 0 {
            return harm;
        }
        // A script that is valid up to here.
        let before = self.script();
        format!("{before}\n{harm}")
    }

    /// A script that is well formed, whatever it comes to.
    pub fn script(&mut self) -> String {
        self.text.clear();
        self.variables.clear();
        self.function();
        for kind in [ScriptValueKind::Int, ScriptValueKind::Text, ScriptValueKind::List] {
            self.declare(kind);
        }
        self.block(0);
        let kind = self.any();
        let value = self.expression(kind, 1);
        self.text.push_str(&format!("result(\"value\", `${{{value}}}`);\n"));
        std::mem::take(&mut self.text)
    }

    fn any(&mut self) -> ScriptValueKind {
        KINDS[self.source.choose(KINDS.len())]
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn function(&mut self) {
        self.variables = vec![("x".to_owned(), ScriptValueKind::Int), ("y".to_owned(), ScriptValueKind::Int)];
        let body = self.expression(ScriptValueKind::Int, 1).replace("alpha(", "max(");
        self.variables.clear();
        self.text.push_str(&format!("fn alpha(x, y) {{ {body} }}\n"));
    }

    fn declare(&mut self, kind: ScriptValueKind) {
        let value = self.expression(kind, 0);
        let name = self.name();
        self.text.push_str(&format!("let {name} = {value};\n"));
        self.variables.push((name, kind));
    }

    /// Statements, whose variables are out of sight behind them.
    fn block(&mut self, depth: usize) {
        let seen = self.variables.len();
        for _ in 0..=self.source.choose(STATEMENTS_MAX) {
            self.statement(depth);
        }
        self.variables.truncate(seen);
    }

    fn braced(&mut self, depth: usize) {
        self.text.push_str("{\n");
        self.block(depth + 1);
        self.text.push('}');
    }

    fn statement(&mut self, depth: usize) {
        let ways = if depth < DEPTH_MAX { 12 } else { 6 };
        match self.source.choose(ways) {
            0 | 1 => {
                let kind = self.any();
                self.declare(kind);
            }
            2 => {
                let kind = self.any();
                let value = self.expression(kind, 0);
                self.text.push_str(&format!("print({value});\n"));
            }
            3 => {
                let kind = self.any();
                let value = self.expression(kind, 0);
                match self.variable(kind) {
                    Some(name) => self.text.push_str(&format!("{name} = {value};\n")),
                    None => self.text.push_str(&format!("debug({value});\n")),
                }
            }
            4 => self.change(),
            5 => self.effect(),
            6 | 7 => {
                let condition = self.expression(ScriptValueKind::Truth, 1);
                self.text.push_str(&format!("if {condition} "));
                self.braced(depth);
                self.text.push_str(" else ");
                self.braced(depth);
                self.text.push('\n');
            }
            8 => {
                let name = self.name();
                let end = self.source.choose(5);
                self.text.push_str(&format!("for {name} in 0..{end} "));
                self.variables.push((name, ScriptValueKind::Int));
                self.braced(depth);
                self.variables.pop();
                self.text.push('\n');
            }
            9 => {
                let name = self.name();
                self.text.push_str(&format!("let {name} = 0;\nwhile {name} < 3 {{\n{name} += 1;\n"));
                self.block(depth + 1);
                self.text.push_str("}\n");
            }
            10 => {
                self.text.push_str("try ");
                self.braced(depth);
                self.text.push_str(" catch (why) ");
                self.braced(depth);
                self.text.push('\n');
            }
            _ => {
                let sought = self.expression(ScriptValueKind::Int, 1);
                self.text.push_str(&format!("switch {sought} {{\n0 => "));
                self.braced(depth);
                self.text.push_str(",\n1..9 => ");
                self.braced(depth);
                self.text.push_str(",\n_ => ");
                self.braced(depth);
                self.text.push_str("\n}\n");
            }
        }
    }

    /// A call that changes what a variable holds.
    fn change(&mut self) {
        let kind = self.any();
        let Some(name) = self.variable(kind) else { return };
        let call = match kind {
            ScriptValueKind::List => {
                let (item, number) =
                    (self.expression(ScriptValueKind::Int, 2), self.expression(ScriptValueKind::Int, 2));
                let calls = [
                    format!("push({item})"),
                    format!("insert({number}, {item})"),
                    format!("pad({number} % 100, {item})"),
                    format!("truncate({number})"),
                    format!("splice({number}, {item}, [1, 2])"),
                    format!("remove({number})"),
                    "sort()".to_owned(),
                    "sort(|x, y| (x * 7 + y) % 3 - 1)".to_owned(),
                    "reverse()".to_owned(),
                    "dedup()".to_owned(),
                    "drain(|x| x == 1)".to_owned(),
                ];
                calls[self.source.choose(calls.len())].clone()
            }
            ScriptValueKind::Text => {
                let (text, number) =
                    (self.expression(ScriptValueKind::Text, 2), self.expression(ScriptValueKind::Int, 2));
                let calls = [
                    format!("replace({text}, \"é\")"),
                    format!("truncate({number})"),
                    format!("pad({number} % 100, 'é')"),
                    format!("crop({number}, 3)"),
                    format!("append({text})"),
                    "trim()".to_owned(),
                    "make_upper()".to_owned(),
                ];
                calls[self.source.choose(calls.len())].clone()
            }
            ScriptValueKind::Map => {
                let (key, value) =
                    (self.expression(ScriptValueKind::Text, 2), self.expression(ScriptValueKind::Int, 2));
                let calls = [
                    format!("set({key}, {value})"),
                    format!("remove({key})"),
                    "mixin(#{ a: 1 })".to_owned(),
                    "clear()".to_owned(),
                ];
                calls[self.source.choose(calls.len())].clone()
            }
            ScriptValueKind::Blob => {
                let number = self.expression(ScriptValueKind::Int, 2);
                let calls = [
                    format!("push({number})"),
                    format!("write_le({number}, 4, {number})"),
                    format!("write_utf8({number}, 5, \"héllo\")"),
                    format!("chop({number})"),
                    format!("drain({number}, 2)"),
                ];
                calls[self.source.choose(calls.len())].clone()
            }
            _ => "to_string()".to_owned(),
        };
        self.text.push_str(&format!("{name}.{call};\n"));
    }

    /// A call of what the runner serves.
    fn effect(&mut self) {
        let (text, number) =
            (self.expression(ScriptValueKind::Text, 2), self.expression(ScriptValueKind::Int, 2));
        let every = [
            format!("write_file(\"file-{}\", {text});", self.source.choose(3)),
            format!("try {{ print(read_file(\"file-{}\")); }} catch {{ }}", self.source.choose(3)),
            format!("result({text}, {number});"),
            "sleep(0.001);".to_owned(),
            format!("print(to_json(#{{ a: {number}, b: [{text}] }}));"),
            format!("try {{ parse_json({text}); }} catch (why) {{ print(why); }}"),
        ];
        let own = match self.dialect {
            ScriptDialect::Rhai => Vec::new(),
            ScriptDialect::Osis => vec![
                format!(
                    "osis_index(\"things\", \"n\"); osis_set(\"things\", \"id\" + ({number} % 5), #{{ n: {number}, t: {text} }});"
                ),
                format!("print(osis_get(\"things\", \"id\" + ({number} % 5)));"),
                "print(osis_list(\"things\"));".to_owned(),
                format!("try {{ print(osis_find(\"things\", \"n\", {number}, \"\", 3)); }} catch {{ }}"),
                format!("osis_delete(\"things\", \"id\" + ({number} % 5));"),
            ],
            ScriptDialect::Sal => vec![
                format!("append_file(\"log\", {text});"),
                format!("try {{ print(file_size(\"log\")); remove({text}); }} catch {{ }}"),
                "make_dir(\"a/b\"); print(list_dir(\".\")); print(exists(\"a\"));".to_owned(),
                format!("print(env({text}));"),
                "try { http_get(\"http://127.0.0.1:1/\"); } catch (why) { print(why); }".to_owned(),
            ],
        };
        let which = self.source.choose(every.len() + own.len());
        let call = every.iter().chain(&own).nth(which);
        self.text.push_str(call.map_or("", String::as_str));
        self.text.push('\n');
    }

    /// A variable that holds this.
    fn variable(&mut self, kind: ScriptValueKind) -> Option<String> {
        let fitting: Vec<_> = self.variables.iter().filter(|(_, held)| *held == kind).collect();
        let count = fitting.len();
        if count == 0 {
            return None;
        }
        let which = self.source.choose(count);
        self.variables.iter().filter(|(_, held)| *held == kind).nth(which).map(|(name, _)| name.clone())
    }

    fn expression(&mut self, kind: ScriptValueKind, depth: usize) -> String {
        use ScriptValueKind as Kind;
        let is_leaf = depth >= DEPTH_MAX || self.source.choose(3) == 0;
        if is_leaf {
            return match self.variable(kind) {
                Some(name) if self.source.choose(4) > 0 => name,
                _ => self.literal(kind),
            };
        }
        let deeper = depth + 1;
        let mut of = |kind| self.expression(kind, deeper);
        let ways = match kind {
            Kind::Int => {
                let (a, b, text, list) = (of(Kind::Int), of(Kind::Int), of(Kind::Text), of(Kind::List));
                vec![
                    format!("({a} + {b})"),
                    format!("({a} * {b} % 1000)"),
                    format!("({a} - {b})"),
                    format!("({a} / (8 + {b} % 7))"),
                    format!("({a} << ({b} % 70))"),
                    format!("{text}.len()"),
                    format!("{list}.len()"),
                    format!("alpha({a}, {b})"),
                    format!("(if {a} < {b} {{ {b} }} else {{ {a} }})"),
                    format!("{list}.index_of({a})"),
                ]
            }
            Kind::Float => {
                let (a, n) = (of(Kind::Float), of(Kind::Int));
                vec![
                    format!("({a} * 1.5)"),
                    format!("({a} / ({n} % 3).to_float())"),
                    format!("{a}.sqrt()"),
                    format!("({n}).to_float()"),
                ]
            }
            Kind::Text => {
                let (a, n) = (of(Kind::Text), of(Kind::Int));
                vec![
                    format!("({a} + {n})"),
                    format!("{a}.sub_string({n}, 4)"),
                    format!("`t${{{n}}}é`"),
                    format!("{a}.to_upper()"),
                    format!("to_json(#{{ k: {n} }})"),
                ]
            }
            Kind::Truth => {
                let (a, b, text) = (of(Kind::Int), of(Kind::Int), of(Kind::Text));
                vec![
                    format!("({a} < {b})"),
                    format!("({a} == {b} || {text}.is_empty())"),
                    format!("!({text}.contains(\"é\"))"),
                ]
            }
            Kind::List => {
                let (a, n) = (of(Kind::List), of(Kind::Int));
                vec![
                    format!("({a} + [{n}])"),
                    format!("{a}.map(|x| [x])"),
                    format!("{a}.filter(|x| x != 1)"),
                    format!("{a}.extract({n} % 9, 5)"),
                    format!("[{n}, {n}].order_by(|x, y| y - x)"),
                    format!("(\"a-b\".split(\"-\") + [{n}])"),
                ]
            }
            Kind::Map => {
                let (m, n, text) = (of(Kind::Map), of(Kind::Int), of(Kind::Text));
                vec![format!("({m} + #{{ b: {n} }})"), format!("#{{ a: {n}, t: {text}, m: {m} }}")]
            }
            Kind::Blob => {
                let (b, n) = (of(Kind::Blob), of(Kind::Int));
                vec![format!("({b} + blob(2, {n}))"), format!("blob(({n} % 50).abs(), {n})")]
            }
            Kind::Char => {
                vec![format!("(({}) + \"é€\")[1]", of(Kind::Text)), "\"é€\"[1]".to_owned()]
            }
            Kind::Time => vec![format!("(timestamp() + {} % 1000)", of(Kind::Int))],
        };
        ways[self.source.choose(ways.len())].clone()
    }

    fn literal(&mut self, kind: ScriptValueKind) -> String {
        let ways: &[&str] = match kind {
            ScriptValueKind::Int => &[
                "0",
                "1",
                "-1",
                "7",
                "2",
                "3",
                "10",
                "-4",
                "255",
                "4096",
                "-90",
                "64",
                "9223372036854775807",
            ],
            ScriptValueKind::Float => &["0.0", "1.5", "-2.25", "1e300", "(0.0 / 0.0)", "(1.0 / 0.0)"],
            ScriptValueKind::Text => {
                &["\"\"", "\"a\"", "\"é€😀\"", "\"two words\"", "\"\\n\\t\\x00\"", "\"[1, 2]\""]
            }
            ScriptValueKind::Truth => &["true", "false"],
            ScriptValueKind::List => {
                &["[]", "[1, 2, 3]", "[3, 1, 2, 1]", "[2.5, 0.0 / 0.0, 1.5]", "[\"b\", 1, ()]"]
            }
            ScriptValueKind::Map => &["#{}", "#{ a: 1 }", "#{ a: [1], \"é\": #{} }"],
            ScriptValueKind::Blob => &["blob()", "blob(5)", "blob(9, 255)"],
            ScriptValueKind::Char => &["'x'", "'é'", "'\\U0010ffff'"],
            ScriptValueKind::Time => &["timestamp()"],
        };
        ways[self.source.choose(ways.len())].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_depend_on_the_seed_alone() {
        let scripts = |seed| {
            let mut generator = ScriptGenerator::new(SeededChoices::new(seed), ScriptDialect::Osis);
            [generator.script(), generator.hostile(), generator.script()]
        };
        assert_eq!(scripts(7), scripts(7));
        assert_ne!(scripts(7), scripts(8));
    }

    #[test]
    fn bytes_that_end_end_the_script() {
        for length in 0..50 {
            let bytes = vec![0xab; length];
            assert!(ScriptGenerator::new(ByteChoices(&bytes), ScriptDialect::Sal).script().ends_with(";\n"));
        }
    }
}
