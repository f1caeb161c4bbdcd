//! The work directory, which the instances of this machine use as well: see [`queue::work_dir`].

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use model::ContextUid;
use queue::{InstanceRef, work_dir};

/// Paths in the work directory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WorkDir {
    root: PathBuf,
}

impl WorkDir {
    /// Creates the paths below this directory; makes no directories.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the directory of blobs.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        work_dir::blobs_dir(&self.root)
    }

    /// Returns the directory of logs.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        work_dir::logs_dir(&self.root)
    }

    /// Returns the directory of the runner process that an instance is part of.
    #[must_use]
    pub fn of_instance(&self, instance: &InstanceRef) -> PathBuf {
        work_dir::instance_dir(&self.root, &instance.group, instance.number)
    }

    /// Removes everything of a context.
    ///
    /// # Errors
    /// The path that cannot be removed, and why; may be repeated.
    pub async fn drop_context(&self, context: ContextUid) -> Result<(), (PathBuf, io::Error)> {
        for part in [work_dir::blobs_dir, work_dir::logs_dir, work_dir::contexts_dir] {
            let path = part(&self.root).join(context.to_string());
            let removed = path.clone();
            // Scripts may have left any kind of file or permissions there.
            match blocking(move || sandbox::tree::remove(&removed)).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err((path, error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A file that is kept for a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContextFile {
    pub(crate) context: ContextUid,
    pub(crate) name: OsString,
    pub(crate) path: PathBuf,
    pub(crate) modified: SystemTime,
    pub(crate) bytes: u64,
}

/// Lists every regular file below the directories of contexts in `root`; skips links and other kinds. Blocks.
pub(crate) fn kept(root: &Path) -> io::Result<Vec<ContextFile>> {
    let mut all = Vec::new();
    for dir in entries(root)? {
        let Some(context) = dir.file_name().to_str().and_then(|name| name.parse().ok()).map(ContextUid)
        else {
            continue;
        };
        for file in entries(&dir.path())? {
            // A file that vanishes meanwhile is skipped.
            let Ok(about) = file.metadata() else { continue };
            if about.is_file() {
                let (name, path) = (file.file_name(), file.path());
                let modified = about.modified()?;
                all.push(ContextFile { context, name, path, modified, bytes: about.len() });
            }
        }
    }
    Ok(all)
}

fn entries(dir: &Path) -> io::Result<Vec<std::fs::DirEntry>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Runs blocking work on files; a panic in it propagates.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
