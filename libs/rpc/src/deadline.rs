//! Deadlines of calls.
//!
//! Tonic's own timeout answers `CANCELLED` where every other stack answers
//! `DEADLINE_EXCEEDED`, and never tells the handler. So the gate reads
//! `grpc-timeout` itself, ends the call a moment before tonic would, and hands
//! the deadline on.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

/// When the caller stops waiting. In the extensions of every request that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);

impl Deadline {
    /// What the caller asked for, counted from now.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get("grpc-timeout")?.to_str().ok()?;
        // A deadline that far away that the clock cannot express it is none.
        Instant::now().checked_add(parse(text)?).map(Self)
    }
}

/// `TimeoutValue TimeoutUnit` of the gRPC protocol: up to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_says() {
        assert_eq!(parse("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        for text in ["", "S", "3", "3s", "+3S", "-3S", "123456789S", "3 S", "3é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
