//! Reading a tree key by key. Everything that is wrong is noted, and reading goes on.

use std::collections::HashMap;

use crate::{Problem, SourcePosition, YamlEntry, YamlNode, YamlValue, did_you_mean};

/// Characters of a value that a message repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// The entries of one mapping by their keys.
pub type YamlFields<'t> = HashMap<&'t str, &'t YamlEntry>;

/// The keys that a mapping may have.
#[derive(Debug, Clone, Copy)]
pub struct MappingKeys<'a> {
    /// Those that messages name.
    pub known: &'a [&'a str],
    /// Older spellings, which are read as well.
    pub older: &'a [&'a str],
    /// Names the replacement of an unknown key, as the rest of a sentence; `None` where only the spelling can help.
    pub hint: fn(&str, &[&str]) -> Option<String>,
}

impl<'a> MappingKeys<'a> {
    /// Keys without older spellings and hints.
    #[must_use]
    pub fn of(known: &'a [&'a str]) -> Self {
        Self { known, older: &[], hint: |_, _| None }
    }
}

/// Notes every problem of a tree while it is read.
#[derive(Debug, Default)]
pub struct YamlReader {
    problems: Vec<Problem>,
}

impl YamlReader {
    /// Notes a problem.
    pub fn problem(&mut self, place: SourcePosition, message: impl Into<String>) {
        self.problems.push(Problem::at(place, message));
    }

    /// Notes a problem that was found elsewhere.
    pub fn add(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Counts the problems so far.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.problems.len()
    }

    /// Gives the problems.
    #[must_use]
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Gives the entries of a mapping; notes keys that are not known. `what` names the mapping: `the job "a"`.
    pub fn fields<'t>(&mut self, tree: &'t YamlNode, what: &str, keys: MappingKeys<'_>) -> YamlFields<'t> {
        let known = keys.known;
        let entries = match &tree.value {
            YamlValue::Map(entries) => entries,
            other => {
                let such_as = known.first().map(|key| format!(" with keys such as `{key}`"));
                let (such_as, kind) = (such_as.unwrap_or_default(), other.kind());
                self.problem(tree.place, format!("{what} is a mapping{such_as}, not {kind}"));
                return YamlFields::new();
            }
        };
        for entry in entries {
            let key = entry.key.as_str();
            if !known.contains(&key) && !keys.older.contains(&key) {
                let message = match (keys.hint)(key, known).unwrap_or_else(|| did_you_mean(key, known)) {
                    hint if hint.is_empty() => {
                        format!("{what} has no key `{key}`; there are {}", known.join(", "))
                    }
                    hint => format!("{what} has no key `{key}`{hint}"),
                };
                self.problem(entry.place, message);
            }
        }
        entries.iter().map(|entry| (entry.key.as_str(), entry)).collect()
    }

    /// Reads a text; a number or a truth is the text that was written.
    pub fn text<'t>(&mut self, entry: &'t YamlEntry) -> Option<&'t str> {
        let text = entry.value.value.as_text();
        if text.is_none() {
            self.wrong_kind(entry, "a text");
        }
        text
    }

    /// Reads a whole number. `wanted` describes the value: `a whole number from 0 on`.
    pub fn whole<N: TryFrom<i64>>(&mut self, entry: &YamlEntry, wanted: &str) -> Option<N> {
        let number = match &entry.value.value {
            YamlValue::Int(number, _) => N::try_from(*number).ok(),
            _ => None,
        };
        if number.is_none() {
            self.wrong_kind(entry, wanted);
        }
        number
    }

    /// Reads `true` or `false`.
    pub fn boolean(&mut self, entry: &YamlEntry) -> Option<bool> {
        match &entry.value.value {
            YamlValue::Bool(truth, _) => Some(*truth),
            _ => {
                self.wrong_kind(entry, "true or false");
                None
            }
        }
    }

    /// Returns the entries of a mapping with arbitrary keys. `wanted` describes the value: `a mapping from names to texts`.
    pub fn entries<'t>(&mut self, entry: &'t YamlEntry, wanted: &str) -> &'t [YamlEntry] {
        match &entry.value.value {
            YamlValue::Map(entries) => entries,
            _ => {
                self.wrong_kind(entry, wanted);
                &[]
            }
        }
    }

    /// Returns the items of a list. `wanted` describes the value: `a list of numbers`.
    pub fn items<'t>(&mut self, entry: &'t YamlEntry, wanted: &str) -> &'t [YamlNode] {
        match &entry.value.value {
            YamlValue::List(items) => items,
            _ => {
                self.wrong_kind(entry, wanted);
                &[]
            }
        }
    }

    /// Reads a list of texts, each with its place.
    pub fn texts<'t>(&mut self, entry: &'t YamlEntry) -> Vec<(SourcePosition, &'t str)> {
        let written = entry.value.value.as_text().unwrap_or("a");
        let items = self.items(entry, &format!("a list, such as [{written}]"));
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match item.value.as_text() {
                Some(text) => texts.push((item.place, text)),
                None => {
                    let kind = item.value.kind();
                    self.problem(item.place, format!("`{}` lists texts, this is {kind}", entry.key));
                }
            }
        }
        texts
    }

    /// Notes that a value is of the wrong kind for its key.
    pub fn wrong_kind(&mut self, entry: &YamlEntry, wanted: &str) {
        let found = match &entry.value.value {
            YamlValue::Null => "; nothing is written there".to_owned(),
            value => match value.as_text() {
                Some(text) => format!(", not `{}`", text.chars().take(SHOWN_CHARS_MAX).collect::<String>()),
                None => format!(", not {}", value.kind()),
            },
        };
        self.problem(entry.value.place, format!("`{}` has to be {wanted}{found}", entry.key));
    }
}
