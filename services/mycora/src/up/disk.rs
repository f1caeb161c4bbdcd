//! Check for scripts that can fill the disk of Redis.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sandbox::disk_space::{DiskFloors, FileSystemSpace};

/// Scripts and Redis on one file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedDisk {
    scripts: PathBuf,
    redis: PathBuf,
    bytes_free: u64,
    floor: u64,
}

impl SharedDisk {
    /// Looks at where scripts work and where Redis writes; nothing when each has a file system of its own, or one of them is
    /// not there.
    pub(crate) fn of(scripts: &Path, redis: &Path, floor: Option<u64>) -> Option<Self> {
        let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        let is_shared = device(scripts).is_some() && device(scripts) == device(redis);
        let space = FileSystemSpace::of(scripts).ok().filter(|_| is_shared)?;
        let floor = DiskFloors::new(scripts.to_owned(), floor).bytes(space);
        Some(Self { scripts: scripts.into(), redis: redis.into(), bytes_free: space.bytes_free, floor })
    }

    /// Returns advice on what to do about the shared disk.
    pub(crate) fn way_out(&self) -> String {
        format!(
            "mount a file system of its own on {}; until then the job that holds the most ends below the floor (--disk-floor)",
            self.scripts.display()
        )
    }
}

impl fmt::Display for SharedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scripts, redis, bytes_free, floor } = self;
        let (scripts, redis) = (scripts.display(), redis.display());
        write!(f, "scripts ({scripts}) and Redis ({redis}) share one file system, with ")?;
        write!(f, "{} MiB free and a floor of {} MiB", bytes_free >> 20, floor >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_file_system_is_shared() {
        let dir = tempfile::tempdir().expect("a directory");
        let (scripts, redis) = (dir.path().join("work"), dir.path().join("redis"));
        assert_eq!(SharedDisk::of(&scripts, &redis, None), None, "nothing is there");
        for path in [&scripts, &redis] {
            std::fs::create_dir(path).expect("a directory");
        }
        let shared = SharedDisk::of(&scripts, &redis, Some(3 << 20)).expect("one file system");
        let text = shared.to_string();
        assert!(
            text.ends_with(" and a floor of 3 MiB") && text.contains(&*redis.to_string_lossy()),
            "{text}"
        );
        assert!(shared.way_out().contains(&*scripts.to_string_lossy()));
        assert_eq!(SharedDisk::of(Path::new("/proc"), &redis, None), None);
    }
}
