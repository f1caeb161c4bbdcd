//! The files of the repository, and Rust code without its comments and strings.

use std::fs;
use std::path::Path;

/// Folders that are not ours: built, fetched, or written at run time.
const NOT_OURS: [&str; 7] = [".git", "target", "node_modules", ".mycora", ".venv", "__pycache__", "corpus"];

/// A file of the repository.
pub(crate) struct Source {
    /// From the root of the repository, with `/`.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
    /// Rust only: the same without comments and contents of strings, line for line.
    pub(crate) code: String,
}

impl Source {
    /// A file with these contents.
    pub(crate) fn new(path: &str, text: String) -> Self {
        let code = if is_rust(path) { blank(&text) } else { String::new() };
        Self { path: path.to_owned(), text, code }
    }

    /// Returns true for code that is compiled for tests only.
    pub(crate) fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// Returns true for code that a generator wrote.
    pub(crate) fn is_generated(&self) -> bool {
        self.path.contains("/generated/")
    }

    /// The code with everything under `#[cfg(test)]` taken out, line for line.
    pub(crate) fn shipped(&self) -> String {
        without_tests(&self.code)
    }

    /// The code under `#[cfg(test)]`, or all of it in a test file, line for line.
    pub(crate) fn tested(&self) -> String {
        if self.is_test() {
            return self.code.clone();
        }
        let shipped = self.shipped();
        let pairs = self.code.chars().zip(shipped.chars());
        pairs.map(|(all, kept)| if all == kept && all != '\n' { ' ' } else { all }).collect()
    }
}

/// All text files below `root` that belong to the repository.
pub(crate) fn all(root: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 20, "the repository is not at {}", root.display());
    found
}

/// All Rust files below `root` that people write.
pub(crate) fn rust(root: &Path) -> Vec<Source> {
    let mut files = all(root);
    files.retain(|file| is_rust(&file.path) && !file.is_generated());
    files
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().unwrap();
        // In a linked worktree `.git` is a file.
        if NOT_OURS.iter().any(|not| name == *not) {
            continue;
        }
        if kind.is_dir() {
            walk(root, &path, found);
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            found.push(Source::new(path.strip_prefix(root).unwrap().to_str().unwrap(), text));
        }
    }
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

/// The line of the byte at `offset`, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1
}

/// Reads the text of a key in a table of TOML; nothing where it has none.
pub(crate) fn text_field<'a>(table: &'a str, key: &str) -> Option<&'a str> {
    table.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
}

/// Reads the identifier that begins at `offset`; empty where none does.
pub(crate) fn identifier(code: &str, offset: usize) -> String {
    code[offset..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Where each `needle` begins in `code`, as a word of its own at its front.
pub(crate) fn occurrences<'a>(code: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(needle).map(|(at, _)| at).filter(move |at| {
        let before = code[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// Replaces comments and what stands in strings and characters by blanks.
pub(crate) fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = token_end(&chars, at);
        if end == at + 1 {
            out.push(chars[at]);
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        }
        at = end;
    }
    out
}

/// Where the comment, string or character that begins at `at` ends; `at + 1` for anything else.
fn token_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => find(chars, at, |rest| rest[0] == '\n'),
        '/' if next == Some('*') => comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'r' if !follows_word(chars, at) => raw_end(chars, at).unwrap_or(at + 1),
        '\'' if next == Some('\\') => {
            find(chars, at + 3, |rest| rest[0] == '\'').saturating_add(1).min(chars.len())
        }
        '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at + 1,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    // `br"…"` is a raw string as well.
    at.checked_sub(1).is_some_and(|i| (chars[i].is_alphanumeric() && chars[i] != 'b') || chars[i] == '_')
}

fn find(chars: &[char], from: usize, is_end: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|i| is_end(&chars[*i..])).unwrap_or(chars.len())
}

fn comment_end(chars: &[char], from: usize) -> usize {
    let (mut depth, mut at) = (0_u32, from);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) if depth == 1 => return at + 2,
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut at = from;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes =
        |rest: &[char]| rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes;
    Some((find(chars, open + 1, closes) + 1 + hashes).min(chars.len()))
}

/// Where the block that opens at or after `from` begins and ends; nothing when a `;` comes first.
pub(crate) fn block(code: &str, from: usize) -> Option<(usize, usize)> {
    let (mut round, mut curly, mut open) = (0_i32, 0_i32, None);
    for (at, c) in code[from..].char_indices().map(|(at, c)| (from + at, c)) {
        match c {
            '(' | '[' if open.is_none() => round += 1,
            ')' | ']' if open.is_none() => round -= 1,
            ';' if open.is_none() && round == 0 => return None,
            '{' if round == 0 => {
                open.get_or_insert(at);
                curly += 1;
            }
            '}' if open.is_some() && round == 0 => {
                curly -= 1;
                if curly == 0 {
                    return open.map(|open| (open, at + 1));
                }
            }
            _ => {}
        }
    }
    None
}

fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    for (at, mark) in code.match_indices("#[cfg(test)]") {
        if let Some((_, end)) = block(code, at + mark.len()) {
            let gone: String = code[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            // Blanks may be shorter in bytes than what they stand for only outside ASCII, which
            // comments and strings had to themselves.
            if gone.len() == end - at {
                out.replace_range(at..end, &gone);
            }
        }
    }
    out
}

#[test]
fn comments_strings_and_characters_are_blank() {
    let text = "a /* b /* c */ d */ e // f\n\"g\\\"h\" 'i' '\\'' &'static r#\"j\"k\"# l";
    let code = blank(text);
    assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "e", "&'static", "l"]);
    assert_eq!(code.lines().count(), text.lines().count());
}

#[test]
fn tests_are_distinguished_from_shipped_code() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { {} }\n}\nfn c() {}\n";
    let file = Source::new("libs/x/src/lib.rs", text.to_owned());
    let fns = |code: &str| code.split_whitespace().filter(|w| w.ends_with("()")).collect::<String>();
    assert_eq!((fns(&file.shipped()).as_str(), fns(&file.tested()).as_str()), ("a()c()", "b()"));
}
