//! "Accepted" reports, held back and passed on only when no further report of the attempt follows in time.
//!
//! Most jobs begin, and often end, moments after their supervisor has accepted them. The later report then implies the acceptance,
//! which saves one report to the scheduler and one acknowledgement back.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use model::JobKey;
use tokio::time::Instant;

/// "Accepted" reports that are held back.
#[derive(Debug, Default)]
pub struct HeldAcceptances {
    open: HashMap<JobKey, AcceptanceReport>,
    due: BTreeSet<(Instant, JobKey)>,
}

/// A report that an attempt was accepted, as the gateway has given it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptanceReport {
    /// When it is passed on.
    pub at: Instant,
    /// The gateway's number of it.
    pub report_id: u64,
    /// The report.
    pub json: Bytes,
}

impl HeldAcceptances {
    /// Holds a report back; returns the number of an earlier acceptance of the same attempt, which it replaces.
    pub fn hold(&mut self, key: JobKey, acceptance: AcceptanceReport) -> Option<u64> {
        let before = self.supersede(key);
        self.due.insert((acceptance.at, key));
        self.open.insert(key, acceptance);
        before
    }

    /// Drops the held report once a further one has come; returns its number, which need not be passed on any more.
    pub fn supersede(&mut self, key: JobKey) -> Option<u64> {
        let acceptance = self.open.remove(&key)?;
        self.due.remove(&(acceptance.at, key));
        Some(acceptance.report_id)
    }

    /// Takes the reports that were not superseded in time.
    pub fn take_due(&mut self, now: Instant) -> Vec<(JobKey, AcceptanceReport)> {
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

    /// Drops all of them, since the gateway will resend them.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
