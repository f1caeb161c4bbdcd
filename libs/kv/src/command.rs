//! Commands and pipelines.

use crate::script::ScriptCall;

/// One argument of a command. Numbers are written as their digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arg<'a> {
    /// A text or other bytes.
    Bytes(&'a [u8]),
    /// A number.
    Int(i64),
    /// A number that cannot be negative.
    Uint(u64),
}

impl Arg<'_> {
    pub(crate) fn write(self, cmd: &mut redis::Cmd) {
        match self {
            Self::Bytes(bytes) => cmd.arg(bytes),
            Self::Int(number) => cmd.arg(number),
            Self::Uint(number) => cmd.arg(number),
        };
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(text: &'a String) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Arg<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Arg<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

macro_rules! numbers {
    ($variant:ident($wide:ty): $($number:ty),+) => {
        $(impl From<$number> for Arg<'_> {
            fn from(number: $number) -> Self {
                Self::$variant(<$wide>::from(number))
            }
        })+
    };
}
numbers!(Int(i64): i32, i64);
numbers!(Uint(u64): bool, u8, u16, u32, u64);

impl From<usize> for Arg<'_> {
    fn from(number: usize) -> Self {
        Self::Uint(number as u64)
    }
}

/// Arguments with their names, for [`ScriptCall::named`](crate::ScriptCall::named): `named![owner: "me", epoch: 3]`.
#[macro_export]
macro_rules! named {
    ($($name:ident: $value:expr),+ $(,)?) => {
        [$((stringify!($name), $crate::Arg::from($value))),+]
    };
}

/// A command with its arguments, already in the form in which it is sent.
#[derive(Debug, Clone)]
pub struct Cmd(pub(crate) redis::Cmd);

impl Cmd {
    /// A command by its name, as in `HSET`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut cmd = redis::Cmd::new();
        cmd.arg(name);
        Self(cmd)
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg<'a>(mut self, value: impl Into<Arg<'a>>) -> Self {
        value.into().write(&mut self.0);
        self
    }

    /// Adds several arguments.
    #[must_use]
    pub fn args<'a, A: Into<Arg<'a>>>(mut self, values: impl IntoIterator<Item = A>) -> Self {
        for value in values {
            value.into().write(&mut self.0);
        }
        self
    }
}

/// Commands and script calls that are sent together and answered together. Not atomic, and one that
/// fails does not stop the others.
///
/// A script that the server does not have yet is called again after the rest, so calls in one pipeline
/// must not build on each other unless they are of the same script.
#[derive(Debug, Default)]
pub struct Pipeline {
    pub(crate) steps: Vec<PipelineStep>,
}

#[derive(Debug)]
pub(crate) enum PipelineStep {
    Cmd(Cmd),
    Call(ScriptCall),
}

impl Pipeline {
    /// Nothing to send yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many answers there will be.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true when there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Adds a command.
    pub fn cmd(&mut self, cmd: Cmd) -> &mut Self {
        self.steps.push(PipelineStep::Cmd(cmd));
        self
    }

    /// Adds a script call.
    pub fn call(&mut self, call: ScriptCall) -> &mut Self {
        self.steps.push(PipelineStep::Call(call));
        self
    }
}
