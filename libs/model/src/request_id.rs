//! Request ids: idempotency keys with which callers may repeat a request.

use std::fmt;

use crate::limits::REQUEST_ID_CHARS_MAX;
use crate::violation::Violations;

/// A UUID; other texts of 1 to [`REQUEST_ID_CHARS_MAX`] visible ASCII characters do as well.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// Returns `None` for an empty text, since such a request cannot be repeated; also for an invalid one, which is noted
    /// under `request_id`.
    #[must_use]
    pub fn parse(text: &str, violations: &mut Violations) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        if text.len() > REQUEST_ID_CHARS_MAX || !text.bytes().all(|b| b.is_ascii_graphic()) {
            let max = REQUEST_ID_CHARS_MAX;
            violations.add("request_id", format!("a UUID, or at most {max} visible ASCII characters"));
            return None;
        }
        Some(Self(text.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_is_short_and_visible() {
        let mut violations = Violations::new();
        let mut parse = |text: &str| RequestId::parse(text, &mut violations).map(|id| id.to_string());
        let uuid = "9f0c4f9e-0d6f-4bd8-8f6a-0f4a1c1f9d2b";
        assert_eq!(parse(uuid).as_deref(), Some(uuid));
        assert_eq!(parse("message:3:1@7").as_deref(), Some("message:3:1@7"));
        assert_eq!(parse(""), None);
        for wrong in [&"x".repeat(65), "two words", "ä"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let fields: Vec<_> = violations.as_slice().iter().map(|violation| &violation.field).collect();
        assert_eq!(fields, ["request_id"; 3]);
    }
}
