//! The tools themselves, tried on real processes and connections.

mod nats;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::{
    FaultProxy, PATIENCE, ProxyFault, ProxyTarget, RedisServer, SmallDisk, TestProcess, Witness, wait_until,
    wait_until_blocking,
};
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
    let proxy = FaultProxy::start(ProxyTarget::Unix(redis.socket())).await;
    let mut stream = TcpStream::connect(proxy.address()).await.expect("the proxy listens");
    assert_eq!(ping(&mut stream).await.as_deref(), Some("+PONG\r\n"));

    proxy.set(ProxyFault::Delay(Duration::from_millis(1)));
    assert_eq!(ping(&mut stream).await.as_deref(), Some("+PONG\r\n"));

    proxy.set(ProxyFault::SwallowAnswers);
    stream.write_all(b"SET swallowed 1\r\n").await.expect("the line is open");
    let arrived = || async { redis.raw(0, &["GET", "swallowed"]).contains('1').then_some(()) };
    wait_until(arrived, PATIENCE, "the request arrives").await;

    proxy.set(ProxyFault::Cut);
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
    let mut process = TestProcess::spawn(
        "talker",
        Command::new("sh").args(["-c", "echo one; echo two >&2; exec sleep 60"]),
    );
    let _ = process.wait_for_line("two", PATIENCE);
    process.terminate();
    assert!(!process.wait(PATIENCE).success());
    assert!(process.output().contains("one\n"));
}

#[test]
fn a_witness_detects_repeated_and_overlapping_attempts() {
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

/// Returns true if a file system is mounted there.
fn is_mounted(dir: &str) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("it is told");
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(dir))
}

#[test]
fn a_small_disk_goes_with_its_holder() {
    // Nothing stays of one that may not be mounted either.
    let Some(disk) = SmallDisk::new(1) else { return };
    let dir = disk.path().to_str().expect("a plain path").to_owned();
    assert!(is_mounted(&dir));
    drop(disk);
    assert!(!is_mounted(&dir) && !Path::new(&dir).exists());

    // This test, started again as one that holds a disk.
    let mut holder = Command::new(std::env::current_exe().expect("this program"));
    holder.args(["--exact", "holds_a_small_disk", "--nocapture"]).env("HOLDS_A_DISK", "1");
    let mut holder = TestProcess::spawn("holder", &mut holder);
    let line = holder.wait_for_line("holds ", PATIENCE);
    let dir = line.split_once("holds ").map(|(_, dir)| dir.to_owned()).expect("its directory");
    assert!(is_mounted(&dir));
    holder.kill9();
    let gone = || (!is_mounted(&dir) && !Path::new(&dir).exists()).then_some(());
    wait_until_blocking(gone, PATIENCE, "the disk of a killed process is gone");
}

/// Does nothing by itself: it is the process that is killed by the test before.
#[test]
fn holds_a_small_disk() {
    if std::env::var_os("HOLDS_A_DISK").is_some() {
        let disk = SmallDisk::new(1).expect("its parent may mount one");
        println!("holds {}", disk.path().display());
        loop {
            std::thread::park();
        }
    }
}
