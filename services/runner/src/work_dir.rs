//! The work directory, which the supervisor and every runner of a machine share.
//!
//! - `instances/<group>-<number>/`: one runner's own: its `lock`, and in `running/` a record of everything that
//!   it has started, for whoever comes after it;
//! - `contexts/<context uid>/jobs/<job key>/`: where one attempt runs; removed with its end;
//! - `contexts/<context uid>/{store,cache}/`: what the jobs of a context keep between them;
//! - `blobs/<context uid>/<sha256>`: files by their hash. The supervisor puts here, before it queues a job,
//!   what the job needs and does not carry inline; a runner puts here the outputs that it collected, for the
//!   supervisor to push. Whoever writes one does so under another name and renames it;
//! - `logs/<context uid>/<job key>.log`: what an attempt printed, all of it. The supervisor removes it in time;
//! - `runtimes/<version>/`: what interpreters need of ours.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use model::{BlobHash, ContextUid, JobKey, Name};
use rustix::fs::FlockOperation;
use sandbox::records::{self, Swept};

use crate::StartError;

/// Where a file of a context is kept under its hash: `<work dir>/blobs/<context uid>/<sha256>`.
#[must_use]
pub fn blob_path(work_dir: &Path, context: ContextUid, hash: BlobHash) -> PathBuf {
    work_dir.join("blobs").join(context.to_string()).join(hash.to_string())
}

/// Where what an attempt printed is kept: `<work dir>/logs/<context uid>/<job key>.log`.
#[must_use]
pub fn log_path(work_dir: &Path, key: JobKey) -> PathBuf {
    work_dir.join("logs").join(key.context.to_string()).join(format!("{key}.log"))
}

/// Where the attempts of a context have their directories.
#[must_use]
pub fn jobs_dir(work_dir: &Path, context: ContextUid) -> PathBuf {
    context_dir(work_dir, context).join("jobs")
}

/// What belongs to one context.
pub(crate) fn context_dir(work_dir: &Path, context: ContextUid) -> PathBuf {
    contexts_dir(work_dir).join(context.to_string())
}

/// What belongs to the contexts.
pub(crate) fn contexts_dir(work_dir: &Path) -> PathBuf {
    work_dir.join("contexts")
}

/// What belongs to one runner.
pub(crate) fn instance_dir(work_dir: &Path, group: &Name, number: u32) -> PathBuf {
    work_dir.join("instances").join(format!("{group}-{number}"))
}

/// The part of the work directory that this runner alone uses, until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkDir {
    /// The whole, canonical.
    pub(crate) root: PathBuf,
    /// Records of what this runner has started.
    pub(crate) running: PathBuf,
    lock: File,
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Not by closing alone: a process that is being started holds a copy of the descriptor for a moment.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

impl WorkDir {
    /// Opens it for one runner, which must be the only one of this group and number.
    ///
    /// # Errors
    /// When it cannot be used, or another runner uses it.
    pub(crate) fn open(path: &Path, group: &Name, number: u32) -> Result<Self, StartError> {
        let failed = |source| StartError::WorkDir { path: path.to_owned(), source };
        let open = || {
            private(path)?;
            let root = path.canonicalize()?;
            if root.to_str().is_none() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "its path is no UTF-8"));
            }
            let own = instance_dir(&root, group, number);
            let running = own.join("running");
            private(&running)?;
            for dir in [contexts_dir(&root), root.join("blobs"), root.join("logs"), root.join("runtimes")] {
                private(&dir)?;
            }
            let lock = OpenOptions::new().create(true).truncate(false).write(true).open(own.join("lock"))?;
            Ok((root, running, lock))
        };
        let (root, running, lock) = open().map_err(failed)?;
        match service::lock_alone(&lock) {
            Ok(()) => Ok(Self { root, running, lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(StartError::InUse { path: path.to_owned(), group: group.clone(), number })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Lets other users pass through to the directories of their own contexts, and see nothing else.
    pub(crate) fn open_to_others(&self) -> io::Result<()> {
        let pass = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o711));
        pass(&self.root)?;
        pass(&contexts_dir(&self.root))?;
        // What interpreters need is no secret.
        fs::set_permissions(self.root.join("runtimes"), fs::Permissions::from_mode(0o755))
    }
}

/// Makes a directory that nobody else can look into; one that is there stays as it is.
fn private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Ends everything that dead runners of this work directory left running, and removes the directories of
/// those attempts. What a live runner does is left alone. Blocks while it works.
///
/// # Errors
/// When records cannot be read, or something does not end although it was killed.
pub fn sweep(work_dir: &Path) -> io::Result<Vec<Swept>> {
    let mut ended = Vec::new();
    let instances = match fs::read_dir(work_dir.join("instances")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ended),
        other => other?,
    };
    for instance in instances {
        let dir = instance?.path();
        let lock = match File::open(dir.join("lock")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => continue,
            other => other?,
        }
        let swept = records::end_recorded(&dir.join("running"));
        rustix::fs::flock(&lock, FlockOperation::Unlock)?;
        ended.extend(swept?);
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
        let first = WorkDir::open(dir.path(), &group, 1).expect("a work directory");
        let again = WorkDir::open(dir.path(), &group, 1).map(|_| ()).expect_err("it is in use");
        assert!(matches!(&again, StartError::InUse { number: 1, .. }), "{again}");
        let _second = WorkDir::open(dir.path(), &group, 2).expect("another number");
        assert!(sweep(dir.path()).is_ok_and(|ended| ended.is_empty()));
        drop(first);
        WorkDir::open(dir.path(), &group, 1).expect("it is free again");
        assert!(sweep(&dir.path().join("absent")).is_ok_and(|ended| ended.is_empty()));
    }
}
