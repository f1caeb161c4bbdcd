//! Measures what one job holds: its directory, and open files of its processes that have no name there.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbox::open_files::{self, FileScope};
use sandbox::processes::{self, ProcessSnapshot};
use sandbox::tree;

/// How old a list of all processes may be. Jobs in control groups need none.
const LIST_AGE_MAX: Duration = Duration::from_secs(1);

/// All processes of the machine, listed once for measurements at about the same time. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessListCache(Arc<Mutex<CachedProcessList>>);

/// A list of processes, and when it was made.
type CachedProcessList = Option<(Instant, Vec<ProcessSnapshot>)>;

impl ProcessListCache {
    fn now(&self) -> Vec<ProcessSnapshot> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((listed, all)) = &*known
            && listed.elapsed() < LIST_AGE_MAX
        {
            return all.clone();
        }
        // Without `/proc` no process is visible, and no job would run either.
        let all = processes::all().unwrap_or_default();
        *known = Some((Instant::now(), all.clone()));
        all
    }
}

/// Where a job's holdings are.
#[derive(Debug, Clone)]
pub(crate) struct JobUsageProbe {
    /// Directory of the job, and the owner of its files.
    pub(crate) scope: FileScope,
    /// The init, which is the ancestor of all of the job's processes.
    pub(crate) init: u32,
    /// Control groups of the job's processes, when there are any.
    pub(crate) cgroups: Vec<PathBuf>,
    /// List of processes, for jobs without a control group.
    pub(crate) process_list: ProcessListCache,
}

/// Usage that a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct JobUsage {
    /// Bytes on the disk.
    pub(crate) bytes: u64,
    /// Bytes of files that are memory.
    pub(crate) memory_bytes: u64,
    /// True for a job that holds something that cannot be inspected.
    pub(crate) unseen: bool,
}

impl JobUsageProbe {
    /// Measures the usage, and stops counting beyond `bytes_max`. Blocks.
    pub(crate) fn take(&self, bytes_max: u64) -> JobUsage {
        // Open files first: a file that is unlinked after that is still found in the directory, or here.
        let mut open = open_files::scan(&self.processes(), &self.scope);
        let named = tree::size_with(&self.scope.dir, bytes_max, |file| {
            open.files.remove(&file);
        });
        JobUsage {
            bytes: named.saturating_add(open.disk_bytes()),
            memory_bytes: open.memory_bytes(),
            unseen: open.unseen,
        }
    }

    /// Returns the job's processes without the init, which is ours, cannot be inspected, and holds nothing.
    fn processes(&self) -> Vec<u32> {
        let found: Vec<u32> = if self.cgroups.is_empty() {
            processes::below_among(self.init, self.process_list.now())
                .iter()
                .map(|process| process.pid)
                .collect()
        } else {
            sandbox::members(&self.cgroups).into_iter().collect()
        };
        found.into_iter().filter(|pid| *pid != self.init).collect()
    }
}
