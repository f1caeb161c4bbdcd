//! Files that processes hold open on a disk without a name: files that were removed, or moved, and are still open.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// How many descriptors and mappings one look goes through. Beyond that it gives up, and says so.
const LOOKS_MAX: usize = 64 * 1024;
/// Suffix that the kernel adds to the path of a file without a name.
const REMOVED: &str = " (deleted)";
/// Prefix of the path of a file that is memory.
const MEMORY: &str = "/memfd:";

/// Which file of this machine: its device and its number there.
pub type FileId = (u64, u64);

/// Scope of a count: the files of this owner on the file system of this directory.
#[derive(Debug, Clone)]
pub struct FileScope {
    /// The directory of the job.
    pub dir: PathBuf,
    /// Owner of all files that the job makes: any other file that its processes hold is not the job's own.
    pub owner: u32,
}

/// Files that some processes hold open, each counted once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpenFiles {
    /// Bytes on the disk of files of the scope.
    pub files: HashMap<FileId, u64>,
    /// Bytes of files that are memory.
    pub memory: HashMap<FileId, u64>,
    /// Something cannot be inspected: a process that hides, descriptors in transit, more than is looked at, or a mapping of
    /// a file of unknown size.
    pub unseen: bool,
}

impl OpenFiles {
    /// Everything together that lies on the disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.files.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns the number of all bytes that are held in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Checks that this process may inspect the open files of that user's processes.
///
/// # Errors
/// Describes the missing capability.
pub fn can_inspect(owner: u32) -> Result<(), String> {
    let is_own = rustix::process::geteuid().as_raw() == owner;
    let may = || {
        let own = rustix::thread::capabilities(None);
        own.is_ok_and(|own| own.effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE))
    };
    if is_own || may() {
        return Ok(());
    }
    Err("what scripts hold open after they have removed it cannot be seen without CAP_SYS_PTRACE".to_owned())
}

/// Looks at the files that these processes have open and mapped. Files of the scope that have a name count when they lie below
/// its directory: a walk of that takes out those it finds there, and the rest was moved about meanwhile.
#[must_use]
pub fn scan(processes: &[u32], scope: &FileScope) -> OpenFiles {
    let Ok(device) = fs::metadata(&scope.dir).map(|dir| dir.dev()) else { return OpenFiles::default() };
    let mut look = OpenFileScan { scope, device, open: OpenFiles::default(), left: LOOKS_MAX };
    // Where no process can be inspected, none hides.
    let can_hide = can_inspect(scope.owner).is_ok();
    for pid in processes {
        if let Err(error) = look.descriptors(*pid).and_then(|()| look.mappings(*pid)) {
            // What ends meanwhile holds nothing.
            let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
            look.open.unseen |= can_hide && is_refused && is_there(*pid);
        }
    }
    look.open
}

fn is_there(pid: u32) -> bool {
    crate::processes::observe(pid).is_ok()
}

struct OpenFileScan<'a> {
    scope: &'a FileScope,
    device: u64,
    open: OpenFiles,
    left: usize,
}

impl OpenFileScan<'_> {
    fn has_room(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.open.unseen |= self.left == 0;
        self.left > 0
    }

    fn descriptors(&mut self, pid: u32) -> io::Result<()> {
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            if !self.has_room() {
                return Ok(());
            }
            let link = entry?.path();
            // One that is closed meanwhile holds nothing.
            let Ok(target) = fs::read_link(&link) else { continue };
            let text = target.to_string_lossy();
            if text.starts_with("socket:") {
                self.open.unseen |= has_descriptors_on_their_way(pid, &link);
            } else if text.starts_with('/')
                && let Ok(metadata) = fs::metadata(&link)
            {
                self.note(&metadata, &target);
            }
        }
        Ok(())
    }

    fn note(&mut self, metadata: &Metadata, target: &Path) {
        let (id, bytes) = ((metadata.dev(), metadata.ino()), metadata.blocks().saturating_mul(512));
        if !metadata.is_file() {
            return;
        }
        if target.to_string_lossy().starts_with(MEMORY) {
            self.open.memory.insert(id, bytes);
        } else if metadata.dev() == self.device
            && metadata.uid() == self.scope.owner
            && (metadata.nlink() == 0 || target.starts_with(&self.scope.dir))
        {
            self.open.files.insert(id, bytes);
        }
    }

    /// Files that are mapped and have no name. A descriptor for them may be closed long ago.
    fn mappings(&mut self, pid: u32) -> io::Result<()> {
        let maps = fs::read(format!("/proc/{pid}/maps"))?;
        for line in String::from_utf8_lossy(&maps).lines().filter(|line| line.ends_with(REMOVED)) {
            let Some(mapping) = MemoryMapping::read(line) else { continue };
            if mapping.path.starts_with(MEMORY) {
                continue;
            }
            if !self.has_room() {
                return Ok(());
            }
            match fs::metadata(format!("/proc/{pid}/map_files/{}", mapping.range)) {
                Ok(metadata) => self.note(&metadata, Path::new(mapping.path)),
                // Only root sees the file itself. Others see how much of it is mapped, at least.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.guess(&mapping),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn guess(&mut self, mapping: &MemoryMapping<'_>) {
        let id = (mapping.device, mapping.inode);
        let ours = mapping.device == self.device && Path::new(mapping.path).starts_with(&self.scope.dir);
        if ours && self.open.files.get(&id).is_none_or(|known| *known < mapping.end) {
            self.open.files.insert(id, mapping.end);
            self.open.unseen = true;
        }
    }
}

/// Files that a socket has received and its process has not taken out are in no process's table.
fn has_descriptors_on_their_way(pid: u32, link: &Path) -> bool {
    let number = link.file_name().unwrap_or_default().to_string_lossy();
    let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let count = about.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.is_some_and(|count| count.trim() != "0")
}

/// A line of `/proc/<pid>/maps`.
struct MemoryMapping<'a> {
    range: &'a str,
    /// How far into the file it reaches.
    end: u64,
    device: u64,
    inode: u64,
    path: &'a str,
}

impl<'a> MemoryMapping<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut rest = line;
        let mut next = || {
            let (field, after) = rest.split_once(' ')?;
            rest = after.trim_start_matches(' ');
            Some(field)
        };
        let (range, _, offset, device, inode) = (next()?, next()?, next()?, next()?, next()?);
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (from, to) = range.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        let (major, minor) = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        Some(Self {
            range,
            end: hex(offset)?.saturating_add(hex(to)?.checked_sub(hex(from)?)?),
            device: rustix::fs::makedev(major, minor),
            inode: inode.parse().ok()?,
            path: rest.strip_suffix(REMOVED)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use super::*;

    fn place() -> (tempfile::TempDir, FileScope) {
        let dir = tempfile::tempdir().expect("a directory");
        let scope = FileScope { dir: dir.path().to_owned(), owner: rustix::process::geteuid().as_raw() };
        (dir, scope)
    }

    fn file(dir: &Path, name: &str, bytes: usize) -> File {
        let mut file =
            File::options().create_new(true).read(true).write(true).open(dir.join(name)).expect("a file");
        file.write_all(&vec![1; bytes]).and_then(|()| file.sync_all()).expect("written");
        file
    }

    fn seen(scope: &FileScope) -> OpenFiles {
        scan(&[std::process::id()], scope)
    }

    #[test]
    fn what_has_no_name_counts_once_while_it_is_held() {
        let (dir, scope) = place();
        let held = file(dir.path(), "removed", 1_000_000);
        let again = held.try_clone().expect("another descriptor");
        fs::remove_file(dir.path().join("removed")).expect("removed");
        let bytes = seen(&scope).disk_bytes();
        assert!((1_000_000..1_100_000).contains(&bytes), "{bytes}");
        drop(held);
        assert_eq!(seen(&scope).disk_bytes(), bytes, "it is open still");
        drop(again);
        assert_eq!(seen(&scope).disk_bytes(), 0);
        let elsewhere = tempfile::tempdir().expect("a directory");
        let _named = file(elsewhere.path(), "named", 1_000_000);
        assert_eq!(seen(&scope).disk_bytes(), 0, "what has a name elsewhere is none of its own");
        let _here = file(dir.path(), "here", 100_000);
        assert!(seen(&scope).disk_bytes() >= 100_000, "it may be moved while the directory is walked");
        let stranger = FileScope { owner: scope.owner + 1, ..scope };
        assert_eq!(seen(&stranger), OpenFiles { unseen: seen(&stranger).unseen, ..OpenFiles::default() });
    }

    #[test]
    fn what_is_mapped_counts_without_a_descriptor() {
        let (dir, scope) = place();
        let bytes = 1 << 20;
        let held = file(dir.path(), "mapped", bytes);
        let (read, shared, descriptor) = (libc::PROT_READ, libc::MAP_SHARED, held.as_raw_fd());
        // SAFETY: nothing else is at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read, shared, descriptor, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        drop(held);
        fs::remove_file(dir.path().join("mapped")).expect("removed");
        assert!(seen(&scope).disk_bytes() >= 1 << 20);
        // SAFETY: it is ours, and nothing reads from it.
        assert_eq!(unsafe { libc::munmap(address, bytes) }, 0);
        assert_eq!(seen(&scope).disk_bytes(), 0);
    }

    #[test]
    fn memory_files_count_as_memory_and_descriptors_in_flight_are_detected() {
        let (dir, scope) = place();
        let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        File::from(memory.try_clone().expect("another")).write_all(&[1; 50_000]).expect("written");
        let before = seen(&scope);
        assert!(before.memory_bytes() >= 50_000 && before.disk_bytes() == 0, "{before:?}");

        let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let pid = std::process::id();
        let link = |stream: &std::os::unix::net::UnixStream| {
            PathBuf::from(format!("/proc/self/fd/{}", stream.as_raw_fd()))
        };
        assert!(!has_descriptors_on_their_way(pid, &link(&other)));
        let sent = file(dir.path(), "sent", 10);
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut extra = rustix::net::SendAncillaryBuffer::new(&mut space);
        let descriptors = [sent.as_fd()];
        assert!(extra.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
        let byte = [io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&one, &byte, &mut extra, rustix::net::SendFlags::empty()).expect("sent");
        assert!(has_descriptors_on_their_way(pid, &link(&other)));
    }

    #[test]
    fn mappings_are_read_as_the_kernel_writes_them() {
        let line = "7f00-9f00 rw-s 00001000 fd:01 42                     /place/a b (deleted)";
        let mapping = MemoryMapping::read(line).expect("a mapping");
        assert_eq!((mapping.range, mapping.end, mapping.inode), ("7f00-9f00", 0x3000, 42));
        assert_eq!((mapping.device, mapping.path), (rustix::fs::makedev(0xfd, 1), "/place/a b"));
        for other in ["", "7f00 rw-s 0 fd:01 42 /a (deleted)", "9f00-7f00 rw-s 0 fd:01 42 /a (deleted)"] {
            assert!(MemoryMapping::read(other).is_none(), "{other}");
        }
    }
}
