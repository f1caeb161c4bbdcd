//! The compiled scripts of a context. Only the runner writes here; scripts may read and execute what is theirs.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use model::BlobHash;
use rustix::fs::{Mode, OFlags};

use crate::workspace::open_inside;
use crate::{RUST_CACHE_BYTES_MAX, SCRIPT_PATH};

/// How old something has to be that nobody finishes any more.
const ABANDONED: Duration = Duration::from_secs(3600);
const UNFINISHED: &str = "part";

/// The programs of one context, by what they were made of.
#[derive(Debug, Clone)]
pub(super) struct RustProgramCache {
    dir: PathBuf,
    bytes_max: u64,
}

impl RustProgramCache {
    /// Returns the cache of the context with this directory.
    pub(super) fn of(context_dir: &Path) -> Self {
        Self { dir: context_dir.join("cache"), bytes_max: RUST_CACHE_BYTES_MAX }
    }

    /// A program that is there; it counts as used now.
    pub(super) fn find(&self, key: BlobHash) -> Option<PathBuf> {
        let path = self.dir.join(key.to_string());
        let file = File::open(&path).ok()?;
        // Should that fail, it goes sooner than others.
        let _ = file.set_modified(SystemTime::now());
        Some(path)
    }

    /// Takes a program in as a copy, and removes others if it is too much then. `job` names who does it.
    pub(super) fn keep(&self, key: BlobHash, from: &Path, name: &str, job: &str) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o711).create(&self.dir)?;
        // Scripts of other users pass, whatever the umask.
        fs::set_permissions(&self.dir, Permissions::from_mode(0o711))?;
        let made = File::from(open_inside(from, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?);
        if !made.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let path = self.dir.join(key.to_string());
        let unfinished = self.dir.join(format!("{job}.{UNFINISHED}"));
        // Under its name it is whole. Another that was faster made the same, which stays: rules of jobs that are about to run it
        // are about that very file.
        let linked = copy(made, &unfinished).and_then(|()| fs::hard_link(&unfinished, &path));
        // One that stays is removed later on.
        let _ = fs::remove_file(&unfinished);
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.thin_out(&path)?;
        Ok(path)
    }

    /// Removes what was used longest ago until the rest is small enough; never what was just taken in.
    fn thin_out(&self, but: &Path) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            // Others thin out as well.
            let Ok(metadata) = entry.metadata() else { continue };
            let (path, used) = (entry.path(), metadata.modified()?);
            if path.extension().is_some_and(|extension| extension == UNFINISHED) {
                if used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(&path);
                }
            } else {
                kept.push((used, metadata.len(), path));
            }
        }
        kept.sort_unstable();
        let mut bytes: u64 = kept.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in kept {
            if bytes <= self.bytes_max {
                break;
            }
            if path != but {
                let _ = fs::remove_file(&path);
                bytes -= len;
            }
        }
        Ok(())
    }
}

/// Copies a program, in a process of its own: a script that is started just now would inherit a file that this
/// process writes to for a moment, and what is open for writing cannot be executed.
fn copy(made: File, to: &Path) -> io::Result<()> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec cat > \"$1\"", "sh"]).arg(to).env_clear().env("PATH", SCRIPT_PATH);
    let status = shell.stdin(made).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("the copy failed: {status}")));
    }
    fs::set_permissions(to, Permissions::from_mode(0o755))?;
    File::open(to)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_longest_unused_go_first_and_links_lead_nowhere() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let cache = RustProgramCache { dir: root.path().join("cache"), bytes_max: 250 };
        let key = |n: u8| BlobHash::of(&[n]);
        fs::write(root.path().join("made"), vec![7; 100]).expect("a file");
        assert_eq!(cache.find(key(0)), None);
        for n in 0..2 {
            let path = cache.keep(key(n), root.path(), "made", "job").expect("kept");
            let used = SystemTime::now() - Duration::from_secs(100 - u64::from(n));
            File::open(path).and_then(|file| file.set_modified(used)).expect("its time is set");
        }
        assert!(cache.find(key(0)).is_some(), "used again");
        cache.keep(key(2), root.path(), "made", "job").expect("kept");
        assert_eq!([0, 1, 2].map(|n| cache.find(key(n)).is_some()), [true, false, true]);
        let inode = |path: &Path| fs::metadata(path).expect("it is there").ino();
        let before = inode(&cache.find(key(2)).expect("kept"));
        let again = cache.keep(key(2), root.path(), "made", "other").expect("kept");
        assert_eq!(inode(&again), before, "the file that jobs are about to run");
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("link")).expect("a link");
        assert!(cache.keep(key(3), root.path(), "link", "job").is_err());
        assert_eq!(fs::read_dir(&cache.dir).expect("a directory").count(), 2, "nothing unfinished is left");
    }
}
