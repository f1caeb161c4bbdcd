//! The data directory: what is where, and the lock that makes it ours alone.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::UpError;

/// A data directory that this process has locked.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// Held as long as the directory is in use; the kernel releases it with the process.
    _lock: service::Lock,
}

impl DataDir {
    /// Makes the directory when it is not there, so that users of contexts can pass through to where their scripts
    /// run, and locks it. One that is there keeps its mode; what is in it is made for its owner alone.
    ///
    /// # Errors
    /// [`UpError::DirectoryInUse`] when another process has it; others when it cannot be used.
    pub(super) fn open(path: &Path) -> Result<Self, UpError> {
        let cannot = |source| UpError::Directory { path: path.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(cannot)?;
        let path = path.canonicalize().map_err(cannot)?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|source| UpError::Directory { path: lock_path, source })?;
        match service::Lock::take(lock) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(UpError::DirectoryInUse { path }),
            Err(source) => Err(UpError::Directory { path, source }),
        }
    }

    /// The directory, absolute and without links.
    #[must_use]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A place in it.
    #[must_use]
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A directory in it that only its owner may use.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn private(&self, name: &str) -> Result<PathBuf, UpError> {
        let path = self.join(name);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map(|()| path.clone()).map_err(|source| UpError::Directory { path, source })
    }

    /// The text of a small file that is made once: read when it is there, else made and kept.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub(super) fn once(&self, name: &str, make: impl FnOnce() -> String) -> Result<String, UpError> {
        let path = self.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = make();
                self.write_secret(name, &text)?;
                Ok(text)
            }
            Err(source) => Err(UpError::Directory { path, source }),
        }
    }

    /// Writes a small file that only its owner may read, all or nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn write_secret(&self, name: &str, text: &str) -> Result<(), UpError> {
        let path = self.join(name);
        let fresh = self.join(&format!("{name}.new"));
        let write = || {
            let mut file =
                OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)
        };
        write().map_err(|source| UpError::Directory { path: path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let path = parent.path().join("a/b");
        let first = DataDir::open(&path).expect("it is free");
        assert!(matches!(DataDir::open(&path), Err(UpError::DirectoryInUse { .. })));
        assert_eq!(first.once("key", || "x".into()).expect("it is made"), "x");
        drop(first);
        let second = DataDir::open(&path).expect("it is free again");
        assert_eq!(second.once("key", || "y".into()).expect("it is kept"), "x");
    }
}
