//! Editions of the language: the newest that the compiler knows, unless a script names another.

use std::path::{Path, PathBuf};

use crate::process::{ProgramCommand, try_program};
use crate::runtime::RuntimeResources;

/// Editions that a compiler knows, from the newest on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RustEditions(Vec<String>);

/// Returns the flag that tells a compiler the edition of a script.
pub(super) fn flag(edition: &str) -> String {
    format!("--edition={edition}")
}

impl RustEditions {
    /// Asks a compiler where scripts run. Nothing when it takes none. Blocks.
    pub(super) fn of(tools: &RuntimeResources<'_>, compiler: &Path, reads: &[PathBuf]) -> Option<Self> {
        let ask = |args: &[&str]| {
            let args = args.iter().map(Into::into).collect();
            try_program(tools, &ProgramCommand { path: compiler, args, reads })
        };
        let mut named = named(&ask(&["--help"]).ok()?);
        // The newest that it names may be one that it does not take yet.
        let refused =
            named.iter().take_while(|edition| ask(&[&flag(edition), "--print", "sysroot"]).is_err());
        let refused = refused.count();
        named.drain(..refused);
        (!named.is_empty()).then_some(Self(named))
    }

    /// Returns the edition of scripts that name none.
    pub(super) fn newest(&self) -> &str {
        self.0.first().map_or("2015", String::as_str)
    }

    /// The edition of a script, for a compiler that calls itself `compiler`.
    ///
    /// # Errors
    /// Says why there is none: the script names one that the compiler does not know.
    pub(super) fn of_script(&self, script: &str, compiler: &str) -> Result<String, String> {
        let Some(wanted) = wanted(script) else { return Ok(self.newest().to_owned()) };
        if self.0.iter().any(|known| known == wanted) {
            return Ok(wanted.to_owned());
        }
        let (shown, known) = (wanted.chars().take(20).collect::<String>(), self.0.join(", "));
        Err(format!(
            "the script names edition `{shown}` (`// edition: …`), and the compiler of this machine ({compiler}) knows \
             {known}: name one of them, or install a newer compiler there"
        ))
    }
}

/// Editions that a compiler's help names, from the newest on.
fn named(help: &str) -> Vec<String> {
    let list = help.split_once("--edition").map(|(_, rest)| rest.trim_start()).unwrap_or_default();
    let list = list.split_whitespace().next().unwrap_or_default().trim_matches(['<', '>', '[', ']', '=']);
    let is_edition = |word: &&str| word.len() == 4 && word.bytes().all(|byte| byte.is_ascii_digit());
    let mut editions: Vec<_> = list.split('|').filter(is_edition).map(str::to_owned).collect();
    editions.sort_unstable_by(|one, other| other.cmp(one));
    editions
}

/// The edition that a script names in a comment before anything else: `// edition: 2021`.
fn wanted(script: &str) -> Option<&str> {
    let lines = script.lines().map(str::trim);
    let mut comments = lines
        .filter(|line| !line.is_empty())
        .enumerate()
        .take_while(|(i, line)| line.starts_with("//") || *i == 0 && line.starts_with("#!"));
    comments
        .find_map(|(_, line)| line.trim_start_matches('/').trim_start().strip_prefix("edition:"))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_of_all_times_are_understood() {
        let old = "        --edition 2015|2018|2021|2024\n                        Specify which edition";
        let new = "        --edition <2015|2018|2021|2024|future>\n                        Specify";
        for help in [old, new] {
            assert_eq!(named(help), ["2024", "2021", "2018", "2015"], "{help}");
        }
        assert_eq!(named("no such option"), [""; 0]);
        assert_eq!(named("--edition"), [""; 0]);
    }

    #[test]
    fn a_script_names_its_edition_before_anything_else() {
        for (script, named) in [
            ("// edition: 2021\nfn main() {}", Some("2021")),
            ("#!/usr/bin/env script\n\n/// What it does.\n//edition:2018 \n", Some("2018")),
            ("//! edition: 2018", None),
            ("fn main() {}\n// edition: 2021", None),
            ("// the edition: 2021", None),
            ("", None),
        ] {
            assert_eq!(wanted(script), named, "{script}");
        }
        let editions = RustEditions(vec!["2021".to_owned(), "2018".to_owned()]);
        assert_eq!(editions.of_script("fn main() {}", "rustc 1.63.0"), Ok("2021".to_owned()));
        assert_eq!(editions.of_script("// edition: 2018", "rustc 1.63.0"), Ok("2018".to_owned()));
        let refused = editions.of_script("// edition: 2024", "rustc 1.63.0").expect_err("too new");
        assert!(
            refused.contains("`2024`") && refused.contains("rustc 1.63.0) knows 2021, 2018"),
            "{refused}"
        );
    }
}
