//! Files that were cut off, altered, or made by others.

use model::{ContextId, ContextUid, Timestamp};

use super::*;
use crate::content::{ArchiveManifest, ArchiveRecord, ArchiveValue};

fn manifest() -> ArchiveFrame {
    ArchiveFrame::Manifest(ArchiveManifest {
        coordinator: "0".repeat(32),
        context: ContextId(7),
        uid: ContextUid::random(),
        snapshot: "1".repeat(32),
        time: Timestamp::from_millis(1_700_000_000_000),
        revision: 9,
        without_secrets: false,
    })
}

fn records(key: &str, bytes: &[u8]) -> ArchiveFrame {
    let record = ArchiveRecord {
        key: key.to_owned(),
        continued: false,
        expires_in_millis: None,
        value: ArchiveValue::Text(bytes.to_vec()),
    };
    ArchiveFrame::Records { records: vec![record], position: "here".to_owned() }
}

/// A file of these frames, and where each of them ends.
fn file(frames: Vec<ArchiveFrame>) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut ends, mut place) = (HEADER.to_vec(), Vec::new(), ArchivePlace::start());
    for frame in frames {
        let (frame, after) = encode(place, frame).expect("a small frame");
        bytes.extend(frame);
        ends.push(bytes.len());
        place = after;
    }
    (bytes, ends)
}

fn whole() -> (Vec<u8>, Vec<usize>) {
    file(vec![manifest(), records("a", b"1"), records("b", &[7; 5000]), ArchiveFrame::End { frames: 3 }])
}

fn read(bytes: &[u8]) -> Result<Vec<ReadFrame>, ArchiveError> {
    let (mut reader, mut frames) = (ArchiveReader::new(), Vec::new());
    for piece in bytes.chunks(11) {
        reader.push(piece);
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
    }
    reader.finish().map(|()| frames)
}

#[test]
fn frames_come_back_and_a_reader_goes_on_anywhere() {
    let (bytes, ends) = whole();
    let frames = read(&bytes).expect("whole");
    assert_eq!(frames.len(), 4);
    assert_eq!(frames[1].content, records("a", b"1"));
    assert_eq!(HEADER.len() + frames.iter().map(|frame| frame.bytes).sum::<usize>(), bytes.len());
    let mut reader = ArchiveReader::at(frames[1].place);
    reader.push(&bytes[ends[1]..]);
    assert_eq!(reader.next_frame().expect("whole").as_ref(), Some(&frames[2]));
    assert!(reader.next_frame().expect("whole").is_some() && reader.has_ended());
    reader.finish().expect("complete");
}

#[test]
fn a_file_that_is_cut_off_names_its_last_whole_frame() {
    let (bytes, ends) = whole();
    for length in 0..bytes.len() {
        let frames = ends.iter().filter(|end| **end <= length).count() as u64;
        let cut = read(&bytes[..length]).expect_err("cut off");
        assert_eq!(cut, ArchiveError::CutOff { frames }, "{length}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(read(&longer), Err(ArchiveError::Trailing { frame: 4 }));
}

#[test]
fn a_changed_byte_names_its_frame() {
    let (bytes, ends) = whole();
    let mut from = HEADER.len();
    for (number, end) in (1..).zip(ends) {
        for at in from..end {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let refused = read(&changed).expect_err("changed");
            let is_named = match &refused {
                ArchiveError::Altered { frame } | ArchiveError::TooLarge { frame, .. } => *frame == number,
                // A frame that claims to be longer takes the next ones, or is not complete.
                ArchiveError::CutOff { frames } => *frames == number - 1 && at < from + 4,
                _ => false,
            };
            assert!(is_named, "{at}: {refused}");
        }
        from = end;
    }
}

#[test]
fn frames_of_other_files_and_in_another_order_do_not_fit() {
    let (bytes, ends) = whole();
    let (other, other_ends) = whole();
    let mixed = [&bytes[..ends[0]], &other[other_ends[0]..]].concat();
    assert_eq!(read(&mixed), Err(ArchiveError::Altered { frame: 2 }), "the other file has another manifest");
    let left_out = [&bytes[..ends[0]], &bytes[ends[1]..]].concat();
    assert_eq!(read(&left_out), Err(ArchiveError::Altered { frame: 2 }));
    let swapped =
        [&bytes[..ends[0]], &bytes[ends[1]..ends[2]], &bytes[ends[0]..ends[1]], &bytes[ends[2]..]].concat();
    assert_eq!(read(&swapped), Err(ArchiveError::Altered { frame: 2 }));
}

#[test]
fn files_with_right_digests_are_checked_all_the_same() {
    let (bytes, _) = file(vec![records("a", b"1")]);
    assert!(matches!(read(&bytes), Err(ArchiveError::Malformed { frame: 1, .. })), "no manifest");
    let (bytes, _) = file(vec![manifest(), manifest()]);
    assert!(matches!(read(&bytes), Err(ArchiveError::Malformed { frame: 2, .. })), "two manifests");
    let (bytes, _) = file(vec![manifest(), ArchiveFrame::End { frames: 2 }]);
    assert!(matches!(read(&bytes), Err(ArchiveError::Malformed { frame: 2, .. })), "another count");
    let long = [HEADER, &u32::MAX.to_be_bytes()].concat();
    let refused = read(&long).expect_err("too long");
    assert_eq!(refused, ArchiveError::TooLarge { frame: 1, bytes: u32::MAX as usize });
    // A small frame that unpacks to more than may be read.
    let bomb = compress_to_vec(&vec![0; FRAME_BYTES_MAX + 1], LEVEL);
    let place = ArchivePlace::start().after(&bomb);
    let length = u32::try_from(bomb.len()).expect("small");
    let bomb = [HEADER, &length.to_be_bytes(), &place.digest.0, &bomb].concat();
    assert!(matches!(read(&bomb), Err(ArchiveError::Malformed { frame: 1, .. })));
    assert_eq!(read(b"GIF89a"), Err(ArchiveError::NoArchive));
    assert_eq!(read(b"MYCORA-CONTEXT 2\nxxxxxxx"), Err(ArchiveError::Version("2".to_owned())));
}
