//! A process that may outlive us, recorded so that it is found again and no
//! other is taken for it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use sandbox::processes::{boot_id, observe};

const POLL: Duration = Duration::from_millis(5);

/// A process id, when that process started, and in which boot of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessRecord {
    /// Id of the process.
    pub(crate) pid: u32,
    start_ticks: u64,
    boot: String,
}

impl ProcessRecord {
    /// Records a process that runs.
    ///
    /// # Errors
    /// When it does not run.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, start_ticks: observe(pid)?.start_ticks, boot: boot_id()? })
    }

    /// Returns true while the very same process runs.
    #[must_use]
    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == *self)
    }

    /// Asks it to end, and ends it after `patience`.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub(super) async fn end(&self, patience: Duration) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() > deadline {
                self.signal(Signal::KILL)?;
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Asks it to end, and waits until it has, for `patience` at most. The signal goes to this process, never to a later
    /// one with its number.
    ///
    /// # Errors
    /// When it cannot be signalled; `TimedOut` when it has not ended.
    pub(crate) async fn finish(&self, patience: Duration) -> io::Result<()> {
        let Some(handle) = self.open()? else { return Ok(()) };
        match pidfd_send_signal(&handle, Signal::TERM) {
            Err(Errno::SRCH) => return Ok(()),
            sent => sent?,
        }
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let wait = move || poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience));
        match tokio::task::spawn_blocking(wait).await {
            Ok(Ok(0)) => Err(io::ErrorKind::TimedOut.into()),
            Ok(Ok(_ended)) => Ok(()),
            Ok(Err(errno)) => Err(errno.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// A handle to the very same process; none when it has ended.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => Ok(None),
            // Opened by its number: it is the one that was recorded only if that still runs.
            handle => Ok(Some(handle?).filter(|_| self.is_alive())),
        }
    }

    /// Has it read its configuration again, as servers do on SIGHUP. Does nothing when it has ended.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub(super) fn reload(&self) -> io::Result<()> {
        if self.is_alive() { self.signal(Signal::HUP) } else { Ok(()) }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        match kill_process(pid, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl fmt::Display for ProcessRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid, self.start_ticks, self.boot)
    }
}

impl FromStr for ProcessRecord {
    type Err = io::Error;
    fn from_str(text: &str) -> io::Result<Self> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let mut parts = text.split(' ');
        let mut part = || parts.next().ok_or_else(bad);
        Ok(Self {
            pid: part()?.parse().map_err(|_| bad())?,
            start_ticks: part()?.parse().map_err(|_| bad())?,
            boot: part()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_found_again_and_ended() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep starts");
        let record = ProcessRecord::of(child.id()).expect("it runs");
        let again: ProcessRecord = record.to_string().parse().expect("its own text");
        assert_eq!(again, record);
        assert!(again.is_alive());
        let other = ProcessRecord { start_ticks: record.start_ticks + 1, ..record.clone() };
        assert!(!other.is_alive(), "another process of the same id");
        again.end(Duration::from_secs(10)).await.expect("it may be signalled");
        child.wait().expect("it ended");
        assert!(!record.is_alive());
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn only_the_recorded_process_is_terminated() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep starts");
        let record = ProcessRecord::of(child.id()).expect("it runs");
        let other = ProcessRecord { start_ticks: record.start_ticks + 1, ..record.clone() };
        other.finish(PATIENCE).await.expect("it is gone, which is what was asked for");
        assert!(record.is_alive(), "another process has the number");
        record.finish(PATIENCE).await.expect("it may be signalled");
        assert!(!record.is_alive());
        child.wait().expect("it ended");
    }
}
