//! Bytes as what a target needs.

use std::borrow::Cow;

/// Stands between parts. No text in UTF-8 has it.
pub(crate) const BREAK: u8 = 0xff;

/// Rest of an input that is not read yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte; 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// One of so many ways, the first at the end.
    pub(crate) fn choice(&mut self, ways: u8) -> u8 {
        self.byte() % ways
    }

    /// The next two bytes as a number.
    pub(crate) fn number(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Everything up to the next break, or to the end.
    pub(crate) fn part(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == BREAK);
        let (part, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest.get(1..).unwrap_or_default();
        part
    }

    /// Reads the next part as text, with invalid UTF-8 replaced.
    pub(crate) fn text(&mut self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.part())
    }

    /// All parts that are left.
    pub(crate) fn parts(self) -> Vec<&'a [u8]> {
        if self.0.is_empty() { Vec::new() } else { self.0.split(|byte| *byte == BREAK).collect() }
    }

    /// All that is left, breaks with it.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// An input of some bytes and these parts.
pub(crate) fn join<P: AsRef<[u8]>>(head: &[u8], parts: &[P]) -> Vec<u8> {
    let mut input = head.to_vec();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            input.push(BREAK);
        }
        input.extend_from_slice(part.as_ref());
    }
    input
}
