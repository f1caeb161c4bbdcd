//! Assembles a script from its parts: names of keys and arguments become numbers, names of constants what they name, and only
//! functions that are used are included.
//!
//! A part names its keys and arguments at its beginning, in lines that begin with `-- KEYS =` and `-- ARGV =`; these names follow
//! those of the parts before it. It uses `KEYS.flow` and `ARGV.owner`, and `KEYS_NAMED` and `ARGV_NAMED` for how many have a name.
//!
//! Redis creates every function of a script again at each call, and its collector walks everything that is kept of each script. So
//! an unused function costs a script as much as a used one, and each outer name that a function uses is tied to it again.

use std::collections::{BTreeMap, BTreeSet};

/// The beginning of a function that may be left out.
const FUNCTION: &str = "local function ";
/// The end of the head of a function whose arguments stand in the place of the script's.
const OWN_ARGUMENTS: &str = "(ARGV)\n";

/// A script as it is sent, and the names of what it is called with.
#[derive(Debug, Default)]
pub(super) struct AssembledScript {
    pub(super) text: String,
    pub(super) keys: ScriptParameterNames,
    pub(super) arguments: ScriptParameterNames,
}

/// The names of keys, or of arguments, in their order.
#[derive(Debug, Default)]
pub(super) struct ScriptParameterNames {
    all: Vec<&'static str>,
    /// How many of them are those of the parts before the last one.
    shared: usize,
}

impl ScriptParameterNames {
    /// Panics unless these are the names that the last part gives, in their order.
    pub(super) fn expect(&self, script: &str, what: &str, given: impl Iterator<Item = &'static str>) {
        let (own, given) = (&self.all[self.shared..], given.collect::<Vec<_>>());
        assert!(own == given, "the {what} of the script `{script}` are {own:?}, not {given:?}");
    }

    /// Reads the names that a part gives.
    fn read(&mut self, part: &'static str, kind: &str) {
        self.shared = self.all.len();
        for line in part.lines() {
            let names =
                line.strip_prefix("-- ").and_then(|line| line.strip_prefix(kind)?.strip_prefix(" = "));
            for name in names.map(identifiers).into_iter().flatten() {
                assert!(!self.all.contains(&name), "two {kind} are called `{name}`");
                self.all.push(name);
            }
        }
    }

    /// Puts numbers in the place of names.
    fn number(&self, line: &str, kind: &str) -> String {
        let line = line.replace(&format!("{kind}_NAMED"), &self.all.len().to_string());
        let prefix = format!("{kind}.");
        let mut parts = line.split(prefix.as_str());
        let mut numbered = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            // `..` is no name.
            let Some(name) = identifiers(part).next().filter(|name| part.starts_with(name)) else {
                numbered.push_str(&prefix);
                numbered.push_str(part);
                continue;
            };
            let place = self.all.iter().position(|known| *known == name);
            let place = place.unwrap_or_else(|| panic!("{kind} has no name `{name}`")) + 1;
            numbered.push_str(&format!("{kind}[{place}]{}", &part[name.len()..]));
        }
        numbered
    }
}

/// Puts constants in the place of their names. A constant is a line of its own that begins with `local`, a name in capitals and `=`,
/// followed by a plain text or a number.
///
/// Panics when two constants of one script have the same name and not the same value, or something else there has the name of one.
fn inline_constants(whole: &str) -> String {
    let mut constants = BTreeMap::new();
    for (name, value) in whole.lines().filter_map(constant) {
        let before = constants.insert(name, value);
        assert!(before.is_none_or(|before| before == value), "two constants are called `{name}`");
    }
    let (mut inlined, others) = (String::new(), whole.lines().filter(|line| constant(line).is_none()));
    for line in others {
        // Names of variables, or of a function with its parameters.
        let defined = line.trim_start().strip_prefix("local ").and_then(|line| line.split('=').next());
        for name in defined.map(identifiers).into_iter().flatten() {
            assert!(!constants.contains_key(name), "`{name}` is a constant and something else");
        }
        inlined.push_str(&inline(line, &constants));
        inlined.push('\n');
    }
    inlined
}

/// The name and the value of the constant that a line defines.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix("local ")?.split_once(" = ")?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let text = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
    let is_text = text.is_some_and(|text| !text.contains(['\'', '\\']));
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    (is_name && (is_text || is_number)).then_some((name, value))
}

/// A line with constants in the place of their names, but for names within texts.
fn inline(line: &str, constants: &BTreeMap<&str, &str>) -> String {
    let (mut inlined, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(first) = rest.chars().next() {
        let length = if first == '\'' || first == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|c: char| {
                let ends = c == first && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        } else {
            identifiers(rest).next().filter(|name| rest.starts_with(name)).map_or(first.len_utf8(), str::len)
        };
        let (token, behind) = rest.split_at(length);
        inlined.push_str(constants.get(token).copied().unwrap_or(token));
        rest = behind;
    }
    inlined
}

/// A stretch of a script's text.
struct ScriptSegment<'a> {
    /// The function that it defines; nothing for code that always runs.
    function: Option<&'a str>,
    text: String,
}

/// Joins the parts of a script, without comments, with the values of constants, and without those functions that nothing in it names.
///
/// A function is what begins with `local function` where a line begins, and goes to the next line that is `end`.
pub(super) fn join(parts: &[&'static str]) -> AssembledScript {
    let mut joined = AssembledScript::default();
    let (mut whole, mut before) = (String::new(), "");
    for part in parts {
        let has_own = before.ends_with(OWN_ARGUMENTS);
        let shared = has_own.then(|| std::mem::take(&mut joined.arguments));
        joined.keys.read(part, "KEYS");
        joined.arguments.read(part, "ARGV");
        for line in part.split_inclusive('\n').filter(|line| !line.trim_start().starts_with("--")) {
            whole.push_str(&joined.arguments.number(&joined.keys.number(line, "KEYS"), "ARGV"));
        }
        if let Some(shared) = shared {
            joined.arguments = shared;
        }
        before = part;
    }
    joined.text = used(&pieces(&inline_constants(&whole)));
    joined
}

fn pieces(whole: &str) -> Vec<ScriptSegment<'_>> {
    let mut pieces = vec![ScriptSegment { function: None, text: String::new() }];
    for line in whole.lines().filter(|line| !line.trim().is_empty()) {
        if let Some(rest) = line.strip_prefix(FUNCTION) {
            pieces.push(ScriptSegment { function: identifiers(rest).next(), text: String::new() });
        }
        let piece = pieces.last_mut().expect("there is one from the beginning");
        piece.text.push_str(line);
        piece.text.push('\n');
        if line == "end" && piece.function.is_some() {
            pieces.push(ScriptSegment { function: None, text: String::new() });
        }
    }
    pieces
}

/// The text of the code that always runs, and of the functions that it uses, also indirectly.
fn used(pieces: &[ScriptSegment<'_>]) -> String {
    let mut named = BTreeSet::new();
    let mut to_see: Vec<&ScriptSegment<'_>> =
        pieces.iter().filter(|piece| piece.function.is_none()).collect();
    while let Some(piece) = to_see.pop() {
        for identifier in identifiers(&piece.text) {
            if named.insert(identifier) {
                to_see.extend(pieces.iter().filter(|piece| piece.function == Some(identifier)));
            }
        }
    }
    let is_used = |piece: &&ScriptSegment<'_>| piece.function.is_none_or(|name| named.contains(name));
    pieces.iter().filter(is_used).map(|piece| piece.text.as_str()).collect()
}

/// The identifiers in a text, keywords and numbers included.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|identifier| !identifier.is_empty())
}

#[cfg(test)]
mod tests {
    use super::join;

    const COMMON: &str = "\
-- Says `unused`.
-- KEYS = context
-- ARGV = uid now
local KEY = KEYS.context

local function last()
  return KEY .. ARGV.now
end

-- Uses the one before.
local function first()
  if true then
    return last()
  end
end

local function unused()
  return first()
end
";

    #[test]
    fn a_script_has_the_functions_that_it_uses_and_those_that_they_use() {
        let of = |script| join(&[COMMON, script]).text;
        let [key, last, first] = [
            "local KEY = KEYS[1]\n",
            "local function last()\n  return KEY .. ARGV[2]\nend\n",
            "local function first()\n  if true then\n    return last()\n  end\nend\n",
        ];
        assert_eq!(of("return 1\n"), format!("{key}return 1\n"));
        assert_eq!(of("return last()\n"), format!("{key}{last}return last()\n"));
        assert_eq!(of("-- unused\nreturn first()\n"), format!("{key}{last}{first}return first()\n"));
    }

    #[test]
    fn keys_and_arguments_have_the_places_of_their_names() {
        let script = "-- ARGV = owner, epoch\n-- ARGV = rest\nreturn ARGV.rest .. ARGV.owner, KEYS[KEYS_NAMED + 1], ARGV_NAMED\n";
        let joined = join(&[COMMON, script]);
        assert!(joined.text.ends_with("\nreturn ARGV[5] .. ARGV[3], KEYS[1 + 1], 5\n"), "{}", joined.text);
        joined.arguments.expect("a", "arguments", ["owner", "epoch", "rest"].into_iter());
        joined.keys.expect("a", "keys", std::iter::empty());
    }

    #[test]
    fn a_script_within_a_function_stays_whole_and_has_arguments_of_its_own() {
        let take = "-- ARGV = slots\nlocal n = ARGV.slots\nif n then\n  n = last()\nend\nlocal function put()\nend\nput()\n";
        let joined = join(&[COMMON, "local function take", "(ARGV)\n", take, "end\n", "take(ARGV.now)\n"]);
        let wrapped = "local function take(ARGV)\nlocal n = ARGV[1]\nif n then\n  n = last()\nend\nlocal function put()\nend\nput()\nend\n";
        assert!(joined.text.ends_with(&format!("{wrapped}take(ARGV[2])\n")), "{}", joined.text);
        assert!(
            joined.text.contains("local function last()") && !joined.text.contains("first"),
            "{}",
            joined.text
        );
    }

    #[test]
    fn constants_stand_where_their_names_stood_but_not_within_texts() {
        let names =
            "local JOB = 'hero:job:'\nlocal JOBS = 'hero:jobs:'\nlocal MOST = 12\nlocal SOME = {'a'}\n";
        let script = "local job = JOB .. 'JOB it\\'s JOB' .. \"JOB\" .. #JOBS + MOST\nreturn {job, SOME}\n";
        let inlined = "local SOME = {'a'}\nlocal job = 'hero:job:' .. 'JOB it\\'s JOB' .. \"JOB\" .. #'hero:jobs:' + 12\n";
        assert_eq!(join(&[names, script]).text, format!("{inlined}return {{job, SOME}}\n"));
    }

    #[test]
    #[should_panic(expected = "`MOST` is a constant and something else")]
    fn a_parameter_is_not_called_as_a_constant() {
        join(&["local MOST = 1\n", "local function first(a, MOST)\nend\nreturn first(1, 2)\n"]);
    }

    #[test]
    #[should_panic(expected = "two constants are called `MOST`")]
    fn a_constant_has_one_value() {
        join(&["local MOST = 1\n", "local MOST = 2\nreturn MOST\n"]);
    }

    #[test]
    #[should_panic(expected = "the arguments of the script `a` are [\"uid\", \"now\"], not [\"now\"]")]
    fn arguments_are_given_by_their_names_and_none_is_left_out() {
        join(&[COMMON]).arguments.expect("a", "arguments", ["now"].into_iter());
    }

    #[test]
    #[should_panic(expected = "ARGV has no name `owner`")]
    fn a_name_that_is_not_given_is_no_argument() {
        join(&[COMMON, "return ARGV.owner\n"]);
    }
}
