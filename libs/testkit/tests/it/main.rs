//! The tools themselves, tried on real processes and connections.

use std::process::Command;
use std::time::Duration;

use testkit::{Fault, FaultProxy, PATIENCE, Process, RedisServer, Target, Witness, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[test]
fn redis_lives_dies_and_comes_back() {
    let mut redis = RedisServer::builder().persistent().password("secret").tcp().start();
    let pid = redis.pid();
    assert_eq!(redis.raw(4095, &["SET", "a", "1"]), "+OK\r\n");
    redis.kill9();
    redis.restart();
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.raw(4095, &["GET", "a"]), "$1\r\n1\r\n");
    assert!(redis.tcp_url().starts_with("redis://:secret@127.0.0.1:"));
    let dir = redis.dir().to_owned();
    drop(redis);
    assert!(!dir.exists());
}

async fn ping(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"PING\r\n").await.ok()?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await.ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn a_proxy_breaks_what_passes() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(Target::Unix(redis.socket())).await;
    let mut stream = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(ping(&mut stream).await.as_deref(), Some("+PONG\r\n"));

    proxy.set(Fault::Delay(Duration::from_millis(1)));
    assert_eq!(ping(&mut stream).await.as_deref(), Some("+PONG\r\n"));

    proxy.set(Fault::SwallowAnswers);
    stream.write_all(b"SET swallowed 1\r\n").await.expect("the line is open");
    let arrived = || async { redis.raw(0, &["GET", "swallowed"]).contains('1').then_some(()) };
    wait_until(arrived, PATIENCE, "the request arrives").await;

    proxy.set(Fault::Cut);
    assert_eq!(ping(&mut stream).await, None);
    proxy.restore();
    let mut stream = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(ping(&mut stream).await.as_deref(), Some("+PONG\r\n"));

    proxy.cut_once();
    assert_eq!(ping(&mut stream).await, None);
    let mut stream = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(ping(&mut stream).await.as_deref(), Some("+PONG\r\n"));
}

#[test]
fn a_process_is_watched() {
    let mut process =
        Process::spawn("talker", Command::new("sh").args(["-c", "echo one; echo two >&2; exec sleep 60"]));
    let _ = process.wait_for_line("two", PATIENCE);
    process.terminate();
    assert!(!process.wait(PATIENCE).success());
    assert!(process.output().contains("one\n"));
}

#[test]
fn a_witness_tells() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let witness = Witness::new(dir.path());
    for job in ["a", "b"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &witness.shell(job, "true")]).env("MYCORA_ATTEMPT", "1");
        assert!(shell.status().expect("sh runs").success());
    }
    witness.assert_each_once(&["a", "b"]);
    witness.assert_no_overlap(|_| false);
    witness.assert_one_end_each(&["a", "b"]);
    std::fs::write(witness.path(), "start a 1\nstart a 2\nend a 1\nend a 2\n").expect("a writable file");
    let overlap = std::panic::catch_unwind(|| witness.assert_no_overlap(|_| true));
    assert!(overlap.is_err());
    let twice = std::panic::catch_unwind(|| witness.assert_each_once(&["a"]));
    assert!(twice.is_err());
}
