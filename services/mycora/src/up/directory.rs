//! The data directory: what is where, and the lock that makes it ours alone.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use identity::exposure;

use super::UpError;
use super::process::ProcessRecord;

/// File that is locked, within the directory.
const LOCK: &str = "lock";
/// Identifies the process that has locked it.
const OWNER: &str = "up.pid";

/// Owner of a data directory.
#[derive(Debug)]
pub(crate) enum DataDirOwner {
    /// No process.
    None,
    /// The process that is recorded.
    Process(ProcessRecord),
    /// A process that cannot be identified: it is just starting, it runs in another PID namespace, or its version did not
    /// record its number.
    Unknown,
}

/// Finds out who has locked a data directory.
///
/// # Errors
/// When there is no such directory, none was started on it, or it cannot be looked at.
pub(crate) fn owner(path: &Path) -> Result<DataDirOwner, UpError> {
    let lock_path = path.join(LOCK);
    let lock = OpenOptions::new().read(true).write(true).open(&lock_path);
    let lock = lock.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => UpError::NoDirectory { path: path.to_owned() },
        _ => UpError::Directory { path: lock_path.clone(), source },
    })?;
    match service::FileLock::try_take(lock) {
        Ok(Ok(_free)) => Ok(DataDirOwner::None),
        Ok(Err(_held)) => {
            let record = std::fs::read_to_string(path.join(OWNER)).ok();
            let record = record.and_then(|text| text.trim().parse::<ProcessRecord>().ok());
            Ok(record.filter(ProcessRecord::is_alive).map_or(DataDirOwner::Unknown, DataDirOwner::Process))
        }
        Err(source) => Err(UpError::Directory { path: lock_path, source }),
    }
}

/// A data directory that this process has locked.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// Held as long as the directory is in use; the kernel releases it with the process.
    _lock: service::FileLock,
}

impl DataDir {
    /// Makes the directory when it is not there, so that users of contexts can pass through to where their scripts
    /// run, and locks it. One that is there keeps its mode; what is in it is made for its owner alone.
    ///
    /// # Errors
    /// [`UpError::DirectoryInUse`] when another process has it; others when it cannot be used.
    pub(super) fn open(path: &Path) -> Result<Self, UpError> {
        let cannot = |source| UpError::Directory { path: path.to_owned(), source };
        make_passable(path).map_err(cannot)?;
        let path = path.canonicalize().map_err(cannot)?;
        exposure::check_trusted(&path).map_err(UpError::Exposed)?;
        let lock_path = path.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|source| UpError::Directory { path: lock_path, source })?;
        match service::FileLock::take(lock) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(UpError::DirectoryInUse { path }),
            Err(source) => Err(UpError::Directory { path, source }),
        }
    }

    /// Writes down that it is this process that has it, for [`owner`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn record_owner(&self) -> Result<(), UpError> {
        let own = ProcessRecord::of(std::process::id());
        let own = own.map_err(|source| UpError::Directory { path: self.join(OWNER), source })?;
        self.write_secret(OWNER, &own.to_string())
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

    /// A directory in it that only its owner may use. One that others may read is closed; one that they may write is
    /// refused, since its content cannot be trusted.
    ///
    /// # Errors
    /// When it cannot be made or closed, or [`UpError::Exposed`].
    pub(super) fn private(&self, name: &str) -> Result<PathBuf, UpError> {
        let path = self.join(name);
        let cannot = |source| UpError::Directory { path: path.clone(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(cannot)?;
        exposure::check_trusted(&path).map_err(UpError::Exposed)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(cannot)?;
        Ok(path)
    }

    /// The text of a small file that is made once: read when it is there, else made and kept.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub(super) fn read_or_create(
        &self,
        name: &str,
        make: impl FnOnce() -> String,
    ) -> Result<String, UpError> {
        let path = self.join(name);
        exposure::check_secret(&path).map_err(UpError::Exposed)?;
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
            // Not into an existing file: it would keep its mode, and processes that have it open could read the secret.
            match std::fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)
        };
        write().map_err(|source| UpError::Directory { path: path.clone(), source })
    }
}

/// Makes a directory, and those that lead to it, so that other users pass through, whatever the umask.
fn make_passable(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
    for dir in missing.collect::<Vec<_>>().into_iter().rev() {
        match std::fs::create_dir(dir) {
            Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(0o711))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("there").permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_that_others_write_is_refused() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let path = parent.path().join("a/data");
        let dir = DataDir::open(&path).expect("it is free");
        assert_eq!((mode(&path), mode(&parent.path().join("a"))), (0o711, 0o711), "others pass through");
        let own = dir.private("own").expect("made");
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
        };
        set(&own, 0o755);
        assert_eq!(mode(&dir.private("own").expect("closed")), 0o700);
        set(&own, 0o777);
        assert!(matches!(dir.private("own"), Err(UpError::Exposed(_))));
        std::fs::write(dir.join("secret.new"), "left behind").expect("written");
        set(&dir.join("secret.new"), 0o666);
        dir.write_secret("secret", "text").expect("written");
        assert_eq!(mode(&dir.join("secret")), 0o600);
        drop(dir);
        set(&parent.path().join("a"), 0o777);
        assert!(matches!(DataDir::open(&path), Err(UpError::Exposed(_))));
    }

    #[test]
    fn a_directory_has_one_owner() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let path = parent.path().join("a/b");
        assert!(matches!(owner(&path), Err(UpError::NoDirectory { .. })));
        let first = DataDir::open(&path).expect("it is free");
        assert!(matches!(DataDir::open(&path), Err(UpError::DirectoryInUse { .. })));
        assert_eq!(first.read_or_create("key", || "x".into()).expect("it is made"), "x");
        // The owner is known once it has recorded itself, and no other process is taken for it.
        assert!(matches!(owner(&path), Ok(DataDirOwner::Unknown)));
        first.record_owner().expect("written");
        let signed = owner(&path).expect("it is looked at");
        assert!(
            matches!(&signed, DataDirOwner::Process(record) if record.pid == std::process::id()),
            "{signed:?}"
        );
        let another = std::fs::read_to_string(path.join(OWNER)).expect("there").replace(' ', " 1");
        std::fs::write(path.join(OWNER), another).expect("written");
        assert!(matches!(owner(&path), Ok(DataDirOwner::Unknown)), "a later process with its number");
        drop(first);
        assert!(matches!(owner(&path), Ok(DataDirOwner::None)));
        let second = DataDir::open(&path).expect("it is free again");
        assert_eq!(second.read_or_create("key", || "y".into()).expect("it is kept"), "x");
    }
}
