//! Lua scripts: known by their hash, sent in full only when the server does not have them.

mod assembly;

use std::sync::OnceLock;

use crate::command::Arg;
use assembly::AssembledScript;

/// A script of ours. Made once, as a `static`.
///
/// ```
/// static RAISE: kv::Script = kv::Script::new("raise", &["return redis.call('INCRBY', KEYS[1], ARGV[1])"]);
/// ```
#[derive(Debug)]
pub struct Script {
    name: &'static str,
    parts: &'static [&'static str],
    loaded: OnceLock<HashedScript>,
}

/// A script put together of its parts, with its hash.
#[derive(Debug)]
struct HashedScript {
    joined: AssembledScript,
    sha: String,
}

impl Script {
    /// Makes a script of parts that follow each other, with a name for people. Functions in the parts that the rest does not use
    /// are left out. A part may name its keys and arguments, in lines that begin with `-- KEYS =` and `-- ARGV =`, and then use them as
    /// `KEYS.name` and `ARGV.name`.
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
    pub fn call<K: AsRef<str>>(&'static self, keys: &[K]) -> ScriptCall {
        ScriptCall::new(self, keys)
    }

    /// The keys of a call that the script itself has a name for, each with that name.
    ///
    /// # Panics
    /// When the script has others, or another order.
    #[must_use]
    pub fn keys<'a, const N: usize>(&self, keys: [(&'static str, &'a str); N]) -> [&'a str; N] {
        self.loaded().joined.keys.expect(self.name, "keys", keys.iter().map(|(name, _)| *name));
        keys.map(|(_, key)| key)
    }

    fn loaded(&self) -> &HashedScript {
        self.loaded.get_or_init(|| {
            let joined = assembly::join(self.parts);
            let sha = redis::Script::new(&joined.text).get_hash().to_owned();
            HashedScript { joined, sha }
        })
    }

    fn text(&self) -> &str {
        &self.loaded().joined.text
    }

    fn sha(&self) -> &str {
        &self.loaded().sha
    }
}

/// One call of a [`Script`], already in the form in which it is sent.
#[derive(Debug, Clone)]
pub struct ScriptCall {
    script: &'static Script,
    pub(crate) by_hash: redis::Cmd,
}

impl ScriptCall {
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

    /// Adds the arguments that the script itself has a name for, each with that name.
    ///
    /// # Panics
    /// When the script has others, or another order.
    #[must_use]
    pub fn named<const N: usize>(self, arguments: [(&'static str, Arg<'_>); N]) -> Self {
        let names = &self.script.loaded().joined.arguments;
        names.expect(self.script.name, "arguments", arguments.iter().map(|(name, _)| *name));
        self.args(arguments.map(|(_, value)| value))
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

    /// Builds the call with the script's text in place of its hash, after which the server knows it.
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
