//! A log file that stays bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// Size at which a log file starts over; its former content is kept once, beside it.
pub const LOG_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A file that log lines are appended to. When it is full, its content moves to the file with `.1` behind the name, and
/// the file itself is emptied: other writers that append to it, such as a panic's message on standard error, go on
/// writing to the same file. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    open: Arc<Mutex<OpenLogFile>>,
}

#[derive(Debug)]
struct OpenLogFile {
    file: File,
    /// Length of the file, as far as it is known here: others may append as well.
    bytes: u64,
}

impl LogFile {
    /// Opens a file for its owner alone, or makes it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::bounded(path, LOG_FILE_BYTES_MAX)
    }

    fn bounded(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), bytes_max, open: Arc::new(Mutex::new(OpenLogFile { file, bytes })) })
    }

    /// Another handle to the same file, to be a process's standard error.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn handle(&self) -> io::Result<File> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).file.try_clone()
    }

    /// Moves what it holds aside, where it is full.
    fn make_room(&self, open: &mut OpenLogFile) -> io::Result<()> {
        if open.bytes < self.bytes_max {
            return Ok(());
        }
        let mut aside = self.path.clone().into_os_string();
        aside.push(".1");
        // Copied with its mode. Not renamed: others have this very file open.
        std::fs::copy(&self.path, aside)?;
        open.file.set_len(0)?;
        open.bytes = 0;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_room(&mut open)?;
        let written = open.file.write(bytes)?;
        open.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_begins_anew_and_keeps_what_was_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("up.log");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        let mut log = LogFile::bounded(&path, 8).expect("it is made");
        let mut other = log.handle().expect("a handle");
        log.write_all(b"first\n").expect("written");
        log.write_all(b"second\n").expect("written");
        assert_eq!((read("up.log"), read("up.log.1")), ("first\nsecond\n".into(), String::new()));
        log.write_all(b"third\n").expect("written");
        other.write_all(b"other\n").expect("written");
        assert_eq!((read("up.log"), read("up.log.1")), ("third\nother\n".into(), "first\nsecond\n".into()));
        // What an earlier process wrote counts.
        let mut log = LogFile::bounded(&path, 8).expect("it is opened");
        log.write_all(b"fourth\n").expect("written");
        assert_eq!((read("up.log"), read("up.log.1")), ("fourth\n".into(), "third\nother\n".into()));
    }
}
