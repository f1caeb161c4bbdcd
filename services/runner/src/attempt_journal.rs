//! Journal of attempts that began on this machine recently, kept outside of Redis. A store that rolled back hands out attempts that
//! have run already, and no attempt may run twice under one number, neither at another instance nor at a restarted runner.
//!
//! Each runner has its own file, `instances/<group>-<number>/begun`: the number of attempts that it has begun, and in a ring of
//! [`RECORDS`] the last of them, each with its time. A runner writes an attempt there before it begins, and reads what is new in the
//! files of the others. The writes are not synced: they survive the end of any process, but not a crash of the machine.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use model::{BlobHash, JobKey, Timestamp};
use queue::work_dir::{begun_path, instances_dir};
use rustix::fs::FallocateFlags;

/// Attempts in one file: more than a runner can begin in the time whose changes a store rollback may lose.
const RECORDS: u64 = 16_384;
/// One attempt: 16 bytes of the hash of its key, and when it began, in milliseconds.
const RECORD_BYTES: usize = 24;
/// Size of the header, which holds the total number of begun attempts.
const HEADER_BYTES: usize = 8;
/// Age from which on a directory's modification time is reliable: a later change will have another time.
const LISTING_AGE: Duration = Duration::from_secs(1);
/// How long an attempt is remembered: an operator may run an attempt again under its name, once it is forgotten everywhere.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// The attempts that began on this machine. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct AttemptStartLog(Arc<Mutex<AttemptJournals>>);

#[derive(Debug)]
struct AttemptJournals {
    /// Parent of the directories of all runners of this machine.
    instances: PathBuf,
    own: File,
    /// Number of attempts ever written to the own file.
    written: u64,
    /// Modification time of `instances` when it was last listed; nothing when it must be listed again.
    listed: Option<SystemTime>,
    /// The files of all runners, by their directories.
    journals: HashMap<OsString, AttemptJournal>,
    /// When each attempt began.
    known: HashMap<u128, Timestamp>,
}

/// The file of one runner.
#[derive(Debug)]
struct AttemptJournal {
    file: File,
    /// Number of records that were read.
    read: u64,
}

impl AttemptStartLog {
    /// Opens the file of the runner that has this directory, and reads those of all runners. Blocks while it works.
    ///
    /// # Errors
    /// When a file cannot be read, or the own one cannot be written.
    pub(crate) fn open(root: &Path, own_dir: &Path) -> io::Result<Self> {
        let path = begun_path(own_dir);
        let own =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
        // Reserves room for all records where possible, so that a full disk does not prevent attempts from being recorded.
        let bytes = HEADER_BYTES as u64 + RECORDS * RECORD_BYTES as u64;
        rustix::fs::fallocate(&own, FallocateFlags::empty(), 0, bytes).ok();
        let written = count(&own)?;
        let (instances, listed) = (instances_dir(root), None);
        let (journals, known) = (HashMap::new(), HashMap::new());
        let mut journals = AttemptJournals { instances, own, written, listed, journals, known };
        journals.refresh()?;
        Ok(Self(Arc::new(Mutex::new(journals))))
    }

    /// Notes that an attempt begins now. Returns true if it is the first time on this machine. Blocks.
    ///
    /// # Errors
    /// When a file cannot be read or written: then it is unknown whether the attempt has begun before.
    pub(crate) fn begin(&self, key: JobKey, now: Timestamp) -> io::Result<bool> {
        let mut journals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        journals.refresh()?;
        let name = name_of(key);
        if journals.known.get(&name).is_some_and(|began| now.since(*began) < KEEP) {
            return Ok(false);
        }
        journals.write(name, now)?;
        Ok(true)
    }
}

impl AttemptJournals {
    /// Reads the attempts that all runners have begun since the last call. Files are kept open: while no runner has come or
    /// gone, this takes one read of each.
    fn refresh(&mut self) -> io::Result<()> {
        let most = 2 * usize::try_from(RECORDS).unwrap_or(usize::MAX) * (self.journals.len() + 1);
        if self.known.len() > most {
            // Forgets attempts that have left the rings.
            self.known.clear();
            self.journals.values_mut().for_each(|journal| journal.read = 0);
        }
        let changed = fs::metadata(&self.instances)?.modified()?;
        if self.listed != Some(changed) {
            // Timestamps of file systems are coarse: another runner may come within the same tick.
            let is_over = changed.elapsed().is_ok_and(|age| age > LISTING_AGE);
            self.listed = (self.list()? && is_over).then_some(changed);
        }
        for AttemptJournal { file, read } in self.journals.values_mut() {
            let written = count(file)?;
            // A file with fewer records than before was created anew.
            let from = if *read > written { 0 } else { *read };
            for number in from.max(written.saturating_sub(RECORDS))..written {
                let (attempt, began) = record(file, number)?;
                self.known.insert(attempt, began);
            }
            *read = written;
        }
        Ok(())
    }

    /// Opens the files of all present runners. Returns true if each of them has one.
    fn list(&mut self) -> io::Result<bool> {
        let (mut journals, mut all) = (HashMap::new(), true);
        for instance in fs::read_dir(&self.instances)? {
            let instance = instance?;
            match File::open(begun_path(&instance.path())) {
                Ok(file) => drop(journals.insert(instance.file_name(), AttemptJournal { file, read: 0 })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => all = false,
                Err(error) => return Err(error),
            }
        }
        self.journals = journals;
        Ok(all)
    }

    /// Writes an attempt: the record before the count, so that every counted record is there.
    fn write(&mut self, name: u128, now: Timestamp) -> io::Result<()> {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&name.to_le_bytes());
        bytes[16..].copy_from_slice(&now.as_millis().to_le_bytes());
        self.own.write_all_at(&bytes, place_of(self.written))?;
        self.own.write_all_at(&(self.written + 1).to_le_bytes(), 0)?;
        self.written += 1;
        self.known.insert(name, now);
        Ok(())
    }
}

fn name_of(key: JobKey) -> u128 {
    let hash = BlobHash::of(key.to_string().as_bytes()).to_string();
    u128::from_str_radix(&hash[..32], 16).expect("a hash has more than 32 hex digits")
}

fn place_of(number: u64) -> u64 {
    HEADER_BYTES as u64 + number % RECORDS * RECORD_BYTES as u64
}

/// Returns the number of attempts ever written to a file; 0 for one that was just made.
fn count(file: &File) -> io::Result<u64> {
    let mut bytes = [0; HEADER_BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        read => read.map(|()| u64::from_le_bytes(bytes)),
    }
}

fn record(file: &File, number: u64) -> io::Result<(u128, Timestamp)> {
    let (mut name, mut millis) = ([0; 16], [0; 8]);
    file.read_exact_at(&mut name, place_of(number))?;
    file.read_exact_at(&mut millis, place_of(number) + 16)?;
    Ok((u128::from_le_bytes(name), Timestamp::from_millis(u64::from_le_bytes(millis))))
}

#[cfg(test)]
mod tests {
    use model::id::Uid;
    use model::{Attempt, ContextUid, FlowUid, JobId};

    use super::*;

    fn key(job: u64) -> JobKey {
        let (context, flow) = (ContextUid(Uid::from_bits(1)), FlowUid(Uid::from_bits(2)));
        JobKey { context, flow, job: JobId(u32::try_from(job).expect("small")), attempt: Attempt(1) }
    }

    fn open(root: &Path, instance: &str) -> AttemptStartLog {
        let own = instances_dir(root).join(instance);
        fs::create_dir_all(&own).expect("a directory");
        AttemptStartLog::open(root, &own).expect("a file")
    }

    const NOW: Timestamp = Timestamp::from_millis(1_763_690_000_000);

    #[test]
    fn an_attempt_begins_once_on_a_machine_and_the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = open(dir.path(), "default-1");
        let other = open(dir.path(), "default-2");
        assert!(first.begin(key(0), NOW).expect("written") && other.begin(key(1), NOW).expect("written"));
        for runner in [&first, &other] {
            assert!(!runner.begin(key(0), NOW).expect("read") && !runner.begin(key(1), NOW).expect("read"));
        }
        // A restarted runner, and a new one.
        drop(first);
        for runner in [open(dir.path(), "default-1"), open(dir.path(), "other-1")] {
            assert!(!runner.begin(key(0), NOW).expect("read") && !runner.begin(key(1), NOW).expect("read"));
        }
        let first = open(dir.path(), "default-1");
        for job in 2..RECORDS + 2 {
            assert!(first.begin(key(job), NOW).expect("written"), "{job}");
        }
        let again = open(dir.path(), "default-3");
        assert!(!again.begin(key(2), NOW).expect("read") && !again.begin(key(1), NOW).expect("read"));
        assert!(again.begin(key(0), NOW).expect("written"), "its place was given to another");
        assert!(other.begin(key(1), NOW + KEEP).expect("written"), "it is too long ago");
    }
}
