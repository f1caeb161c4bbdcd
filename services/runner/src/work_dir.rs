//! Work directory of one runner, and the files of other runners that it reads.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use model::Name;
use queue::work_dir::{
    blobs_dir, contexts_dir, held_dir, instance_dir, instances_dir, lock_path, logs_dir, running_dir,
    runtimes_dir,
};
use sandbox::records::{self, SweptProcess};
use service::FileLock;

use crate::RunnerStartError;
use crate::attempt_journal::AttemptStartLog;

/// The part of the work directory that this runner alone uses, until it is dropped.
#[derive(Debug)]
pub(crate) struct RunnerWorkDir {
    /// The whole work directory, canonical.
    pub(crate) root: PathBuf,
    /// Records of what this runner has started.
    pub(crate) running: PathBuf,
    /// Directory of its reports to other runners on the disk usage of its jobs.
    pub(crate) held: PathBuf,
    /// Log of the attempts that began on this machine lately.
    pub(crate) begun: AttemptStartLog,
    _lock: FileLock,
}

impl RunnerWorkDir {
    /// Opens the work directory for one runner, which must be the only one of this group and number.
    ///
    /// # Errors
    /// When the directory cannot be used, or another runner of this group and number uses it.
    pub(crate) fn open(path: &Path, group: &Name, number: u32) -> Result<Self, RunnerStartError> {
        let failed = |source| RunnerStartError::WorkDir { path: path.to_owned(), source };
        let open = || {
            private(path)?;
            let root = path.canonicalize()?;
            if root.to_str().is_none() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "its path is no UTF-8"));
            }
            let own = instance_dir(&root, group, number);
            let running = running_dir(&own);
            private(&running)?;
            let held = held_dir(&own);
            for dir in [contexts_dir(&root), blobs_dir(&root), logs_dir(&root), runtimes_dir(&root)] {
                private(&dir)?;
            }
            let lock = OpenOptions::new().create(true).truncate(false).write(true).open(lock_path(&own))?;
            Ok((root, running, held, lock))
        };
        let (root, running, held, lock) = open().map_err(failed)?;
        match FileLock::take(lock) {
            Ok(lock) => {
                empty(&held).map_err(failed)?;
                let begun =
                    AttemptStartLog::open(&root, &instance_dir(&root, group, number)).map_err(failed)?;
                Ok(Self { root, running, held, begun, _lock: lock })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(RunnerStartError::InUse { path: path.to_owned(), group: group.clone(), number })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Lets other users pass through to the directories of their own contexts, and see nothing else.
    pub(crate) fn open_to_others(&self) -> io::Result<()> {
        let pass = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o711));
        pass(&self.root)?;
        pass(&contexts_dir(&self.root))?;
        // The files of interpreters are not secret.
        fs::set_permissions(runtimes_dir(&self.root), fs::Permissions::from_mode(0o755))
    }
}

/// Makes a directory without what an earlier runner left in it.
fn empty(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => private(path),
    }
}

/// Makes a directory that no other user can read; an existing one stays as it is.
fn private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Ends all processes that dead runners of this work directory left running, and removes the directories of
/// those attempts. Processes of live runners are left alone. Blocks.
///
/// # Errors
/// When records cannot be read, or a killed process does not end.
pub fn sweep(work_dir: &Path) -> io::Result<Vec<SweptProcess>> {
    let mut ended = Vec::new();
    let instances = match fs::read_dir(instances_dir(work_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ended),
        other => other?,
    };
    for instance in instances {
        let dir = instance?.path();
        let lock = match File::open(lock_path(&dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let Ok(_lock) = FileLock::try_take(lock)? else { continue };
        ended.extend(records::end_recorded(&running_dir(&dir))?);
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_runner_for_each_group_and_number() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let group: Name = "g".parse().expect("a name");
        let first = RunnerWorkDir::open(dir.path(), &group, 1).expect("a work directory");
        let again = RunnerWorkDir::open(dir.path(), &group, 1).map(|_| ()).expect_err("it is in use");
        assert!(matches!(&again, RunnerStartError::InUse { number: 1, .. }), "{again}");
        let _second = RunnerWorkDir::open(dir.path(), &group, 2).expect("another number");
        assert!(sweep(dir.path()).is_ok_and(|ended| ended.is_empty()));
        drop(first);
        RunnerWorkDir::open(dir.path(), &group, 1).expect("it is free again");
        assert!(sweep(&dir.path().join("absent")).is_ok_and(|ended| ended.is_empty()));
    }
}
