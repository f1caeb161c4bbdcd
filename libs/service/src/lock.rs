//! Directories that one process has for itself.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// How often, and with what pause between, a lock is tried that somebody holds.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Locks a file for this process alone, until it is closed or the process ends. Waits up to a second: whoever
/// was just being started by a process that was killed holds a copy of its descriptors for a moment, and whoever only looks
/// holds the lock for as long. Blocks.
///
/// # Errors
/// `WouldBlock` when somebody holds it and keeps it; others when the file gives trouble.
pub fn lock_alone(file: &File) -> io::Result<()> {
    for _ in 0..LOOKS {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            other => return Ok(other?),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}
