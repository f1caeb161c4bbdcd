//! Frames: written one after the other, and read from bytes that come in pieces.

use std::fmt;
use std::str::FromStr;

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;
use prost::Message as _;
use proto::v1;
use sha2::{Digest as _, Sha256};

use crate::content::ArchiveFrame;
use crate::{FRAME_BYTES_MAX, HEADER};

/// Bytes of a length and a digest in front of a frame's content.
const FRAME_HEAD_BYTES: usize = 4 + 32;
/// Level of compression: a context is frozen while it is exported, so speed counts more than the last percent.
const LEVEL: u8 = 3;
/// Beginning of the header of every version.
const MAGIC: &[u8] = b"MYCORA-CONTEXT ";

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The file does not begin as exports do.
    #[error("this is no export of a context")]
    NoArchive,
    /// The file has another version of the format.
    #[error("the export has the format {0}, and this version reads format 1")]
    Version(String),
    /// The file ends before its last frame.
    #[error("the export is cut off after frame {frames}")]
    CutOff {
        /// Number of whole frames.
        frames: u64,
    },
    /// A frame is not what was written.
    #[error("frame {frame} of the export is altered")]
    Altered {
        /// Number of the frame, from 1.
        frame: u64,
    },
    /// A frame is longer than any that is written.
    #[error("frame {frame} of the export has {bytes} bytes, and at most {FRAME_BYTES_MAX} are read")]
    TooLarge {
        /// Number of the frame, from 1.
        frame: u64,
        /// Size that it claims.
        bytes: usize,
    },
    /// The content of a frame is wrong in itself.
    #[error("frame {frame} of the export cannot be used: {problem}")]
    Malformed {
        /// Number of the frame, from 1.
        frame: u64,
        /// Description of the problem.
        problem: String,
    },
    /// Bytes follow the last frame.
    #[error("the export has more bytes behind its last frame, {frame}")]
    Trailing {
        /// Number of the last frame.
        frame: u64,
    },
}

/// Digest of a frame and of all frames before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArchiveDigest([u8; 32]);

impl fmt::Display for ArchiveDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// A text that is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest has 64 lower-case hex digits")]
pub struct ParseDigestError;

impl FromStr for ArchiveDigest {
    type Err = ParseDigestError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ParseDigestError)?;
        // A digest has one spelling.
        let digest = Self(bytes);
        if digest.to_string() == text { Ok(digest) } else { Err(ParseDigestError) }
    }
}

/// Place between two frames of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchivePlace {
    /// Number of frames before it.
    pub frames: u64,
    /// Digest of the last of them, or of the header.
    pub digest: ArchiveDigest,
}

impl ArchivePlace {
    /// The place behind the header.
    #[must_use]
    pub fn start() -> Self {
        Self { frames: 0, digest: ArchiveDigest(Sha256::digest(HEADER).into()) }
    }

    /// The place behind a frame with this deflated content.
    fn after(self, deflated: &[u8]) -> Self {
        let frames = self.frames.saturating_add(1);
        let digest = Sha256::new()
            .chain_update(self.digest.0)
            .chain_update(frames.to_be_bytes())
            .chain_update(deflated)
            .finalize();
        Self { frames, digest: ArchiveDigest(digest.into()) }
    }
}

/// Writes a frame that begins at `place`. Returns its bytes, and the place behind it. Takes milliseconds for a frame of a MiB.
///
/// # Errors
/// [`ArchiveError::TooLarge`] when the frame says more than may be read.
pub fn encode(place: ArchivePlace, frame: ArchiveFrame) -> Result<(Vec<u8>, ArchivePlace), ArchiveError> {
    let content = v1::ArchiveFrame::from(frame).encode_to_vec();
    let number = place.frames.saturating_add(1);
    let deflated = compress_to_vec(&content, LEVEL);
    for bytes in [content.len(), deflated.len()] {
        if bytes > FRAME_BYTES_MAX {
            return Err(ArchiveError::TooLarge { frame: number, bytes });
        }
    }
    let length = u32::try_from(deflated.len());
    let length = length.map_err(|_| ArchiveError::TooLarge { frame: number, bytes: deflated.len() })?;
    let after = place.after(&deflated);
    let mut bytes = Vec::with_capacity(FRAME_HEAD_BYTES + deflated.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&after.digest.0);
    bytes.extend_from_slice(&deflated);
    Ok((bytes, after))
}

/// A frame that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadFrame {
    /// Content of the frame.
    pub content: ArchiveFrame,
    /// Place behind the frame.
    pub place: ArchivePlace,
    /// Bytes of the file that the frame takes.
    pub bytes: usize,
}

/// Reader of frames. Holds one frame in memory at most, and what was pushed behind it.
#[derive(Debug)]
pub struct ArchiveReader {
    buffer: Vec<u8>,
    place: ArchivePlace,
    has_header: bool,
    has_ended: bool,
}

impl Default for ArchiveReader {
    fn default() -> Self {
        Self::new()
    }
}

impl ArchiveReader {
    /// A reader for a file from its beginning.
    #[must_use]
    pub fn new() -> Self {
        Self { has_header: false, ..Self::at(ArchivePlace::start()) }
    }

    /// A reader for a file from a place on.
    #[must_use]
    pub const fn at(place: ArchivePlace) -> Self {
        Self { buffer: Vec::new(), place, has_header: true, has_ended: false }
    }

    /// Returns the place behind the last frame that was read.
    #[must_use]
    pub const fn place(&self) -> ArchivePlace {
        self.place
    }

    /// Returns true if the last frame of the file was read.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Reads the next frame; nothing until all its bytes are there.
    ///
    /// # Errors
    /// When the file is no export, or the frame is not what was written.
    pub fn next_frame(&mut self) -> Result<Option<ReadFrame>, ArchiveError> {
        if !self.read_header()? {
            return Ok(None);
        }
        let number = self.place.frames.saturating_add(1);
        if self.has_ended && !self.buffer.is_empty() {
            return Err(ArchiveError::Trailing { frame: self.place.frames });
        }
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(ArchiveError::TooLarge { frame: number, bytes: length });
        }
        let Some((digest, rest)) = rest.split_first_chunk::<32>() else { return Ok(None) };
        let Some(deflated) = rest.get(..length) else { return Ok(None) };
        let place = self.place.after(deflated);
        if place.digest.0 != *digest {
            return Err(ArchiveError::Altered { frame: number });
        }
        let content = unpack(number, deflated)?;
        self.check_order(number, &content)?;
        let bytes = FRAME_HEAD_BYTES + length;
        self.buffer.drain(..bytes);
        (self.place, self.has_ended) = (place, matches!(content, ArchiveFrame::End { .. }));
        Ok(Some(ReadFrame { content, place, bytes }))
    }

    /// Checks that the file was complete.
    ///
    /// # Errors
    /// [`ArchiveError::CutOff`] when it was not.
    pub fn finish(&self) -> Result<(), ArchiveError> {
        match (self.has_header, self.has_ended && self.buffer.is_empty()) {
            (_, true) => Ok(()),
            (false, _) if !MAGIC.starts_with(&self.buffer[..self.buffer.len().min(MAGIC.len())]) => {
                Err(ArchiveError::NoArchive)
            }
            _ => Err(ArchiveError::CutOff { frames: self.place.frames }),
        }
    }

    /// Reads the header; returns false until all of it is there.
    fn read_header(&mut self) -> Result<bool, ArchiveError> {
        if self.has_header {
            return Ok(true);
        }
        let known = self.buffer.len().min(MAGIC.len());
        if self.buffer[..known] != MAGIC[..known] {
            return Err(ArchiveError::NoArchive);
        }
        if self.buffer.len() < HEADER.len() {
            return Ok(false);
        }
        if !self.buffer.starts_with(HEADER) {
            let version = &self.buffer[MAGIC.len()..HEADER.len()];
            let version = version.split(|byte| *byte == b'\n').next().unwrap_or_default();
            return Err(ArchiveError::Version(String::from_utf8_lossy(version).into_owned()));
        }
        self.buffer.drain(..HEADER.len());
        self.has_header = true;
        Ok(true)
    }

    /// Checks that the manifest is the first frame, and that the last frame counts those before it.
    fn check_order(&self, number: u64, content: &ArchiveFrame) -> Result<(), ArchiveError> {
        let malformed =
            |problem: &str| Err(ArchiveError::Malformed { frame: number, problem: problem.to_owned() });
        match content {
            ArchiveFrame::Manifest(_) if number != 1 => malformed("a manifest is the first frame"),
            ArchiveFrame::Manifest(_) => Ok(()),
            _ if number == 1 => malformed("the first frame is a manifest"),
            ArchiveFrame::End { frames } if *frames != self.place.frames => {
                malformed("it counts other frames than there are")
            }
            _ => Ok(()),
        }
    }
}

fn unpack(frame: u64, deflated: &[u8]) -> Result<ArchiveFrame, ArchiveError> {
    let malformed = |problem: String| ArchiveError::Malformed { frame, problem };
    let content = decompress_to_vec_with_limit(deflated, FRAME_BYTES_MAX)
        .map_err(|_| malformed(format!("it does not unpack to {FRAME_BYTES_MAX} bytes or less")))?;
    let content = v1::ArchiveFrame::decode(&content[..]).map_err(|error| malformed(error.to_string()))?;
    ArchiveFrame::try_from(content).map_err(malformed)
}

#[cfg(test)]
mod tests;
