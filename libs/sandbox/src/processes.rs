//! Other processes of this machine, read from `/proc`. Linux only.

use std::fs;
use std::io;
use std::time::Duration;

use model::EndedProcess;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often killed processes are looked for again, and with what pause. None takes longer to be gone, unless
/// the kernel holds it.
const LOOKS_MAX: u32 = 1000;
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// One process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent, which has to wait for the process.
    pub parent: u32,
    /// Session id.
    pub session: u32,
    /// When it started, in clock ticks since boot: distinguishes it from a later one with its number.
    pub start_ticks: u64,
}

/// Looks at a process. One that has ended and was not waited for does not count, unless threads of it go on
/// without the first.
///
/// # Errors
/// When there is none with this number.
pub fn observe(pid: u32) -> io::Result<ProcessSnapshot> {
    let stat = read_lossy(pid, "stat")?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat cannot be read"));
    // The name, in parentheses, may contain anything; behind it come the fields from the third on.
    let (_, rest) = stat.rsplit_once(')').ok_or_else(malformed)?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    let (Some(state), Some(parent), Some(session), Some(threads), Some(start)) =
        (fields.first(), fields.get(1), fields.get(3), fields.get(17), fields.get(19))
    else {
        return Err(malformed());
    };
    let only_first = matches!(*threads, "0" | "1");
    if matches!(*state, "Z" | "X" | "x") && only_first {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(ProcessSnapshot {
        pid,
        parent: parent.parse().map_err(|_| malformed())?,
        session: session.parse().map_err(|_| malformed())?,
        start_ticks: start.parse().map_err(|_| malformed())?,
    })
}

/// Every process that can be seen.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn all() -> io::Result<Vec<ProcessSnapshot>> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        // A process that ended meanwhile does not matter.
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Ok(observed) = observe(pid)
        {
            processes.push(observed);
        }
    }
    Ok(processes)
}

/// The name of a process's program, as the kernel keeps it; empty when it is gone.
#[must_use]
pub fn name(pid: u32) -> String {
    read_lossy(pid, "comm").unwrap_or_default().trim_end().to_owned()
}

/// Reads a file about a process. Its name may be no valid text.
fn read_lossy(pid: u32, file: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}"))?).into_owned())
}

/// Every process that descends from this one.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn below(ancestor: u32) -> io::Result<Vec<ProcessSnapshot>> {
    Ok(below_among(ancestor, all()?))
}

/// Returns the descendants of a process among those that were observed together.
#[must_use]
pub fn below_among(ancestor: u32, mut rest: Vec<ProcessSnapshot>) -> Vec<ProcessSnapshot> {
    let mut found: Vec<ProcessSnapshot> = Vec::new();
    loop {
        let is_below = |process: &ProcessSnapshot| {
            process.parent == ancestor || found.iter().any(|above| above.pid == process.parent)
        };
        let (new, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_below);
        if new.is_empty() {
            return found;
        }
        found.extend(new);
        rest = others;
    }
}

/// Counts the processes and threads below this process, whose own do not count.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn tasks_below(ancestor: u32) -> io::Result<u32> {
    let mut count = 0;
    let mut above = vec![ancestor];
    while let Some(process) = above.pop() {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            count += u32::from(process != ancestor);
            match fs::read_to_string(thread.path().join("children")) {
                Ok(children) => {
                    above.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()))
                }
                // Without the kernel's list of children every process of the machine has to be looked at.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !lists_children() => {
                    return slowly_below(ancestor);
                }
                Err(_) => {}
            }
        }
    }
    Ok(count)
}

fn lists_children() -> bool {
    let own = std::process::id();
    std::path::Path::new(&format!("/proc/{own}/task/{own}/children")).exists()
}

fn slowly_below(ancestor: u32) -> io::Result<u32> {
    let threads = |process: ProcessSnapshot| {
        fs::read_dir(format!("/proc/{}/task", process.pid)).map_or(0, Iterator::count)
    };
    let count: usize = below(ancestor)?.into_iter().map(threads).sum();
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The process that a process, or a thread, is a child of.
///
/// # Errors
/// When there is none with this number.
pub(crate) fn parent(pid: u32) -> io::Result<u32> {
    status_number(pid, "PPid:")
}

/// The process that a thread belongs to.
///
/// # Errors
/// When there is none with this number.
pub(crate) fn first_thread(pid: u32) -> io::Result<u32> {
    status_number(pid, "Tgid:")
}

fn status_number(pid: u32, field: &str) -> io::Result<u32> {
    let status = read_lossy(pid, "status")?;
    let number = status.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok());
    number.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/status has no {field}"))
    })
}

/// Returns true if the environment that a process was started with has an entry that begins with `prefix`.
#[must_use]
pub fn environ_has(pid: u32, prefix: &[u8]) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(prefix)))
}

/// Kills exactly this process, not a later one with its number. Gives whether it was there.
#[must_use]
pub fn kill(observed: ProcessSnapshot) -> bool {
    let Some(pid) = i32::try_from(observed.pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // The handle was opened by number: it refers to the observed process only if the start time agrees.
    observe(observed.pid).is_ok_and(|now| now == observed) && pidfd_send_signal(&handle, Signal::KILL).is_ok()
}

/// Kills what `find` gives until it gives nothing, and gives each process that was hit, once. Blocks for some
/// milliseconds when there is anything.
///
/// # Errors
/// Those of `find`; `TimedOut` when something does not end although it was killed.
pub(crate) fn end_all<T>(
    mut find: impl FnMut() -> io::Result<Option<Vec<(ProcessSnapshot, T)>>>,
) -> io::Result<Vec<(EndedProcess, T)>> {
    let mut ended: Vec<(EndedProcess, T)> = Vec::new();
    for _ in 0..LOOKS_MAX {
        let Some(found) = find()? else { return Ok(ended) };
        for (process, about) in found {
            // By its name before, since there is none afterwards.
            let name = name(process.pid);
            if kill(process) && !ended.iter().any(|(one, _)| one.pid == process.pid) {
                ended.push((EndedProcess { pid: process.pid, name }, about));
            }
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "some processes do not end although they were killed"))
}

/// Returns an id that differs with every boot of the machine.
///
/// # Errors
/// When the kernel does not provide it.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The machine's name.
#[must_use]
pub fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
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
        let other = ProcessSnapshot { start_ticks: own.start_ticks + 1, ..own };
        assert!(!kill(other), "another process with this number is not hit");
    }
}
