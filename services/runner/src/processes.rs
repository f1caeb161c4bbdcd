//! How processes of ours are told from others.

use std::path::Path;

pub(crate) use service::processes::{Observed, boot_id, environ_has, hostname, kill_all, observe};

/// What the environment of every process of an attempt in `dir` has, or of every attempt below it.
pub(crate) fn mark_below(dir: &Path) -> Vec<u8> {
    let mut mark = b"MYCORA_RESULT=".to_vec();
    mark.extend_from_slice(dir.as_os_str().as_encoded_bytes());
    mark.push(b'/');
    mark
}
