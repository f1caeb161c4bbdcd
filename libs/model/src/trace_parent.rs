//! Trace contexts, as `traceparent` of W3C has them.

use std::fmt;

/// Bytes of a context as text: version, trace, parent and flags, with what stands between them.
const TEXT_BYTES: usize = 55;
/// Flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// Text before the context in the JSON of an execution that has one.
const BEFORE_IN_EXECUTION: &[u8] = br#","traceparent":""#;
/// Text behind it, which is the end.
const AFTER_IN_EXECUTION: &[u8] = br#""}"#;

/// A span's place in its trace, as `traceparent` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The trace, which is not 0.
    pub trace: u128,
    /// The span, which is not 0.
    pub span: u64,
    /// Flags of the trace.
    pub flags: u8,
}

impl TraceParent {
    /// A span of a trace that is recorded.
    #[must_use]
    pub const fn sampled(trace: u128, span: u64) -> Self {
        Self { trace, span, flags: SAMPLED }
    }

    /// Reads a trace context; `None` where the text is not a valid one.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        if text.len() != TEXT_BYTES {
            return None;
        }
        let mut parts = text.split('-');
        let mut hex = |length: usize| {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            parts.next().filter(|part| part.len() == length && part.bytes().all(is_digit))
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        if version == "ff" || parts.next().is_some() {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
        Some(Self { trace, span, flags: u8::from_str_radix(flags, 16).ok()? })
    }

    /// Reads the trace context of an execution in its JSON, and nothing else of it: the context is the last field of every
    /// text that [`Execution`](crate::Execution) writes. Returns `None` where the text ends otherwise. No string can look
    /// like the field, since its quotation marks are escaped.
    #[must_use]
    pub fn of_execution(json: &[u8]) -> Option<Self> {
        let rest = json.strip_suffix(AFTER_IN_EXECUTION)?;
        let (before, text) = rest.split_at(rest.len().checked_sub(TEXT_BYTES)?);
        let text = std::str::from_utf8(text).ok().filter(|_| before.ends_with(BEFORE_IN_EXECUTION))?;
        Self::read(text)
    }

    /// Returns whether the trace is recorded.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the id of the trace as collectors show it: 32 hex digits.
    #[must_use]
    pub fn trace_id(self) -> String {
        format!("{:032x}", self.trace)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Execution;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_read_as_it_is_written() {
        let read = TraceParent::read(TEXT).expect("a context");
        assert_eq!(
            read,
            TraceParent::sampled(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7)
        );
        assert_eq!((read.to_string().as_str(), read.is_sampled()), (TEXT, true));
        assert_eq!(read.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let unsampled = TEXT.replace("-01", "-00");
        assert!(TraceParent::read(&unsampled).is_some_and(|read| !read.is_sampled()));
        // A later version has the same parts.
        assert!(TraceParent::read(&TEXT.replace("00-4", "01-4")).is_some());
    }

    #[test]
    fn what_is_no_context_is_not_read() {
        for wrong in [
            "",
            "x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\r",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(TraceParent::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_context_of_an_execution_is_read_from_the_end_of_its_text() {
        let mut execution: Execution = serde_json::from_value(serde_json::json!({
            "job_key": "00000000000000000000000000000001-00000000000000000000000000000002-3-1",
            "context_id": 1, "flow_id": 7, "caller_id": 1, "flow_name": "flow", "node": "node",
            "script_type": "shell", "script": { "inline": "true" }, "timeout_secs": 60, "priority": 1,
        }))
        .expect("an execution");
        // The text of a signature is the caller's own.
        execution.signature = Some(format!(",\"traceparent\":\"{TEXT}"));
        let text = |execution: &Execution| serde_json::to_vec(execution).expect("written");
        assert_eq!(TraceParent::of_execution(&text(&execution)), None);
        execution.traceparent = Some(TEXT.to_owned());
        assert_eq!(TraceParent::of_execution(&text(&execution)), TraceParent::read(TEXT));
        execution.traceparent = Some("nonsense".to_owned());
        assert_eq!(TraceParent::of_execution(&text(&execution)), None);
        for short in ["", "{}", "\"}", TEXT] {
            assert_eq!(TraceParent::of_execution(short.as_bytes()), None, "{short}");
        }
    }
}
