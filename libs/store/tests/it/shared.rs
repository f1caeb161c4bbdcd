//! Tests of a store in Redis: names of its keys, expiry, and the writes it takes when it has no room.

use std::time::Duration;

use bytes::Bytes;
use kv::{Durability, Kv};
use store::{
    CommitOutcome, KvStore, Replica, RowCondition, RowOperation, SharedStore, StoreError, StoreHeartbeat,
};
use testkit::{PATIENCE, RedisCluster, RedisServer, wait_until};

use crate::{batch, commit, key, lane, put, value};

/// Tables that are not scanned.
const UNSCANNED: [&str; 1] = ["dedupe"];

pub(crate) async fn in_redis() -> (RedisServer, SharedStore) {
    let redis = RedisServer::start();
    let store = open(&redis.url(), Durability::Fast).await.expect("a Redis");
    (redis, store)
}

pub(crate) async fn in_a_cluster() -> (RedisCluster, SharedStore) {
    let cluster = RedisCluster::start();
    let store = open(&cluster.url(), Durability::Fast).await.expect("a cluster");
    (cluster, store)
}

async fn open(url: &str, durability: Durability) -> Result<SharedStore, StoreError> {
    SharedStore::open(Kv::new(url.parse().expect("a URL")), durability, &UNSCANNED).await
}

#[tokio::test]
async fn rows_have_the_names_that_are_documented() {
    let (redis, store) = in_redis().await;
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    commit(&store, epoch, vec![put("journal:a:1", "x"), put("dedupe:a:1", "y")]).await;
    assert_eq!(redis.raw(0, &["GET", "{sg:s:acme:order:0}:journal:a:1"]), "$3\r\n1:x\r\n");
    assert_eq!(redis.raw(0, &["GET", "{sg:s:acme:order:0}:dedupe:a:1"]), "$3\r\n1:y\r\n");
    assert_eq!(redis.raw(0, &["HGET", "{sg:s:acme:order:0}:fence", "revision"]), "$1\r\n1\r\n");
    // What is not scanned is in no index.
    assert_eq!(redis.raw(0, &["ZRANGE", "{sg:s:acme:order:0}:~", "0", "-1"]), "*1\r\n$11\r\njournal:a:1\r\n");
    commit(
        &store,
        epoch,
        vec![RowOperation::Delete(key("journal:a:1")), RowOperation::Delete(key("dedupe:a:1"))],
    )
    .await;
    assert_eq!(redis.raw(0, &["DBSIZE"]), ":1\r\n");
}

#[tokio::test]
async fn rows_end_by_the_clock_of_redis() {
    let (redis, store) = in_redis().await;
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    // Epochs are times, and so is what this clock says.
    let until = |at: &str, millis| RowOperation::PutUntil(key(at), Bytes::from_static(b"x"), millis);
    commit(
        &store,
        epoch,
        vec![until("soon", epoch + 60), until("late", epoch + 600_000), until("over", epoch)],
    )
    .await;
    assert_eq!(value(&store, "over").await, None);
    let ended = async || value(&store, "soon").await.is_none().then_some(());
    wait_until(ended, PATIENCE, "the row has ended").await;
    let again = batch(epoch, vec![RowCondition::Absent(key("soon"))], vec![put("other", "")]);
    assert!(matches!(store.commit(again).await, Ok(CommitOutcome::Committed(_))));
    let page = store.scan(&lane(), key("a")..key("z"), 10).await.expect("scanned");
    assert_eq!(page.rows.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["late", "other"]);
    // The index forgets what has ended.
    assert_eq!(redis.raw(0, &["ZCARD", "{sg:s:acme:order:0}:~"]), ":2\r\n");
    // What is written again without an end has none.
    commit(&store, epoch, vec![put("late", "y")]).await;
    assert_eq!(redis.raw(0, &["PTTL", "{sg:s:acme:order:0}:late"]), ":-1\r\n");
}

#[tokio::test]
async fn replicas_are_lost_by_the_clock_of_redis() {
    let (redis, store) = in_redis().await;
    let beat = |name: &str, millis| StoreHeartbeat {
        replica: Replica { name: name.to_owned(), session: 0xab, announcement: Bytes::from_static(b"w:1") },
        ttl: Duration::from_millis(millis),
        is_takeover: false,
    };
    store.heartbeat(&beat("short", 60)).await.expect("an answer");
    let lost = async || {
        let living = store.heartbeat(&beat("long", 600_000)).await.expect("an answer");
        (living.replicas.len() == 1).then_some(living)
    };
    let living = wait_until(lost, PATIENCE, "the replica is lost").await;
    assert_eq!(living.replicas, [beat("long", 1).replica]);
    let kept = redis.raw(0, &["HGET", "{sg}:replicas", "long"]);
    assert!(kept.contains(":ab:w:1"), "{kept}");
    assert_eq!(redis.raw(0, &["HLEN", "{sg}:replicas"]), ":1\r\n");
}

#[tokio::test]
async fn without_memory_it_takes_what_frees() {
    let (redis, store) = in_redis().await;
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    commit(&store, epoch, vec![put("a", "1"), put("b", "1")]).await;
    let _ = redis.raw(0, &["CONFIG", "SET", "maxmemory", "1"]);
    let refused =
        store.commit(batch(epoch, Vec::new(), vec![put("c", "1"), RowOperation::Delete(key("a"))])).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    commit(&store, epoch, vec![RowOperation::Delete(key("a"))]).await;
    assert_eq!((value(&store, "a").await, value(&store, "b").await), (None, Some("1".to_owned())));
    assert!(store.acquire_lane(&lane()).await.expect("taken") > epoch);
    let _ = redis.raw(0, &["CONFIG", "SET", "maxmemory", "0"]);
}

#[tokio::test]
async fn a_redis_that_cannot_keep_rows_is_refused_by_name() {
    let redis = RedisServer::builder().config("maxmemory-policy allkeys-lru").start();
    let refused = open(&redis.url(), Durability::Fast).await.map(drop);
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { why }) if why.contains("`maxmemory-policy allkeys-lru`")),
        "{refused:?}"
    );
    let redis = RedisServer::start();
    let refused = open(&redis.url(), Durability::Synced).await.map(drop);
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { why }) if why.contains("append-only file")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_was_answered_survives_the_end_of_redis() {
    let mut redis = RedisServer::builder().persistent().start();
    let store = open(&redis.url(), Durability::Synced).await.expect("a Redis");
    let epoch = store.acquire_lane(&lane()).await.expect("taken");
    let revision = commit(&store, epoch, vec![put("a", "1")]).await;
    redis.kill9();
    let refused = store.commit(batch(epoch, Vec::new(), vec![put("a", "2")])).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable { .. } | StoreError::Indeterminate { .. })),
        "{refused:?}"
    );
    redis.restart();
    let back = async || {
        let rows = store.read(&lane(), &[key("a")]).await.ok()?;
        rows.into_iter().next().flatten()
    };
    let row = wait_until(back, PATIENCE, "Redis is back").await;
    assert_eq!((&row.value[..], row.revision), (&b"1"[..], revision));
    assert!(commit(&store, epoch, vec![put("a", "3")]).await > revision);
}
