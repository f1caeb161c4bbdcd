//! Tests of a store in a directory: it survives its process and a full disk, and has one owner.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use store::{CommitOutcome, EmbeddedStore, KvStore, RowCondition, RowOperation, StoreError, WallClock};
use testkit::{PATIENCE, SmallDisk, TestProcess};
use tokio::task::JoinSet;

use crate::{ROOM, TestClock, batch, commit, embedded, key, put, value};

#[tokio::test]
async fn what_was_answered_is_there_when_it_is_opened_again() {
    let (dir, store) = embedded(TestClock::new());
    let epoch = store.acquire_lane(&crate::lane()).await.expect("taken");
    let revision = commit(&store, epoch, vec![put("a", "1")]).await;
    drop(store);
    let clock = TestClock::new();
    let store = EmbeddedStore::open(dir.path(), ROOM, clock).expect("there is a store");
    assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
    assert!(commit(&store, epoch, vec![put("b", "1")]).await > revision);
    assert!(store.acquire_lane(&crate::lane()).await.expect("taken") > epoch);
}

#[tokio::test]
async fn it_has_one_owner() {
    let (dir, store) = embedded(TestClock::new());
    let second = EmbeddedStore::open(dir.path(), ROOM, WallClock).map(drop);
    assert!(
        matches!(&second, Err(StoreError::Owned { dir: named }) if Path::new(named) == dir.path()),
        "{second:?}"
    );
    drop(store);
    EmbeddedStore::open(dir.path(), ROOM, WallClock).expect("its owner is gone");
    let none = EmbeddedStore::open(Path::new("/proc/none"), ROOM, WallClock).map(drop);
    assert!(matches!(&none, Err(StoreError::Unavailable { why }) if why.contains("/proc/none")), "{none:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_together_is_judged_one_by_one() {
    let (_dir, store) = embedded(TestClock::new());
    let store = Arc::new(store);
    let epoch = store.acquire_lane(&crate::lane()).await.expect("taken");
    let mut waiting = JoinSet::new();
    for number in 0..200 {
        let store = Arc::clone(&store);
        // Ten of them want each row, and one gets it.
        let row = format!("row:{}", number % 20);
        waiting.spawn(async move {
            store
                .commit(batch(
                    epoch,
                    vec![RowCondition::Absent(key(&row))],
                    vec![put(&row, &number.to_string())],
                ))
                .await
        });
    }
    let outcomes = waiting.join_all().await;
    let committed =
        outcomes.iter().filter(|outcome| matches!(outcome, Ok(CommitOutcome::Committed(_)))).count();
    let refused = outcomes.iter().filter(|outcome| matches!(outcome, Ok(CommitOutcome::Exists(_)))).count();
    assert_eq!((committed, refused), (20, 180));
}

/// Measuring reads beside the thread that writes, and takes nothing of what that thread has not committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_is_measured_while_it_writes() {
    let (_dir, store) = embedded(TestClock::new());
    let store = Arc::new(store);
    let epoch = store.acquire_lane(&crate::lane()).await.expect("taken");
    let mut writing = JoinSet::new();
    for task in 0..16_u32 {
        let store = Arc::clone(&store);
        writing.spawn(async move {
            for number in 0..150_u32 {
                // Far from each other, so that one commit changes many pages.
                let row = |row: u32| format!("row:{:08x}", row.wrapping_mul(0x9e37_79b9));
                let first = (number * 16 + task) * 8;
                let rows = (first..first + 8).map(|number| put(&row(number), &"x".repeat(512))).collect();
                commit(&*store, epoch, rows).await;
            }
        });
    }
    let mut measuring = JoinSet::new();
    for _ in 0..3 {
        let store = Arc::clone(&store);
        measuring.spawn(async move {
            loop {
                store.measure().await.expect("an answer");
            }
        });
    }
    writing.join_all().await;
    measuring.shutdown().await;
    let page = store.scan(&crate::lane(), key("row:")..key("row;"), 1_000).await.expect("an answer");
    assert_eq!(page.rows.len(), 1_000);
    assert!(store.measure().await.expect("an answer").bytes > 16 * 150 * 8 * 512);
}

/// Commits until there is no room; gives how many rows there are.
async fn fill(store: &dyn KvStore, epoch: u64) -> (usize, StoreError) {
    let value = Bytes::from(vec![7; 8 * 1024]);
    for number in 0..100_000 {
        let op = RowOperation::Put(key(&format!("row:{number:06}")), value.clone());
        match store.commit(batch(epoch, Vec::new(), vec![op])).await {
            Ok(CommitOutcome::Committed(_)) => {}
            Err(error) => return (number, error),
            Ok(other) => panic!("{other:?}"),
        }
    }
    panic!("it is never full");
}

#[tokio::test]
async fn a_full_store_takes_what_frees_and_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(dir.path(), 4 * 1024 * 1024, TestClock::new()).expect("a new store");
    let epoch = store.acquire_lane(&crate::lane()).await.expect("taken");
    let (rows, error) = fill(&store, epoch).await;
    assert!(matches!(&error, StoreError::Full { why } if why.contains("4194304 bytes")), "{error}");
    assert!(rows > 100, "{rows}");
    // Others may take it, and what is there is there.
    let epoch = store.acquire_lane(&crate::lane()).await.expect("taken");
    assert_eq!(value(&store, "row:000000").await.map(|value| value.len()), Some(8 * 1024));
    let refused = store.commit(batch(epoch, Vec::new(), vec![put("a", "1")])).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    let deletes: Vec<_> =
        (0..rows).map(|number| RowOperation::Delete(key(&format!("row:{number:06}")))).collect();
    for some in deletes.chunks(100) {
        commit(&store, epoch, some.to_vec()).await;
    }
    commit(&store, epoch, vec![put("a", "1")]).await;
    let (again, _) = fill(&store, epoch).await;
    assert!(again + 50 > rows, "{again} of {rows}");
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_is_survived() {
    // Nothing to see where no file system can be mounted.
    let Some(disk) = SmallDisk::new(64) else { return };
    let store = EmbeddedStore::open(&disk.path().join("store"), ROOM, TestClock::new()).expect("a new store");
    let epoch = store.acquire_lane(&crate::lane()).await.expect("taken");
    commit(&store, epoch, vec![put("a", "1")]).await;
    disk.fill_up("filler", 0);
    let (_, error) = fill(&store, epoch).await;
    assert!(matches!(&error, StoreError::Full { why } if why.contains("no space is left")), "{error}");
    assert_eq!(value(&store, "a").await.as_deref(), Some("1"));
    disk.empty("filler");
    commit(&store, epoch, vec![put("a", "2")]).await;
    assert_eq!(value(&store, "a").await.as_deref(), Some("2"));
}

/// Every commit that was reported is there, whole, after the process is killed without warning, in every round.
#[tokio::test]
async fn nothing_that_was_answered_is_lost_or_torn_by_a_kill() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut reported = 0;
    for round in 1..=3 {
        let mut writer = Command::new(std::env::current_exe().expect("this program"));
        writer.args(["--exact", "embedded::writes_until_it_is_killed", "--nocapture"]);
        let mut writer = TestProcess::spawn("writer", writer.env("WRITES_TO", dir.path()));
        let _ = writer.wait_for_line(&format!("committed {}", reported + 100), PATIENCE);
        writer.kill9();
        let output = writer.output();
        let last =
            output.lines().filter_map(|line| line.split_once("committed ")?.1.parse::<u64>().ok()).max();
        let store = EmbeddedStore::open(dir.path(), ROOM, WallClock).expect("there is a store");
        let (one, other) = (value(&store, "one").await, value(&store, "other").await);
        assert_eq!(one, other, "round {round}");
        let found: u64 = one.expect("it was written").parse().expect("a number");
        assert!(found >= last.expect("it said so"), "round {round}: {found} of {last:?}");
        reported = found;
    }
}

/// Does nothing by itself: it is the process that is killed by the test before.
#[tokio::test]
async fn writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os("WRITES_TO") else { return };
    let store = EmbeddedStore::open(Path::new(&dir), ROOM, WallClock).expect("a store");
    let epoch = store.acquire_lane(&crate::lane()).await.expect("taken");
    let before = value(&store, "one").await.map_or(0, |text| text.parse().expect("a number"));
    for number in before + 1_u64.. {
        let text = number.to_string();
        commit(&store, epoch, vec![put("one", &text), put("other", &text)]).await;
        println!("committed {number}");
    }
}
