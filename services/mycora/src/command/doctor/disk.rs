//! The disks of scripts and of Redis: whether one is both, and what is free.

use std::path::{Path, PathBuf};

use kv::{Kv, KvEndpoint};
use sandbox::disk_space::{DiskFloors, DiskSpaceStatus};

use super::DoctorArgs;
use super::backing_services::setting;
use super::finding::Finding;
use crate::profile::default_data_dir;
use crate::up::disk::SharedDisk;
use crate::up::{REDIS_DIR, WORK_DIR};

const CHECK: &str = "disk";

/// Looks at what of this machine is known: the data directory of an all-in-one, and the Redis that was named.
pub(super) async fn look(args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(data) = args.data.clone().or_else(|| default_data_dir().ok()) {
        findings.extend(judge(CHECK, &data.join(WORK_DIR), &data.join(REDIS_DIR)));
    }
    if let Some(endpoint) = &args.redis_url
        && let Some(redis) = directory(endpoint).await
    {
        findings.extend(judge("redis disk", &args.work_dir, &redis));
    }
    findings
}

/// Directory to which a Redis of this machine writes, if it reports it.
async fn directory(endpoint: &KvEndpoint) -> Option<PathBuf> {
    let shown = endpoint.to_string();
    let host = shown.strip_prefix("redis://").and_then(|place| place.rsplit('@').next());
    let is_here = |host: &str| ["127.", "localhost:", "[::1]:"].iter().any(|here| host.starts_with(here));
    if !(shown.starts_with("unix:") || host.is_some_and(is_here)) {
        // Elsewhere the same path is another disk.
        return None;
    }
    let dir = setting(&Kv::new(endpoint.clone()).default_database(), "dir").await.ok().flatten()?;
    Some(PathBuf::from(dir))
}

/// Nothing where no scripts work.
fn judge(check: &str, scripts: &Path, redis: &Path) -> Option<Finding> {
    if !scripts.is_dir() {
        return None;
    }
    match DiskFloors::new(scripts.to_owned(), None).check() {
        Ok(DiskSpaceStatus::Out(shortage)) => {
            let found = format!("{shortage}: no job starts (DISK_FULL)");
            Some(Finding::fail(check, found, "make room, or lower --disk-floor"))
        }
        Ok(DiskSpaceStatus::Low(shortage)) => {
            let found = format!("{shortage}: the job that holds the most ends");
            Some(Finding::warn(check, found, "make room, or lower --disk-floor"))
        }
        Ok(DiskSpaceStatus::Enough(_)) => Some(match SharedDisk::of(scripts, redis, None) {
            Some(shared) => Finding::warn(check, shared.to_string(), shared.way_out()),
            None => Finding::ok(check, format!("scripts have one of their own at {}", scripts.display())),
        }),
        Err(error) => Some(Finding::warn(check, error.to_string(), "look at the work directory")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::doctor::FindingLevel;

    #[test]
    fn a_disk_for_both_is_named_with_the_way_out() {
        let data = tempfile::tempdir().expect("a directory");
        let (scripts, redis) = (data.path().join(WORK_DIR), data.path().join(REDIS_DIR));
        assert_eq!(judge(CHECK, &scripts, &redis), None);
        std::fs::create_dir(&scripts).expect("a directory");
        let apart = judge(CHECK, &scripts, &redis).expect("scripts work there");
        assert_eq!(apart.level, FindingLevel::Ok, "{apart:?}");
        std::fs::create_dir(&redis).expect("a directory");
        let both = judge(CHECK, &scripts, &redis).expect("scripts work there");
        assert_eq!(both.level, FindingLevel::Warn, "{both:?}");
        assert!(both.found.contains("share one file system"), "{both:?}");
        assert!(both.advice.contains(&format!("mount a file system of its own on {}", scripts.display())));
    }
}
