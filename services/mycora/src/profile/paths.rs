//! How a profile names files.

use std::path::{Path, PathBuf};

/// Returns a path as a profile writes it: relative to itself, where that leads downwards.
pub(super) fn as_seen_from(profile: &Path, file: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let file = absolute(file);
    let profile = absolute(profile);
    let below = profile.parent().and_then(|dir| file.strip_prefix(dir).ok().map(Path::to_owned));
    below.unwrap_or(file)
}
