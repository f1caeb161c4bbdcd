//! A user for each context, where the runner is root.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// How many contexts of one machine can have a user of their own.
const COUNT: u32 = 65_536;
/// The ranges of which one is chosen: beyond those that systems give away, and below what a signed number holds.
const FIRST: u32 = 1_900_000_000;
const RANGES: u32 = 3776;
/// The file, beside the directories of the contexts, that holds their range.
const RECORD: &str = ".users";
/// Held locked while users are given away.
const LOCK: &str = ".lock";

/// A range of user ids. The group of a context's directory is the record of whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserIdRange {
    base: u32,
}

impl UserIdRange {
    /// The 65,536 users from `base` on; nothing else may use them.
    #[must_use]
    pub const fn new(base: u32) -> Self {
        Self { base }
    }

    /// Returns the range of the contexts in this directory. It is chosen at random when it is first needed, so
    /// that two work directories of one machine do not share users.
    ///
    /// # Errors
    /// When it can be neither read nor kept.
    pub fn of_directory(contexts: &Path) -> io::Result<Self> {
        let _lock = lock(contexts)?;
        let record = contexts.join(RECORD);
        match fs::read_to_string(&record) {
            Ok(text) => {
                let base = text.trim().parse().map_err(|_| {
                    let text = format!("{} holds no user id", record.display());
                    io::Error::new(io::ErrorKind::InvalidData, text)
                })?;
                Ok(Self::new(base))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let chance = RandomState::new().build_hasher().finish();
                let range = u32::try_from(chance % u64::from(RANGES)).unwrap_or_default();
                let base = FIRST + range * COUNT;
                let fresh = contexts.join(format!("{RECORD}.new"));
                fs::write(&fresh, base.to_string())?;
                fs::rename(fresh, record)?;
                Ok(Self::new(base))
            }
            Err(error) => Err(error),
        }
    }

    /// The first of them.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.base
    }

    const fn contains(&self, uid: u32) -> bool {
        uid >= self.base && uid - self.base < COUNT
    }

    /// The user of a context, whose directory lies in `contexts` with those of all others. A context without
    /// gets the lowest that none of the others has, and its directory, which only it can pass through.
    ///
    /// # Errors
    /// When none is left, or a directory gives trouble.
    pub fn assign(&self, contexts: &Path, dir: &Path) -> io::Result<u32> {
        let known = |dir: &Path| match fs::symlink_metadata(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(metadata) => Ok(Some(metadata.gid()).filter(|uid| self.contains(*uid))),
        };
        if let Some(uid) = known(dir)? {
            return Ok(uid);
        }
        // Several runners of a machine may give away users at once.
        let _lock = lock(contexts)?;
        if let Some(uid) = known(dir)? {
            return Ok(uid);
        }
        let mut taken = Vec::new();
        for other in fs::read_dir(contexts)? {
            taken.extend(known(&other?.path())?);
        }
        let free = (self.base..self.base.saturating_add(COUNT)).find(|uid| !taken.contains(uid));
        let uid = free.ok_or_else(|| io::Error::other(format!("all {COUNT} users are taken")))?;
        match DirBuilder::new().mode(0o710).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        // Its own to pass through, and not to change.
        std::os::unix::fs::lchown(dir, None, Some(uid))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o710))?;
        Ok(uid)
    }
}

/// Keeps other runners of the machine from giving away users, until it is dropped.
fn lock(contexts: &Path) -> io::Result<File> {
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(contexts.join(LOCK))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Checks that other users can pass through to `dir`.
///
/// # Errors
/// Returns the first directory on the way that they cannot pass.
pub fn reachable(dir: &Path) -> Result<(), PathBuf> {
    let mut above: Vec<&Path> = dir.ancestors().skip(1).collect();
    above.reverse();
    let passable = |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o001 != 0);
    match above.into_iter().find(|path| !passable(path)) {
        Some(closed) => Err(closed.to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_range() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = UserIdRange::of_directory(dir.path()).expect("a range");
        assert_eq!(UserIdRange::of_directory(dir.path()).expect("the same"), first);
        assert!((FIRST..=FIRST + (RANGES - 1) * COUNT).contains(&first.first()));
        fs::write(dir.path().join(RECORD), "many").expect("a file");
        let error = UserIdRange::of_directory(dir.path()).expect_err("no number");
        assert!(error.to_string().contains(".users holds no user id"), "{error}");
    }

    #[test]
    fn what_others_cannot_pass_is_named() {
        let private = fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(private).tempdir().expect("a temporary directory");
        assert_eq!(reachable(&dir.path().join("work")), Err(dir.path().to_owned()));
        assert_eq!(reachable(Path::new("/usr/bin")), Ok(()));
    }
}
