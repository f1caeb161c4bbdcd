//! Head of an execution's JSON, for services that forward the rest unread.

use std::fmt;

use serde::Deserialize;

use super::{NodeReport, ReportKind, ReportSource};
use crate::id::{ContextId, FlowId, JobKey};

/// Head of an execution: its attempt, context and flow.
///
/// An execution is written with these three first, so that services that forward it need not read the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ExecutionHead {
    /// Names the attempt for ever.
    pub job_key: JobKey,
    /// The context at its own coordinator.
    pub context_id: ContextId,
    /// The flow at its own coordinator.
    pub flow_id: FlowId,
}

impl ExecutionHead {
    /// Reads the head of an execution. When the head comes first, as in every text that [`Execution`](super::Execution)
    /// writes, the rest is not parsed; otherwise everything is.
    ///
    /// # Errors
    /// When the text is no object with these three.
    pub fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        match Self::split(json) {
            Some((head, _)) => Ok(head),
            None => serde_json::from_slice(json),
        }
    }

    /// A report on this attempt.
    #[must_use]
    pub fn report(self, source: &ReportSource, kind: ReportKind) -> NodeReport {
        let Self { job_key, context_id, flow_id } = self;
        NodeReport { job_key, context_id, flow_id, source: Some(source.clone()), kind }
    }

    /// Splits an execution that begins with its head into the head and the rest: further fields behind a comma, or the
    /// closing brace.
    #[must_use]
    pub fn split(json: &[u8]) -> Option<(Self, &[u8])> {
        let mut begin = JsonCursor::of(json);
        begin.skip(r#"{"job_key":""#)?;
        let job_key = begin.until(b'"')?.parse().ok()?;
        begin.skip(r#"","context_id":"#)?;
        let context_id = ContextId(begin.number()?);
        begin.skip(r#","flow_id":"#)?;
        let flow_id = FlowId(begin.number()?);
        Some((Self { job_key, context_id, flow_id }, begin.rest()?))
    }
}

/// The text that an execution begins with; undone by [`ExecutionHead::split`].
impl fmt::Display for ExecutionHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job_key, context_id, flow_id } = self;
        write!(f, r#"{{"job_key":"{job_key}","context_id":{context_id},"flow_id":{flow_id}"#)
    }
}

/// A cursor over the JSON text of an object whose fields stand in a known order.
#[derive(Debug)]
pub struct JsonCursor<'a>(&'a [u8]);

impl<'a> JsonCursor<'a> {
    /// All of this text.
    #[must_use]
    pub const fn of(text: &'a [u8]) -> Self {
        Self(text)
    }

    /// Skips this text; returns `None` when another one comes next.
    pub fn skip(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text.as_bytes())?;
        Some(())
    }

    /// Returns the text before a byte, and leaves that byte to read.
    pub fn until(&mut self, end: u8) -> Option<&'a str> {
        let at = self.0.iter().position(|byte| *byte == end)?;
        let (text, rest) = self.0.split_at(at);
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    /// A number of 32 bits.
    pub fn number(&mut self) -> Option<u32> {
        let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (text, rest) = self.0.split_at(digits);
        self.0 = rest;
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    /// Returns the remaining text: further fields, or the end of the object.
    #[must_use]
    pub fn rest(self) -> Option<&'a [u8]> {
        Some(self.0).filter(|rest| matches!(rest.first(), Some(b',' | b'}')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00000000000000000000000000000001-00000000000000000000000000000002-3-1";

    #[test]
    fn the_head_is_read_wherever_it_stands() {
        let first = format!(r#"{{"job_key":"{KEY}","context_id":7,"flow_id":8,"node":"a","new":[1]}}"#);
        let head = ExecutionHead::read(first.as_bytes()).expect("an execution");
        assert_eq!(
            (head.job_key.to_string().as_str(), head.context_id, head.flow_id),
            (KEY, ContextId(7), FlowId(8))
        );
        let (split, rest) = ExecutionHead::split(first.as_bytes()).expect("it begins with its head");
        assert_eq!(split, head);
        assert_eq!(format!("{head}{}", String::from_utf8_lossy(rest)), first);
        let last = format!(r#"{{ "node": "a", "flow_id": 8, "context_id": 7, "job_key": "{KEY}" }}"#);
        assert_eq!(ExecutionHead::split(last.as_bytes()), None);
        assert_eq!(ExecutionHead::read(last.as_bytes()).expect("an execution"), head);
    }

    #[test]
    fn what_is_no_execution_is_refused() {
        let good = format!(r#"{{"job_key":"{KEY}","context_id":7,"flow_id":8"#);
        for text in [
            String::new(),
            "{}".to_owned(),
            good.clone(),
            format!("{good}9"),
            format!("{good} 9}}"),
            good.replace(":7", ":4294967296") + "}",
            good.replace("-3-1", "-03-1") + "}",
        ] {
            assert_eq!(ExecutionHead::split(text.as_bytes()), None, "{text}");
            assert!(ExecutionHead::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
