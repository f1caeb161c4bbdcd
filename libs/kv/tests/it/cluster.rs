//! Demands of a cluster on its clients.

use std::future::pending;
use std::time::Duration;

use kv::{Cmd, Error, Kv, KvSubscription, KvSubscriptionEvent, Pipeline, Script, Topic, Value};
use testkit::{PATIENCE, RedisCluster, RedisServer, wait_until};

use crate::confirm::REPLICA;
use crate::{RAISE, open};

static HINT: Script =
    Script::new("hint", &["redis.call('PUBLISH', ARGV[1], 'x') return redis.call('INCR', KEYS[1])"]);

/// Tags that are served by three nodes.
const TAGS: [&str; 6] = ["1", "2", "3", "4", "5", "6"];

fn key(tag: &str) -> String {
    format!("{{{tag}}}:n")
}

async fn raise(kv: &Kv, tag: &str) -> Result<u64, Error> {
    kv.at(0, tag).call(RAISE.call(&[key(tag)]).arg(1)).await.and_then(|value| value.uint())
}

async fn raised(kv: &Kv, tag: &str) -> u64 {
    wait_until(|| async { raise(kv, tag).await.ok() }, PATIENCE, format!("{tag} is served")).await
}

/// The node that serves a tag, by the id that the nodes know it by, and its place.
fn primary(cluster: &RedisCluster, tag: &str) -> (usize, String) {
    let place = cluster.primary_of(&key(tag));
    let id = cluster.nodes()[place].raw(0, &["CLUSTER", "MYID"]);
    (place, id.lines().nth(1).expect("an id").to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_read_from_the_primary_that_serves_them() {
    let mut cluster = RedisCluster::start();
    let kv = open(&cluster.url());
    assert_eq!(kv.primaries().await.expect("the map").len(), 3);
    for tag in TAGS {
        assert_eq!(raise(&kv, tag).await, Ok(1));
    }
    a_slot_moves(&cluster, &kv).await;
    check_hints_arrive_once(&kv).await;
    a_primary_dies(&mut cluster, &kv).await;
    a_wait_follows(&mut cluster, &kv).await;
    a_replica_takes_over_from_a_living_primary(&cluster, &kv).await;
}

async fn a_slot_moves(cluster: &RedisCluster, kv: &Kv) {
    let tag = TAGS[0];
    let (from, from_id) = primary(cluster, tag);
    let to = TAGS.iter().map(|tag| primary(cluster, tag)).find(|(place, _)| *place != from);
    let (to, to_id) = to.expect("the tags are served by several");
    let slot = cluster.nodes()[from].raw(0, &["CLUSTER", "KEYSLOT", &key(tag)]);
    let slot = slot.trim_end().trim_start_matches(':');
    let say = |node: usize, args: &[&str]| {
        let answer = cluster.nodes()[node].raw(0, args);
        assert!(answer.starts_with("+OK"), "{args:?}: {answer}");
    };
    say(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]);
    say(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]);
    // Missing keys are asked of the node that the slot goes to, one by one and in a pipeline.
    let connection = kv.at(0, tag);
    let fresh = |n: u32| format!("{{{tag}}}:fresh:{n}");
    connection.cmd(Cmd::new("SET").arg(&fresh(1)).arg("a")).await.expect("it is asked there");
    let changed = connection.change(RAISE.call(&[fresh(2)]).arg(7), |_| Ok(Some(REPLICA))).await;
    assert_eq!(changed, Ok(Value::Int(7)));
    let mut pipeline = Pipeline::new();
    pipeline.cmd(Cmd::new("GET").arg(&fresh(1))).call(RAISE.call(&[key(tag)]).arg(1));
    let answers = connection.pipeline(&pipeline).await.expect("answers");
    assert_eq!(answers, [Ok(Value::Bytes(b"a".to_vec())), Ok(Value::Int(2))]);
    // Keys of which one has moved are waited for, and then given up, without a change.
    let both = connection.call(RAISE.call(&[key(tag), fresh(1)]).arg(1)).await;
    assert!(both.as_ref().is_err_and(Error::is_unreachable), "{both:?}");
    let port = cluster.nodes()[to].port().to_string();
    let moved = cluster.nodes()[from].raw(0, &["MIGRATE", "127.0.0.1", &port, &key(tag), "0", "5000"]);
    assert!(moved.starts_with("+OK"), "{moved}");
    for node in [to, from] {
        say(node, &["CLUSTER", "SETSLOT", slot, "NODE", &to_id]);
    }
    assert_eq!(raise(kv, tag).await, Ok(3));
    assert_eq!(connection.pipeline(&pipeline).await.expect("answers")[1], Ok(Value::Int(4)));
    cluster.settle();
}

/// The three primaries, one after the other; until the last of them not all.
async fn expect_all_subscribed(subscription: &mut KvSubscription) {
    for notice in [
        KvSubscriptionEvent::Subscribed,
        KvSubscriptionEvent::Partial,
        KvSubscriptionEvent::Subscribed,
        KvSubscriptionEvent::Partial,
        KvSubscriptionEvent::Subscribed,
    ] {
        assert_eq!(subscription.next().await, notice);
    }
}

/// Every node passes on what is published at any, and a hint is received once all the same.
async fn check_hints_arrive_once(kv: &Kv) {
    let mut subscription = kv.subscribe(vec![Topic::Pattern("{*}:hint".to_owned())]);
    expect_all_subscribed(&mut subscription).await;
    for round in 1..=20_i64 {
        for tag in TAGS {
            let channel = format!("{{{tag}}}:hint");
            let call = HINT.call(&[format!("{{{tag}}}:hints")]).arg(&channel);
            assert_eq!(kv.at(0, tag).call(call).await, Ok(Value::Int(round)));
            assert_eq!(
                subscription.next().await,
                KvSubscriptionEvent::Message { channel, payload: b"x".to_vec() }
            );
        }
    }
}

async fn a_primary_dies(cluster: &mut RedisCluster, kv: &Kv) {
    let tag = TAGS[1];
    let mut subscription = kv.subscribe(vec![Topic::Channel(format!("{{{tag}}}:hint"))]);
    expect_all_subscribed(&mut subscription).await;
    let before = raised(kv, tag).await;
    let (killed, _) = primary(cluster, tag);
    // What is not replicated yet dies with it.
    let changed = kv.at(0, tag).change(RAISE.call(&[key(tag)]).arg(1), |_| Ok(Some(REPLICA))).await;
    assert_eq!(changed.and_then(|value| value.uint()), Ok(before + 1));
    cluster.kill9(killed);
    assert_eq!(raised(kv, tag).await, before + 2);
    // A cache that relies on changes has to learn that it would miss them.
    assert_eq!(subscription.next().await, KvSubscriptionEvent::Partial);
    let arrives_again = async {
        let mut last = KvSubscriptionEvent::Partial;
        loop {
            match subscription.next().await {
                KvSubscriptionEvent::Message { .. } if last == KvSubscriptionEvent::Subscribed => return,
                KvSubscriptionEvent::Message { .. } => {}
                notice => last = notice,
            }
            if last == KvSubscriptionEvent::Subscribed {
                let call = HINT.call(&[format!("{{{tag}}}:hints")]).arg(&format!("{{{tag}}}:hint"));
                // Refused where another primary is asked that is not there yet; then it comes with the next.
                let _ = kv.at(0, tag).call(call).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, arrives_again).await.expect("the one that took its place is heard");
    for other in TAGS {
        let _ = raised(kv, other).await;
    }
    cluster.restart(killed);
    cluster.settle();
    assert_ne!(primary(cluster, tag).0, killed);
}

async fn a_wait_follows(cluster: &mut RedisCluster, kv: &Kv) {
    let tag = TAGS[2];
    let list = format!("{{{tag}}}:list");
    let pop = Cmd::new("BLMPOP").arg("30").arg(1).arg(&list).arg("LEFT");
    let mut blocking = kv.blocking_at(0, tag);
    let (killed, _) = primary(cluster, tag);
    let kill = async {
        let node = &cluster.nodes()[killed];
        let waits = || async { node.raw(0, &["CLIENT", "LIST"]).contains("cmd=blmpop").then_some(()) };
        wait_until(waits, PATIENCE, "the pop waits").await;
        cluster.kill9(killed);
    };
    let (answer, ()) = tokio::join!(blocking.run(&pop, PATIENCE, pending()), kill);
    assert!(answer.as_ref().is_err_and(|error| matches!(error, Error::UnknownOutcome { .. })), "{answer:?}");
    raised(kv, tag).await;
    kv.at(0, tag).cmd(Cmd::new("RPUSH").arg(&list).arg("x")).await.expect("a push");
    let answer = blocking.run(&pop, PATIENCE, pending()).await.expect("what was pushed");
    assert_eq!(answer.array().map(|parts| parts.len()), Ok(2));
    cluster.restart(killed);
    cluster.settle();
}

/// Swaps primary and replica without the loss of a connection: the client learns of it by the nodes' answers.
async fn a_replica_takes_over_from_a_living_primary(cluster: &RedisCluster, kv: &Kv) {
    let tag = TAGS[3];
    let before = raised(kv, tag).await;
    let (former, id) = primary(cluster, tag);
    let follows =
        |node: &RedisServer| node.raw(0, &["CLUSTER", "NODES"]).contains(&format!("myself,slave {id}"));
    let replica = cluster.nodes().iter().find(|node| follows(node)).expect("a replica");
    let list = format!("{{{tag}}}:list");
    let pop = Cmd::new("BLMPOP").arg("30").arg(1).arg(&list).arg("LEFT");
    let mut blocking = kv.blocking_at(0, tag);
    let fail_over = async {
        let node = &cluster.nodes()[former];
        let waits = || async { node.raw(0, &["CLIENT", "LIST"]).contains("cmd=blmpop").then_some(()) };
        wait_until(waits, PATIENCE, "the pop waits").await;
        assert!(replica.raw(0, &["CLUSTER", "FAILOVER"]).starts_with("+OK"));
        let _ = cluster.successor_of(former, &key(tag));
        assert_eq!(raise(kv, tag).await, Ok(before + 1));
        kv.at(0, tag).cmd(Cmd::new("RPUSH").arg(&list).arg("x")).await.expect("a push");
    };
    let (answer, ()) = tokio::join!(blocking.run(&pop, PATIENCE, pending()), fail_over);
    assert_eq!(answer.and_then(Value::array).map(|parts| parts.len()), Ok(2), "it waits at the new primary");
}

#[tokio::test]
async fn a_server_without_cluster_support_is_reported() {
    let redis = RedisServer::builder().tcp().start();
    let kv = open(&format!("redis+cluster://127.0.0.1:{}", redis.port()));
    let refused = kv.at(0, "1").ping().await.expect_err("it is no cluster");
    assert!(refused.to_string().contains("cluster support disabled"), "{refused}");
    let nobody = open("redis+cluster://127.0.0.1:1,127.0.0.1:2");
    let gone =
        tokio::time::timeout(Duration::from_secs(20), nobody.at(0, "1").ping()).await.expect("at once");
    assert!(gone.as_ref().is_err_and(Error::is_unreachable), "{gone:?}");
}
