//! Puts a script together: of what it has in common with others it gets only what it uses.
//!
//! Redis makes every function of a script anew at each call, and its collector goes through all that it keeps of each script. So what
//! a script does not use costs it as much as what it does.

use std::collections::BTreeSet;

/// What begins a function that may be left out.
const FUNCTION: &str = "local function ";

/// A stretch of a script's text.
struct Piece<'a> {
    /// The function that it is; nothing for what is always carried out.
    function: Option<&'a str>,
    text: String,
}

/// Joins the parts of a script, without comments, and without those functions that nothing in it names.
///
/// A function is what begins with `local function` where a line begins, and goes to the next line that is `end`.
pub(super) fn join(parts: &[&str]) -> String {
    let whole = parts.concat();
    let pieces = pieces(&whole);
    let mut used = BTreeSet::new();
    let mut to_see: Vec<&Piece<'_>> = pieces.iter().filter(|piece| piece.function.is_none()).collect();
    while let Some(piece) = to_see.pop() {
        for word in words(&piece.text) {
            if used.insert(word) {
                to_see.extend(pieces.iter().filter(|piece| piece.function == Some(word)));
            }
        }
    }
    let is_used = |piece: &&Piece<'_>| piece.function.is_none_or(|name| used.contains(name));
    pieces.iter().filter(is_used).map(|piece| piece.text.as_str()).collect()
}

fn pieces(whole: &str) -> Vec<Piece<'_>> {
    let mut pieces = vec![Piece { function: None, text: String::new() }];
    let says_something = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("--");
    for line in whole.lines().filter(says_something) {
        if let Some(rest) = line.strip_prefix(FUNCTION) {
            pieces.push(Piece { function: words(rest).next(), text: String::new() });
        }
        let piece = pieces.last_mut().expect("there is one from the beginning");
        piece.text.push_str(line);
        piece.text.push('\n');
        if line == "end" && piece.function.is_some() {
            pieces.push(Piece { function: None, text: String::new() });
        }
    }
    pieces
}

/// The names and other words in a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::join;

    const COMMON: &str = "\
-- Says `unused`.
local KEY = 'a'

local function last()
  return KEY
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
        let of = |script| join(&[COMMON, script]);
        let [key, last, first] = [
            "local KEY = 'a'\n",
            "local function last()\n  return KEY\nend\n",
            "local function first()\n  if true then\n    return last()\n  end\nend\n",
        ];
        assert_eq!(of("return 1\n"), format!("{key}return 1\n"));
        assert_eq!(of("return last()\n"), format!("{key}{last}return last()\n"));
        assert_eq!(of("-- unused\nreturn first()\n"), format!("{key}{last}{first}return first()\n"));
    }

    #[test]
    fn a_script_within_a_function_stays_whole() {
        let wrapped = "local function take(ARGV)\nlocal n = 1\nif n then\n  n = last()\nend\nlocal function put()\nend\nput()\nend\n";
        let joined = join(&[COMMON, wrapped, "take(ARGV)\n"]);
        assert!(joined.ends_with(&format!("{wrapped}take(ARGV)\n")), "{joined}");
        assert!(joined.contains("local function last()") && !joined.contains("first"), "{joined}");
    }
}
