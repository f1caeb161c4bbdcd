//! Eviction of blobs, the least recently used first, to keep them within their bound.
//!
//! Three steps make sure that no needed blob is removed:
//!
//! 1. Blobs of jobs that are being accepted now, or will be from here on, are exempt ([`BlobUseCounts`]).
//! 2. Redis lists the blobs of jobs that were accepted before.
//! 3. The other blobs are renamed one by one, oldest first; a blob that was written meanwhile is put back. An instance
//!    writes each output anew before it records the end that names it, so no blob younger than [`SETTLING`] is
//!    removed.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use model::{BlobHash, ContextUid};
use queue::SupervisorQueues as Queue;

use super::BlobCache;
use crate::work_dir::{ContextFile, blocking, kept};

/// How long an instance may take to record an end after it has written the outputs. An instance that hangs for longer
/// counts as lost.
const SETTLING: Duration = Duration::from_secs(600);
/// Percentage of the bound that an eviction leaves free, so that the next one is not due at once.
const ROOM: u64 = 10;
/// File extension of a blob while it is being considered for eviction.
const JUDGED: &str = "judged";

/// A blob of a context.
pub(super) type ContextBlob = (ContextUid, BlobHash);

/// Use counts of blobs whose jobs are being accepted.
#[derive(Debug, Default)]
pub(super) struct BlobUseCounts {
    /// Number of jobs that use each blob now.
    now: HashMap<ContextBlob, usize>,
    /// Blobs used at any time since the last eviction began.
    lately: HashSet<ContextBlob>,
}

impl BlobUseCounts {
    pub(super) fn begin(&mut self, place: ContextBlob) {
        *self.now.entry(place).or_default() += 1;
        self.lately.insert(place);
    }

    pub(super) fn end(&mut self, place: ContextBlob) {
        if let Some(count) = self.now.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.now.remove(&place);
            }
        }
    }

    fn cleaning_begins(&mut self) {
        self.lately = self.now.keys().copied().collect();
    }
}

/// Counts of one eviction pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlobEvictionStats {
    /// Blobs that were removed.
    pub removed: u64,
    /// Bytes that were removed.
    pub removed_bytes: u64,
    /// Bytes that are kept.
    pub bytes: u64,
}

/// Why blobs were not cleaned.
#[derive(Debug, thiserror::Error)]
pub enum BlobEvictionError {
    /// The directory cannot be read.
    #[error("the blobs cannot be listed or removed")]
    Directory(#[source] io::Error),
    /// The store cannot say which blobs are needed.
    #[error("cannot determine which blobs are needed")]
    Store(#[source] kv::Error),
}

impl BlobCache {
    /// Removes unneeded blobs until the rest fits the bound with some room, if it does not fit now.
    ///
    /// # Errors
    /// A [`BlobEvictionError`]; may be repeated.
    pub async fn clean(
        &self,
        queue: &Queue,
        now: SystemTime,
    ) -> Result<BlobEvictionStats, BlobEvictionError> {
        self.uses().cleaning_begins();
        self.0.written.store(0, std::sync::atomic::Ordering::Relaxed);
        let root = self.0.root.clone();
        let mut all = blocking(move || kept(&root)).await.map_err(BlobEvictionError::Directory)?;
        let mut cleaned = BlobEvictionStats {
            bytes: all.iter().map(|file| file.bytes).sum(),
            ..BlobEvictionStats::default()
        };
        if cleaned.bytes <= self.0.bytes_max {
            return Ok(cleaned);
        }
        let enough = self.0.bytes_max / 100 * (100 - ROOM);
        all.sort_by_key(|file| file.modified);
        let mut needed: HashMap<ContextUid, HashSet<BlobHash>> = HashMap::new();
        for file in all {
            if cleaned.bytes <= enough {
                break;
            }
            let Some(hash) = file.name.to_str().and_then(|name| name.parse::<BlobHash>().ok()) else {
                continue;
            };
            if !is_settled(file.modified, now) {
                break;
            }
            let needed = match needed.entry(file.context) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => {
                    let hashes = queue.blobs_in_use(file.context).await.map_err(BlobEvictionError::Store)?;
                    place.insert(hashes)
                }
            };
            if needed.contains(&hash) {
                continue;
            }
            let (blobs, place, bytes) = (self.clone(), (file.context, hash), file.bytes);
            if blocking(move || blobs.evict(place, &file, now)).await.map_err(BlobEvictionError::Directory)? {
                cleaned.removed += 1;
                cleaned.removed_bytes += bytes;
                cleaned.bytes -= bytes;
            }
        }
        Ok(cleaned)
    }

    /// Removes a blob, unless it is used or was written meanwhile. Blocks.
    fn evict(&self, place: ContextBlob, file: &ContextFile, now: SystemTime) -> io::Result<bool> {
        // A job that wants to use the blob waits for this lock, and then finds the blob there or gone.
        let uses = self.uses();
        if uses.lately.contains(&place) {
            return Ok(false);
        }
        // Renamed first: an instance may write the blob anew between the check and the removal.
        let judged = file.path.with_extension(JUDGED);
        match fs::rename(&file.path, &judged) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        }
        if is_settled(fs::metadata(&judged)?.modified()?, now) {
            fs::remove_file(&judged)?;
            return Ok(true);
        }
        fs::rename(&judged, &file.path)?;
        Ok(false)
    }

    /// Removes files that a crash of the supervisor or an instance left half-written. The supervisor itself must not write here yet.
    ///
    /// # Errors
    /// When a file cannot be read or removed; may be repeated.
    pub async fn remove_drafts(&self, now: SystemTime) -> io::Result<u64> {
        let root = self.0.root.clone();
        blocking(move || {
            let mut removed = 0;
            for file in kept(&root)? {
                let extension = Path::new(&file.name).extension().and_then(|text| text.to_str());
                match extension {
                    Some(JUDGED) => fs::rename(&file.path, file.path.with_extension(""))?,
                    // An instance may be writing, but does not take that long.
                    Some("new") => remove(&file.path, &mut removed)?,
                    Some(_) if is_settled(file.modified, now) => remove(&file.path, &mut removed)?,
                    _ => {}
                }
            }
            Ok(removed)
        })
        .await
    }
}

fn remove(path: &Path, removed: &mut u64) -> io::Result<()> {
    *removed += 1;
    fs::remove_file(path)
}

fn is_settled(modified: SystemTime, now: SystemTime) -> bool {
    now.duration_since(modified).is_ok_and(|age| age >= SETTLING)
}
