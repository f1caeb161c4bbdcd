//! Format of a daemon's payloads: frames of ours, or plain JSON-RPC.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | `B5 4D`: no JSON and no UTF-8 text begins like this |
//! | 2 | version, 1 |
//! | 3 | kind: 1 data, 2 acknowledgement, 3 ping |
//! | 4..12 | lane: drawn by the sender for each destination |
//! | 12..20 | count: numbers the messages of a lane, from 1 |
//! | 20..28 | deadline, in Unix milliseconds; 0 when there is none |
//! | 28..30, 30..32 | part, and how many there are |
//! | 32..36 | length of the body |
//! | 36.. | the body, then zeros up to a length that arrives |
//!
//! Numbers are big-endian. An acknowledgement repeats lane, count and part; its body is one byte.

use bytes::{BufMut, Bytes, BytesMut};

/// Maximum length of a frame or a plain payload.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of what a frame carries; leaves room for its head and for zeros.
pub const PART_BYTES_MAX: usize = FRAME_BYTES_MAX - HEAD_BYTES - ROOM_BYTES;
/// Maximum length of a message: everything that JSON-RPC sends, also when it is signed, which makes it
/// longer by a third.
pub const MESSAGE_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Parts of one message, at most.
pub(super) const PARTS_MAX: u16 = MESSAGE_BYTES_MAX.div_ceil(PART_BYTES_MAX) as u16;

const HEAD_BYTES: usize = 36;
const MAGIC: [u8; 2] = [0xb5, b'M'];
const VERSION: u8 = 1;

/// The daemon cuts payloads at this many bytes …
const CHUNK_BYTES: usize = 1300;
/// … and drops, on arrival, a last piece that is shorter than this, for ever.
const ROOM_BYTES: usize = 250;

/// Sender's number of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BusMessageId {
    pub(super) channel: u64,
    pub(super) count: u64,
}

/// Acknowledgement of a part by the bus at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameAckStatus {
    /// The listener has the message.
    Taken,
    /// The part is there, others are missing.
    Partial,
    /// The topic has no listener.
    NoListener,
    /// The message came after its deadline, or too late to be recognized as a repetition.
    Expired,
    /// There is no room for parts now.
    Busy,
}

const VERDICTS: [FrameAckStatus; 5] = [
    FrameAckStatus::Taken,
    FrameAckStatus::Partial,
    FrameAckStatus::NoListener,
    FrameAckStatus::Expired,
    FrameAckStatus::Busy,
];

/// Body of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FrameBody {
    Data(Bytes),
    Acknowledgement(FrameAckStatus),
    Ping,
}

/// One payload of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BusFrame {
    pub(super) id: BusMessageId,
    pub(super) deadline_ms: u64,
    pub(super) part: u16,
    pub(super) parts: u16,
    pub(super) body: FrameBody,
}

/// Payload of the daemon, classified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DaemonPayload {
    Framed(BusFrame),
    Plain(Bytes),
}

/// The payload is neither a frame nor plain JSON-RPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct FrameError(&'static str);

impl BusFrame {
    /// The acknowledgement of this frame.
    pub(super) const fn acknowledge(&self, verdict: FrameAckStatus) -> Self {
        let body = FrameBody::Acknowledgement(verdict);
        Self { id: self.id, deadline_ms: 0, part: self.part, parts: self.parts, body }
    }

    /// Length before padding.
    pub(super) fn length(&self) -> usize {
        HEAD_BYTES
            + match &self.body {
                FrameBody::Data(data) => data.len(),
                FrameBody::Acknowledgement(_) => 1,
                FrameBody::Ping => 0,
            }
    }

    /// Encodes the frame, padded.
    pub(super) fn encode(&self) -> Bytes {
        let verdict;
        let (kind, body): (u8, &[u8]) = match &self.body {
            FrameBody::Data(data) => (1, data),
            FrameBody::Acknowledgement(status) => {
                let code = VERDICTS.iter().position(|known| known == status).expect("all are in the table");
                verdict = [code as u8];
                (2, &verdict)
            }
            FrameBody::Ping => (3, &[]),
        };
        let length = padded(self.length());
        let mut bytes = BytesMut::with_capacity(length);
        bytes.put_slice(&MAGIC);
        bytes.put_slice(&[VERSION, kind]);
        bytes.put_u64(self.id.channel);
        bytes.put_u64(self.id.count);
        bytes.put_u64(self.deadline_ms);
        bytes.put_u16(self.part);
        bytes.put_u16(self.parts);
        bytes.put_u32(u32::try_from(body.len()).expect("bodies are cut at a megabyte"));
        bytes.put_slice(body);
        bytes.resize(length, 0);
        bytes.freeze()
    }

    fn decode(bytes: &Bytes) -> Result<Self, FrameError> {
        let head: &[u8; HEAD_BYTES] =
            bytes.first_chunk().ok_or(FrameError("a frame without a whole head"))?;
        if head[2] != VERSION {
            return Err(FrameError("a frame of a version that is not known"));
        }
        let long = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&head[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let short = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let length = u32::from_be_bytes([head[32], head[33], head[34], head[35]]) as usize;
        let (part, parts) = (short(28), short(30));
        let end = HEAD_BYTES + length;
        if end > bytes.len() || bytes.len() > padded(end) {
            return Err(FrameError("a frame whose length differs from the length in its header"));
        }
        if part >= parts || parts > PARTS_MAX {
            return Err(FrameError("a frame with a part that cannot be"));
        }
        let body = bytes.slice(HEAD_BYTES..end);
        let body = match (head[3], &body[..]) {
            (1, _) => FrameBody::Data(body),
            (2, [verdict]) => {
                let verdict = VERDICTS.get(usize::from(*verdict));
                FrameBody::Acknowledgement(*verdict.ok_or(FrameError("a verdict that is not known"))?)
            }
            (3, []) => FrameBody::Ping,
            _ => return Err(FrameError("a frame of a kind that is not known")),
        };
        let id = BusMessageId { channel: long(4), count: long(12) };
        Ok(Self { id, deadline_ms: long(20), part, parts, body })
    }
}

/// Reads a payload.
pub(super) fn read(payload: &Bytes) -> Result<DaemonPayload, FrameError> {
    if payload.starts_with(&MAGIC) {
        return BusFrame::decode(payload).map(DaemonPayload::Framed);
    }
    if is_plain(payload) {
        return Ok(DaemonPayload::Plain(payload.clone()));
    }
    Err(FrameError("neither a frame nor JSON-RPC"))
}

/// Returns true for a payload that looks like JSON-RPC.
pub(super) fn is_plain(payload: &[u8]) -> bool {
    matches!(payload.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// Appends as many spaces to plain JSON as it needs to arrive.
pub(super) fn pad_plain(payload: Bytes) -> Bytes {
    let length = padded(payload.len());
    if length == payload.len() {
        return payload;
    }
    let mut bytes = BytesMut::from(payload);
    bytes.resize(length, b' ');
    bytes.freeze()
}

/// Cuts what a message carries.
pub(super) fn split(payload: &Bytes) -> Vec<Bytes> {
    if payload.is_empty() {
        return vec![Bytes::new()];
    }
    let starts = (0..payload.len()).step_by(PART_BYTES_MAX);
    starts.map(|start| payload.slice(start..payload.len().min(start + PART_BYTES_MAX))).collect()
}

/// The next length that arrives: the last of several pieces must not be a short one.
pub(super) const fn padded(length: usize) -> usize {
    let last = length % CHUNK_BYTES;
    if length > CHUNK_BYTES && last > 0 && last < ROOM_BYTES { length + ROOM_BYTES - last } else { length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks the lengths that were measured on a daemon.
    #[test]
    fn lengths_that_never_arrive_are_not_sent() {
        let arrive = [1, 100, 249, 250, 1299, 1300, 1550, 1551, 2599, 2600, 2850, 3900, 4150, 13000, 13250];
        let never = [1301, 1302, 1400, 1549, 2601, 2849, 3901, 4149, 13001, 13249, 130_001, 130_249];
        for length in arrive {
            assert_eq!(padded(length), length);
        }
        for length in never {
            let sent = padded(length);
            assert!(sent > length && sent % CHUNK_BYTES == ROOM_BYTES, "{length} is sent as {sent}");
        }
        let padded = pad_plain(Bytes::from("[".repeat(1301)));
        assert_eq!((padded.len(), padded.trim_ascii_end().len()), (1550, 1301));
    }

    #[test]
    fn the_longest_frame_fits() {
        let longest = BusFrame {
            id: BusMessageId { channel: 1, count: 1 },
            deadline_ms: 0,
            part: 0,
            parts: 1,
            body: FrameBody::Data(Bytes::from(vec![7; PART_BYTES_MAX])),
        };
        assert!(longest.encode().len() <= FRAME_BYTES_MAX);
        assert_eq!(PARTS_MAX, 7);
        let parts = split(&Bytes::from(vec![7; MESSAGE_BYTES_MAX]));
        assert!(parts.len() <= usize::from(PARTS_MAX) && parts.iter().all(|p| p.len() <= PART_BYTES_MAX));
    }

    fn any_frame() -> impl Strategy<Value = BusFrame> {
        let body = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4000).prop_map(|data| FrameBody::Data(data.into())),
            prop::sample::select(VERDICTS.to_vec()).prop_map(FrameBody::Acknowledgement),
            Just(FrameBody::Ping),
        ];
        let ids = (any::<u64>(), any::<u64>(), any::<u64>());
        (ids, 0..PARTS_MAX, body).prop_map(|((lane, count, deadline_ms), part, body)| BusFrame {
            id: BusMessageId { channel: lane, count },
            deadline_ms,
            part,
            parts: PARTS_MAX,
            body,
        })
    }

    proptest! {
        #[test]
        fn frames_come_back_as_they_went(frame in any_frame()) {
            let bytes = frame.encode();
            prop_assert_eq!(padded(bytes.len()), bytes.len());
            prop_assert_eq!(read(&bytes), Ok(DaemonPayload::Framed(frame)));
        }

        #[test]
        fn no_bytes_are_a_reason_to_panic(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = read(&bytes.into());
            let framed = [&MAGIC[..], &[VERSION], &tail].concat();
            let _ = read(&framed.into());
        }

        #[test]
        fn a_cut_frame_is_none(frame in any_frame(), cut in 1usize..40) {
            let bytes = frame.encode();
            let bytes = bytes.slice(..bytes.len().saturating_sub(cut + ROOM_BYTES));
            prop_assert!(!matches!(read(&bytes), Ok(DaemonPayload::Framed(_))));
        }
    }
}
