//! A file system that is soon full.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A file system of its own in a temporary directory, which other users may pass through; gone when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Makes one of so many mebibytes; nothing where this process may not mount any.
    ///
    /// # Panics
    /// When there is no temporary directory.
    #[must_use]
    pub fn new(mebibytes: u32) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("mycora-disk-").tempdir().expect("a temporary directory");
        let options = format!("size={mebibytes}m,mode=711");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "mycora-test"]).arg(dir.path());
        let mounted = mount.stdin(Stdio::null()).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self { dir })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Takes room, as a file of this name; the same name again takes it anew.
    ///
    /// # Panics
    /// When there is less room than that.
    pub fn fill(&self, name: &str, bytes: u64) {
        let bytes = usize::try_from(bytes).expect("it is small");
        std::fs::write(self.path().join(name), vec![1; bytes]).expect("there is room");
    }

    /// Takes all room that is left, but for so many bytes.
    ///
    /// # Panics
    /// As [`SmallDisk::fill`].
    pub fn fill_up(&self, name: &str, but: u64) {
        let space = rustix::fs::statvfs(self.path()).expect("a file system");
        self.fill(name, (space.f_bavail * space.f_frsize).saturating_sub(but));
    }

    /// Gives the room back that a file has taken.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn empty(&self, name: &str) {
        std::fs::remove_file(self.path().join(name)).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Somebody may still be in there; it goes when that one does.
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).stdin(Stdio::null()).status();
    }
}
