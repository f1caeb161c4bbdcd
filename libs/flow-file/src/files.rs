//! Where the files that a flow file names come from, and what of them has to be uploaded.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use model::BlobHash;
use model::job::BlobRef;
use model::limits::FILE_BYTES_MAX;

/// Meaning of the paths in a flow file.
#[derive(Debug, Clone)]
pub enum FileRoot {
    /// Paths relative to this directory.
    Directory(PathBuf),
    /// Paths from the command line, relative to the working directory.
    WorkingDirectory,
    /// Names of bytes that are embedded in the program.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

/// Hint in the message about a file that a flow file names but that does not exist.
const RELATIVE: &str = "; paths are relative to the flow file";

/// Why a file cannot be carried along.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read `{}`: {source}{hint}", path.display())]
    Read {
        /// Where it was looked for.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
        /// Where paths begin.
        hint: &'static str,
    },
    /// The file is beyond the limit.
    #[error("`{}` has {size} bytes; a file has at most {FILE_BYTES_MAX}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Size of the file in bytes.
        size: u64,
    },
}

impl FileRoot {
    /// Reads a file by its path in the flow file.
    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>, FileError> {
        match self {
            Self::Directory(dir) => read_limited(&dir.join(path), RELATIVE),
            Self::WorkingDirectory => read_limited(Path::new(path), ""),
            Self::Embedded(files) => {
                let found = files.iter().find(|(name, _)| *name == path);
                found.map(|(_, bytes)| bytes.to_vec()).ok_or_else(|| FileError::Read {
                    path: path.into(),
                    source: io::Error::new(io::ErrorKind::NotFound, "it is not part of the program"),
                    hint: RELATIVE,
                })
            }
        }
    }
}

fn read_limited(path: &Path, hint: &'static str) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source, hint };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")));
    }
    if metadata.len() > FILE_BYTES_MAX as u64 {
        return Err(FileError::TooLarge { path: path.to_owned(), size: metadata.len() });
    }
    std::fs::read(path).map_err(failed)
}

/// Bytes that have to be at the coordinator before the flow is submitted.
#[derive(Debug, Clone)]
pub struct Upload {
    /// Hash and size.
    pub blob: BlobRef,
    /// Name of the upload in messages to people.
    pub label: String,
    content: UploadContent,
}

#[derive(Debug, Clone)]
enum UploadContent {
    /// A path as written in the flow file. Read again when it is sent, so that a flow with many large files needs no memory
    /// for all of them.
    Path(String),
    Text(String),
}

/// Why an upload cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The file cannot be read any more.
    #[error("{0}")]
    File(FileError),
    /// The file is another one than when the flow was checked.
    #[error("`{0}` changed while the flow was being submitted; submit it again")]
    Changed(String),
}

/// Everything to upload, each content once.
#[derive(Debug, Clone, Default)]
pub struct Uploads {
    list: Vec<Upload>,
    by_hash: HashMap<BlobHash, usize>,
    by_path: HashMap<String, BlobRef>,
}

impl Uploads {
    /// Carries a file along.
    ///
    /// # Errors
    /// When it cannot be read, or is too large.
    pub fn file(&mut self, files: &FileRoot, path: &str) -> Result<BlobRef, FileError> {
        if let Some(blob) = self.by_path.get(path) {
            return Ok(*blob);
        }
        let bytes = files.read(path)?;
        let blob = BlobRef { sha256: BlobHash::of(&bytes), size: bytes.len() as u64 };
        self.by_path.insert(path.to_owned(), blob);
        self.push(blob, path, UploadContent::Path(path.to_owned()));
        Ok(blob)
    }

    /// Carries a text along.
    pub fn text(&mut self, label: &str, text: String) -> BlobRef {
        let blob = BlobRef { sha256: BlobHash::of(text.as_bytes()), size: text.len() as u64 };
        self.push(blob, label, UploadContent::Text(text));
        blob
    }

    fn push(&mut self, blob: BlobRef, label: &str, content: UploadContent) {
        let next = self.list.len();
        if *self.by_hash.entry(blob.sha256).or_insert(next) == next {
            self.list.push(Upload { blob, label: label.to_owned(), content });
        }
    }

    pub(super) fn into_list(self) -> Vec<Upload> {
        self.list
    }
}

impl Upload {
    /// The text, of an upload that is no file.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            UploadContent::Text(text) => Some(text),
            UploadContent::Path(_) => None,
        }
    }

    /// The bytes, which are those of [`Upload::blob`].
    ///
    /// # Errors
    /// When a file cannot be read any more, or changed since it was checked.
    pub fn bytes(&self, files: &FileRoot) -> Result<Vec<u8>, UploadError> {
        let bytes = match &self.content {
            UploadContent::Text(text) => text.clone().into_bytes(),
            UploadContent::Path(path) => files.read(path).map_err(UploadError::File)?,
        };
        if BlobHash::of(&bytes) != self.blob.sha256 {
            return Err(UploadError::Changed(self.label.clone()));
        }
        Ok(bytes)
    }
}
