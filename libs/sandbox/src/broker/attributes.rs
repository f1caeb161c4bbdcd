//! Modes, owners, times and extended attributes of files, which Landlock does not keep: only of files in a script's own places.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::caller::SyscallCaller;
use super::checked;
use super::notification::PendingSyscall;

/// Newer than the C library's list for some processors.
const FCHMODAT2: libc::c_long = 452;
/// The largest value that an attribute may have, as the kernel has it.
const VALUE_BYTES_MAX: u64 = 64 * 1024;

const CALLS: &[libc::c_long] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[libc::c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[libc::c_long] = &[];

/// Every call that changes what a file is.
pub(super) fn calls() -> impl Iterator<Item = &'static libc::c_long> {
    CALLS.iter().chain(OLD_CALLS)
}

/// A change to a file that lies where the script may change files.
pub(super) struct AttributeChange {
    /// The path of our own descriptor of it.
    path: CString,
    /// Kept open for the path.
    file: OwnedFd,
    how: AttributeOperation,
}

enum AttributeOperation {
    Mode(u32),
    Owner(u32, u32),
    /// Access and modification; now when absent.
    Times(Option<[libc::timespec; 2]>),
    Set {
        name: CString,
        value: Vec<u8>,
        flags: i32,
    },
    Remove {
        name: CString,
    },
}

impl AttributeChange {
    /// Does it.
    pub(super) fn execute(&self) -> Result<i64, Errno> {
        let (path, file) = (self.path.as_ptr(), self.file.as_raw_fd());
        // SAFETY: all texts end with a zero byte, and everything outlives the calls, which change nothing of it.
        checked(unsafe {
            match &self.how {
                AttributeOperation::Mode(mode) => libc::chmod(path, *mode),
                AttributeOperation::Owner(user, group) => {
                    libc::fchownat(file, c"".as_ptr(), *user, *group, libc::AT_EMPTY_PATH)
                }
                AttributeOperation::Times(times) => {
                    let times = times.as_ref().map_or(std::ptr::null(), |times| times.as_ptr());
                    match libc::utimensat(file, c"".as_ptr(), times, libc::AT_EMPTY_PATH) {
                        // Before Linux 5.8; of a link it would be the times of what that leads to.
                        -1 if Errno::from_io_error(&std::io::Error::last_os_error())
                            == Some(Errno::INVAL) =>
                        {
                            libc::utimensat(libc::AT_FDCWD, path, times, 0)
                        }
                        done => done,
                    }
                }
                AttributeOperation::Set { name, value, flags } => {
                    libc::setxattr(path, name.as_ptr(), value.as_ptr().cast(), value.len(), *flags)
                }
                AttributeOperation::Remove { name } => libc::removexattr(path, name.as_ptr()),
            }
        })
    }
}

/// File that a call refers to.
enum AttributeTarget {
    Path { base: i32, path: u64, follow: bool, may_be_empty: bool },
    Descriptor(i32),
}

/// Understands a call, and refuses it when its file does not lie in one of the places.
pub(super) fn change(
    caller: &SyscallCaller<'_>,
    call: &PendingSyscall,
    places: &[PathBuf],
) -> Result<AttributeChange, Errno> {
    let (target, how) = understand(caller, call)?;
    let file = match target {
        AttributeTarget::Descriptor(number) => {
            let file = caller.descriptor(number)?;
            if rustix::fs::fcntl_getfl(&file)?.contains(OFlags::PATH) {
                return Err(Errno::BADF);
            }
            file
        }
        AttributeTarget::Path { base, path, follow, may_be_empty } => {
            open(caller, base, &caller.text(path)?, follow, may_be_empty)?
        }
    };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // The kernel's name of the opened file, whatever its path was and has become.
    let place = rustix::fs::readlink(&path, Vec::new())?;
    let place = Path::new(std::ffi::OsStr::from_bytes(place.as_bytes()));
    if !places.iter().any(|own| place.starts_with(own)) {
        return Err(Errno::PERM);
    }
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    Ok(AttributeChange { path, file, how })
}

/// Opens what a path of the caller means, without reading it.
fn open(
    caller: &SyscallCaller<'_>,
    base: i32,
    path: &[u8],
    follow: bool,
    may_be_empty: bool,
) -> Result<OwnedFd, Errno> {
    let directory = || {
        if base == libc::AT_FDCWD { caller.directory() } else { caller.descriptor(base) }
    };
    if path.is_empty() {
        return if may_be_empty { directory() } else { Err(Errno::NOENT) };
    }
    let path = as_the_caller(caller.thread(), path);
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, !follow);
    if path.is_absolute() {
        return rustix::fs::open(&path, flags, Mode::empty());
    }
    rustix::fs::openat(directory()?, &path, flags, Mode::empty())
}

/// Rewrites names in a path that mean another process when this one uses them. A path that comes to such a name through a link of the
/// script's own leads to files of this process, none of which lies in the script's places, unless it is the same.
fn as_the_caller(thread: u32, path: &[u8]) -> PathBuf {
    let of = |rest: &[u8], below: &str| {
        let mut whole = format!("/proc/{thread}/{below}").into_bytes();
        whole.extend_from_slice(rest);
        whole
    };
    let bytes = if let Some(rest) = path.strip_prefix(b"/proc/self/") {
        of(rest, "")
    } else if let Some(rest) = path.strip_prefix(b"/proc/thread-self/") {
        of(rest, "")
    } else if let Some(rest) = path.strip_prefix(b"/dev/fd/") {
        of(rest, "fd/")
    } else {
        path.to_vec()
    };
    PathBuf::from(OsString::from_vec(bytes))
}

fn understand(
    caller: &SyscallCaller<'_>,
    call: &PendingSyscall,
) -> Result<(AttributeTarget, AttributeOperation), Errno> {
    let arg = |at: usize| call.args[at];
    let plain = |at: usize, follow| AttributeTarget::Path {
        base: libc::AT_FDCWD,
        path: call.args[at],
        follow,
        may_be_empty: false,
    };
    let at =
        |follow| AttributeTarget::Path { base: call.int(0), path: call.args[1], follow, may_be_empty: false };
    let flagged = |flags: i32| {
        if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return Err(Errno::INVAL);
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let may_be_empty = flags & libc::AT_EMPTY_PATH != 0;
        Ok(AttributeTarget::Path { base: call.int(0), path: call.args[1], follow, may_be_empty })
    };
    let descriptor = || AttributeTarget::Descriptor(call.int(0));
    let mode = |at: usize| AttributeOperation::Mode(call.int(at).cast_unsigned() & 0o7777);
    let owner =
        |at: usize| AttributeOperation::Owner(call.int(at).cast_unsigned(), call.int(at + 1).cast_unsigned());
    let set = || {
        let (length, flags) = (arg(3), call.int(4));
        if length > VALUE_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        let value = caller.bytes(arg(2), usize::try_from(length).map_err(|_| Errno::TOOBIG)?)?;
        Ok(AttributeOperation::Set { name: name(caller, arg(1))?, value, flags })
    };
    let remove = || Ok::<_, Errno>(AttributeOperation::Remove { name: name(caller, arg(1))? });
    Ok(match call.number {
        libc::SYS_fchmod => (descriptor(), mode(1)),
        libc::SYS_fchmodat => (at(true), mode(2)),
        FCHMODAT2 => (flagged(call.int(3))?, mode(2)),
        libc::SYS_fchown => (descriptor(), owner(1)),
        libc::SYS_fchownat => (flagged(call.int(4))?, owner(2)),
        libc::SYS_utimensat => {
            let times = AttributeOperation::Times(timespecs(caller, arg(2))?);
            // Without a path it is about the descriptor itself.
            if arg(1) == 0 { (descriptor(), times) } else { (flagged(call.int(3))?, times) }
        }
        libc::SYS_setxattr => (plain(0, true), set()?),
        libc::SYS_lsetxattr => (plain(0, false), set()?),
        libc::SYS_fsetxattr => (descriptor(), set()?),
        libc::SYS_removexattr => (plain(0, true), remove()?),
        libc::SYS_lremovexattr => (plain(0, false), remove()?),
        libc::SYS_fremovexattr => (descriptor(), remove()?),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => (plain(0, true), mode(1)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chown => (plain(0, true), owner(1)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lchown => (plain(0, false), owner(1)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utime => (plain(0, true), AttributeOperation::Times(seconds(caller, arg(1))?)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utimes => (plain(0, true), AttributeOperation::Times(timevals(caller, arg(1))?)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_futimesat => {
            let times = AttributeOperation::Times(timevals(caller, arg(2))?);
            if arg(1) == 0 { (descriptor(), times) } else { (at(true), times) }
        }
        _ => return Err(Errno::NOSYS),
    })
}

/// The name of an attribute.
fn name(caller: &SyscallCaller<'_>, address: u64) -> Result<CString, Errno> {
    CString::new(caller.text(address)?).map_err(|_| Errno::INVAL)
}

/// Numbers of 64 bits, as times are made of; none at no address.
fn numbers<const COUNT: usize>(
    caller: &SyscallCaller<'_>,
    address: u64,
) -> Result<Option<[i64; COUNT]>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    let bytes = caller.bytes(address, COUNT * 8)?;
    let mut numbers = [0; COUNT];
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = i64::from_ne_bytes(bytes.try_into().map_err(|_| Errno::FAULT)?);
    }
    Ok(Some(numbers))
}

const fn time(tv_sec: i64, tv_nsec: i64) -> libc::timespec {
    libc::timespec { tv_sec, tv_nsec }
}

fn timespecs(caller: &SyscallCaller<'_>, address: u64) -> Result<Option<[libc::timespec; 2]>, Errno> {
    Ok(numbers(caller, address)?
        .map(|[accessed, part, modified, other]| [time(accessed, part), time(modified, other)]))
}

#[cfg(target_arch = "x86_64")]
fn timevals(caller: &SyscallCaller<'_>, address: u64) -> Result<Option<[libc::timespec; 2]>, Errno> {
    let Some([accessed, part, modified, other]) = numbers(caller, address)? else { return Ok(None) };
    let micros =
        |micros: i64| if (0..1_000_000).contains(&micros) { Ok(micros * 1000) } else { Err(Errno::INVAL) };
    Ok(Some([time(accessed, micros(part)?), time(modified, micros(other)?)]))
}

#[cfg(target_arch = "x86_64")]
fn seconds(caller: &SyscallCaller<'_>, address: u64) -> Result<Option<[libc::timespec; 2]>, Errno> {
    Ok(numbers(caller, address)?.map(|[accessed, modified]| [time(accessed, 0), time(modified, 0)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_means_its_own_process_means_the_callers() {
        let read = |path: &str| as_the_caller(7, path.as_bytes()).display().to_string();
        assert_eq!(read("/proc/self/fd/3"), "/proc/7/fd/3");
        assert_eq!(read("/proc/thread-self/fd/3"), "/proc/7/fd/3");
        assert_eq!(read("/dev/fd/3"), "/proc/7/fd/3");
        assert_eq!(read("proc/self/fd/3"), "proc/self/fd/3");
    }
}
