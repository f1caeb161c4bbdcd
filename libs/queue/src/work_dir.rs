//! The work directory: what a supervisor and the runners of its machine share besides Redis.
//!
//! - `instances/<group>-<number>/`: one runner's own. Its `lock`; in `running/` a record of each process tree that
//!   it has started, for the next process to end; in `begun` the attempts that it began lately, for all runners; and in
//!   `held/` how many bytes its jobs hold, by context, and the largest of them when the disk is nearly full;
//! - `contexts/<context uid>/jobs/<job key>/`: where one attempt runs; removed with its end;
//! - `contexts/<context uid>/{store,cache}/`: what the jobs of a context keep between them;
//! - `blobs/<context uid>/<sha256>`: files by their hash. Before the supervisor queues a job, it puts here
//!   the files that the job needs and does not carry inline; a runner puts here the outputs that it collected, for the
//!   supervisor to push. Both write under another name first and rename the file;
//! - `logs/<context uid>/<job key>.log`: what an attempt printed, all of it. The supervisor removes it in time;
//! - `runtimes/<version>/`: what interpreters need of ours;
//! - `relief`: locked by the runner that ends a job since the disk is nearly full.

use std::path::{Path, PathBuf};

use model::{BlobHash, ContextUid, JobKey, Name};

/// Files of all contexts by their hashes.
#[must_use]
pub fn blobs_dir(work_dir: &Path) -> PathBuf {
    work_dir.join("blobs")
}

/// Where a file of a context is kept under its hash.
#[must_use]
pub fn blob_path(work_dir: &Path, context: ContextUid, hash: BlobHash) -> PathBuf {
    blobs_dir(work_dir).join(context.to_string()).join(hash.to_string())
}

/// Returns the directory of the output of all contexts' attempts.
#[must_use]
pub fn logs_dir(work_dir: &Path) -> PathBuf {
    work_dir.join("logs")
}

/// Where what an attempt printed is kept.
#[must_use]
pub fn log_path(work_dir: &Path, key: JobKey) -> PathBuf {
    logs_dir(work_dir).join(key.context.to_string()).join(format!("{key}.log"))
}

/// Where jobs of all contexts run.
#[must_use]
pub fn contexts_dir(work_dir: &Path) -> PathBuf {
    work_dir.join("contexts")
}

/// Where the jobs of one context run and keep what they have.
#[must_use]
pub fn context_dir(work_dir: &Path, context: ContextUid) -> PathBuf {
    contexts_dir(work_dir).join(context.to_string())
}

/// Where the attempts of a context have their directories.
#[must_use]
pub fn jobs_dir(work_dir: &Path, context: ContextUid) -> PathBuf {
    context_dir(work_dir, context).join("jobs")
}

/// Returns the directory that holds one directory for each runner.
#[must_use]
pub fn instances_dir(work_dir: &Path) -> PathBuf {
    work_dir.join("instances")
}

/// Returns the directory of one runner.
#[must_use]
pub fn instance_dir(work_dir: &Path, group: &Name, number: u32) -> PathBuf {
    instances_dir(work_dir).join(format!("{group}-{number}"))
}

/// Within a runner's directory: what it holds locked while it lives.
#[must_use]
pub fn lock_path(instance_dir: &Path) -> PathBuf {
    instance_dir.join("lock")
}

/// Within a runner's directory: what its jobs hold on the disk, a file for each context.
#[must_use]
pub fn held_dir(instance_dir: &Path) -> PathBuf {
    instance_dir.join("held")
}

/// Within a runner's directory: which attempts it began lately.
#[must_use]
pub fn begun_path(instance_dir: &Path) -> PathBuf {
    instance_dir.join("begun")
}

/// Within a runner's directory: records of what it has started.
#[must_use]
pub fn running_dir(instance_dir: &Path) -> PathBuf {
    instance_dir.join("running")
}

/// Returns the path of the file that a runner locks while it ends a job to make room on the disk.
#[must_use]
pub fn relief_path(work_dir: &Path) -> PathBuf {
    work_dir.join("relief")
}

/// Returns the directory of our files that interpreters need.
#[must_use]
pub fn runtimes_dir(work_dir: &Path) -> PathBuf {
    work_dir.join("runtimes")
}
