//! Archives: the files that contexts are exported to.
//!
//! A file begins with [`HEADER`]. Frames follow. Each has the length of its content (4 bytes, big endian), its digest (32 bytes) and
//! its content, which is an `ArchiveFrame` of `proto/mycora/v1/context_archive.proto`, deflated. The digest is the SHA-256 of the digest
//! before it, the number of the frame and the deflated content, so that no frame can be changed, left out, or taken from another file.
//! The last frame says how many there were: a file that is cut off anywhere has no such frame.
//!
//! [`content`] has what frames say, [`frame`] how they are written and read.

pub mod content;
pub mod frame;

pub use content::{
    ArchiveFrame, ArchiveManifest, ArchiveRecord, ArchiveStreamEntry, ArchiveValue, ArchivedActor,
};
pub use frame::{ArchiveDigest, ArchiveError, ArchivePlace, ArchiveReader, encode};

/// Beginning of every file: what it is, and the version of its format.
pub const HEADER: &[u8] = b"MYCORA-CONTEXT 1\n";
/// Greatest size of a frame's content, in bytes, before it is deflated and after.
pub const FRAME_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Records that a frame has at most: one script writes all of them.
pub const FRAME_RECORDS_MAX: usize = 400;
/// Actors that a frame has at most.
pub const FRAME_ACTORS_MAX: usize = 200;
