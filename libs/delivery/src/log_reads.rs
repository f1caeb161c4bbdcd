//! Pieces of output that schedulers want read at supervisors.
//!
//! Each query has a waiting caller, with a short time limit: queries that are not answered by then are forgotten. Queries
//! in flight when the stream to the gateway was lost are sent again: reading changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::internal::v1 as wire;
use tokio::time::Instant;

/// Queries that may be open. Far more than there are: a scheduler bounds its own.
pub const LOG_QUERIES_MAX: usize = 1000;
/// How long a scheduler waits for an answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The queries that are open. They are numbered in the order in which they came.
#[derive(Debug, Default)]
pub struct RouterLogReads {
    open: BTreeMap<u64, RouterLogRead>,
    unsent: BTreeSet<u64>,
}

#[derive(Debug)]
struct RouterLogRead {
    scheduler: String,
    query_id: u64,
    read: wire::ReadAttemptLog,
    until: Instant,
}

impl RouterLogReads {
    /// Takes a scheduler's read of a piece of output. Returns false when too many are open.
    pub fn ask(&mut self, now: Instant, scheduler: &str, query_id: u64, read: wire::ReadAttemptLog) -> bool {
        self.forget_late(now);
        if self.open.len() >= LOG_QUERIES_MAX {
            return false;
        }
        let (read_id, until) = (read.read_id, now + PATIENCE);
        self.open.insert(read_id, RouterLogRead { scheduler: scheduler.to_owned(), query_id, read, until });
        self.unsent.insert(read_id);
        true
    }

    /// Takes the reads that the gateway must be asked for.
    pub fn take_unsent(&mut self, now: Instant) -> Vec<wire::ReadAttemptLog> {
        if self.unsent.is_empty() {
            return Vec::new();
        }
        self.forget_late(now);
        let unsent = std::mem::take(&mut self.unsent);
        unsent.into_iter().filter_map(|read_id| Some(self.open.get(&read_id)?.read.clone())).collect()
    }

    /// A piece was read, or cannot be: gives which scheduler waits for it, and under which number.
    pub fn answered(&mut self, read_id: u64) -> Option<(String, u64)> {
        let RouterLogRead { scheduler, query_id, .. } = self.open.remove(&read_id)?;
        self.unsent.remove(&read_id);
        Some((scheduler, query_id))
    }

    /// Marks every open read as unsent: the stream to the gateway was lost, and the reads with it.
    pub fn gateway_lost(&mut self) {
        self.unsent = self.open.keys().copied().collect();
    }

    /// The stream to a scheduler was lost: it asks again over the next one.
    pub fn scheduler_lost(&mut self, scheduler: &str) {
        self.open.retain(|_, open| open.scheduler != scheduler);
        self.unsent.retain(|read_id| self.open.contains_key(read_id));
    }

    fn forget_late(&mut self, now: Instant) {
        while let Some(first) = self.open.first_entry()
            && first.get().until <= now
        {
            self.unsent.remove(first.key());
            first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(read_id: u64) -> wire::ReadAttemptLog {
        wire::ReadAttemptLog { read_id, ..Default::default() }
    }

    fn ids(reads: &[wire::ReadAttemptLog]) -> Vec<u64> {
        reads.iter().map(|read| read.read_id).collect()
    }

    #[test]
    fn each_log_read_is_sent_once_and_again_over_another_stream() {
        let (mut queries, now) = (RouterLogReads::default(), Instant::now());
        assert!(queries.ask(now, "a", 7, read(1)) && queries.ask(now, "b", 7, read(2)));
        assert_eq!(ids(&queries.take_unsent(now)), [1, 2]);
        assert!(queries.take_unsent(now).is_empty());
        assert_eq!(queries.answered(2), Some(("b".to_owned(), 7)));
        assert_eq!(queries.answered(2), None);
        queries.ask(now, "b", 8, read(3));
        queries.gateway_lost();
        queries.scheduler_lost("b");
        assert_eq!(ids(&queries.take_unsent(now)), [1]);
        assert_eq!(queries.answered(3), None, "nobody waits");
    }

    #[test]
    fn reads_without_a_waiter_are_forgotten_and_all_is_bounded() {
        let (mut queries, now) = (RouterLogReads::default(), Instant::now());
        for read_id in 0..LOG_QUERIES_MAX as u64 {
            assert!(queries.ask(now, "a", read_id, read(read_id)));
        }
        assert!(!queries.ask(now, "a", 0, read(5000)));
        let later = now + PATIENCE;
        assert!(queries.take_unsent(later).is_empty());
        assert!(queries.ask(later, "a", 0, read(5000)) && queries.open.len() == 1);
    }
}
