//! A file system that is soon full.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Script that mounts the file system, and unmounts it when the other end of its input is closed. While a process still
/// uses it, it stays until that process ends.
const KEEPER: &str = r#"
IFS= read -r dir && read -r mebibytes || exit
mount -t tmpfs -o "size=${mebibytes}m,mode=711" mycora-test "$dir" && echo mounted && read -r end
umount -l "$dir"
rmdir "$dir"
"#;

/// A file system of its own in a temporary directory, which other users may pass through; gone when dropped, and when this
/// process ends, however that is.
#[derive(Debug)]
pub struct SmallDisk {
    dir: PathBuf,
    keeper: Child,
}

impl SmallDisk {
    /// Makes one of so many mebibytes; nothing where this process may not mount any.
    ///
    /// # Panics
    /// When there is no temporary directory, or no shell.
    #[must_use]
    pub fn new(mebibytes: u32) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("mycora-disk-").tempdir().expect("a temporary directory");
        let dir = dir.keep();
        let mut keeper = Command::new("sh");
        // What ends whole groups of processes, such as Ctrl-C, would end it before it has done its work.
        keeper.args(["-c", KEEPER]).current_dir("/").process_group(0);
        keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = keeper.spawn().expect("a shell");
        let orders = format!("{}\n{mebibytes}\n", dir.display());
        let written = keeper.stdin.as_mut().map(|stdin| stdin.write_all(orders.as_bytes()));
        let mut answer = String::new();
        let read = keeper.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut answer));
        assert!(
            matches!((written, read), (Some(Ok(())), Some(Ok(_)))),
            "the shell reads, and says what it did"
        );
        let disk = Self { dir, keeper };
        (answer == "mounted\n").then_some(disk)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
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
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
