//! What the fuzzer reads with.

use bytes::Bytes;
use tokio::time::Instant;

use crate::bus::PublicKey;

use super::frame::{Body, Content, Frame, read};
use super::joiner::{Joined, Joiner};

/// Reads a payload of a daemon, and gives it as it would be written.
///
/// # Errors
/// Says why it is none.
pub fn payload(bytes: &Bytes) -> Result<Bytes, String> {
    match read(bytes) {
        Ok(Content::Framed(frame)) => Ok(frame.encode()),
        Ok(Content::Plain(plain)) => Ok(plain),
        Err(unreadable) => Err(unreadable.to_string()),
    }
}

/// Joins the parts that one sender sends in this order; gives the messages that became whole.
#[must_use]
pub fn joined(payloads: &[Bytes]) -> Vec<Bytes> {
    let (mut joiner, mut whole, now) = (Joiner::default(), Vec::new(), Instant::now());
    let sender = PublicKey::from_bytes([1; 32]);
    for payload in payloads {
        let Ok(Content::Framed(Frame { id, part, parts, body: Body::Data(data), .. })) = read(payload) else {
            continue;
        };
        let completes = joiner.completes(sender, id, part);
        match joiner.add(sender, id, (part, parts), data, now) {
            Joined::Whole(message) => whole.push(message),
            Joined::Held => assert!(!completes, "a part that was missing alone made nothing whole"),
            Joined::Full => {}
        }
    }
    whole
}
