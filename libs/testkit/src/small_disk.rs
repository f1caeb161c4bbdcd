//! A file system that is soon full.

use std::fs::File;
use std::io::Write as _;
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
        mounted.is_ok_and(|status| status.success()).then(|| Self { dir })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Takes all room that is left, as a file of this name, but for so many bytes. Others may take and give back room meanwhile.
    ///
    /// # Panics
    /// When the file cannot be written for another reason than that.
    pub fn fill_up(&self, name: &str, but: u64) {
        let mut file = File::create(self.path().join(name)).expect("a file");
        // What was a part of the last piece is written in ever smaller ones.
        for piece in [1 << 20, 1 << 12] {
            let bytes = vec![1; piece];
            while let Ok(written @ 1..) = file.write(&bytes) {
                assert!(written <= piece);
            }
        }
        let taken = file.metadata().expect("its length").len();
        file.set_len(taken.saturating_sub(but)).expect("shorter");
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
