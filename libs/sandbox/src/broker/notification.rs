//! Notifications of system calls from the kernel, and the answers to them.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::checked;

/// A system call that waits for its answer.
pub(super) struct PendingSyscall {
    /// Id of the notification, for the answer.
    pub(super) id: u64,
    /// Thread that made the call.
    pub(super) thread: u32,
    /// Which it is.
    pub(super) number: libc::c_long,
    pub(super) args: [u64; 6],
}

impl PendingSyscall {
    /// An argument that the kernel takes as a number of 32 bits.
    #[expect(clippy::cast_possible_truncation, reason = "as the kernel takes it")]
    pub(super) const fn int(&self, at: usize) -> i32 {
        self.args[at] as i32
    }
}

/// Listener that receives the brokered calls.
pub(super) struct SeccompListener(OwnedFd);

impl AsFd for SeccompListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SeccompListener {
    pub(super) const fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Takes the next call.
    pub(super) fn receive(&self) -> Result<PendingSyscall, Errno> {
        // SAFETY: all of it may be zero, as the kernel demands.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the structure, which outlives the call.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) })?;
        let number = libc::c_long::from(call.data.nr);
        Ok(PendingSyscall { id: call.id, thread: call.pid, number, args: call.data.args })
    }

    /// Returns whether the call still waits, so that its thread is still who made it.
    pub(super) fn is_valid(&self, id: u64) -> bool {
        // SAFETY: the kernel reads one number, which outlives the call.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) };
        result == 0
    }

    /// Answers a call. If its caller does not wait any more, the answer is not needed.
    pub(super) fn answer(&self, id: u64, result: Result<i64, Errno>) {
        let (val, error) = match result {
            Ok(value) => (value, 0),
            Err(error) => (0, -error.raw_os_error()),
        };
        self.send(&libc::seccomp_notif_resp { id, val, error, flags: 0 });
    }

    /// Lets the kernel carry out the call.
    pub(super) fn proceed(&self, id: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "it is 1")]
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        self.send(&libc::seccomp_notif_resp { id, val: 0, error: 0, flags });
    }

    fn send(&self, answer: &libc::seccomp_notif_resp) {
        // SAFETY: the kernel reads the structure, which outlives the call.
        unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, std::ptr::from_ref(answer));
        }
    }
}
