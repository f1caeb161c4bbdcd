//! Connections, scripts, errors and subscriptions on a real server, a cluster, and under Sentinels.

mod cluster;
mod confirm;
mod sentinel;

use std::future::pending;
use std::time::Duration;

use kv::{Cmd, Error, Kv, KvEndpoint, KvOptions, KvSubscriptionEvent, Pipeline, Script, Topic, Value};
use testkit::{FaultProxy, PATIENCE, ProxyFault, ProxyTarget, RedisServer, wait_until};

static RAISE: Script = Script::new(
    "raise",
    &[
        "if ARGV[1] == 'no' then return redis.error_reply('STALE revision ' .. ARGV[2]) end\n",
        "return redis.call('INCRBY', KEYS[1], ARGV[1])",
    ],
);

fn open(url: &str) -> Kv {
    Kv::new(url.parse().expect("the url of a test server"))
}

async fn get(kv: &Kv, database: u32, key: &str) -> Result<Value, Error> {
    kv.database(database).cmd(Cmd::new("GET").arg(key)).await
}

#[tokio::test]
async fn a_connection_that_is_not_polled_keeps_no_other_waiting() {
    let redis = RedisServer::start();
    let kv = open(&redis.url());
    // It begins to connect, and is not polled again before the other one is done.
    let one = get(&kv, 0, "a");
    tokio::pin!(one);
    let begun = tokio::time::timeout(Duration::ZERO, &mut one).await;
    let other =
        tokio::time::timeout(PATIENCE, get(&kv, 0, "a")).await.expect("it does not wait for the first");
    assert_eq!(other, Ok(Value::Nil));
    if begun.is_err() {
        assert_eq!(one.await, Ok(Value::Nil));
    }
}

#[tokio::test]
async fn databases_are_apart() {
    let redis = RedisServer::start();
    let kv = open(&redis.url());
    for database in [0, 1, 4095] {
        let set = Cmd::new("SET").arg("a").arg(u64::from(database));
        kv.database(database).cmd(set).await.expect("a write");
    }
    for database in [0, 1, 4095] {
        assert_eq!(get(&kv, database, "a").await.expect("a read").int(), Ok(i64::from(database)));
    }
    let beyond = get(&kv, 4096, "a").await.expect_err("there is no such database");
    assert_eq!(beyond.code(), Some("ERR"), "{beyond}");
}

#[tokio::test]
async fn credentials_come_in_the_url_or_apart() {
    let redis = RedisServer::builder().password("open sesame".replace(' ', "-").as_str()).start();
    open(&redis.url()).default_database().ping().await.expect("the password of the url");
    let bare = KvEndpoint::unix(redis.socket());
    let refused = Kv::new(bare.clone()).default_database().ping().await.expect_err("a password is asked for");
    assert_eq!(refused.code(), Some("NOAUTH"), "{refused}");
    let wrong = bare.clone().with_credentials(None, "friend");
    let refused = Kv::new(wrong).default_database().ping().await.expect_err("the password is wrong");
    assert_eq!(refused.code(), Some("WRONGPASS"), "{refused}");
    let right = bare.with_credentials(None, "open-sesame");
    Kv::new(right).default_database().ping().await.expect("the password given apart");
}

#[tokio::test]
async fn scripts_survive_a_flush_and_refuse_with_a_code() {
    let redis = RedisServer::start();
    let connection = open(&redis.url()).default_database();
    for round in 1..=3 {
        let answer = connection.call(RAISE.call(&["n"]).arg(2)).await.expect("a call");
        assert_eq!(answer, Value::Int(round * 2));
        let _ = redis.raw(0, &["SCRIPT", "FLUSH"]);
    }
    let refused = connection.call(RAISE.call(&["n"]).arg("no").arg(7)).await;
    assert_eq!(refused, Err(Error::Refused { code: "STALE".into(), message: "revision 7".into() }));
}

#[tokio::test]
async fn a_pipeline_answers_each() {
    let redis = RedisServer::start();
    let connection = open(&redis.url()).default_database();
    let mut pipeline = Pipeline::new();
    pipeline
        .cmd(Cmd::new("HSET").arg("h").arg("a").arg(1).arg("b").arg("x"))
        .call(RAISE.call(&["n"]).arg(1))
        .cmd(Cmd::new("LPUSH").arg("h").arg("not a list"))
        .call(RAISE.call(&["n"]).arg("no").arg(1))
        .cmd(Cmd::new("HGETALL").arg("h"));
    let answers = connection.pipeline(&pipeline).await.expect("answers");
    assert_eq!(answers.len(), 5);
    assert_eq!(answers[1], Ok(Value::Int(1)));
    assert!(answers[2].as_ref().is_err_and(|error| error.code() == Some("WRONGTYPE")));
    assert!(answers[3].as_ref().is_err_and(|error| error.code() == Some("STALE")));
    let hash = answers[4].clone().and_then(Value::hash).expect("a hash");
    assert_eq!(hash.into_iter().collect::<Vec<_>>(), [("a".into(), "1".into()), ("b".into(), "x".into())]);
    assert!(connection.pipeline(&Pipeline::new()).await.is_ok_and(|answers| answers.is_empty()));
}

#[tokio::test]
async fn a_restart_is_noticed_while_idle() {
    let mut redis = RedisServer::builder().persistent().start();
    let connection = open(&redis.url()).default_database();
    connection.cmd(Cmd::new("SET").arg("a").arg("1")).await.expect("a write");
    redis.kill9();
    let dead = wait_until(
        || async { connection.ping().await.err().filter(Error::is_unreachable) },
        PATIENCE,
        "the loss is noticed",
    )
    .await;
    assert!(dead.to_string().contains("unix://"), "{dead}");
    redis.restart();
    let again = || async { connection.cmd(Cmd::new("GET").arg("a")).await.ok() };
    assert_eq!(wait_until(again, PATIENCE, "the connection is back").await.int(), Ok(1));
}

#[tokio::test]
async fn a_swallowed_answer_is_an_unknown_outcome() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(ProxyTarget::Unix(redis.socket())).await;
    let options = KvOptions { response_timeout: Duration::from_millis(200), ..KvOptions::default() };
    let endpoint = format!("redis://{}", proxy.address()).parse().expect("an endpoint");
    let connection = Kv::with_options(endpoint, options).default_database();
    connection.ping().await.expect("the proxy passes");

    proxy.set(ProxyFault::SwallowAnswers);
    let error = connection.call(RAISE.call(&["n"]).arg(1)).await.expect_err("no answer came");
    assert!(matches!(error, Error::UnknownOutcome { .. }), "{error}");

    proxy.set(ProxyFault::Cut);
    let error = connection.ping().await.expect_err("no connection");
    assert!(error.is_unreachable(), "{error}");

    proxy.restore();
    connection.ping().await.expect("a new connection");
}

#[tokio::test]
async fn many_in_flight_share_one_connection() {
    let redis = RedisServer::start();
    let connection = open(&redis.url()).default_database();
    let calls = (0..2000).map(|_| connection.call(RAISE.call(&["n"]).arg(1)));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(Result::is_ok));
    let clients = redis.raw(0, &["CLIENT", "LIST"]);
    assert_eq!(clients.matches("resp=3").count(), 1, "{clients}");
    assert_eq!(redis.raw(0, &["GET", "n"]), "$4\r\n2000\r\n");
}

#[tokio::test]
async fn a_replica_and_a_full_server_give_different_errors() {
    let redis = RedisServer::start();
    let connection = open(&redis.url()).default_database();
    let write = || connection.cmd(Cmd::new("SET").arg("a").arg("1"));
    let _ = redis.raw(0, &["CONFIG", "SET", "maxmemory", "1"]);
    assert!(matches!(write().await, Err(Error::Oom(_))));
    assert!(matches!(connection.call(RAISE.call(&["n"]).arg(1)).await, Err(Error::Oom(_))));
    let _ = redis.raw(0, &["CONFIG", "SET", "maxmemory", "0"]);
    let _ = redis.raw(0, &["REPLICAOF", "127.0.0.1", "1"]);
    assert!(matches!(write().await, Err(Error::Readonly(_))));
}

#[tokio::test]
async fn a_server_that_cannot_write_to_its_disk_gives_an_error_of_its_own() {
    let redis = RedisServer::start();
    let connection = open(&redis.url()).default_database();
    let write = || connection.cmd(Cmd::new("SET").arg("a").arg("1"));
    write().await.expect("there is room");
    redis.lose_disk();
    let refused = async || write().await.err();
    let error = testkit::wait_until(refused, testkit::PATIENCE, "writes are refused").await;
    assert!(matches!(error, Error::DiskFull(_)) && error.is_connection_trouble(), "{error}");
    let scripted = connection.call(RAISE.call(&["n"]).arg(1)).await;
    assert!(matches!(scripted, Err(Error::DiskFull(_))), "{scripted:?}");
}

#[tokio::test]
async fn a_blocking_pop_is_woken_and_loses_nothing() {
    let redis = RedisServer::start();
    let kv = open(&redis.url());
    let mut blocking = kv.blocking(0);
    let pop = Cmd::new("BLMPOP").arg("30").arg(1).arg("q").arg("LEFT");
    // Woken before it can have begun to wait, and again while it surely waits.
    for _ in 0..50 {
        let answer = blocking.run(&pop, PATIENCE, async {}).await.expect("an answer");
        assert!(answer.is_nil(), "{answer:?}");
    }
    let id = blocking.client_id().await.expect("a connection");
    let waiting = wait_until(
        || async { redis.raw(0, &["CLIENT", "LIST"]).contains("cmd=blmpop").then_some(()) },
        PATIENCE,
        "the pop waits",
    );
    let answer = blocking.run(&pop, PATIENCE, waiting).await.expect("an answer");
    assert!(answer.is_nil(), "{answer:?}");

    kv.database(0).cmd(Cmd::new("RPUSH").arg("q").arg("x")).await.expect("a push");
    let [_, values] =
        blocking.run(&pop, PATIENCE, async {}).await.and_then(Value::tuple).expect("what waited");
    assert_eq!(values.texts(), Ok(vec!["x".to_owned()]));
    assert_eq!(blocking.client_id().await, Ok(id), "the connection is kept");

    // A command that is sent along runs once the first has waited.
    let (size_of, push) = (Cmd::new("LLEN").arg("q"), Cmd::new("RPUSH").arg("q").arg("x").arg("y").arg("z"));
    let db = kv.database(0);
    let (answers, pushed) =
        tokio::join!(blocking.run_all([pop.clone(), size_of.clone()], PATIENCE, pending()), db.cmd(push));
    let [_, size] = answers.expect("what was pushed");
    assert_eq!((pushed.and_then(|pushed| pushed.int()), size.int()), (Ok(3), Ok(2)));
    let [nothing, size] = blocking
        .run_all([Cmd::new("BLPOP").arg("other").arg("30"), size_of], PATIENCE, async {})
        .await
        .expect("woken");
    assert_eq!((nothing.is_nil(), size.int()), (true, Ok(2)));
    db.cmd(Cmd::new("DEL").arg("q")).await.expect("removed");

    // A call that was dropped leaves no answer behind for the next.
    let dropped =
        tokio::time::timeout(Duration::from_millis(1), blocking.run(&pop, PATIENCE, pending())).await;
    assert!(dropped.is_err());
    assert_ne!(blocking.client_id().await, Ok(id));
}

#[tokio::test]
async fn a_subscription_renews_itself() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(ProxyTarget::Unix(redis.socket())).await;
    let through = open(&format!("redis://{}", proxy.address()));
    let mut subscription = through.subscribe(vec![Topic::Channel("a".into()), Topic::Pattern("b*".into())]);
    assert_eq!(subscription.next().await, KvSubscriptionEvent::Subscribed);
    for (channel, payload) in [("a", "1"), ("bc", "2")] {
        let _ = redis.raw(0, &["PUBLISH", channel, payload]);
        let message = KvSubscriptionEvent::Message { channel: channel.into(), payload: payload.into() };
        assert_eq!(subscription.next().await, message);
    }
    proxy.cut_once();
    assert!(matches!(subscription.next().await, KvSubscriptionEvent::Lost(_)));
    while subscription.next().await != KvSubscriptionEvent::Subscribed {}
    let _ = redis.raw(0, &["PUBLISH", "a", "3"]);
    assert_eq!(
        subscription.next().await,
        KvSubscriptionEvent::Message { channel: "a".into(), payload: b"3".to_vec() }
    );
}
