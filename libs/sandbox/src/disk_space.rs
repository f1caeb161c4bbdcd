//! Free space of a file system that scripts write to, and its floors.
//!
//! Above the first floor nothing happens. Below it, users have to give room back; below the second floor, a fraction of the
//! first, nothing starts that would take more.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use model::limits::{DISK_FLOOR_BYTES_DEFAULT, DISK_FLOOR_PERCENT_DEFAULT, DISK_STOP_PART};

/// Bytes of the floor that count as one name, on a file system with a fixed number of names: the least that a name takes on disk.
const BYTES_PER_NAME: u64 = 16 * 1024;

/// Size of a file system, and how much of it is free to users other than root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// All bytes.
    pub bytes: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// All names; 0 where there is no number of them.
    pub names: u64,
    /// Free names.
    pub names_free: u64,
}

impl FileSystemSpace {
    /// Looks at the file system of a path.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Self {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            bytes_free: found.f_bavail.saturating_mul(found.f_frsize),
            names: found.f_files,
            names_free: found.f_favail,
        })
    }
}

/// How a file system stands to its floors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskSpaceStatus {
    /// There is enough: bytes above the first floor, or as many names as that many bytes are.
    Enough(u64),
    /// Less than the first floor.
    Low(DiskShortage),
    /// Less than the second: nothing may start.
    Out(DiskShortage),
}

/// Shortage of a resource of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskShortage {
    /// How much is free.
    pub free: u64,
    /// How much has to be.
    pub floor: u64,
    /// Resource that is short.
    pub of: DiskResource,
}

/// Resource that a file system has a limited number of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskResource {
    /// Bytes.
    Bytes,
    /// Names.
    Names,
}

impl fmt::Display for DiskShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.of {
            DiskResource::Bytes => "bytes",
            DiskResource::Names => "inodes",
        };
        write!(
            f,
            "the disk of the scripts has {} {what} free, less than its floor of {}",
            self.free, self.floor
        )
    }
}

/// Watches the file system of one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFloors {
    path: PathBuf,
    /// The first floor in bytes, when it was configured. 0: there is none.
    configured: Option<u64>,
}

impl DiskFloors {
    /// Floors of a directory's file system; `configured` is the first of them in bytes, unless it is the usual one.
    #[must_use]
    pub fn new(path: PathBuf, configured: Option<u64>) -> Self {
        Self { path, configured }
    }

    /// How it stands now.
    ///
    /// # Errors
    /// When the file system cannot be looked at.
    pub fn check(&self) -> io::Result<DiskSpaceStatus> {
        FileSystemSpace::of(&self.path).map(|space| self.judge(space))
    }

    /// Why nothing may start now: there is too little room for that.
    #[must_use]
    pub fn shortage(&self) -> Option<DiskShortage> {
        match self.check() {
            Ok(DiskSpaceStatus::Out(shortage)) => Some(shortage),
            // A disk that cannot be read is no reason to stop; a write to it will report the error.
            Ok(DiskSpaceStatus::Enough(_) | DiskSpaceStatus::Low(_)) | Err(_) => None,
        }
    }

    /// The first floor of such a file system, in bytes.
    #[must_use]
    pub fn bytes(&self, space: FileSystemSpace) -> u64 {
        let usual = || DISK_FLOOR_BYTES_DEFAULT.min(part(space.bytes));
        self.configured.unwrap_or_else(usual)
    }

    fn judge(&self, space: FileSystemSpace) -> DiskSpaceStatus {
        let floor = self.bytes(space);
        let bytes = of_one(DiskResource::Bytes, space.bytes_free, floor);
        if space.names == 0 || floor == 0 {
            return bytes;
        }
        let names = (floor / BYTES_PER_NAME).min(part(space.names));
        match (bytes, of_one(DiskResource::Names, space.names_free, names)) {
            (out @ DiskSpaceStatus::Out(_), _)
            | (DiskSpaceStatus::Enough(_) | DiskSpaceStatus::Low(_), out @ DiskSpaceStatus::Out(_)) => out,
            (low @ DiskSpaceStatus::Low(_), _)
            | (DiskSpaceStatus::Enough(_), low @ DiskSpaceStatus::Low(_)) => low,
            (DiskSpaceStatus::Enough(bytes), DiskSpaceStatus::Enough(names)) => {
                DiskSpaceStatus::Enough(bytes.min(names.saturating_mul(BYTES_PER_NAME)))
            }
        }
    }
}

fn part(all: u64) -> u64 {
    all / 100 * DISK_FLOOR_PERCENT_DEFAULT
}

fn of_one(of: DiskResource, free: u64, floor: u64) -> DiskSpaceStatus {
    let stop = floor / DISK_STOP_PART;
    match free.checked_sub(floor) {
        Some(above) => DiskSpaceStatus::Enough(above),
        None if free < stop => DiskSpaceStatus::Out(DiskShortage { free, floor: stop, of }),
        None => DiskSpaceStatus::Low(DiskShortage { free, floor, of }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn space(gib: u64, bytes_free: u64) -> FileSystemSpace {
        FileSystemSpace { bytes: gib * GIB, bytes_free, names: 0, names_free: 0 }
    }

    #[test]
    fn the_floor_is_a_gibibyte_and_of_a_small_disk_a_part() {
        let floors = DiskFloors::new("/".into(), None);
        let low = |free, floor| DiskSpaceStatus::Low(DiskShortage { free, floor, of: DiskResource::Bytes });
        let out = |free, floor| DiskSpaceStatus::Out(DiskShortage { free, floor, of: DiskResource::Bytes });
        assert_eq!(floors.judge(space(1000, 3 * GIB)), DiskSpaceStatus::Enough(2 * GIB));
        assert_eq!(floors.judge(space(1000, GIB - 1)), low(GIB - 1, GIB));
        assert_eq!(floors.judge(space(1000, GIB / 4)), low(GIB / 4, GIB));
        assert_eq!(floors.judge(space(1000, GIB / 4 - 1)), out(GIB / 4 - 1, GIB / 4));
        let part = GIB / 100 * 5;
        assert_eq!(floors.judge(space(1, GIB / 10)), DiskSpaceStatus::Enough(GIB / 10 - part));
        assert_eq!(floors.judge(space(1, 0)), out(0, part / 4));
        let configured = DiskFloors::new("/".into(), Some(4000));
        assert_eq!(configured.judge(space(1, 3999)), low(3999, 4000));
        assert_eq!(
            DiskFloors::new("/".into(), Some(0)).judge(space(1, 0)),
            DiskSpaceStatus::Enough(0),
            "switched off"
        );
    }

    #[test]
    fn names_run_out_as_bytes_do() {
        let floors = DiskFloors::new("/".into(), None);
        let judge =
            |names_free| floors.judge(FileSystemSpace { names: 1000, names_free, ..space(1000, 9 * GIB) });
        assert_eq!(judge(500), DiskSpaceStatus::Enough(450 * BYTES_PER_NAME));
        let DiskSpaceStatus::Low(low) = judge(49) else { panic!("few are left") };
        assert_eq!(low.to_string(), "the disk of the scripts has 49 inodes free, less than its floor of 50");
        assert!(matches!(
            judge(11),
            DiskSpaceStatus::Out(DiskShortage { of: DiskResource::Names, floor: 12, .. })
        ));
        let none = floors.judge(FileSystemSpace { names: 1000, names_free: 500, ..space(1000, 0) });
        assert!(matches!(none, DiskSpaceStatus::Out(DiskShortage { of: DiskResource::Bytes, .. })));
    }

    #[test]
    fn a_real_disk_can_be_looked_at() {
        let dir = tempfile::tempdir().expect("a directory");
        let space = FileSystemSpace::of(dir.path()).expect("a file system");
        assert!(space.bytes > space.bytes_free && space.bytes_free > 0, "{space:?}");
        let floors = |floor| DiskFloors::new(dir.path().to_owned(), Some(floor));
        assert!(matches!(floors(1).check(), Ok(DiskSpaceStatus::Enough(_))));
        assert!(matches!(floors(space.bytes_free * 2).check(), Ok(DiskSpaceStatus::Low(_))));
        assert!(matches!(floors(u64::MAX).check(), Ok(DiskSpaceStatus::Out(_))));
        assert!(floors(1).path.exists() && FileSystemSpace::of(&dir.path().join("absent")).is_err());
    }
}
