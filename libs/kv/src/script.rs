//! Lua scripts: known by their hash, sent in full only when the server does not have them.

mod parts;

use std::sync::OnceLock;

use crate::command::Arg;

/// A script of ours. Made once, as a `static`.
///
/// ```
/// static RAISE: kv::Script = kv::Script::new("raise", &["return redis.call('INCRBY', KEYS[1], ARGV[1])"]);
/// ```
#[derive(Debug)]
pub struct Script {
    name: &'static str,
    parts: &'static [&'static str],
    /// The whole text and its hash.
    loaded: OnceLock<(String, String)>,
}

impl Script {
    /// A script of parts that follow each other, and the name by which people know it. What is a function in them and used by nothing
    /// of the rest is left out.
    #[must_use]
    pub const fn new(name: &'static str, parts: &'static [&'static str]) -> Self {
        Self { name, parts, loaded: OnceLock::new() }
    }

    /// The name by which people know it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Begins a call with the keys that the script touches.
    #[must_use]
    pub fn call<K: AsRef<str>>(&'static self, keys: &[K]) -> Call {
        Call::new(self, keys)
    }

    fn loaded(&self) -> &(String, String) {
        self.loaded.get_or_init(|| {
            let text = parts::join(self.parts);
            let sha = redis::Script::new(&text).get_hash().to_owned();
            (text, sha)
        })
    }

    fn text(&self) -> &str {
        &self.loaded().0
    }

    fn sha(&self) -> &str {
        &self.loaded().1
    }
}

/// One call of a [`Script`], already in the form in which it is sent.
#[derive(Debug, Clone)]
pub struct Call {
    script: &'static Script,
    pub(crate) by_hash: redis::Cmd,
}

impl Call {
    /// A call of `script` that touches `keys`, in the order in which the script knows them.
    #[must_use]
    pub fn new<K: AsRef<str>>(script: &'static Script, keys: &[K]) -> Self {
        let mut by_hash = redis::Cmd::new();
        by_hash.arg("EVALSHA").arg(script.sha()).arg(keys.len());
        for key in keys {
            by_hash.arg(key.as_ref());
        }
        Self { script, by_hash }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg<'a>(mut self, value: impl Into<Arg<'a>>) -> Self {
        value.into().write(&mut self.by_hash);
        self
    }

    /// Adds several arguments.
    #[must_use]
    pub fn args<'a, A: Into<Arg<'a>>>(mut self, values: impl IntoIterator<Item = A>) -> Self {
        for value in values {
            value.into().write(&mut self.by_hash);
        }
        self
    }

    /// Which script is called.
    #[must_use]
    pub const fn script(&self) -> &'static Script {
        self.script
    }

    /// The first key that it touches; empty when there is none.
    pub(crate) fn key(&self) -> &str {
        let mut args = self.by_hash.args_iter().skip(2);
        match (args.next(), args.next()) {
            (Some(redis::Arg::Simple(count)), Some(redis::Arg::Simple(key))) if count != b"0" => {
                std::str::from_utf8(key).unwrap_or_default()
            }
            _ => "",
        }
    }

    /// The same call with the script's text in place of its hash, after which the server knows it.
    pub(crate) fn in_full(&self) -> redis::Cmd {
        let mut cmd = redis::Cmd::new();
        cmd.arg("EVAL").arg(self.script.text());
        for arg in self.by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = arg {
                cmd.arg(bytes);
            }
        }
        cmd
    }
}
