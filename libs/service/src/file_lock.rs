//! Directories that one process has for itself.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// How often, and with what pause between, a lock is tried that another process holds.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// A file that is locked for this process alone, until this is dropped or the process ends.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks a file. Waits up to a second: a child that a killed process was just starting holds a copy
    /// of its descriptors for a moment, and a process that only checks the lock holds it for as long. Blocks.
    ///
    /// # Errors
    /// `WouldBlock` when another process keeps the lock; others when the file cannot be locked.
    pub fn take(mut file: File) -> io::Result<Self> {
        for _ in 0..LOOKS {
            match Self::try_take(file)? {
                Ok(lock) => return Ok(lock),
                Err(held) => file = held,
            }
            std::thread::sleep(PAUSE);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Locks a file that is not locked at this moment, and gives it back otherwise.
    ///
    /// # Errors
    /// When the file cannot be locked.
    pub fn try_take(file: File) -> io::Result<Result<Self, File>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(Self(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(Err(file)),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Not by closing alone: a process that is being started holds a copy of the descriptor for a moment.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
