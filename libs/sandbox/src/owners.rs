//! A user for each context, where the runner is root.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// A range of user ids. The group of a context's directory is the record of whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    base: u32,
    count: u32,
}

impl Owners {
    /// `count` users from `base` on, which nobody else may have.
    #[must_use]
    pub const fn new(base: u32, count: u32) -> Self {
        Self { base, count }
    }

    /// The first of them.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.base
    }

    const fn contains(&self, uid: u32) -> bool {
        uid >= self.base && uid - self.base < self.count
    }

    /// The user of a context, whose directory lies in `contexts` with those of all others. A context without
    /// gets the lowest that none of the others has, and its directory, which only it can pass through.
    ///
    /// # Errors
    /// When none is left, or a directory gives trouble.
    pub fn of(&self, contexts: &Path, dir: &Path) -> io::Result<u32> {
        let known = |dir: &Path| match fs::symlink_metadata(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(metadata) => Ok(Some(metadata.gid()).filter(|uid| self.contains(*uid))),
        };
        if let Some(uid) = known(dir)? {
            return Ok(uid);
        }
        // Several runners of a machine may give away users at once.
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(contexts.join(".lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        if let Some(uid) = known(dir)? {
            return Ok(uid);
        }
        let mut taken = Vec::new();
        for other in fs::read_dir(contexts)? {
            taken.extend(known(&other?.path())?);
        }
        let free = (self.base..self.base.saturating_add(self.count)).find(|uid| !taken.contains(uid));
        let uid = free.ok_or_else(|| io::Error::other(format!("all {} users are taken", self.count)))?;
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

/// Whether other users can pass through to `dir`.
///
/// # Errors
/// Gives the first directory on the way that they cannot pass.
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
    fn what_others_cannot_pass_is_named() {
        let private = fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(private).tempdir().expect("a temporary directory");
        assert_eq!(reachable(&dir.path().join("work")), Err(dir.path().to_owned()));
        assert_eq!(reachable(Path::new("/usr/bin")), Ok(()));
    }
}
