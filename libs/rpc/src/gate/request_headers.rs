//! Headers that are read before the caller is identified: the request's id, and headers that have to be bounded.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Request};

use crate::error::{Error, ErrorKind, RpcReason};

pub(crate) const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// A caller's own id may be this long.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 64;
/// Metadata of one request.
pub(crate) const HEADER_LIST_BYTES_MAX: usize = 16 * 1024;
/// Bytes that HTTP/2 counts for each header beside its name and value.
const HEADER_OVERHEAD_BYTES: usize = 32;

/// Under which a call is found in logs: the caller's own, or one that was made here.
///
/// It stands in the answer's `x-request-id`, in `google.rpc.RequestInfo` of an error and in the log, and goes along
/// with what a handler calls in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestIdHeader(HeaderValue);

impl RequestIdHeader {
    /// The caller's when it is 1 to 64 visible ASCII characters, else a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(REQUEST_ID_HEADER).filter(|value| {
            let bytes = value.as_bytes();
            (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
        });
        given.map_or_else(Self::made, |value| Self(value.clone()))
    }

    fn made() -> Self {
        let mut text = String::with_capacity(32);
        // Writing into a text cannot fail.
        let _ = write!(text, "{:032x}", rand::random::<u128>());
        Self(HeaderValue::from_str(&text).expect("hex digits make a header"))
    }

    pub(crate) fn as_str(&self) -> &str {
        // Checked when it was taken.
        self.0.to_str().unwrap_or_default()
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Refuses headers that are too large, with an answer that says so; HTTP/2 would only break the call.
pub(crate) fn bound_headers<B>(request: &Request<B>) -> Result<(), Error> {
    let headers = request.headers().iter();
    let fields: usize =
        headers.map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES).sum();
    let bytes = fields + request.uri().path().len() + HEADER_OVERHEAD_BYTES;
    if bytes <= HEADER_LIST_BYTES_MAX {
        return Ok(());
    }
    Err(beyond("rpc_header_list_bytes_max", HEADER_LIST_BYTES_MAX, bytes, "the metadata of the call"))
}

/// The answer to what is larger than a limit.
pub(crate) fn beyond(limit: &str, value: usize, size: usize, what: &str) -> Error {
    let message = format!("{what} has {size} bytes, at most {value} are allowed ({limit})");
    Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message)
        .with("limit", limit)
        .with("max", value)
        .with("asked", size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(given: &str) -> RequestIdHeader {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID_HEADER, HeaderValue::from_bytes(given.as_bytes()).expect("a value"));
        RequestIdHeader::of(&headers)
    }

    #[test]
    fn an_id_is_taken_or_made() {
        let longest = "x".repeat(64);
        for good in ["a", "my-id/7", longest.as_str()] {
            assert_eq!(id(good).as_str(), good);
        }
        for bad in ["", "two words", &"x".repeat(65), "naïve"] {
            assert_eq!(id(bad).as_str().len(), 32, "{bad}");
        }
        assert_ne!(RequestIdHeader::of(&HeaderMap::new()), RequestIdHeader::of(&HeaderMap::new()));
    }
}
