//! Other processes of this machine, as `/proc` tells of them. Linux only.

use std::fs;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// One process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Its number.
    pub pid: u32,
    /// Its session.
    pub session: u32,
    /// When it started, in clock ticks since boot: tells it from a later one with its number.
    pub start_ticks: u64,
}

/// Looks at a process. One that has ended and was not waited for does not count.
///
/// # Errors
/// When there is none with this number.
pub fn observe(pid: u32) -> io::Result<Observed> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat cannot be read"));
    // The name, in parentheses, may contain anything; behind it come the fields from the third on.
    let (_, rest) = stat.rsplit_once(')').ok_or_else(malformed)?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    let (Some(state), Some(session), Some(start)) = (fields.first(), fields.get(3), fields.get(19)) else {
        return Err(malformed());
    };
    if matches!(*state, "Z" | "X" | "x") {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Observed {
        pid,
        session: session.parse().map_err(|_| malformed())?,
        start_ticks: start.parse().map_err(|_| malformed())?,
    })
}

/// Every process that can be seen.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn all() -> io::Result<Vec<Observed>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        // One that ended meanwhile is no concern of anybody.
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Ok(observed) = observe(pid)
        {
            processes.push(observed);
        }
    }
    Ok(processes)
}

/// Whether the environment a process was started with has an entry that begins with `prefix`.
#[must_use]
pub fn environ_has(pid: u32, prefix: &[u8]) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(prefix)))
}

/// Kills exactly this process, not a later one with its number. Gives whether it was there.
#[must_use]
pub fn kill(observed: Observed) -> bool {
    let Some(pid) = i32::try_from(observed.pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // The handle was opened by number; what it refers to is what was observed only if the start agrees.
    observe(observed.pid).is_ok_and(|now| now == observed) && pidfd_send_signal(&handle, Signal::KILL).is_ok()
}

/// Tells one start of the machine from another.
///
/// # Errors
/// When the kernel does not tell.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The machine's name.
#[must_use]
pub fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// Kills everything that `is_ours` recognises until nothing is left, and gives what it was. A process
/// that forks while it is looked for is found by the next look. Blocks for some milliseconds.
///
/// # Errors
/// When `/proc` cannot be read, or something does not end although it was killed.
pub fn kill_all(is_ours: impl Fn(&Observed) -> bool) -> io::Result<Vec<Observed>> {
    /// Nothing that is killed needs longer than this to be gone, unless the kernel holds it.
    const LOOKS_MAX: u32 = 500;
    let own = std::process::id();
    let mut killed: Vec<Observed> = Vec::new();
    for _ in 0..LOOKS_MAX {
        let ours: Vec<_> =
            all()?.into_iter().filter(|process| process.pid != own && is_ours(process)).collect();
        if ours.is_empty() {
            return Ok(killed);
        }
        for process in ours {
            if kill(process) && !killed.contains(&process) {
                killed.push(process);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "some processes do not end although they were killed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let own = observe(std::process::id()).expect("this process");
        assert!(own.start_ticks > 0);
        assert!(all().expect("a list").contains(&own));
        assert!(!environ_has(own.pid, b"MYCORA_RESULT=/nowhere/"));
        let other = Observed { start_ticks: own.start_ticks + 1, ..own };
        assert!(!kill(other), "another process with this number is not hit");
    }
}
