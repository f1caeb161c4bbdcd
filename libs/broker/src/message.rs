//! Messages, on their way to a stream and as streams keep them.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::BrokerError;

/// Header by which a stream recognizes a message that was sent before.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// All headers of a message, in bytes.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// A subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 1024;

/// Headers of a message, ordered by name. For a repeated name the last value is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Makes an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a header, replacing one of the same name.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.insert(name, value);
        self
    }

    /// Adds a header, replacing one of the same name.
    pub fn insert(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// Finds the value of a header; upper and lower case differ.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Goes through names and values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Counts the bytes of all headers on the wire.
    pub(crate) fn bytes(&self) -> usize {
        const STATUS: usize = "NATS/1.0\r\n\r\n".len();
        const BETWEEN: usize = ": \r\n".len();
        STATUS + self.iter().map(|(name, value)| name.len() + value.len() + BETWEEN).sum::<usize>()
    }
}

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The subject, without wildcards.
    pub subject: String,
    /// Id by which the stream recognizes the message within its duplicate window.
    pub message_id: String,
    /// Further headers.
    pub headers: Headers,
    /// The payload.
    pub payload: Bytes,
}

impl Publication {
    /// Checks for content that servers refuse or alter, and returns all headers to send.
    pub(crate) fn validated_headers(&self, max_payload: usize) -> Result<Headers, BrokerError> {
        let Self { subject, message_id, headers, payload } = self;
        check_subject(subject)?;
        let refused = |why: String| BrokerError::Refused {
            what: format!("the message {message_id:?} for {subject}"),
            why,
        };
        if message_id.is_empty() {
            return Err(refused("it has no id".to_owned()));
        }
        let headers = headers.clone().with(MESSAGE_ID, message_id);
        for (name, value) in headers.iter() {
            let is_name = |byte: u8| byte.is_ascii_graphic() && byte != b':';
            if name.is_empty() || !name.bytes().all(is_name) {
                return Err(refused(format!("{name:?} is no name of a header")));
            }
            // Servers trim values that begin or end with spaces.
            if value.contains(['\r', '\n', '\0']) || value.trim() != value {
                return Err(refused(format!(
                    "the value of the header {name} has line breaks, or spaces around it"
                )));
            }
        }
        let within = |part: &str, size: usize, most: usize| {
            let what = || format!("{part} of the message {message_id} for {subject}");
            if size > most { Err(BrokerError::TooLarge { what: what(), size, most }) } else { Ok(()) }
        };
        within("all headers", headers.bytes(), HEADER_BYTES_MAX)?;
        within("the payload", payload.len(), max_payload.saturating_sub(HEADER_BYTES_MAX))?;
        Ok(headers)
    }
}

/// Checks that a text is a subject to which one may publish.
pub(crate) fn check_subject(subject: &str) -> Result<(), BrokerError> {
    let is_token = |token: &str| !token.is_empty() && !matches!(token, "*" | ">");
    let is_safe = !subject.contains(|c: char| c.is_whitespace() || c.is_control());
    if subject.len() <= SUBJECT_BYTES_MAX && is_safe && subject.split('.').all(is_token) {
        return Ok(());
    }
    let shown: String = subject.chars().take(80).collect();
    Err(BrokerError::Refused {
        what: format!("the subject {shown:?}"),
        why: format!(
            "subjects are tokens between dots, without wildcards or spaces, of at most {SUBJECT_BYTES_MAX} bytes"
        ),
    })
}

/// Acknowledgement of a message that a stream has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicationAck {
    /// The stream.
    pub stream: String,
    /// The sequence of the message, or of the earlier one with the same id.
    pub sequence: u64,
    /// True when the stream had the message already.
    pub is_duplicate: bool,
}

/// Future of the acknowledgement of a message that was sent. Dropping it does not withdraw the message.
pub struct PublicationFuture(BoxFuture<'static, Result<PublicationAck, BrokerError>>);

impl PublicationFuture {
    pub(crate) fn new(
        answer: impl Future<Output = Result<PublicationAck, BrokerError>> + Send + 'static,
    ) -> Self {
        Self(Box::pin(answer))
    }
}

impl Future for PublicationFuture {
    type Output = Result<PublicationAck, BrokerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for PublicationFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublicationFuture")
    }
}

/// A message as a stream keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// The subject.
    pub subject: String,
    /// The headers.
    pub headers: Headers,
    /// The payload.
    pub payload: Bytes,
    /// The sequence in the stream.
    pub sequence: u64,
    /// Moment at which it was stored, in milliseconds since 1970.
    pub stored_millis: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(subject: &str, message_id: &str, headers: Headers) -> Publication {
        Publication {
            subject: subject.to_owned(),
            message_id: message_id.to_owned(),
            headers,
            payload: Bytes::from_static(b"x"),
        }
    }

    #[test]
    fn what_no_server_takes_is_refused_by_name() {
        let fits = outgoing("a.%h1.b", "id", Headers::new().with("A", "b"));
        let sent = fits.validated_headers(1024 * 1024).expect("it fits");
        assert_eq!(sent, Headers::new().with("A", "b").with(MESSAGE_ID, "id"));
        for (subject, message_id, headers, part) in [
            ("", "id", Headers::new(), "the subject \"\""),
            ("a..b", "id", Headers::new(), "the subject \"a..b\""),
            ("a.*", "id", Headers::new(), "without wildcards"),
            ("a.>", "id", Headers::new(), "without wildcards"),
            ("a b", "id", Headers::new(), "without wildcards or spaces"),
            ("a", "", Headers::new(), "it has no id"),
            ("a", "x\r\ny", Headers::new(), "header Nats-Msg-Id"),
            ("a", "id", Headers::new().with("A:", "b"), "\"A:\" is no name"),
            ("a", "id", Headers::new().with("", "b"), "\"\" is no name"),
            ("a", "id", Headers::new().with("A", "b\nC: d"), "header A"),
            ("a", "id", Headers::new().with("A", " b"), "header A"),
        ] {
            let refused = outgoing(subject, message_id, headers).validated_headers(1024 * 1024);
            let Err(error @ BrokerError::Refused { .. }) = refused else { panic!("{part}: {refused:?}") };
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn limits_are_of_headers_and_payload_each() {
        let value = "v".repeat(HEADER_BYTES_MAX);
        let long = outgoing("a", "id", Headers::new().with("A", &value));
        let Err(BrokerError::TooLarge { what, most: HEADER_BYTES_MAX, .. }) =
            long.validated_headers(1024 * 1024)
        else {
            panic!("it is too large");
        };
        assert_eq!(what, "all headers of the message id for a");
        let mut message = outgoing("a", "id", Headers::new());
        message.payload = vec![0; 1000].into();
        assert!(message.validated_headers(HEADER_BYTES_MAX + 1000).is_ok());
        let refused = message.validated_headers(HEADER_BYTES_MAX + 999).expect_err("too large").to_string();
        assert_eq!(refused, "the payload of the message id for a has 1000 bytes, at most 999 are allowed");
    }
}
