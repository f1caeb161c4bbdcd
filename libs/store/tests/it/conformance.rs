//! Conformance tests that every store passes.

use std::sync::Arc;
use std::time::Duration;

use store::{
    CommitOutcome, KEY_BYTES_MAX, KvStore, LaneKey, MemoryStore, REPLICA_ANNOUNCEMENT_BYTES_MAX, ROWS_MAX,
    Replica, RowBatch, RowCondition, RowOperation, StoreError, StoreHeartbeat, StoreHeartbeatReply,
    StorePage, VALUE_BYTES_MAX,
};
use tokio::task::JoinSet;

use crate::{TestClock, batch, commit, embedded, key, lane, put, value};

/// Runs a case on every store; those behind the `;` where tests move the clock.
macro_rules! on_every_store {
    ($($case:ident)*; $($timed:ident)*) => {
        mod in_redis {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let (_redis, store) = crate::shared::in_redis().await;
                    super::$case(std::sync::Arc::new(store), super::TestClock::new()).await;
                }
            )*
        }

        on_every_store!($($case)* $($timed)*);
    };
    ($($case:ident)*) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $case() {
                    let clock = super::TestClock::new();
                    super::$case(std::sync::Arc::new(super::MemoryStore::new(clock.clone())), clock).await;
                }
            )*
        }

        mod in_a_directory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let clock = super::TestClock::new();
                    let (_dir, store) = super::embedded(clock.clone());
                    super::$case(std::sync::Arc::new(store), clock).await;
                }
            )*
        }
    };
}

on_every_store! {
    a_commit_is_whole_or_absent
    a_former_owner_commits_nothing
    what_was_applied_is_not_applied_again
    rows_are_scanned_in_order
    a_number_is_only_raised
    limits_are_named
    a_conflicting_writer_gets_the_found_revision
    pages_end
    replicas_learn_of_each_other
    a_name_has_one_process
    announcements_have_a_limit
    the_measured_size_of_a_store_follows_its_rows
    ; rows_end
    replicas_live_by_their_beats
}

async fn a_commit_is_whole_or_absent(store: Arc<dyn KvStore>, _: TestClock) {
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let first = commit(&*store, epoch, vec![put("a", "1"), put("b", "1")]).await;
    let refused = batch(
        epoch,
        vec![RowCondition::Revision(key("a"), first), RowCondition::Revision(key("b"), first + 9)],
        vec![put("a", "2"), RowOperation::Delete(key("b")), put("c", "2")],
    );
    let outcome = store.commit(refused).await;
    assert_eq!(outcome, Ok(CommitOutcome::Conflict { key: key("b"), found: first }));
    assert_eq!(value(&*store, "a").await.as_deref(), Some("1"));
    assert_eq!(value(&*store, "b").await.as_deref(), Some("1"));
    assert_eq!(value(&*store, "c").await, None);
    // Later changes of a batch come after earlier ones.
    let second = commit(
        &*store,
        epoch,
        vec![put("c", "1"), RowOperation::Delete(key("c")), put("c", "2"), RowOperation::Delete(key("a"))],
    )
    .await;
    assert!(second > first);
    let rows = store.read(&lane(), &[key("c"), key("a"), key("b")]).await.expect("it can be read");
    let found: Vec<_> =
        rows.into_iter().map(|row| row.map(|row| (row.value.to_vec(), row.revision))).collect();
    assert_eq!(found, [Some((b"2".to_vec(), second)), None, Some((b"1".to_vec(), first))]);
}

async fn a_former_owner_commits_nothing(store: Arc<dyn KvStore>, clock: TestClock) {
    let first = store.acquire_lane(&lane()).await.expect("taken");
    commit(&*store, first, vec![put("a", "1")]).await;
    clock.advance(5);
    let second = store.acquire_lane(&lane()).await.expect("taken");
    assert!(second > first);
    let late = store.commit(batch(first, Vec::new(), vec![put("a", "late")])).await;
    assert_eq!(late, Ok(CommitOutcome::Fenced { epoch: second }));
    // Also one whose conditions hold, or fail.
    let late = store.commit(batch(first, vec![RowCondition::Absent(key("a"))], Vec::new())).await;
    assert_eq!(late, Ok(CommitOutcome::Fenced { epoch: second }));
    assert_eq!(value(&*store, "a").await.as_deref(), Some("1"));
    // Others' lanes have epochs and rows of their own.
    let other = LaneKey::new("s:acme:order:1");
    let outcome = store
        .commit(RowBatch {
            lane: other.clone(),
            epoch: second,
            conditions: Vec::new(),
            ops: vec![put("a", "x")],
        })
        .await;
    assert_eq!(outcome, Ok(CommitOutcome::Fenced { epoch: 0 }));
    assert_eq!(store.read(&other, &[key("a")]).await, Ok(vec![None]));
    // No epoch comes twice, though all are taken at the same moment.
    let third = store.acquire_lane(&lane()).await.expect("taken");
    assert!(third > second);
}

async fn what_was_applied_is_not_applied_again(store: Arc<dyn KvStore>, _: TestClock) {
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let input =
        batch(epoch, vec![RowCondition::Absent(key("dedupe:e1"))], vec![put("dedupe:e1", ""), put("n", "1")]);
    assert!(matches!(store.commit(input.clone()).await, Ok(CommitOutcome::Committed(_))));
    assert_eq!(store.commit(input).await, Ok(CommitOutcome::Exists(key("dedupe:e1"))));
}

async fn rows_end(store: Arc<dyn KvStore>, clock: TestClock) {
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let until = |at: &str, millis| RowOperation::PutUntil(key(at), "x".into(), millis);
    commit(
        &*store,
        epoch,
        vec![until("short", 1_100), until("long", 1_200), until("over", 1_000), put("ever", "x")],
    )
    .await;
    assert_eq!(value(&*store, "over").await, None);
    clock.advance(99);
    assert_eq!(value(&*store, "short").await.as_deref(), Some("x"));
    clock.advance(1);
    assert_eq!(value(&*store, "short").await, None);
    let page = store.scan(&lane(), key("a")..key("z"), 10).await.expect("scanned");
    assert_eq!(page.rows.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["ever", "long"]);
    // What has ended counts as absent, and may be there again.
    let again = batch(
        epoch,
        vec![RowCondition::Absent(key("short")), RowCondition::Revision(key("short"), 0)],
        vec![until("short", 1_300)],
    );
    assert!(matches!(store.commit(again).await, Ok(CommitOutcome::Committed(_))));
    // What is written again without an end has none.
    commit(&*store, epoch, vec![put("long", "y")]).await;
    clock.advance(150);
    commit(&*store, epoch, vec![put("other", "")]).await;
    assert_eq!(value(&*store, "long").await.as_deref(), Some("y"));
    assert_eq!(value(&*store, "short").await.as_deref(), Some("x"));
    clock.advance(1_000);
    commit(&*store, epoch, vec![put("other", "")]).await;
    assert_eq!(value(&*store, "short").await, None);
    assert_eq!(value(&*store, "ever").await.as_deref(), Some("x"));
}

async fn rows_are_scanned_in_order(store: Arc<dyn KvStore>, _: TestClock) {
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let rows = ["due:2:b", "due:10:a", "due:1:c", "dud", "duf", "due", "due:1:a"];
    commit(&*store, epoch, rows.map(|at| put(at, at)).to_vec()).await;
    let names = |page: StorePage| -> (Vec<String>, bool) {
        (page.rows.into_iter().map(|(key, _)| key.to_string()).collect(), page.has_more)
    };
    let all_of = |names: &[&str], has_more| (names.iter().map(|name| (*name).to_owned()).collect(), has_more);
    let all = store.scan(&lane(), key("due:")..key("due;"), 10).await.expect("scanned");
    assert_eq!(names(all), all_of(&["due:10:a", "due:1:a", "due:1:c", "due:2:b"], false));
    let some = store.scan(&lane(), key("due:1:")..key("due;"), 2).await.expect("scanned");
    assert_eq!(names(some), all_of(&["due:1:a", "due:1:c"], true));
    let last = store.scan(&lane(), key("due:1:")..key("due;"), 3).await.expect("scanned");
    assert_eq!(names(last), all_of(&["due:1:a", "due:1:c", "due:2:b"], false));
    assert_eq!(store.scan(&lane(), key("due;")..key("due:"), 10).await, Ok(StorePage::default()));
    assert_eq!(
        store.scan(&LaneKey::new("s:acme:order:"), key("a")..key("z"), 10).await,
        Ok(StorePage::default())
    );
    let none = store.scan(&lane(), key("due:")..key("due;"), 0).await.expect("scanned");
    assert_eq!(names(none), all_of(&[], true));
}

async fn a_number_is_only_raised(store: Arc<dyn KvStore>, _: TestClock) {
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let raise = |to| vec![RowOperation::Raise(key("version"), to)];
    for (to, expected) in
        [(7, "7"), (3, "7"), (u64::MAX, "18446744073709551615"), (8, "18446744073709551615")]
    {
        commit(&*store, epoch, raise(to)).await;
        assert_eq!(value(&*store, "version").await, Some(format!("{expected:0>20}")));
    }
    commit(&*store, epoch, vec![put("version", "seven"), put("a", "1")]).await;
    let damaged = store.commit(batch(epoch, Vec::new(), vec![put("a", "2"), raise(1).remove(0)])).await;
    assert!(matches!(damaged, Err(StoreError::Damaged { .. })), "{damaged:?}");
}

async fn limits_are_named(store: Arc<dyn KvStore>, _: TestClock) {
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let named = key(&"k".repeat(KEY_BYTES_MAX - lane().as_str().len()));
    let value = |bytes| bytes::Bytes::from(vec![0; bytes]);
    let fits = vec![RowOperation::Put(named.clone(), value(VALUE_BYTES_MAX))];
    commit(&*store, epoch, fits).await;
    let rows = store.read(&lane(), &[named]).await.expect("it can be read");
    assert_eq!(rows[0].as_ref().map(|row| row.value.len()), Some(VALUE_BYTES_MAX));
    let long = key(&"k".repeat(KEY_BYTES_MAX - lane().as_str().len() + 1));
    let deletes =
        |count: usize| (0..count).map(|n| RowOperation::Delete(key(&n.to_string()))).collect::<Vec<_>>();
    for (ops, expected) in [
        (vec![RowOperation::Delete(long)], "the key kkk"),
        (
            vec![RowOperation::Put(key("a"), value(VALUE_BYTES_MAX + 1))],
            "the value of a, in bytes, has 1048577, at most 1048576",
        ),
        (
            (0..5).map(|n| RowOperation::Put(key(&n.to_string()), value(VALUE_BYTES_MAX))).collect(),
            "in bytes of values",
        ),
        (deletes(ROWS_MAX + 1), "a commit, in rows, has 1001, at most 1000"),
    ] {
        let refused = store.commit(batch(epoch, Vec::new(), ops)).await.expect_err(expected).to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    commit(&*store, epoch, deletes(ROWS_MAX)).await;
}

/// However large rows are, and however many, a page of them is not.
async fn pages_end(store: Arc<dyn KvStore>, _: TestClock) {
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let large = bytes::Bytes::from(vec![b'x'; VALUE_BYTES_MAX]);
    for number in 0..6 {
        commit(&*store, epoch, vec![RowOperation::Put(key(&format!("large:{number}")), large.clone())]).await;
    }
    let page = store.scan(&lane(), key("large:")..key("large;"), 100).await.expect("scanned");
    assert_eq!((page.rows.len(), page.has_more), (4, true));
    let rest = store.scan(&lane(), key("large:4")..key("large;"), 100).await.expect("scanned");
    assert_eq!((rest.rows.len(), rest.has_more), (2, false));
    for start in [0, 600] {
        let ops = (start..start + 600).map(|number| put(&format!("small:{number:04}"), "")).collect();
        commit(&*store, epoch, ops).await;
    }
    let page = store.scan(&lane(), key("small:")..key("small;"), usize::MAX).await.expect("scanned");
    assert_eq!((page.rows.len(), page.has_more), (ROWS_MAX, true));
    let last = page.rows.last().map(|(key, _)| key.to_string());
    assert_eq!(last.as_deref(), Some("small:0999"));
    let rest = store.scan(&lane(), key("small:1000")..key("small;"), ROWS_MAX).await.expect("scanned");
    assert_eq!((rest.rows.len(), rest.has_more), (200, false));
}

/// Many at once add one to the same number, each when nobody else did meanwhile.
async fn a_conflicting_writer_gets_the_found_revision(store: Arc<dyn KvStore>, _: TestClock) {
    const EACH: u64 = 20;
    const WRITERS: u64 = 8;
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    commit(&*store, epoch, vec![put("n", "0")]).await;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let mut conflicts = 0_u64;
            for _ in 0..EACH {
                loop {
                    let row = store.read(&lane(), &[key("n")]).await.expect("it can be read").remove(0);
                    let row = row.expect("it is there");
                    let number: u64 =
                        std::str::from_utf8(&row.value).expect("a text").parse().expect("a number");
                    let condition = vec![RowCondition::Revision(key("n"), row.revision)];
                    match store
                        .commit(batch(epoch, condition, vec![put("n", &(number + 1).to_string())]))
                        .await
                    {
                        Ok(CommitOutcome::Committed(revision)) => {
                            assert!(revision > row.revision);
                            break;
                        }
                        Ok(CommitOutcome::Conflict { found, .. }) => {
                            assert!(found > row.revision);
                            conflicts += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            conflicts
        });
    }
    let _ = writers.join_all().await;
    assert_eq!(value(&*store, "n").await, Some((EACH * WRITERS).to_string()));
}

fn beat(name: &str, session: u64, secs: u64) -> StoreHeartbeat {
    let announcement = format!("{name} says:\n{session}").into();
    let replica = Replica { name: name.to_owned(), session, announcement };
    StoreHeartbeat { replica, ttl: Duration::from_secs(secs), is_takeover: false }
}

/// Returns the live replicas, by name and session.
fn names(living: &StoreHeartbeatReply) -> Vec<(&str, u64)> {
    living.replicas.iter().map(|replica| (replica.name.as_str(), replica.session)).collect()
}

async fn replicas_learn_of_each_other(store: Arc<dyn KvStore>, _: TestClock) {
    let first = store.heartbeat(&beat("b", 1, 60)).await.expect("an answer");
    assert_eq!((names(&first), first.revision, first.is_displaced), (vec![("b", 1)], 0, false));
    let second = store.heartbeat(&beat("a:1", 2, 60)).await.expect("an answer");
    assert_eq!(names(&second), [("a:1", 2), ("b", 1)]);
    assert_eq!(second.replicas[1].announcement, "b says:\n1");
    assert!(second.now >= first.now && second.now <= store.now().await.expect("a time"));
    // A heartbeat reports changes beside the lanes, but not those of lanes or of heartbeats.
    let beside = LaneKey::new("");
    let other = store.acquire_lane(&lane()).await.expect("taken");
    commit(&*store, other, vec![put("a", "1")]).await;
    let epoch = store.acquire_lane(&beside).await.expect("taken");
    let change = RowBatch { lane: beside, epoch, conditions: Vec::new(), ops: vec![put("tenant:acme", "x")] };
    let Ok(CommitOutcome::Committed(revision)) = store.commit(change).await else {
        panic!("it is committed")
    };
    let reply = store.heartbeat(&beat("b", 1, 60)).await.expect("an answer");
    assert_eq!((reply.revision, names(&reply).len()), (revision, 2));
    // A replica that leaves lives no longer.
    let left = store.heartbeat(&beat("a:1", 2, 0)).await.expect("an answer");
    assert_eq!(names(&left), [("b", 1)]);
    assert_eq!(names(&store.heartbeat(&beat("b", 1, 60)).await.expect("an answer")), [("b", 1)]);
}

async fn a_name_has_one_process(store: Arc<dyn KvStore>, _: TestClock) {
    store.heartbeat(&beat("a", 1, 60)).await.expect("an answer");
    let refused = store.heartbeat(&beat("a", 2, 60)).await.expect("an answer");
    assert_eq!((names(&refused), refused.is_displaced), (vec![("a", 1)], true));
    let taken =
        store.heartbeat(&StoreHeartbeat { is_takeover: true, ..beat("a", 2, 60) }).await.expect("an answer");
    assert_eq!((names(&taken), taken.is_displaced), (vec![("a", 2)], false));
    // The one before hears of it, and takes nothing away by leaving.
    for secs in [60, 0] {
        let former = store.heartbeat(&beat("a", 1, secs)).await.expect("an answer");
        assert_eq!((names(&former), former.is_displaced), (vec![("a", 2)], true));
    }
    store.heartbeat(&beat("a", 2, 0)).await.expect("an answer");
    let again = store.heartbeat(&beat("a", 1, 60)).await.expect("an answer");
    assert_eq!((names(&again), again.is_displaced), (vec![("a", 1)], false));
}

async fn announcements_have_a_limit(store: Arc<dyn KvStore>, _: TestClock) {
    let with = |name: &str, bytes: usize| {
        let replica = Replica { name: name.to_owned(), session: 1, announcement: vec![b'x'; bytes].into() };
        StoreHeartbeat { replica, ttl: Duration::from_secs(60), is_takeover: false }
    };
    store.heartbeat(&with("a", REPLICA_ANNOUNCEMENT_BYTES_MAX)).await.expect("it fits");
    for beat in [with("a", REPLICA_ANNOUNCEMENT_BYTES_MAX + 1), with(&"a".repeat(256), 1)] {
        assert!(matches!(store.heartbeat(&beat).await, Err(StoreError::TooLarge { .. })));
    }
}

async fn replicas_live_by_their_beats(store: Arc<dyn KvStore>, clock: TestClock) {
    store.heartbeat(&beat("a", 1, 5)).await.expect("an answer");
    clock.advance(4_000);
    assert_eq!(names(&store.heartbeat(&beat("b", 1, 5)).await.expect("an answer")), [("a", 1), ("b", 1)]);
    clock.advance(1_000);
    assert_eq!(names(&store.heartbeat(&beat("b", 1, 5)).await.expect("an answer")), [("b", 1)]);
    // A name whose process was lost is free.
    assert!(!store.heartbeat(&beat("a", 2, 5)).await.expect("an answer").is_displaced);
    clock.advance(5_000);
    assert_eq!(names(&store.heartbeat(&beat("a", 1, 5)).await.expect("an answer")), [("a", 1)]);
}

async fn the_measured_size_of_a_store_follows_its_rows(store: Arc<dyn KvStore>, _: TestClock) {
    let before = store.measure().await.expect("an answer");
    assert!(before.version.starts_with(|c: char| c.is_ascii_digit()), "{before:?}");
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let rows = 100;
    for number in 0..rows {
        commit(&*store, epoch, vec![put(&format!("row:{number}"), &"x".repeat(16 * 1024))]).await;
    }
    let after = store.measure().await.expect("an answer");
    assert_eq!(after.version, before.version);
    let grown = after.bytes.saturating_sub(before.bytes);
    assert!(grown >= rows * 16 * 1024 && grown < 3 * rows * 16 * 1024, "{grown}: {before:?}, {after:?}");
    for number in 0..rows {
        commit(&*store, epoch, vec![RowOperation::Delete(key(&format!("row:{number}")))]).await;
    }
    let freed = store.measure().await.expect("an answer");
    assert!(freed.bytes < after.bytes - grown / 2, "{after:?}, {freed:?}");
}
