//! How many processes and threads a job has, where no control group counts them.

use std::collections::HashMap;
use std::io;

use crate::processes;

/// How far up the processes of a job are followed: no bound on processes is larger than this times their branches.
const ANCESTORS_MAX: usize = 1 << 20;

/// Counts the forks of a job, and lets through what its bound has room for.
///
/// There is no notification of ends, so the number is that of the last look, plus the forks that were let through since. At the bound
/// the processes are counted again. A fork that was let through and has not happened yet is missed by a count: each thread at most once.
pub(super) struct ForkCounter {
    most: u32,
    /// The process whose children are jobs of their own.
    above_jobs: Option<u32>,
    /// The highest number that there may be, below each of these processes.
    known: HashMap<u32, u32>,
}

impl ForkCounter {
    pub(super) fn new(most: Option<u32>, above_jobs: Option<u32>) -> Self {
        Self { most: most.unwrap_or(u32::MAX), above_jobs, known: HashMap::new() }
    }

    /// Returns whether this thread may make another.
    pub(super) fn admits(&mut self, thread: u32) -> io::Result<bool> {
        let Some(root) = self.root(thread)? else { return Ok(true) };
        if let Some(known) = self.known.get_mut(&root).filter(|known| **known < self.most) {
            *known += 1;
            return Ok(true);
        }
        // Those of jobs that are over.
        self.known.retain(|root, _| processes::observe(*root).is_ok());
        let now = processes::tasks_below(root)?;
        let admitted = now < self.most;
        self.known.insert(root, now + u32::from(admitted));
        Ok(admitted)
    }

    /// The process below which the job of a thread is; none for the one above all jobs.
    fn root(&self, thread: u32) -> io::Result<Option<u32>> {
        let own = std::process::id();
        let Some(above) = self.above_jobs else { return Ok(Some(own)) };
        let mut process = thread;
        for _ in 0..ANCESTORS_MAX {
            let parent = processes::parent(process)?;
            if parent == above {
                return Ok(Some(process));
            }
            if parent == own || parent <= 1 {
                // The one above all jobs itself, or what has lost its job.
                return Ok((processes::first_thread(process)? != above).then_some(own));
            }
            process = parent;
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}
