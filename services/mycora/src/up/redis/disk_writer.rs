//! Bringing what the private Redis has written to the disk, once a second.
//!
//! Redis could do that itself (`appendfsync everysec`), and holds its writes back for up to two seconds then while the disk
//! is slow: changes that it has answered are lost when it is killed meanwhile. With `appendfsync no` it hands every change to the
//! kernel before it answers, and what a process has handed over survives the process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

/// Time between syncs: the end of the machine may cost this much, besides the time that the disk takes.
const INTERVAL: Duration = Duration::from_secs(1);

/// The append-only files of a server, and how long each was when it was last brought to the disk.
#[derive(Debug)]
pub(super) struct DiskWriter {
    dir: PathBuf,
    synced: HashMap<OsString, u64>,
    is_failing: bool,
}

impl DiskWriter {
    /// For the append-only files in `dir`.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, synced: HashMap::new(), is_failing: false }
    }

    /// Brings what is new to the disk, again and again. Cancel safe.
    pub(super) async fn keep(mut self) {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let written = tokio::task::spawn_blocking(move || {
                let written = self.write();
                (self, written)
            });
            let Ok((writer, written)) = written.await else { return };
            self = writer;
            match written {
                Ok(()) => self.is_failing = false,
                Err(error) if !std::mem::replace(&mut self.is_failing, true) => {
                    let dir = self.dir.display();
                    tracing::error!(%error, %dir, "what Redis writes does not reach the disk: the end of the machine would lose it");
                }
                Err(_) => {}
            }
        }
    }

    /// Brings every file to the disk that has grown since.
    fn write(&mut self) -> io::Result<()> {
        let mut lengths = HashMap::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            match self.write_file(&entry.file_name()) {
                Ok(length) => {
                    lengths.insert(entry.file_name(), length);
                }
                // Redis has made another one of it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.synced = lengths;
        Ok(())
    }

    fn write_file(&self, name: &OsString) -> io::Result<u64> {
        let file = File::open(self.dir.join(name))?;
        // What is written from here on has its turn with the next one.
        let length = file.metadata()?.len();
        if self.synced.get(name) != Some(&length) {
            file.sync_data()?;
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_and_grow_and_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut writer = DiskWriter::new(dir.path().to_owned());
        let lengths = |writer: &DiskWriter| {
            let mut lengths: Vec<_> = writer.synced.values().copied().collect();
            lengths.sort_unstable();
            lengths
        };
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
        put("1.incr.aof", "abc");
        put("manifest", "m");
        writer.write().expect("a disk");
        assert_eq!(lengths(&writer), [1, 3]);
        put("1.incr.aof", "abcdef");
        std::fs::remove_file(dir.path().join("manifest")).expect("removed");
        writer.write().expect("a disk");
        assert_eq!(lengths(&writer), [6]);
        std::fs::remove_dir_all(dir.path()).expect("removed");
        assert!(writer.write().is_err(), "there is nothing to be written");
    }
}
