//! Input from a Mycelium daemon: frames, their parts, and plain JSON-RPC.

use bytes::Bytes;
use mycelium::daemon::fuzzing::{joined, payload};
use mycelium::daemon::{FRAME_BYTES_MAX, MESSAGE_BYTES_MAX};

use crate::input::{Input, join};
use crate::{Target, Verdict};

/// The reader of a daemon's payloads.
pub const TARGET: Target = Target { name: "frame", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] =
    &["\u{1}\u{1}", "\u{1}\u{2}", "\u{1}\u{3}", "\0\0\0\0", "\0\u{1}", "{}", "[", " ", "\0\0\0\u{5}"];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    if input.choice(2) == 0 {
        return Verdict::of(&read(&Bytes::copy_from_slice(input.rest())));
    }
    // Several, each behind a byte with its length.
    let (mut rest, mut payloads) = (input.rest(), Vec::new());
    while let Some((length, behind)) = rest.split_first() {
        let (one, more) = behind.split_at(behind.len().min(usize::from(*length)));
        payloads.push(Bytes::copy_from_slice(one));
        rest = more;
    }
    let known = payloads.iter().filter(|payload| read(payload).is_ok()).count();
    let whole = joined(&payloads);
    assert!(whole.len() <= known, "more messages than parts");
    let (sent, come): (usize, usize) =
        (payloads.iter().map(Bytes::len).sum(), whole.iter().map(Bytes::len).sum());
    assert!(come <= sent, "{come} bytes of {sent}");
    assert!(whole.iter().all(|message| message.len() <= MESSAGE_BYTES_MAX));
    if whole.is_empty() { Verdict::Refused } else { Verdict::Accepted }
}

fn read(bytes: &Bytes) -> Result<Bytes, ()> {
    let written = payload(bytes).map_err(drop)?;
    assert!(written.len() <= FRAME_BYTES_MAX.max(bytes.len()), "{} bytes", written.len());
    assert_eq!(payload(&written), Ok(written.clone()), "it changes on its way");
    Ok(written)
}

/// A frame as its description has it.
fn frame(kind: u8, part: (u16, u16), body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xb5, b'M', 1, kind];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(part.0.to_be_bytes());
    bytes.extend(part.1.to_be_bytes());
    bytes.extend(u32::try_from(body.len()).unwrap_or_default().to_be_bytes());
    bytes.extend(body);
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let behind_length = |frames: &[Vec<u8>]| {
        let mut input = vec![1];
        for frame in frames {
            input.push(u8::try_from(frame.len()).unwrap_or(u8::MAX));
            input.extend(frame);
        }
        input
    };
    vec![
        join(&[0], &[frame(1, (0, 1), b"hello")]),
        join(&[0], &[frame(2, (0, 1), &[3])]),
        join(&[0], &[frame(3, (0, 1), b"")]),
        join(&[0], &[frame(4, (0, 1), b"")]),
        join(&[0], &["{\"jsonrpc\":\"2.0\"}"]),
        join(&[0], &["neither"]),
        behind_length(&[frame(1, (1, 2), b"b"), frame(1, (1, 2), b"x"), frame(1, (0, 2), b"a")]),
        behind_length(&[frame(1, (0, 2), b"a"), frame(1, (0, 1), b"b")]),
    ]
}
