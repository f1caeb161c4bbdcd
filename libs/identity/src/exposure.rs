//! Checks whether others on this machine can read a secret file, or change a file that is relied upon.
//!
//! The way to a file counts as much as the file: with write access to a directory on it, another file can be put
//! into its place. Symbolic links are followed one by one, as the kernel does, so that the directories in which the
//! links themselves lie are checked as well. A secret volume of Kubernetes (a sticky directory of root, links
//! through `..data`, files with mode 0440) passes.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// Number of symbolic links that the kernel follows on one way.
const LINKS_MAX: usize = 40;
const READABLE_BY_ALL: u32 = 0o004;
const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;
const ACCOUNTS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// Access that others have to a file and should not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileExposure {
    /// A secret can be read by every user.
    #[error(
        "{} can be read by every user of this machine (mode {mode:04o}): run `chmod o= {}`",
        path.display(), path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// A file can be changed by other users.
    #[error(
        "{} can be changed by other users of this machine (mode {mode:04o}): run `chmod go-w {}`, after checking \
         what it says",
        path.display(), path.display()
    )]
    Writable {
        /// The file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// A directory on the way to a file can be changed by other users.
    #[error(
        "{} cannot be relied upon: other users of this machine may put another one into its place, since they can \
         write the directory {} (mode {mode:04o}): run `chmod go-w {}`, after checking what is in it",
        path.display(), dir.display(), dir.display()
    )]
    Directory {
        /// The file.
        path: PathBuf,
        /// The directory.
        dir: PathBuf,
        /// Permission bits of the directory.
        mode: u32,
    },
    /// An entry of a directory that everybody writes to (such as `/tmp`) belongs to another user.
    #[error(
        "{} cannot be relied upon: {} lies in a directory that every user of this machine writes to, and belongs \
         to user {owner}: move it, or run `chown {own} {}`, after checking what it says",
        path.display(), entry.display(), entry.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The entry of the shared directory.
        entry: PathBuf,
        /// Owner of the entry.
        owner: u32,
        /// The user of this process.
        own: u32,
    },
}

/// Checks that a secret is closed to other users, and that they cannot change it. Read access of its group is
/// allowed, because an operator who gives it means it (`root:ssl-cert` 0640, volumes of Kubernetes). A file that
/// cannot be found or reached passes: opening it says why.
///
/// # Errors
/// [`FileExposure`].
pub fn check_secret(path: &Path) -> Result<(), FileExposure> {
    let Some((found, about)) = walk(path)? else { return Ok(()) };
    let mode = about.mode() & 0o7777;
    if about.is_file() && mode & READABLE_BY_ALL != 0 {
        return Err(FileExposure::Readable { path: found, mode });
    }
    check_writers(found, &about)
}

/// Checks that other users cannot change a file or a directory. What cannot be found or reached passes: opening it
/// says why.
///
/// # Errors
/// [`FileExposure`].
pub fn check_trusted(path: &Path) -> Result<(), FileExposure> {
    walk(path)?.map_or(Ok(()), |(found, about)| check_writers(found, &about))
}

fn check_writers(path: PathBuf, about: &Metadata) -> Result<(), FileExposure> {
    let counts = about.is_file() || about.is_dir();
    if counts && others_may_write(about) {
        return Err(FileExposure::Writable { path, mode: about.mode() & 0o7777 });
    }
    Ok(())
}

/// Goes the way to a file, checks each directory on it, and gives where the way ends.
fn walk(path: &Path) -> Result<Option<(PathBuf, Metadata)>, FileExposure> {
    let Ok(absolute) = std::path::absolute(path) else { return Ok(None) };
    let mut at = PathBuf::from("/");
    let mut rest = steps(&absolute);
    let mut links = 0;
    let mut end = None;
    while let Some(step) = rest.pop() {
        if step == ".." {
            at.pop();
            continue;
        }
        let entry = at.join(&step);
        let (Ok(dir), Ok(about)) = (fs::metadata(&at), fs::symlink_metadata(&entry)) else { return Ok(None) };
        check_step(path, &at, &dir, &entry, &about)?;
        if about.is_symlink() {
            links += 1;
            let Ok(target) = fs::read_link(&entry) else { return Ok(None) };
            if links > LINKS_MAX {
                return Ok(None);
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            rest.extend(steps(&target));
        } else {
            end = Some(about);
            at = entry;
        }
    }
    Ok(end.map(|about| (at, about)))
}

/// Parts of a path, the last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let named =
        path.components().rev().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| part.as_os_str().to_owned()).collect()
}

/// Checks one directory on the way, and the entry of it by which the way goes on.
fn check_step(
    path: &Path,
    at: &Path,
    dir: &Metadata,
    entry: &Path,
    about: &Metadata,
) -> Result<(), FileExposure> {
    if !others_may_write(dir) {
        return Ok(());
    }
    if dir.mode() & STICKY == 0 {
        let (dir, mode) = (at.to_owned(), dir.mode() & 0o7777);
        return Err(FileExposure::Directory { path: path.to_owned(), dir, mode });
    }
    let (owner, own) = (about.uid(), own_user());
    if owner != 0 && owner != own {
        return Err(FileExposure::Foreign { path: path.to_owned(), entry: entry.to_owned(), owner, own });
    }
    Ok(())
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn others_may_write(about: &Metadata) -> bool {
    let mode = about.mode();
    mode & WRITABLE_BY_ALL != 0 || mode & WRITABLE_BY_GROUP != 0 && !is_ours_alone(about.gid())
}

/// Returns true when this machine knows no other member of a group than root and the user of this process. Many systems give
/// each user such a group, and a umask that lets it write; a volume of Kubernetes has one that no account is in.
fn is_ours_alone(group: u32) -> bool {
    let accounts = fs::read_to_string(ACCOUNTS).unwrap_or_default();
    let groups = fs::read_to_string(GROUPS).unwrap_or_default();
    has_no_other_member(&accounts, &groups, group, own_user())
}

/// Returns the result of [`is_ours_alone`] for these texts of `passwd(5)` and `group(5)`.
fn has_no_other_member(accounts: &str, groups: &str, group: u32, own: u32) -> bool {
    let group = group.to_string();
    let mut ours = HashSet::new();
    for account in accounts.lines() {
        let mut fields = account.split(':');
        let (Some(name), Some(user), Some(primary)) = (fields.next(), fields.nth(1), fields.next()) else {
            continue;
        };
        if user == "0" || user == own.to_string() {
            ours.insert(name);
        } else if primary == group {
            return false;
        }
    }
    let of_it = groups.lines().filter(|line| line.split(':').nth(2) == Some(group.as_str()));
    let mut members = of_it.flat_map(|line| line.split(':').nth(3).unwrap_or_default().split(','));
    members.all(|member| member.trim().is_empty() || ours.contains(member.trim()))
}

/// Turns an exposed file into an error of reading it, for those who know no other.
impl From<FileExposure> for io::Error {
    fn from(exposed: FileExposure) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, exposed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    fn file(path: &Path, mode: u32) -> PathBuf {
        fs::write(path, "text").expect("written");
        set(path, mode);
        path.to_owned()
    }

    #[test]
    fn a_secret_is_closed_and_a_trusted_file_is_unchanged() {
        let dir = tempfile::tempdir().expect("a directory");
        for (mode, secret, trusted) in [
            (0o600, true, true),
            (0o440, true, true),
            (0o640, true, true),
            (0o644, false, true),
            (0o604, false, true),
            (0o602, false, false),
            (0o666, false, false),
        ] {
            let path = file(&dir.path().join("file"), mode);
            assert_eq!(check_secret(&path).is_ok(), secret, "{mode:o}");
            assert_eq!(check_trusted(&path).is_ok(), trusted, "{mode:o}");
        }
        assert_eq!(check_secret(&dir.path().join("none")), Ok(()), "opening it says why");
    }

    #[test]
    fn errors_name_the_file_its_mode_and_the_way_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file(&dir.path().join("ca.key"), 0o644);
        let shown = path.display();
        let error = check_secret(&path).expect_err("open").to_string();
        assert!(error.contains(&format!("`chmod o= {shown}`")) && error.contains("0644"), "{error}");
        set(&path, 0o602);
        let error = check_trusted(&path).expect_err("open").to_string();
        assert!(error.contains(&format!("`chmod go-w {shown}`")) && error.contains("0602"), "{error}");
    }

    #[test]
    fn every_directory_on_the_way_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = dir.path().join("open/inner");
        fs::create_dir_all(&inner).expect("made");
        let path = file(&inner.join("ca.pem"), 0o644);
        let open = dir.path().join("open");
        set(&open, 0o777);
        let error = check_trusted(&path).expect_err("others may exchange `inner`");
        assert_eq!(error, FileExposure::Directory { path: path.clone(), dir: open.clone(), mode: 0o777 });
        set(&open, 0o1777);
        assert_eq!(check_trusted(&path), Ok(()), "nobody else may exchange what is ours");
        set(&open, 0o755);
        assert_eq!(check_trusted(&path), Ok(()));
        // Links count where they lie, not only where they lead.
        let links = dir.path().join("links");
        fs::create_dir(&links).expect("made");
        symlink(&inner, links.join("to")).expect("a link");
        set(&links, 0o777);
        assert!(matches!(check_trusted(&links.join("to/ca.pem")), Err(FileExposure::Directory { .. })));
        set(&links, 0o755);
        assert_eq!(check_trusted(&links.join("to/../inner/ca.pem")), Ok(()));
        symlink("loop", links.join("loop")).expect("a link");
        assert_eq!(check_trusted(&links.join("loop")), Ok(()), "opening it says why");
    }

    #[test]
    fn what_a_stranger_put_into_a_shared_directory_is_refused() {
        if own_user() != 0 {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        set(dir.path(), 0o1777);
        let path = file(&dir.path().join("key"), 0o600);
        std::os::unix::fs::chown(&path, Some(4711), None).expect("root may");
        let error = check_secret(&path).expect_err("a stranger's");
        assert!(matches!(error, FileExposure::Foreign { owner: 4711, .. }), "{error}");
    }

    /// Builds a volume as the kubelet does, with `defaultMode: 0440` and an `fsGroup` that no account is in.
    #[test]
    fn a_secret_volume_of_kubernetes_is_closed() {
        let volume = tempfile::tempdir().expect("a directory");
        let (volume, stamped) = (volume.path(), volume.path().join("..2026_01_01_00_00_00.1"));
        fs::create_dir(&stamped).expect("made");
        let real = file(&stamped.join("tls.key"), 0o440);
        symlink("..2026_01_01_00_00_00.1", volume.join("..data")).expect("a link");
        symlink("..data/tls.key", volume.join("tls.key")).expect("a link");
        set(volume, 0o3777);
        set(&stamped, 0o2755);
        if own_user() == 0 {
            for path in [volume, &stamped, &real] {
                std::os::unix::fs::chown(path, None, Some(4_711_000)).expect("root may");
            }
            set(volume, 0o3777);
            set(&stamped, 0o2775);
        }
        assert_eq!(check_secret(&volume.join("tls.key")), Ok(()));
        set(&real, 0o444);
        assert!(
            matches!(check_secret(&volume.join("tls.key")), Err(FileExposure::Readable { path, .. }) if path == real)
        );
    }

    #[test]
    fn a_group_is_ours_alone_when_it_has_no_other_member() {
        let accounts = "root:x:0:0::/:\nalice:x:1000:1000::/:\nbob:x:1001:100::/:\n";
        let groups = "root:x:0:\nusers:x:100:\nalice:x:1000:\nboth:x:7:alice,bob\nmine:x:8:alice\n";
        for (group, alone) in [(0, true), (1000, true), (100, false), (7, false), (8, true), (9999, true)] {
            assert_eq!(has_no_other_member(accounts, groups, group, 1000), alone, "{group}");
        }
    }
}
