//! Giving a profile another signing key. Of what people wrote only the one line changes.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::Profile;
use super::paths::as_seen_from;

/// Which line names the key.
const KEY: &str = "signing_key";

/// Change that must be made to a profile by hand.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: write `{wanted}`; {why}", path.display(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
pub struct ManualProfileEdit {
    path: PathBuf,
    /// From 1 on; absent when no line was found that could be changed.
    line: Option<usize>,
    wanted: String,
    why: String,
}

/// Lets the profile in this file name another signing key; of the profile of that name in it, where that has none of its own.
///
/// # Errors
/// What to write there instead, and why it was not written.
pub fn switch_signing_key(path: &Path, name: Option<&str>, key: &Path) -> Result<(), ManualProfileEdit> {
    let wanted = format!("{KEY} = {}", quoted(&as_seen_from(path, key)));
    let by_hand =
        |line, why: String| ManualProfileEdit { path: path.to_owned(), line, wanted: wanted.clone(), why };
    let text = std::fs::read_to_string(path)
        .map_err(|error| by_hand(None, format!("it cannot be read: {error}")))?;
    if let Some(name) = name.filter(|name| has_its_own(&text, name)) {
        return Err(by_hand(None, format!("it stands below [profiles.{name}], which is not changed unread")));
    }
    let Some((number, line)) = line_of(&text) else {
        return Err(by_hand(None, format!("no line of its own names `{KEY}`")));
    };
    let new = exchange(&text, line, &wanted).filter(|new| says_the_same(&text, new));
    let new =
        new.ok_or_else(|| by_hand(Some(number), "what stands there is not changed unread".to_owned()))?;
    replace(path, &new).map_err(|error| by_hand(Some(number), format!("the file cannot be written: {error}")))
}

fn has_its_own(text: &str, name: &str) -> bool {
    let profile: Option<Profile> = toml::from_str(text).ok();
    profile.is_some_and(|profile| profile.profiles.get(name).is_some_and(|named| named.signing_key.is_some()))
}

/// The profile as it was read, but for the key.
fn says_the_same(old: &str, new: &str) -> bool {
    let read = |text: &str| {
        let mut profile: Profile = toml::from_str(text).ok()?;
        profile.signing_key.take()?;
        Some(profile)
    };
    read(old).is_some_and(|old| read(new) == Some(old))
}

/// The number of the line, from 1 on, and its text.
fn line_of(text: &str) -> Option<(usize, &str)> {
    let of_no_table = text.lines().take_while(|line| !line.trim_start().starts_with('['));
    let names_it = |line: &&str| {
        line.trim_start().strip_prefix(KEY).is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    of_no_table.enumerate().find(|(_, line)| names_it(line)).map(|(i, line)| (i + 1, line))
}

/// The text with another value in a line; what stands behind the value stays.
fn exchange(text: &str, line: &str, wanted: &str) -> Option<String> {
    let value = line.split_once('=')?.1.trim_start();
    let quote = value.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    let (old, rest) = value[1..].split_once(quote)?;
    if old.contains('\\') {
        return None;
    }
    let from = line.as_ptr() as usize - text.as_ptr() as usize;
    Some(format!("{}{wanted}{rest}{}", &text[..from], &text[from + line.len()..]))
}

fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}

/// Replaces a file, so that a reader sees the old text or the new one; who may read it stays.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = path.canonicalize()?;
    let permissions = path.metadata()?.permissions();
    // A rename needs the folder only; a file that may not be written is left alone.
    drop(std::fs::OpenOptions::new().write(true).open(&path)?);
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut draft = tempfile::NamedTempFile::new_in(dir)?;
    draft.write_all(text.as_bytes())?;
    draft.as_file().set_permissions(permissions)?;
    draft.as_file().sync_all()?;
    draft.persist(&path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("client.toml");
        std::fs::write(&path, text).expect("written");
        (dir, path)
    }

    #[test]
    fn only_the_line_changes() {
        let text = "# ours\naddress = \"https://h:1\"\n  signing_key='a.ed25519' # of March\n\n[addresses]\nrouter = \"https://r:1\"\n";
        let (dir, path) = written(text);
        switch_signing_key(&path, None, &dir.path().join("keys/b.ed25519")).expect("switched");
        let expected = text.replace("  signing_key='a.ed25519'", "signing_key = \"keys/b.ed25519\"");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), expected);
        let elsewhere = tempfile::tempdir().expect("a directory");
        switch_signing_key(&path, None, &elsewhere.path().join("c")).expect("switched");
        let profile = Profile::load(&path).expect("a profile");
        assert_eq!(profile.signing_key, Some(elsewhere.path().join("c")));
    }

    #[test]
    fn the_key_of_a_named_profile_is_changed_by_hand() {
        let text = "signing_key = \"a\"\n[profiles.x]\nsigning_key = \"b\"\n[profiles.y]\ncontext = 2\n";
        let (dir, path) = written(text);
        let error_text = switch_signing_key(&path, Some("x"), &dir.path().join("c")).expect_err("by hand");
        assert!(error_text.to_string().contains("[profiles.x]"), "{error_text}");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        switch_signing_key(&path, Some("y"), &dir.path().join("c")).expect("switched");
        let y = Profile::load_as(&path, Some("y")).expect("a profile");
        assert_eq!((y.signing_key, y.context), (Some(dir.path().join("c")), 2));
    }

    #[test]
    fn a_signing_key_that_cannot_be_switched_is_reported_with_its_line() {
        for (text, expected) in [
            ("address = \"https://h:1\"\n", ": write `signing_key = \"b\"`; no line of its own"),
            (
                "actor = 1\nsigning_key = \"a\\u0062\"\n",
                ", line 2: write `signing_key = \"b\"`; what stands there",
            ),
            ("signing_key = \"\"\"\na\"\"\"\n", ", line 1: write"),
            ("address = \"\"\"\nsigning_key = 'x'\n\"\"\"\nsigning_key = \"a\"\n", ", line 2: write"),
        ] {
            let (dir, path) = written(text);
            let error_text =
                switch_signing_key(&path, None, &dir.path().join("b")).expect_err(text).to_string();
            let error_text =
                error_text.strip_prefix(&*path.display().to_string()).expect("the file first").to_owned();
            assert!(error_text.starts_with(expected), "{error_text}");
            assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        }
    }
}
