//! Every store does the same, and what a directory keeps survives.

mod conformance;
mod embedded;
mod random;
mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use store::{
    Clock, CommitOutcome, EmbeddedStore, KvStore, LaneKey, RowBatch, RowCondition, RowKey, RowOperation,
};
use tempfile::TempDir;

/// Room enough for everything that a test writes.
const ROOM: usize = 64 * 1024 * 1024;

/// A clock that tests move.
#[derive(Debug, Clone)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_000)))
    }

    fn advance(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A store in a directory, which goes with it.
fn embedded(clock: TestClock) -> (TempDir, EmbeddedStore) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(dir.path(), ROOM, clock).expect("a new store");
    (dir, store)
}

fn lane() -> LaneKey {
    LaneKey::new("s:acme:order:0")
}

fn key(text: &str) -> RowKey {
    RowKey::new(text)
}

fn put(at: &str, value: &str) -> RowOperation {
    RowOperation::Put(key(at), Bytes::copy_from_slice(value.as_bytes()))
}

fn batch(epoch: u64, expect: Vec<RowCondition>, ops: Vec<RowOperation>) -> RowBatch {
    RowBatch { lane: lane(), epoch, conditions: expect, ops }
}

/// Commits what has to succeed; gives the revision.
async fn commit(store: &dyn KvStore, epoch: u64, ops: Vec<RowOperation>) -> u64 {
    match store.commit(batch(epoch, Vec::new(), ops)).await {
        Ok(CommitOutcome::Committed(revision)) => revision,
        other => panic!("it is not committed: {other:?}"),
    }
}

/// The value of a row.
async fn value(store: &dyn KvStore, at: &str) -> Option<String> {
    let rows = store.read(&lane(), &[key(at)]).await.expect("it can be read");
    let row = rows.into_iter().next().expect("one answer for one key")?;
    Some(String::from_utf8(row.value.to_vec()).expect("a text"))
}
