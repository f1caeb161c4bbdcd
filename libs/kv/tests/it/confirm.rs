//! Changes that are answered when they are kept.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use kv::{Cmd, Error, KvConnection, PersistenceTarget, RedisSetup, Value, WriteConcern};
use testkit::{PATIENCE, RedisServer, wait_until};

use crate::{RAISE, open};

/// How many changes are made at once.
const CHANGES: u64 = 400;

/// Changes are kept when a replica has them. Nothing here depends on how long that takes.
pub(crate) const REPLICA: WriteConcern =
    WriteConcern { target: PersistenceTarget::Replica, patience: PATIENCE };

/// A server and its replica.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
}

impl Pair {
    async fn start() -> Self {
        let setup = RedisServer::builder().persistent().config("repl-diskless-sync-delay 0");
        let primary = setup.clone().tcp().start();
        let replica = setup.config(&format!("replicaof 127.0.0.1 {}", primary.port())).start();
        let pair = Self { primary, replica };
        pair.is_linked().await;
        pair
    }

    async fn is_linked(&self) {
        let linked =
            || async { self.primary.raw(0, &["INFO", "replication"]).contains("state=online").then_some(()) };
        wait_until(linked, PATIENCE, "the replica is there").await;
    }

    /// Returns the id of the client whose last command at this server was `did`.
    fn client(&self, did: &str) -> Option<String> {
        let list = self.primary.raw(0, &["CLIENT", "LIST"]);
        let client = list.lines().find(|line| line.split(' ').any(|word| word == format!("cmd={did}")))?;
        client.split(' ').find_map(|word| word.strip_prefix("id=")).map(str::to_owned)
    }

    /// Until a round waits.
    async fn waits(&self) -> String {
        wait_until(|| async { self.client("wait") }, PATIENCE, "a round waits").await
    }

    fn kill(&self, client: &str) {
        let killed = self.primary.raw(0, &["CLIENT", "KILL", "ID", client]);
        assert_eq!(killed, ":1\r\n");
    }

    /// How often a command was called.
    fn calls(&self, command: &str) -> u64 {
        let stats = self.primary.raw(0, &["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| {
            line.strip_prefix(&format!("cmdstat_{command}:calls="))?.split(',').next()?.parse().ok()
        });
        calls.unwrap_or(0)
    }

    fn is_waitaof_known(&self) -> bool {
        !self.primary.raw(0, &["INFO", "server"]).contains("redis_version:7.0")
    }
}

async fn raise(connection: &KvConnection, confirm: WriteConcern) -> Result<u64, Error> {
    let changed = connection.change(RAISE.call(&["n"]).arg(1), |_| Ok(Some(confirm))).await;
    changed.and_then(|value| value.uint())
}

fn is_unknown(result: &Result<u64, Error>) -> bool {
    matches!(result, Err(Error::UnknownOutcome { .. }))
}

/// Why the outcome is unknown.
fn doubt(result: Result<u64, Error>) -> String {
    match result {
        Err(Error::UnknownOutcome { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn changes_that_are_made_together_are_confirmed_together() {
    let pair = Pair::start().await;
    let keepers = if pair.is_waitaof_known() {
        vec![
            (PersistenceTarget::Replica, "wait"),
            (PersistenceTarget::Disk, "waitaof"),
            (PersistenceTarget::Disks, "waitaof"),
        ]
    } else {
        vec![(PersistenceTarget::Replica, "wait")]
    };
    for (keeper, command) in keepers {
        let kv = open(&pair.primary.url());
        let _ = pair.primary.raw(0, &["FLUSHALL"]);
        let before = pair.calls(command);
        let confirm = WriteConcern { target: keeper, patience: PATIENCE };
        let databases = [kv.database(0), kv.database(7)];
        let changes = (0..CHANGES).map(|n| raise(&databases[usize::from(n % 2 == 1)], confirm));
        let answers = futures_util::future::join_all(changes).await;
        let mut answers: Vec<u64> = answers.into_iter().collect::<Result<_, _>>().expect("all are kept");
        answers.sort_unstable();
        assert_eq!(answers, (0..CHANGES).map(|n| 1 + n / 2).collect::<Vec<_>>());
        let rounds = pair.calls(command) - before;
        assert!((1..=CHANGES / 8).contains(&rounds), "{keeper:?}: {rounds} rounds");
        // Rounds leave nothing behind.
        for database in [0, 7] {
            assert_eq!(pair.primary.raw(database, &["KEYS", "*"]), "*1\r\n$1\r\nn\r\n");
        }
        let replicas = pair.replica.raw(7, &["GET", "n"]);
        assert_eq!(replicas, format!("$3\r\n{}\r\n", CHANGES / 2));
    }
}

/// There is one sync a second: what is confirmed faster than that, one after the other, is on no disk yet.
#[tokio::test]
async fn a_server_that_confirms_too_early_is_known_for_it() {
    let redis = RedisServer::builder().config("appendonly yes").config("appendfsync everysec").start();
    let connection = open(&redis.url()).default_database();
    let setup = connection.setup().await.expect("it tells");
    assert_eq!(setup.append_fsync.as_deref(), Some("everysec"));
    if setup.version < (7, 2) {
        assert!(!setup.waitaof_is_early, "it has no such command");
        return;
    }
    let begin = Instant::now();
    for n in 1..=4 {
        let confirm = WriteConcern { target: PersistenceTarget::Disk, patience: PATIENCE };
        assert_eq!(raise(&connection, confirm).await, Ok(n));
    }
    assert!(setup.waitaof_is_early || begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_round_that_breaks_leaves_an_unknown_outcome() {
    let pair = Pair::start().await;
    let connection = open(&pair.primary.url()).default_database();
    pair.replica.pause();
    let broken = async {
        let round = pair.waits().await;
        // No other command waits for it.
        let read = connection.cmd(Cmd::new("GET").arg("n")).await;
        assert_eq!(read.and_then(|value| value.uint()), Ok(1));
        pair.kill(&round);
    };
    let (answer, ()) = tokio::join!(raise(&connection, REPLICA), broken);
    let why = doubt(answer);
    assert!(!why.contains("within"), "{why}");
    let late = WriteConcern { patience: Duration::from_millis(1), ..REPLICA };
    let why = doubt(raise(&connection, late).await);
    assert!(why.contains("within 1ms"), "{why}");
    pair.replica.resume();
    assert_eq!(raise(&connection, REPLICA).await, Ok(3));
}

#[tokio::test]
async fn a_caller_that_does_not_wait_any_more_harms_no_other() {
    let pair = Pair::start().await;
    let connection = open(&pair.primary.url()).default_database();
    pair.replica.pause();
    let first = tokio::select! {
        answer = raise(&connection, REPLICA) => Some(answer),
        _ = pair.waits() => None,
    };
    assert_eq!(first, None);
    let resumed = async {
        let made = || async {
            let n = connection.cmd(Cmd::new("GET").arg("n")).await.and_then(|value| value.uint());
            (n == Ok(2)).then_some(())
        };
        wait_until(made, PATIENCE, "the second change is made").await;
        pair.replica.resume();
    };
    let (answer, ()) = tokio::join!(raise(&connection, REPLICA), resumed);
    assert_eq!(answer, Ok(2));
}

/// Makes `path` lead to a server.
fn lead(path: &Path, to: &Pair) {
    let _ = std::fs::remove_file(path);
    symlink(to.primary.socket(), path).expect("a link");
}

#[tokio::test]
async fn what_one_process_confirms_counts_for_no_other() {
    let (one, other) = (Pair::start().await, Pair::start().await);
    let path = one.primary.dir().join("either.sock");
    lead(&path, &one);
    let connection = open(&format!("unix://{}", path.display())).default_database();

    // The change is made on one server, and the round is with the other.
    connection.ping().await.expect("a connection to the one");
    lead(&path, &other);
    let answer = raise(&connection, REPLICA).await;
    assert!(is_unknown(&answer), "{answer:?}");
    assert_eq!(one.primary.raw(0, &["GET", "n"]), "$1\r\n1\r\n");
    assert_eq!(other.calls("wait"), 1);

    // The next is made, and confirmed, where everything leads now.
    assert_eq!(raise(&connection, REPLICA).await, Ok(1));
    assert_eq!(other.primary.raw(0, &["GET", "n"]), "$1\r\n1\r\n");

    // The connection for rounds is still to the other server, and the change is made on the one.
    lead(&path, &one);
    let client =
        other.client("eval").or_else(|| other.client("evalsha")).expect("the connection for changes");
    other.kill(&client);
    let moved = || async {
        let n = connection.cmd(Cmd::new("INCRBY").arg("n").arg(0)).await;
        n.is_ok_and(|n| n == Value::Int(1)).then_some(())?;
        one.client("incrby").map(drop)
    };
    wait_until(moved, PATIENCE, "the connection is to the one").await;
    let answer = raise(&connection, REPLICA).await;
    assert!(is_unknown(&answer), "{answer:?}");
    assert_eq!(one.primary.raw(0, &["GET", "n"]), "$1\r\n2\r\n");
    assert_eq!(one.calls("wait"), 0);
    assert_eq!(raise(&connection, REPLICA).await, Ok(3));
}

#[tokio::test]
async fn a_process_that_was_a_replica_meanwhile_has_another_past() {
    let pair = Pair::start().await;
    let connection = open(&pair.primary.url()).default_database();
    assert_eq!(raise(&connection, REPLICA).await, Ok(1));
    for command in [["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]] {
        assert!(pair.primary.raw(0, &command).starts_with("+OK"));
    }
    pair.is_linked().await;
    // The primary is the same process, and no connection was lost.
    let answer = raise(&connection, REPLICA).await;
    assert!(is_unknown(&answer), "{answer:?}");
    assert_eq!(raise(&connection, REPLICA).await, Ok(3));
}

#[tokio::test]
async fn nothing_is_changed_on_a_server_that_is_not_fit_for_it() {
    let mut redis = RedisServer::builder().tcp().persistent().config("repl-diskless-sync-delay 0").start();
    let connection = open(&redis.tcp_url()).default_database();
    let raise = || {
        let terms = |setup: &RedisSetup| match setup.replicas {
            0 => Err("it has no replica".to_owned()),
            _ => Ok(Some(REPLICA)),
        };
        connection.change(RAISE.call(&["n"]).arg(1), terms)
    };
    let refused = raise().await.expect_err("there is no replica");
    assert!(matches!(&refused, Error::Unfit { .. }), "{refused}");
    assert!(refused.to_string().contains("it has no replica"), "{refused}");
    assert_eq!(redis.raw(0, &["EXISTS", "n"]), ":0\r\n");

    // From when on it is fit, without a new connection.
    let line = format!("replicaof 127.0.0.1 {}", redis.port());
    let replica = RedisServer::builder().config(&line).start();
    let fit = wait_until(|| async { raise().await.ok() }, PATIENCE, "the replica is there").await;
    assert_eq!(fit, Value::Int(1));

    // The setup of the next process is read again.
    drop(replica);
    redis.restart();
    let refused = || async { raise().await.err().filter(|error| matches!(error, Error::Unfit { .. })) };
    wait_until(refused, PATIENCE, "the new process is asked").await;
    assert_eq!(redis.raw(0, &["GET", "n"]), "$1\r\n1\r\n");
}
