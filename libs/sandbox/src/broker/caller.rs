//! The thread that made a call: its memory and its descriptors.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::filter::duplicate;
use super::notification::{PendingSyscall, SeccompListener};

/// The longest path, with the zero byte at its end.
const PATH_BYTES_MAX: usize = 4096;
const PAGE_BYTES: u64 = 4096;

/// A thread that waits for the answer to a call. While it waits, its number is its own.
pub(super) struct SyscallCaller<'a> {
    listener: &'a SeccompListener,
    id: u64,
    thread: u32,
    memory: File,
}

impl<'a> SyscallCaller<'a> {
    pub(super) fn of(listener: &'a SeccompListener, call: &PendingSyscall) -> Result<Self, Errno> {
        let memory = format!("/proc/{}/mem", call.thread);
        // A process that may not be inspected, such as that of an unreadable program, gets nothing done.
        let memory = OpenOptions::new().read(true).write(true).open(memory).map_err(|_| Errno::PERM)?;
        let caller = Self { listener, id: call.id, thread: call.thread, memory };
        caller.still_waits()?;
        Ok(caller)
    }

    /// Checked after everything that was found by the number of the thread: it might have been another's.
    fn still_waits(&self) -> Result<(), Errno> {
        if self.listener.is_valid(self.id) { Ok(()) } else { Err(Errno::SRCH) }
    }

    pub(super) const fn thread(&self) -> u32 {
        self.thread
    }

    /// Copies bytes out of its memory.
    pub(super) fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.memory.read_exact_at(bytes, address).map_err(|_| Errno::FAULT)
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.memory.write_all_at(bytes, address).map_err(|_| Errno::FAULT)
    }

    /// Copies a path, or a name, without the zero byte at its end.
    pub(super) fn text(&self, address: u64) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        while text.len() < PATH_BYTES_MAX {
            let at = address.checked_add(text.len() as u64).ok_or(Errno::FAULT)?;
            // What follows on the next page may not be there.
            let left = usize::try_from(PAGE_BYTES - at % PAGE_BYTES).unwrap_or(1);
            let piece = self.bytes(at, left.min(PATH_BYTES_MAX - text.len()))?;
            if let Some(end) = piece.iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&piece[..end]);
                return Ok(text);
            }
            text.extend(piece);
        }
        Err(Errno::NAMETOOLONG)
    }

    /// Duplicates one of its descriptors.
    pub(super) fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        if number < 0 {
            return Err(Errno::BADF);
        }
        let process = self.process()?;
        self.still_waits()?;
        duplicate(&process, number)
    }

    /// A handle of its process, or of the thread itself.
    fn process(&self) -> Result<OwnedFd, Errno> {
        /// Linux 6.9 and later: any thread, and not just the first.
        const PIDFD_THREAD: u32 = libc::O_EXCL.cast_unsigned();
        let raw = |number: u32| i32::try_from(number).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH);
        if let Ok(process) = pidfd_open(raw(self.thread)?, PidfdFlags::empty()) {
            return Ok(process);
        }
        if let Ok(thread) = pidfd_open(raw(self.thread)?, PidfdFlags::from_bits_retain(PIDFD_THREAD)) {
            return Ok(thread);
        }
        let status = std::fs::read(format!("/proc/{}/status", self.thread)).map_err(|_| Errno::SRCH)?;
        let status = String::from_utf8_lossy(&status);
        let first = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        pidfd_open(raw(first.ok_or(Errno::SRCH)?)?, PidfdFlags::empty())
    }

    /// Where its relative paths begin.
    pub(super) fn directory(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(format!("/proc/{}/cwd", self.thread), flags, Mode::empty())?;
        self.still_waits()?;
        Ok(opened)
    }
}
