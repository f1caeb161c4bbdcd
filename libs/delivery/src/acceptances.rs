//! That jobs were accepted, which is passed on only when nothing better is heard of them.
//!
//! Mostly a job begins, and often ends, moments after its supervisor has taken it. What is said then says that it was accepted
//! as well, and one report and one answer to it less go to the scheduler and back.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use model::JobKey;
use tokio::time::Instant;

/// Reports that wait.
#[derive(Debug, Default)]
pub struct Acceptances {
    open: HashMap<JobKey, Acceptance>,
    due: BTreeSet<(Instant, JobKey)>,
}

/// A report that an attempt was accepted, as the gateway has given it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// When it is passed on.
    pub at: Instant,
    /// The gateway's number of it.
    pub report_id: u64,
    /// The report.
    pub json: Bytes,
}

impl Acceptances {
    /// Lets a report wait; gives the number of one that said the same before.
    pub fn hold(&mut self, key: JobKey, acceptance: Acceptance) -> Option<u64> {
        let before = self.overtaken(key);
        self.due.insert((acceptance.at, key));
        self.open.insert(key, acceptance);
        before
    }

    /// Something better was heard of an attempt; gives the number of the report that need not be passed on any more.
    pub fn overtaken(&mut self, key: JobKey) -> Option<u64> {
        let acceptance = self.open.remove(&key)?;
        self.due.remove(&(acceptance.at, key));
        Some(acceptance.report_id)
    }

    /// Those of which nothing was heard in time.
    pub fn take_due(&mut self, now: Instant) -> Vec<(JobKey, Acceptance)> {
        let mut taken = Vec::new();
        while let Some((at, key)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            taken.extend(self.open.remove(&key).map(|acceptance| (key, acceptance)));
        }
        taken
    }

    /// When the next one is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The gateway says all of them again.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
