//! The files of a job, for functions of scripts: nothing leads out of its directory, and no link is followed.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use model::limits::FILE_BYTES_MAX;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::ScriptLimits;
use crate::runtime::ScriptJob;
use crate::workspace::{Workspace, create_inside, open_inside, read_inside, size_of_tree};

/// The most names that one list of a directory gives.
const NAMES_MAX: usize = 10_000;
/// How much is written between two looks at what the directory holds.
const BYTES_BETWEEN_LOOKS: u64 = 16 * 1024 * 1024;
/// Bytes that creating a file or a directory counts as.
const CREATION_BYTES: u64 = 4096;

/// The directory of a job. Clones are the same.
#[derive(Clone)]
pub(crate) struct ScriptFiles(Arc<ScriptFilesInner>);

struct ScriptFilesInner {
    workspace: Arc<Workspace>,
    bytes_max: u64,
    limits: ScriptLimits,
    /// Bytes that the directory may hold now: those of the last look, and those written since.
    held: Mutex<DirectoryUsage>,
}

#[derive(Default)]
struct DirectoryUsage {
    looked: bool,
    bytes: u64,
    since: u64,
}

impl ScriptFiles {
    /// Those of this job.
    pub(crate) fn of(job: &ScriptJob, limits: &ScriptLimits) -> Self {
        Self(Arc::new(ScriptFilesInner {
            workspace: Arc::clone(&job.workspace),
            bytes_max: job.grants.disk_bytes,
            limits: limits.clone(),
            held: Mutex::default(),
        }))
    }

    /// The directory, which is made when a script first comes to it.
    fn dir(&self) -> io::Result<&Path> {
        self.0.workspace.make().map_err(|reason| io::Error::other(reason.to_string()))?;
        Ok(self.0.workspace.dir())
    }

    /// The text of a file.
    pub(crate) fn read(&self, path: &str) -> Result<String, String> {
        let read = || read_inside(self.dir()?, path, FILE_BYTES_MAX);
        let bytes = read().map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
    }

    /// Makes a file, or replaces what is in it.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        self.put(path, OFlags::TRUNC, bytes)
    }

    /// Adds to a file, which is made if there is none.
    pub(crate) fn append(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        self.put(path, OFlags::APPEND, bytes)
    }

    fn put(&self, path: &str, how: OFlags, bytes: &[u8]) -> Result<(), String> {
        self.room(bytes.len() as u64)?;
        let put = || {
            let mut file = self.create(path, how)?;
            file.write_all(bytes)
        };
        put().map_err(|error| error.to_string())
    }

    fn create(&self, path: &str, how: OFlags) -> io::Result<File> {
        let file = create_inside(self.dir()?, path, how)?;
        self.give(&file)?;
        Ok(file)
    }

    /// Gives a file that the script makes to the user that its processes run as.
    fn give(&self, file: impl std::os::fd::AsFd) -> io::Result<()> {
        match self.0.workspace.owner() {
            None => Ok(()),
            Some(owner) => {
                let (user, group) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::from_raw(owner));
                Ok(rustix::fs::fchown(file, Some(user), Some(group))?)
            }
        }
    }

    /// Refuses what the directory has no room for.
    fn room(&self, bytes: u64) -> Result<(), String> {
        let max = self.0.bytes_max;
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        let more = bytes.saturating_add(CREATION_BYTES);
        let may_be = held.bytes.saturating_add(held.since).saturating_add(more);
        if !held.looked || held.since >= BYTES_BETWEEN_LOOKS || may_be > max {
            *held =
                DirectoryUsage { looked: true, bytes: size_of_tree(self.0.workspace.dir(), max), since: 0 };
        }
        if held.bytes.saturating_add(held.since).saturating_add(more) > max {
            return Err(format!("the directory of the job may hold {max} bytes"));
        }
        self.0.workspace.share().take(held.bytes.saturating_add(held.since), more)?;
        held.since += more;
        Ok(())
    }

    /// The names in a directory, sorted; those of directories end with `/`.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<String>, String> {
        let names = || {
            let dir = self.open_dir(path)?;
            let mut names = Vec::new();
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy();
                if name == "." || name == ".." {
                    continue;
                }
                let slash = if entry.file_type() == FileType::Directory { "/" } else { "" };
                names.push(format!("{name}{slash}"));
                if names.len() > NAMES_MAX {
                    return Err(io::Error::other(format!("it holds more than {NAMES_MAX} names")));
                }
            }
            names.sort_unstable();
            Ok(names)
        };
        names().map_err(|error: io::Error| error.to_string())
    }

    fn open_dir(&self, path: &str) -> io::Result<OwnedFd> {
        open_inside(self.dir()?, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// The place of a directory, for a process to begin in.
    pub(crate) fn place(&self, path: &str) -> Result<PathBuf, String> {
        self.open_dir(path).map_err(|error| error.to_string())?;
        Ok(self.0.workspace.dir().join(path))
    }

    /// Returns true if the path names something. A link exists, wherever it leads.
    pub(crate) fn exists(&self, path: &str) -> Result<bool, String> {
        match self.parent(path).and_then(|(parent, name)| stat(&parent, &name)) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// How many bytes a file has.
    pub(crate) fn size(&self, path: &str) -> Result<u64, String> {
        let size = || {
            let file = File::from(open_inside(self.dir()?, path, OFlags::PATH, Mode::empty())?);
            let metadata = file.metadata()?;
            if metadata.is_file() {
                Ok(metadata.len())
            } else {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
            }
        };
        size().map_err(|error: io::Error| error.to_string())
    }

    /// Removes a file, a link itself, or a directory with everything in it; whether it was there.
    pub(crate) fn remove(&self, path: &str) -> Result<bool, String> {
        let remove = || {
            let (parent, name) = self.parent(path)?;
            let stat = match stat(&parent, &name) {
                Ok(stat) => stat,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(error),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                sandbox::tree::remove_from(&parent, &CString::new(name)?)?;
            } else {
                rustix::fs::unlinkat(&parent, name.as_str(), AtFlags::empty())?;
            }
            Ok(true)
        };
        remove().map_err(|error: io::Error| error.to_string())
    }

    /// Copies a file.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<(), String> {
        self.room(self.size(from)?)?;
        let copy = || {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let mut source = File::from(open_inside(self.dir()?, from, flags, Mode::empty())?);
            let mut target = self.create(to, OFlags::empty())?;
            let (one, other) = (rustix::fs::fstat(&source)?, rustix::fs::fstat(&target)?);
            if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "they are the same file"));
            }
            target.set_len(0)?;
            let mut piece = vec![0; 64 * 1024];
            loop {
                if self.0.limits.look().is_err() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                match source.read(&mut piece)? {
                    0 => return Ok(()),
                    len => target.write_all(&piece[..len])?,
                }
            }
        };
        copy().map_err(|error: io::Error| error.to_string())
    }

    /// Makes a directory, and those on the way to it; one that is there is enough.
    pub(crate) fn make_dir(&self, path: &str) -> Result<(), String> {
        let make = |path: &Path| {
            let (parent, name) = self.parent(&path.to_string_lossy())?;
            match rustix::fs::mkdirat(&parent, name.as_str(), Mode::RWXU) {
                Ok(()) => self.give(self.open_dir(&path.to_string_lossy())?),
                Err(Errno::EXIST) => self.open_dir(&path.to_string_lossy()).map(drop),
                Err(error) => Err(error.into()),
            }
        };
        let mut way = PathBuf::new();
        for part in Path::new(path).components() {
            way.push(part);
            self.room(0)?;
            make(&way).map_err(|error: io::Error| error.to_string())?;
        }
        Ok(())
    }

    /// The directory that something is in, and its name there.
    fn parent(&self, path: &str) -> io::Result<(OwnedFd, String)> {
        let trimmed = path.trim_end_matches('/');
        let (parent, name) = match trimmed.rsplit_once('/') {
            Some(("", _)) => return Err(leads_out()),
            Some((parent, name)) => (parent, name),
            None => (".", trimmed),
        };
        if matches!(name, "" | "." | "..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names nothing in a directory"));
        }
        Ok((self.open_dir(parent)?, name.to_owned()))
    }
}

fn leads_out() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "its path leads out of the directory")
}

fn stat(parent: &OwnedFd, name: &str) -> io::Result<rustix::fs::Stat> {
    Ok(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?)
}
