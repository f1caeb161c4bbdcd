//! The directory of one attempt: the files written into it, and the outputs read from it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::execution::FileSource;
use model::job::BlobRef;
use model::limits::{FILE_BYTES_MAX, JOB_FILES_BYTES_MAX, SCRIPT_BYTES_MAX};
use model::{BlobHash, ContextUid, Execution, JobKey, Reason, ReasonCode, ScriptSource};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use sandbox::tree;
pub(crate) use sandbox::tree::size as size_of_tree;
use tokio::runtime::{Handle, RuntimeFlavor};

use queue::work_dir::{blob_path, jobs_dir};

use crate::disk_quota::JobDiskQuota;

/// Our own part of an attempt's directory, for files of ours beside those of the job.
const OWN: &str = ".mycora";

/// The directory of one attempt; removed when dropped.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    context: ContextUid,
    dir: PathBuf,
    owner: Option<u32>,
    /// Result of making the directory; empty as long as nothing has tried.
    made: OnceLock<Result<(), Reason>>,
    /// Given back when the directory is gone.
    share: JobDiskQuota,
}

impl Workspace {
    /// Creates a workspace below `root`, which must be canonical; the directory is not made yet. The directory and everything in it
    /// will belong to `owner`, if there is one.
    pub(crate) fn new(root: &Path, key: JobKey, owner: Option<u32>, share: JobDiskQuota) -> Self {
        let dir = jobs_dir(root, key.context).join(key.to_string());
        Self { root: root.to_owned(), context: key.context, dir, owner, made: OnceLock::new(), share }
    }

    /// Makes the directory, fresh, unless that was done before.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED` when its context has no room left, `DISK_FULL` when the disk has none.
    pub(crate) fn make(&self) -> Result<(), Reason> {
        let make = || {
            self.share.enter()?;
            self.create().map_err(|error| broken("the directory of the attempt cannot be made", &error))
        };
        self.made.get_or_init(make).clone()
    }

    /// Returns the job's part of the context's disk quota.
    pub(crate) fn share(&self) -> &JobDiskQuota {
        &self.share
    }

    /// Returns true once the directory was made, at least in part.
    pub(crate) fn is_made(&self) -> bool {
        self.made.get().is_some()
    }

    fn create(&self) -> io::Result<()> {
        let jobs = jobs_dir(&self.root, self.context);
        // A directory with the right mode is not changed again.
        let mode = if self.owner.is_some() { 0o711 } else { 0o700 };
        if !fs::symlink_metadata(&jobs).is_ok_and(|known| known.is_dir() && known.mode() & 0o777 == mode) {
            private_dir().recursive(true).create(&jobs)?;
            // With an owner, other users may pass through to its attempts, but not list them.
            fs::set_permissions(&jobs, fs::Permissions::from_mode(mode))?;
        }
        match private_dir().create(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                tree::remove(&self.dir)?;
                private_dir().create(&self.dir)
            }
            other => other,
        }?;
        let own = self.dir.join(OWN);
        private_dir().create(&own)?;
        private_dir().create(own.join("tmp"))?;
        for made in [&self.dir, &own, &own.join("tmp")] {
            self.give(made)?;
        }
        Ok(())
    }

    /// Returns the owner of the directory, when that is not the runner.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Returns the directory for temporary files of the script.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.dir.join(OWN).join("tmp")
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            None => Ok(()),
            Some(owner) => std::os::unix::fs::lchown(path, Some(owner), Some(owner)),
        }
    }

    /// Makes the directories between this one and a file in it.
    fn make_parents(&self, name: &str) -> io::Result<()> {
        let mut dir = self.dir.clone();
        let parents = Path::new(name).parent().into_iter().flat_map(Path::components);
        for part in parents {
            dir.push(part);
            match private_dir().create(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    other?;
                    self.give(&dir)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the path of the directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the text of the script, inline or from its blob.
    pub(crate) fn script(&self, execution: &Execution) -> Result<String, Reason> {
        match &execution.script {
            ScriptSource::Inline(text) => Ok(text.clone()),
            ScriptSource::Blob(blob) => {
                let bytes = self.cached(blob, SCRIPT_BYTES_MAX, "the script")?;
                String::from_utf8(bytes).map_err(|_| runtime_error("the script is not UTF-8"))
            }
        }
    }

    /// Copies the job's files into the directory: a script can change only its own copies.
    pub(crate) fn lay_files(&self, execution: &Execution) -> Result<(), Reason> {
        for (name, source) in &execution.files {
            // The coordinator checked this as well, but a path is too dangerous to rely on that.
            model::job::check_relative_path(name)
                .map_err(|why| runtime_error(&format!("file `{name}`: {why}")))?;
            let bytes = self.file_bytes(name, source)?;
            let path = self.dir.join(name);
            let write = || {
                self.make_parents(name)?;
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(&bytes)?;
                self.give(&path)
            };
            write().map_err(|error| broken(&format!("file `{name}` cannot be written"), &error))?;
        }
        Ok(())
    }

    fn file_bytes(&self, name: &str, source: &FileSource) -> Result<Vec<u8>, Reason> {
        match &source.inline {
            None => self.cached(&source.blob, FILE_BYTES_MAX, &format!("file `{name}`")),
            Some(text) => {
                let bytes = STANDARD
                    .decode(text)
                    .map_err(|error| runtime_error(&format!("file `{name}` is not base64: {error}")))?;
                check_blob(&bytes, &source.blob, &format!("file `{name}`"))?;
                Ok(bytes)
            }
        }
    }

    fn cached(&self, blob: &BlobRef, bytes_max: usize, what: &str) -> Result<Vec<u8>, Reason> {
        let path = blob_path(&self.root, self.context, blob.sha256);
        let missing = |error: &io::Error| {
            Reason::new(ReasonCode::BlobMissing, format!("{what} ({}) cannot be read: {error}", blob.sha256))
        };
        let file = File::open(&path).map_err(|error| missing(&error))?;
        let mut bytes = Vec::new();
        file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(|error| missing(&error))?;
        check_blob(&bytes, blob, what)?;
        Ok(bytes)
    }

    /// Writes a file of our own, and returns its path.
    pub(crate) fn write_own(&self, name: &str, text: &str) -> Result<PathBuf, Reason> {
        let write = || {
            // A compiler may have run in here already; a link that it left must not lead outside.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let mode = Mode::RUSR | Mode::WUSR;
            let mut file = File::from(open_inside(&self.dir, &format!("{OWN}/{name}"), flags, mode)?);
            file.write_all(text.as_bytes())?;
            match self.owner {
                None => Ok(()),
                Some(owner) => std::os::unix::fs::fchown(&file, Some(owner), Some(owner)),
            }
        };
        write().map_err(|error| broken(&format!("{OWN}/{name} cannot be written"), &error))?;
        Ok(self.dir.join(OWN).join(name))
    }

    /// Reads one of our own files as the script left it, at most `bytes_max`; returns nothing when the script removed it.
    pub(crate) fn read_own(&self, name: &str, bytes_max: usize) -> io::Result<Option<String>> {
        match self.read_inside(&format!("{OWN}/{name}"), bytes_max) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    /// Reads a regular file of the directory. Follows no link, so that it cannot lead outside.
    pub(crate) fn read_inside(&self, name: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        read_inside(&self.dir, name, bytes_max)
    }

    /// Copies the declared outputs of the job into the blobs, where the supervisor finds them.
    pub(crate) fn collect(
        &self,
        outputs: &[String],
    ) -> Result<std::collections::BTreeMap<String, BlobRef>, Reason> {
        let mut collected = std::collections::BTreeMap::new();
        let mut total = 0;
        for name in outputs {
            let bytes = self
                .read_inside(name, FILE_BYTES_MAX)
                .map_err(|error| runtime_error(&self.cannot_be_taken(name, &error)))?;
            total += bytes.len();
            if total > JOB_FILES_BYTES_MAX {
                return Err(runtime_error(&format!(
                    "the outputs have more than {JOB_FILES_BYTES_MAX} bytes together"
                )));
            }
            let blob = BlobRef { sha256: BlobHash::of(&bytes), size: bytes.len() as u64 };
            self.keep(&blob, &bytes)
                .map_err(|error| broken(&format!("output `{name}` cannot be kept"), &error))?;
            collected.insert(name.clone(), blob);
        }
        Ok(collected)
    }

    /// Explains why an output cannot be collected, and what the job can declare instead.
    fn cannot_be_taken(&self, name: &str, error: &io::Error) -> String {
        let is_dir = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            open_inside(&self.dir, name, flags, Mode::empty()).is_ok()
        };
        match error.kind() {
            io::ErrorKind::NotFound => {
                let pattern = if name.contains(['*', '?', '[', '{']) {
                    ", and names of outputs are no patterns"
                } else {
                    ""
                };
                format!("it did not make output `{name}`{pattern}")
            }
            _ if is_dir() => format!(
                "output `{name}` is a directory, and each output is one file: name its files, or pack them \
                 (`tar cf {name}.tar {name}`) and name `{name}.tar`"
            ),
            _ => format!("output `{name}` cannot be taken: {error}"),
        }
    }

    fn keep(&self, blob: &BlobRef, bytes: &[u8]) -> io::Result<()> {
        let path = blob_path(&self.root, self.context, blob.sha256);
        if let Some(parent) = path.parent() {
            private_dir().recursive(true).create(parent)?;
        }
        // Written under another name first, so that no reader sees half of it. Written anew even if the blob exists: the
        // supervisor may be about to remove the old one as unused.
        let unfinished =
            path.with_extension(format!("{}.part", self.dir.file_name().unwrap_or_default().display()));
        fs::write(&unfinished, bytes)?;
        fs::rename(&unfinished, &path)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if !self.is_made() {
            return;
        }
        let remove = || match tree::remove(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(dir = %self.dir.display(), %error, "the directory of an attempt cannot be removed");
            }
            _ => {}
        };
        // The directory may hold so much that other jobs of this thread would wait for seconds.
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(remove),
            _ => remove(),
        }
    }
}

/// Reads a regular file below `dir` without following any link.
pub(crate) fn read_inside(dir: &Path, name: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
    // NONBLOCK, so that opening a pipe does not wait for its other end.
    let file = File::from(open_inside(dir, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {bytes_max} bytes"),
        ));
    }
    Ok(bytes)
}

/// Opens a regular file below `dir` to write to it, without following any link; makes it if there is none.
pub(crate) fn create_inside(dir: &Path, name: &str, how: OFlags) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | how;
    let file = File::from(open_inside(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok(file)
}

/// Opens something below `dir` without following any link.
pub(crate) fn open_inside(dir: &Path, name: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let dir = File::open(dir)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(&dir, name, flags | OFlags::CLOEXEC, mode, resolve).map_err(|error| match error {
        rustix::io::Errno::LOOP => {
            io::Error::new(io::ErrorKind::InvalidInput, "its path contains a symbolic link")
        }
        rustix::io::Errno::XDEV => {
            io::Error::new(io::ErrorKind::InvalidInput, "its path leads out of the directory")
        }
        other => other.into(),
    })
}

fn private_dir() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

fn check_blob(bytes: &[u8], blob: &BlobRef, what: &str) -> Result<(), Reason> {
    if bytes.len() as u64 != blob.size || BlobHash::of(bytes) != blob.sha256 {
        return Err(runtime_error(&format!("{what} does not match its hash {}", blob.sha256)));
    }
    Ok(())
}

/// Returns the reason for something that could not be written.
pub(crate) fn broken(what: &str, error: &io::Error) -> Reason {
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let code = if is_full { ReasonCode::DiskFull } else { ReasonCode::RuntimeError };
    Reason::new(code, format!("{what}: {error}"))
}

pub(crate) fn runtime_error(detail: &str) -> Reason {
    Reason::new(ReasonCode::RuntimeError, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_outside() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dir = root.path().join("job");
        fs::create_dir_all(dir.join("sub")).expect("directories");
        fs::write(root.path().join("secret"), "s").expect("a file");
        fs::write(dir.join("sub/file"), "inside").expect("a file");
        std::os::unix::fs::symlink("../secret", dir.join("link")).expect("a link");
        std::os::unix::fs::symlink("..", dir.join("up")).expect("a link");
        assert_eq!(read_inside(&dir, "sub/file", 6).expect("a file"), b"inside");
        for (name, part) in [
            ("link", "symbolic link"),
            ("up/secret", "symbolic link"),
            ("../secret", "leads out"),
            ("/etc/passwd", "leads out"),
            ("sub", "no regular file"),
        ] {
            let error = read_inside(&dir, name, 100).expect_err(name);
            assert!(error.to_string().contains(part), "{name}: {error}");
        }
        assert!(
            read_inside(&dir, "sub/file", 5).is_err_and(|error| error.kind() == io::ErrorKind::FileTooLarge)
        );
        assert!(create_inside(&dir, "../other", OFlags::TRUNC).is_err());
        assert!(create_inside(&dir, "link", OFlags::TRUNC).is_err());
        create_inside(&dir, "new", OFlags::TRUNC)
            .and_then(|mut file| file.write_all(b"x"))
            .expect("a new file");
        assert_eq!(read_inside(&dir, "new", 1).expect("a file"), b"x");
    }

    #[test]
    fn what_ran_before_leads_none_of_our_own_files_outside() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let context = ContextUid(model::id::Uid::from_bits(1));
        let (flow, job) = (model::FlowUid(model::id::Uid::from_bits(2)), model::JobId(3));
        let key = JobKey { context, flow, job, attempt: model::Attempt(1) };
        let floors = sandbox::disk_space::DiskFloors::new(root.path().to_owned(), Some(0));
        let areas = crate::disk_quota::DiskQuotas::new(root.path(), &root.path().join("held"), floors);
        let workspace = Workspace::new(root.path(), key, None, areas.share(key, 1 << 20));
        workspace.make().expect("a directory");
        workspace.write_own("before", "text").expect("written");
        assert!(workspace.write_own("before", "text").is_err());
        let outside = root.path().join("outside");
        fs::create_dir(&outside).expect("a directory");
        fs::rename(workspace.dir().join(OWN), workspace.dir().join("away")).expect("moved");
        std::os::unix::fs::symlink(&outside, workspace.dir().join(OWN)).expect("a link");
        assert!(workspace.write_own("result", "text").is_err());
        assert!(!outside.join("result").exists());
    }
}
