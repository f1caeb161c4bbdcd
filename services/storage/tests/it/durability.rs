//! Durability: the failures that an answered change survives, and levels that are refused by name.

use keys::Layout;
use kv::Durability;
use model::FlowId;
use proto::internal::v1::CommitRefusal;
use storage::{Config, Deps, StorageStartError};
use testkit::{PATIENCE, RedisServer, TestLog, wait_until};
use tonic::Code;

use crate::stage::{Stage, create};

fn config(durability: Durability) -> Config {
    Config { durability, ..Config::default() }
}

async fn refusal(redis: &RedisServer, durability: Durability) -> String {
    let deps = Deps { kv: kv::Kv::new(redis.url().parse().unwrap()), trust_domain: Default::default() };
    match config(durability).build(deps).await {
        Err(StorageStartError::Unusable(why)) => why.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("`{durability}` is not refused"),
    }
}

/// A server and its replica.
async fn pair() -> (RedisServer, RedisServer) {
    let setup = RedisServer::builder().persistent().config("repl-diskless-sync-delay 0");
    let redis = setup.clone().tcp().start();
    let replica = setup.config(&format!("replicaof 127.0.0.1 {}", redis.port())).start();
    // The one may find so long before the other, which takes up nothing until then.
    let linked = || async {
        let is_there = redis.raw(0, &["INFO", "replication"]).contains("state=online");
        let is_up = replica.raw(0, &["INFO", "replication"]).contains("master_link_status:up");
        (is_there && is_up).then_some(())
    };
    wait_until(linked, PATIENCE, "the replica is there").await;
    (redis, replica)
}

#[test]
fn durability_has_three_names() {
    for durability in [Durability::Fast, Durability::Synced, Durability::Replicated] {
        assert_eq!(durability.to_string().parse(), Ok(durability));
    }
    let unknown = "always".parse::<Durability>().unwrap_err().to_string();
    assert!(unknown.contains("synced"), "{unknown}");
}

#[tokio::test]
async fn what_redis_cannot_give_is_refused_by_name() {
    let redis = RedisServer::start();
    let why = refusal(&redis, Durability::Synced).await;
    assert!(why.contains("appendonly no") && why.contains("appendfsync always"), "{why}");
    let why = refusal(&redis, Durability::Replicated).await;
    assert!(why.contains("replica"), "{why}");
    let redis = RedisServer::builder().config("appendonly yes").config("appendfsync everysec").start();
    if redis.raw(0, &["INFO", "server"]).contains("redis_version:7.0") {
        let why = refusal(&redis, Durability::Synced).await;
        assert!(why.contains("appendfsync everysec") && why.contains("7.2"), "{why}");
    } else {
        Stage::with(redis, config(Durability::Synced)).await.started(1).await;
    }
}

/// Log of storage while it is started over a Redis.
async fn logged_at_the_start(redis: &RedisServer, durability: Durability) -> String {
    // All of it runs on this thread.
    let log = TestLog::of_this_thread();
    let deps = Deps { kv: kv::Kv::new(redis.url().parse().unwrap()), trust_domain: Default::default() };
    config(durability).build(deps).await.unwrap();
    log.text()
}

/// Some versions say too early that the disk has something; which they are, `kv` knows and tests.
#[tokio::test]
async fn a_redis_that_confirms_writes_too_early_is_reported_at_the_start() {
    let doubted = |log: &str| log.lines().filter(|line| line.contains("set `appendfsync always`")).count();
    let redis = RedisServer::builder().config("appendonly yes").config("appendfsync everysec").start();
    assert_eq!(doubted(&logged_at_the_start(&redis, Durability::Fast).await), 0);
    let kv = kv::Kv::new(redis.url().parse().unwrap());
    let setup = kv.primaries().await.unwrap()[0].setup().await.unwrap();
    if setup.version >= (7, 2) {
        let log = logged_at_the_start(&redis, Durability::Synced).await;
        assert_eq!(doubted(&log), usize::from(setup.waitaof_is_early), "{log}");
        assert_eq!(log.contains("WARN"), setup.waitaof_is_early, "{log}");
    }
    // The way out, on every version.
    assert_eq!(redis.raw(0, &["CONFIG", "SET", "appendfsync", "always"]), "+OK\r\n");
    let log = logged_at_the_start(&redis, Durability::Synced).await;
    assert_eq!(doubted(&log), 0, "{log}");
}

#[tokio::test]
async fn synced_changes_survive_the_death_of_redis() {
    let redis = RedisServer::builder().persistent().start();
    let mut stage = Stage::with(redis, config(Durability::Synced)).await;
    let mut flow = stage.started(1).await;
    let (step, before) = (flow.step(), flow.clone());
    stage.apply(&mut flow, step.clone()).await;
    stage.redis.kill9();
    stage.redis.restart();
    let again = || async {
        let answer = stage.commit(step.clone()).await;
        (answer.refusal() != CommitRefusal::UnknownOutcome).then_some(answer)
    };
    let answer = wait_until(again, PATIENCE, "Redis is back").await;
    assert_eq!((answer.refusal(), answer.revision), (CommitRefusal::Unspecified, flow.revision));
    assert_ne!(before.last_commit, flow.last_commit);
}

#[tokio::test]
async fn a_change_that_no_replica_has_is_an_unknown_outcome() {
    for layout in [Layout::Database, Layout::HashTag] {
        let (redis, replica) = pair().await;
        let stage = Stage::with(redis, Config { layout, ..config(Durability::Replicated) }).await;
        let mut flow = stage.started(1).await;
        let step = flow.step();
        stage.apply(&mut flow, step).await;

        replica.pause();
        let step = flow.step();
        assert_eq!(stage.commit(step.clone()).await.refusal(), CommitRefusal::UnknownOutcome);
        // Asked again it is known to be applied, and still not to be kept.
        assert_eq!(stage.commit(step.clone()).await.refusal(), CommitRefusal::UnknownOutcome);
        replica.resume();
        let again = || async {
            let answer = stage.commit(step.clone()).await;
            (answer.refusal() != CommitRefusal::UnknownOutcome).then_some(answer)
        };
        let answer = wait_until(again, PATIENCE, "the replica has it").await;
        assert_eq!((answer.refusal(), answer.revision), (CommitRefusal::Unspecified, flow.revision + 1));
    }
}

/// A Redis process that replaces the first one is checked in the same way.
#[tokio::test]
async fn a_new_process_that_cannot_give_it_takes_no_changes() {
    for layout in [Layout::Database, Layout::HashTag] {
        let (redis, mut replica) = pair().await;
        let mut stage = Stage::with(redis, Config { layout, ..config(Durability::Replicated) }).await;
        let mut flow = stage.started(1).await;
        replica.kill9();
        stage.redis.restart();
        let refused = || async {
            let status = stage.flows().create_flow(create(1)).await.err()?;
            assert_eq!(status.code(), Code::Unavailable);
            status.message().contains("`replicated` needs a replica").then_some(())
        };
        wait_until(refused, PATIENCE, "the new process is asked").await;
        let step = flow.step();
        let answer = stage.commit(step.clone()).await;
        assert_eq!(answer.refusal(), CommitRefusal::UnknownOutcome);
        assert!(answer.detail.contains("`replicated` needs a replica"), "{}", answer.detail);
        assert_eq!(stage.hash(&stage.keys().flow(FlowId(flow.id))).await["last_commit"], flow.last_commit);
        // Until it can.
        replica.restart();
        let kept = || async {
            let answer = stage.commit(step.clone()).await;
            (answer.refusal() != CommitRefusal::UnknownOutcome).then_some(answer)
        };
        let answer = wait_until(kept, PATIENCE, "the replica is there").await;
        assert_eq!((answer.refusal(), answer.revision), (CommitRefusal::Unspecified, flow.revision + 1));
        (flow.last_commit, flow.revision) = (step.commit_id, answer.revision);
        let step = flow.step();
        stage.apply(&mut flow, step).await;
    }
}
