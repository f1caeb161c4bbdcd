//! Frames of exported contexts: from a file of any origin into one context, and nowhere else.

use archive::{ArchiveFrame, ArchiveManifest, ArchivePlace, ArchiveReader, ArchiveRecord, ArchiveValue};
use keys::ContextKey;
use model::{ContextId, ContextUid, Timestamp};
use prost::Message as _;
use proto::v1;
use storage::fuzzing::{ARCHIVED_CONTEXT, archived_record};

use crate::input::Input;
use crate::{Target, Verdict, check_refusal};

/// The reader of exports.
pub const TARGET: Target = Target { name: "archive_frame", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "MYCORA-CONTEXT 1\n",
    "flow:1",
    "flow:1:messages",
    "message:1:1",
    "context:7",
    "context_id",
    "{7}:",
    "msg_out",
    "events",
    "3-1",
    "inf",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let way = input.choice(2);
    let bytes = input.rest();
    if way == 0 { read_file(bytes) } else { read_content(bytes) }
}

/// Reads bytes as a file.
fn read_file(bytes: &[u8]) -> Verdict {
    let mut reader = ArchiveReader::new();
    reader.push(bytes);
    loop {
        match reader.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => return Verdict::of(&reader.finish()),
            Err(error) => {
                check_refusal(&error.to_string(), 400, &[]);
                return Verdict::Refused;
            }
        }
    }
}

/// Reads bytes as the content of a frame whose digest is right.
fn read_content(bytes: &[u8]) -> Verdict {
    let Ok(wire) = v1::ArchiveFrame::decode(bytes) else { return Verdict::Refused };
    let frame = match ArchiveFrame::try_from(wire) {
        Ok(frame) => frame,
        Err(problem) => {
            check_refusal(&problem, 400, &[]);
            return Verdict::Refused;
        }
    };
    let (mut place, mut file) = (ArchivePlace::start(), archive::HEADER.to_vec());
    if !matches!(frame, ArchiveFrame::Manifest(_)) {
        let (first, after) = archive::encode(place, manifest()).expect("it is small");
        (place, file) = (after, [&file[..], &first].concat());
    }
    let (written, after) = archive::encode(place, frame.clone()).expect("it is small");
    file.extend(written);
    let mut reader = ArchiveReader::new();
    reader.push(&file);
    let mut last = None;
    while let Ok(Some(read)) = reader.next_frame() {
        last = Some(read);
    }
    let is_last = last.as_ref().is_some_and(|last| last.place == after);
    let counts_others = matches!(frame, ArchiveFrame::End { frames } if frames != 1);
    assert!(is_last != counts_others, "a frame that was written is not read: {frame:?}");
    if let ArchiveFrame::Records { records, .. } = frame {
        // All are checked; the verdict is that of the last.
        return records.into_iter().fold(Verdict::Accepted, |_, record| check_record(record));
    }
    Verdict::Accepted
}

/// Checks that a record which is taken has a key of the context.
fn check_record(record: ArchiveRecord) -> Verdict {
    let name = record.key.clone();
    match archived_record(record) {
        Ok(args) => {
            assert_eq!(args[0], name.as_bytes(), "another key is written");
            let key = ContextKey::parse(&name).expect("a key of a context");
            let is_own = !matches!(key, ContextKey::Context(id) if id != ARCHIVED_CONTEXT);
            assert!(is_own && !matches!(key, ContextKey::Drops | ContextKey::BlobPart(..)), "{key}");
            Verdict::Accepted
        }
        Err(problem) => {
            check_refusal(&problem, 400, &[]);
            Verdict::Refused
        }
    }
}

fn manifest() -> ArchiveFrame {
    ArchiveFrame::Manifest(ArchiveManifest {
        coordinator: "0".repeat(32),
        context: ContextId(7),
        uid: "0123456789abcdef0123456789abcdef".parse::<ContextUid>().expect("a uid"),
        snapshot: "1".repeat(32),
        time: Timestamp::from_millis(1_700_000_000_000),
        revision: 9,
        without_secrets: false,
    })
}

fn seeds() -> Vec<Vec<u8>> {
    let record = |key: &str, value| ArchiveRecord {
        key: key.to_owned(),
        continued: false,
        expires_in_millis: Some(5),
        value,
    };
    let bytes = |text: &str| text.as_bytes().to_vec();
    let records = vec![
        record("flow:1", ArchiveValue::Hash(vec![(bytes("context_id"), bytes("7"))])),
        record("flow:1:messages", ArchiveValue::Set(vec![bytes("message:1:1")])),
        record("flows", ArchiveValue::SortedSet(vec![(bytes("1"), "3".to_owned())])),
        record("msg_out", ArchiveValue::List(vec![bytes("message:1:1")])),
        record("context:8", ArchiveValue::Hash(vec![(bytes("id"), bytes("8"))])),
    ];
    let content = |frame: ArchiveFrame| v1::ArchiveFrame::from(frame).encode_to_vec();
    let (file, _) = archive::encode(ArchivePlace::start(), manifest()).expect("it is small");
    vec![
        [&[0], archive::HEADER, &file].concat(),
        [&[1][..], &content(manifest())].concat(),
        [&[1][..], &content(ArchiveFrame::Records { records, position: "end".to_owned() })].concat(),
        [&[1][..], &content(ArchiveFrame::End { frames: 1 })].concat(),
    ]
}
