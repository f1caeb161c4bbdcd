//! Directories that scripts have filled, whatever they have put there.
//!
//! No link is followed, and nothing depends on how deep something lies: neither the length of a path, nor a stack,
//! nor the number of descriptors.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::open_files::FileId;

/// Least number of bytes that a name counts as: even an empty file takes one of a limited number of names.
const NAME_BYTES: u64 = 4096;
/// Flags that open a directory.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory and everything in it, also what its owner has locked away. Nothing may change it meanwhile.
///
/// # Errors
/// `NotFound` when it is not there; that of the first thing that cannot be removed.
pub fn remove(dir: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    remove_from(File::open(above)?, &CString::new(name.as_bytes())?)
}

/// Removes the directory `name` in `above`, as [`remove`] does.
///
/// # Errors
/// As [`remove`].
pub fn remove_from(above: impl AsFd, name: &CString) -> io::Result<()> {
    let mut here = open_to_empty(&above, name)?;
    let mut below = empty(&here)?;
    // The way down to here: which directory it was, and which entries are still to be removed there.
    let mut way: Vec<(Stat, Vec<CString>)> = Vec::new();
    loop {
        if let Some(name) = below.last() {
            let next = open_to_empty(&here, name)?;
            let inside = empty(&next)?;
            way.push((rustix::fs::fstat(&here)?, std::mem::replace(&mut below, inside)));
            here = next;
        } else {
            let Some((upper, left)) = way.pop() else { break };
            here = rustix::fs::openat(&here, "..", DIRECTORY, Mode::empty())?;
            let now = rustix::fs::fstat(&here)?;
            if (now.st_dev, now.st_ino) != (upper.st_dev, upper.st_ino) {
                return Err(io::Error::other("it was moved while it was removed"));
            }
            below = left;
            if let Some(emptied) = below.pop() {
                rustix::fs::unlinkat(&here, &emptied, AtFlags::REMOVEDIR)?;
            }
        }
    }
    Ok(rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR)?)
}

/// Opens a directory so that it can be emptied, also when its owner has locked it.
fn open_to_empty(above: impl AsFd, name: &CString) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(above, name, flags, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // By its descriptor, which cannot be a link.
        rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
    }
    Ok(rustix::fs::openat(&place, ".", DIRECTORY, Mode::empty())?)
}

/// Removes everything but directories that hold something, which it gives.
fn empty(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut full = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::unlinkat(dir, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => full.push(name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(full)
}

/// Returns the size of a directory in bytes as they are stored, while others may change it. Stops counting beyond
/// `bytes_max`. A part that cannot be read, since it is locked or lies deeper than a path reaches, counts as more than
/// that, so that nothing can be hidden there.
#[must_use]
pub fn size(dir: &Path, bytes_max: u64) -> u64 {
    size_with(dir, bytes_max, |_| ())
}

/// Measures a directory as [`size`] does, and passes the id of each file that it finds to `note`.
#[must_use]
pub fn size_with(dir: &Path, bytes_max: u64, mut note: impl FnMut(FileId)) -> u64 {
    let Ok(root) = rustix::fs::open(dir, DIRECTORY, Mode::empty()) else { return 0 };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut waiting = vec![b".".to_vec()];
    let mut bytes = 0_u64;
    while let Some(path) = waiting.pop() {
        let opened = rustix::fs::openat2(&root, path.as_slice(), DIRECTORY, Mode::empty(), resolve);
        let entries = opened.and_then(|opened| Dir::read_from(&opened).map(|entries| (opened, entries)));
        let (opened, entries) = match entries {
            Ok(both) => both,
            Err(Errno::NAMETOOLONG | Errno::ACCESS) => return u64::MAX,
            // What vanishes while it is looked at holds nothing.
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            note((stat.st_dev, stat.st_ino));
            let kept = u64::try_from(stat.st_blocks).unwrap_or_default() * 512;
            bytes = bytes.saturating_add(kept.max(NAME_BYTES));
            if bytes > bytes_max {
                return bytes;
            }
            if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
                waiting.push([&path, b"/".as_slice(), name.to_bytes()].concat());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Directories in directories, each in `name`, with a file in the last.
    fn deep(dir: &Path, name: &CString, depth: usize) {
        let mut here = File::open(dir).map(OwnedFd::from).expect("a directory");
        for _ in 0..depth {
            rustix::fs::mkdirat(&here, name, Mode::RWXU).expect("a directory");
            here = rustix::fs::openat(&here, name, DIRECTORY, Mode::empty()).expect("a directory");
        }
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let file = rustix::fs::openat(&here, "file", flags, Mode::RUSR | Mode::WUSR).expect("a file");
        rustix::io::write(&file, &[1; 100_000]).expect("written");
    }

    #[test]
    fn everything_is_removed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dir = root.path().join("job");
        fs::create_dir_all(dir.join("a/b/c")).expect("directories");
        fs::create_dir_all(dir.join("a/d/e")).expect("directories");
        fs::write(dir.join("a/d/file"), "text").expect("a file");
        let outside = root.path().join("outside");
        fs::create_dir(&outside).expect("a directory");
        fs::write(outside.join("file"), "text").expect("a file");
        std::os::unix::fs::symlink(&outside, dir.join("a/link")).expect("a link");
        for locked in ["a/b/c", "a/d", "a"] {
            fs::set_permissions(dir.join(locked), fs::Permissions::from_mode(0o0)).expect("its owner may");
        }
        remove(&dir).expect("removed");
        assert!(!dir.exists() && outside.join("file").exists());
        assert!(remove(&dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        std::os::unix::fs::symlink(&outside, &dir).expect("a link");
        assert!(remove(&dir).is_err() && outside.join("file").exists());
    }

    #[test]
    fn no_depth_is_too_deep() {
        // In memory: more of them than this process may have open would take long on a disk.
        let root = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
        let dir = root.path().join("job");
        fs::create_dir(&dir).expect("a directory");
        deep(&dir, &c"d".to_owned(), 30_000);
        remove(&dir).expect("removed");
        assert!(!dir.exists());
    }

    #[test]
    fn nothing_is_hidden_from_its_size() {
        const MAX: u64 = 1 << 30;
        let root = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(size(root.path(), MAX), 0);
        for number in 0..10 {
            fs::write(root.path().join(number.to_string()), "").expect("a file");
        }
        assert_eq!(size(root.path(), MAX), 10 * NAME_BYTES);
        deep(root.path(), &c"d".to_owned(), 100);
        let held = size(root.path(), MAX);
        assert!((500_000..800_000).contains(&held), "{held}");
        assert!(size(root.path(), 10_000) > 10_000);
        // Beyond what a path can have.
        deep(root.path(), &CString::new("n".repeat(250)).expect("a name"), 20);
        assert_eq!(size(root.path(), MAX), u64::MAX);
        assert_eq!(size(&root.path().join("absent"), MAX), 0);
    }
}
