//! Writing files so that a reader sees the old text or the new one, never half.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// For what only its owner may read.
pub(crate) const SECRET: u32 = 0o600;
/// For what everybody may read.
pub(crate) const PUBLIC: u32 = 0o644;

/// Makes a directory, and those that lead to it, for their owner alone, whatever the umask. One that is there stays
/// as it is.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces or creates `path` with `text` in one step, with these permissions from the first byte on.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let draft = draft_beside(path);
    let written = write_draft(&draft, text, mode).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Like [`write`], but fails with `AlreadyExists` instead of replacing anything.
pub(crate) fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let draft = draft_beside(path);
    // A hard link, unlike a rename, refuses an existing name.
    let written = write_draft(&draft, text, mode).and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    written.and(removed)
}

fn write_draft(draft: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn draft_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}", rand::random::<u64>()))
}
