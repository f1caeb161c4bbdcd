//! Complete output of attempts: `<work dir>/logs/<context uid>/<job key>.log`.
//!
//! Instances write these files while scripts run; the supervisor reads them, and prunes them in time. The log of a
//! running attempt is kept, however old or long.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use model::limits::LOG_PIECE_BYTES_MAX;
use model::{ContextUid, JobKey};
use rustix::fs::OFlags;

use crate::work_dir::{ContextFile, WorkDir, blocking, kept};

/// A character's length, at most.
const UTF8_LEN_MAX: usize = 4;

/// Age and size limits of kept logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRetention {
    /// Maximum age, since the last output.
    pub age: Duration,
    /// Bytes of all logs together.
    pub bytes: u64,
    /// Bytes of one context's logs.
    pub context_bytes: u64,
}

impl Default for LogRetention {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(7 * 24 * 3600),
            bytes: 2 * 1024 * 1024 * 1024,
            context_bytes: 256 * 1024 * 1024,
        }
    }
}

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilePiece {
    /// Start of the piece: the requested offset, or the next character after it.
    pub offset: u64,
    /// Text of the piece; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// End of the piece.
    pub end: u64,
    /// Size of the log.
    pub size: u64,
}

/// Counts of one pruning pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPruneStats {
    /// Logs that were removed.
    pub removed: u64,
    /// Bytes that are kept.
    pub bytes: u64,
}

/// The logs of this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AttemptLogStore {
    root: PathBuf,
    retention: LogRetention,
}

impl AttemptLogStore {
    /// Creates the store in a work directory.
    #[must_use]
    pub fn new(work_dir: &WorkDir, retention: LogRetention) -> Self {
        Self { root: work_dir.logs(), retention }
    }

    /// Reads a piece of a log from an offset on, at most `limit` bytes; nothing when there is no such log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub async fn read(&self, key: JobKey, offset: u64, limit: usize) -> io::Result<Option<LogFilePiece>> {
        let path = self.root.join(key.context.to_string()).join(file_name(key));
        let limit = if limit == 0 { LOG_PIECE_BYTES_MAX } else { limit.min(LOG_PIECE_BYTES_MAX) };
        blocking(move || {
            let nofollow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
            let mut file = match fs::OpenOptions::new().read(true).custom_flags(nofollow).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                other => other?,
            };
            let size = file.metadata()?.len();
            let from = offset.min(size);
            file.seek(SeekFrom::Start(from))?;
            // At least one character must fit, after the rest of a character that was cut.
            let limit = limit.max(UTF8_LEN_MAX);
            let mut bytes = Vec::new();
            file.take((limit + UTF8_LEN_MAX - 1) as u64).read_to_end(&mut bytes)?;
            Ok(Some(piece(&bytes, limit, from, size)))
        })
        .await
    }

    /// Removes the logs of attempts that are no longer needed.
    ///
    /// # Errors
    /// When one cannot be removed; may be repeated.
    pub async fn remove(&self, keys: &[JobKey]) -> io::Result<()> {
        let file = |key: &JobKey| self.root.join(key.context.to_string()).join(file_name(*key));
        let files: Vec<PathBuf> = keys.iter().map(file).collect();
        blocking(move || files.iter().try_for_each(remove)).await
    }

    /// Removes logs beyond the limits of age and size, the oldest first. `running` is called afterwards for the
    /// attempts whose logs must stay.
    ///
    /// # Errors
    /// When the directory or the store fails; may be repeated.
    pub async fn prune<F>(
        &self,
        running: impl FnOnce() -> F,
        now: SystemTime,
    ) -> Result<LogPruneStats, LogPruneError>
    where
        F: Future<Output = kv::Result<Vec<JobKey>>>,
    {
        let root = self.root.clone();
        let all = blocking(move || kept(&root)).await.map_err(LogPruneError::Directory)?;
        let total: u64 = all.iter().map(|file| file.bytes).sum();
        let old = all.iter().any(|file| self.retention.is_over(file.modified, now));
        if !old && total <= self.retention.bytes.min(self.retention.context_bytes) {
            return Ok(LogPruneStats { removed: 0, bytes: total });
        }
        // An attempt that began after the files were listed has none of them.
        let running = running().await.map_err(LogPruneError::Store)?;
        let running: HashSet<OsString> = running.into_iter().map(file_name).collect();
        let surplus = self.retention.surplus(all, &running, now);
        let freed: u64 = surplus.iter().map(|file| file.bytes).sum();
        let removed = surplus.len() as u64;
        let remove = move || surplus.iter().try_for_each(|file| remove(&file.path));
        blocking(remove).await.map_err(LogPruneError::Directory)?;
        Ok(LogPruneStats { removed, bytes: total - freed })
    }
}

/// Why logs were not pruned.
#[derive(Debug, thiserror::Error)]
pub enum LogPruneError {
    /// The directory cannot be read.
    #[error("the logs cannot be listed or removed")]
    Directory(#[source] io::Error),
    /// The store cannot say which attempts run.
    #[error("cannot determine which logs are being written")]
    Store(#[source] kv::Error),
}

impl LogRetention {
    fn is_over(&self, modified: SystemTime, now: SystemTime) -> bool {
        now.duration_since(modified).is_ok_and(|age| age >= self.age)
    }

    /// Returns the logs to remove.
    fn surplus(
        &self,
        mut all: Vec<ContextFile>,
        running: &HashSet<OsString>,
        now: SystemTime,
    ) -> Vec<ContextFile> {
        let mut total: u64 = all.iter().map(|file| file.bytes).sum();
        let mut by_context: HashMap<ContextUid, u64> = HashMap::new();
        for file in &all {
            *by_context.entry(file.context).or_default() += file.bytes;
        }
        all.sort_by_key(|file| file.modified);
        all.retain(|file| {
            let of_context = by_context.entry(file.context).or_default();
            let too_much = total > self.bytes || *of_context > self.context_bytes;
            let goes = (too_much || self.is_over(file.modified, now)) && !running.contains(&file.name);
            if goes {
                total -= file.bytes;
                *of_context -= file.bytes;
            }
            goes
        });
        all
    }
}

fn file_name(key: JobKey) -> OsString {
    format!("{key}.log").into()
}

fn remove(path: &PathBuf) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Cuts a piece at whole characters: a character cut off at the end comes with the next piece. Files are UTF-8; a file that
/// is not is read all the same, with its offsets kept.
fn piece(bytes: &[u8], limit: usize, from: u64, size: u64) -> LogFilePiece {
    let continued = bytes.iter().take(UTF8_LEN_MAX - 1).take_while(|byte| (**byte & 0xc0) == 0x80).count();
    // At the very beginning of a file nothing can have been cut.
    let skipped = if from == 0 { 0 } else { continued };
    let bytes = &bytes[skipped..bytes.len().min(skipped + limit)];
    let whole = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => &bytes[..error.valid_up_to()],
        _ => bytes,
    };
    let offset = from + skipped as u64;
    LogFilePiece {
        offset,
        text: String::from_utf8_lossy(whole).into_owned(),
        end: offset + whole.len() as u64,
        size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;

    fn file(context: u128, name: &str, age: u64, bytes: u64) -> ContextFile {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age);
        ContextFile {
            context: ContextUid(Uid::from_bits(context)),
            name: name.into(),
            path: name.into(),
            modified,
            bytes,
        }
    }

    #[test]
    fn the_oldest_goes_first_and_what_runs_stays() {
        let retention = LogRetention { age: Duration::from_secs(100), bytes: 100, context_bytes: 50 };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let surplus = |files: &[ContextFile], running: &[&str]| -> Vec<String> {
            let running = running.iter().map(OsString::from).collect();
            let surplus = retention.surplus(files.to_vec(), &running, now);
            surplus.iter().map(|file| file.path.display().to_string()).collect()
        };
        let old = [file(1, "old", 100, 1), file(1, "young", 99, 1), file(2, "runs", 500, 1)];
        assert_eq!(surplus(&old, &["runs"]), ["old"]);
        let much = [file(1, "a", 3, 30), file(1, "b", 2, 30), file(2, "c", 9, 30)];
        assert_eq!(surplus(&much, &[]), ["a"], "only the context that has too much");
        assert_eq!(surplus(&much, &["a"]), ["b"], "what runs counts, and stays");
        let all = [file(1, "a", 1, 40), file(2, "b", 3, 40), file(3, "c", 2, 40)];
        assert_eq!(surplus(&all, &[]), ["b"]);
        assert_eq!(surplus(&all, &["a", "b", "c"]), [""; 0]);
    }

    #[test]
    fn pieces_are_whole_characters() {
        let text = "aä€😀z";
        let bytes = text.as_bytes();
        let size = bytes.len() as u64;
        for limit in 4..=bytes.len() {
            for start in 0..=bytes.len() {
                let (mut offset, mut read) = (start, String::new());
                loop {
                    let piece = piece(
                        &bytes[offset..(offset + limit + 3).min(bytes.len())],
                        limit,
                        offset as u64,
                        size,
                    );
                    assert!(
                        piece.offset >= offset as u64 && piece.end - piece.offset == piece.text.len() as u64
                    );
                    read.push_str(&piece.text);
                    if piece.end == size {
                        break;
                    }
                    assert!(piece.end > offset as u64, "it goes on");
                    offset = usize::try_from(piece.end).expect("small");
                }
                let first =
                    (start..=bytes.len()).find(|at| text.is_char_boundary(*at)).expect("the end is one");
                assert_eq!(read, &text[first..], "from {start} in pieces of {limit}");
            }
        }
        assert_eq!(piece(b"\xff\xfeab\xf0", 9, 0, 5).end, 5, "what is no text is told all the same");
    }
}
