//! A master that Sentinels name.

use kv::{KvSubscriptionEvent, Topic};
use testkit::{PATIENCE, RedisSentinels, wait_until};

use crate::confirm::REPLICA;
use crate::{RAISE, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_followed() {
    let mut redis = RedisSentinels::start();
    let kv = open(&redis.url());
    let connection = kv.database(0);
    assert_eq!(connection.call(RAISE.call(&["n"]).arg(1)).await.and_then(|value| value.int()), Ok(1));
    let mut subscription = kv.subscribe(vec![Topic::Channel("hint".to_owned())]);
    assert_eq!(subscription.next().await, KvSubscriptionEvent::Subscribed);
    let changed = connection.change(RAISE.call(&["n"]).arg(1), |_| Ok(Some(REPLICA))).await;
    assert_eq!(changed.and_then(|value| value.int()), Ok(2));

    let killed = redis.fail_over();
    let raise = || async { connection.call(RAISE.call(&["n"]).arg(1)).await.ok() };
    let raised = wait_until(raise, PATIENCE, "the new master is found").await;
    assert_eq!(raised.int(), Ok(3));
    assert!(matches!(subscription.next().await, KvSubscriptionEvent::Lost(_)));
    while subscription.next().await != KvSubscriptionEvent::Subscribed {}

    // One that turns into a replica under a living connection is left.
    let master = &redis.servers()[1 - killed];
    assert!(master.raw(0, &["REPLICAOF", "127.0.0.1", "1"]).starts_with("+OK"));
    let refused = connection.call(RAISE.call(&["n"]).arg(1)).await.expect_err("there is no master");
    assert!(refused.is_unreachable() && refused.to_string().contains("slave"), "{refused}");
    assert!(master.raw(0, &["REPLICAOF", "NO", "ONE"]).starts_with("+OK"));
    assert_eq!(connection.call(RAISE.call(&["n"]).arg(1)).await.and_then(|value| value.int()), Ok(4));
}

#[tokio::test]
async fn sentinels_report_a_master_that_they_do_not_know() {
    let redis = RedisSentinels::start();
    let other = redis.url().replace("/main", "/other");
    let unknown = open(&other).database(0).ping().await.expect_err("there is none of that name");
    assert!(unknown.is_unreachable() && unknown.to_string().contains("knows no master `other`"), "{unknown}");
}
