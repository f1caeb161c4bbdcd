//! Entry points of the fuzzer.

use bytes::Bytes;
use tokio::time::Instant;

use crate::bus::PublicKey;

use super::frame::{BusFrame, DaemonPayload, FrameBody, read};
use super::reassembly::{Reassembler, ReassemblyResult};

/// Reads a payload of a daemon, and gives it as it would be written.
///
/// # Errors
/// Says why it is none.
pub fn payload(bytes: &Bytes) -> Result<Bytes, String> {
    match read(bytes) {
        Ok(DaemonPayload::Framed(frame)) => Ok(frame.encode()),
        Ok(DaemonPayload::Plain(plain)) => Ok(plain),
        Err(unreadable) => Err(unreadable.to_string()),
    }
}

/// Joins the parts that one sender sends in this order; gives the messages that became whole.
#[must_use]
pub fn joined(payloads: &[Bytes]) -> Vec<Bytes> {
    let (mut joiner, mut whole, now) = (Reassembler::default(), Vec::new(), Instant::now());
    let sender = PublicKey::from_bytes([1; 32]);
    for payload in payloads {
        let Ok(DaemonPayload::Framed(BusFrame { id, part, parts, body: FrameBody::Data(data), .. })) =
            read(payload)
        else {
            continue;
        };
        let completes = joiner.completes(sender, id, part);
        match joiner.add(sender, id, (part, parts), data, now) {
            ReassemblyResult::Complete(message) => whole.push(message),
            ReassemblyResult::Incomplete => {
                assert!(!completes, "a part that was missing alone made nothing whole")
            }
            ReassemblyResult::Full => {}
        }
    }
    whole
}
