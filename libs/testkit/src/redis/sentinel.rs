//! A private master with a replica, and Sentinels that watch over it, for one test.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

use tempfile::TempDir;

use super::{RedisBuilder, RedisServer, encode, program, spawn};
use crate::port::free_port;
use crate::wait::{PATIENCE, wait_until_blocking};

/// The name under which Sentinels know the master.
const MASTER: &str = "main";
const SENTINELS: usize = 3;

/// Two servers, one of which is a replica of the other, and three Sentinels. Ended when dropped.
#[derive(Debug)]
pub struct RedisSentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    child: Child,
    port: u16,
    /// Holds its configuration, which it writes as well.
    _dir: TempDir,
}

impl RedisSentinels {
    /// Starts them, and waits until the Sentinels know all of them.
    ///
    /// # Panics
    /// As [`RedisBuilder::start`], and when they do not find together.
    #[must_use]
    pub fn start() -> Self {
        Self::of(&RedisServer::builder())
    }

    /// Starts them with servers built as `setup` says, and waits as [`RedisSentinels::start`] does.
    ///
    /// # Panics
    /// As [`RedisSentinels::start`].
    #[must_use]
    pub fn of(setup: &RedisBuilder) -> Self {
        let setup = setup.clone().tcp().config("repl-diskless-sync-delay 0");
        let master = setup.clone().start();
        let line = format!("replicaof 127.0.0.1 {}", master.port());
        let replica = setup.config(&line).start();
        let linked = || master.raw(0, &["INFO", "replication"]).contains("state=online").then_some(());
        wait_until_blocking(linked, PATIENCE, "the replica is there");
        let sentinels = (0..SENTINELS).map(|_| Sentinel::start(master.port())).collect();
        let all = Self { servers: vec![master, replica], sentinels };
        let is_known = |sentinel: &Sentinel| {
            let known = sentinel.ask(&["SENTINEL", "MASTER", MASTER]).unwrap_or_default();
            field(&known, "num-slaves") == Some("1")
                && field(&known, "num-other-sentinels") == Some(&(SENTINELS - 1).to_string())
        };
        let settled = || all.sentinels.iter().all(is_known).then_some(());
        wait_until_blocking(settled, PATIENCE, "the Sentinels know all");
        all
    }

    /// The URL by which the master is found.
    #[must_use]
    pub fn url(&self) -> String {
        let ports = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port));
        format!("redis+sentinel://{}/{MASTER}", ports.collect::<Vec<_>>().join(","))
    }

    /// The servers.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Which of the servers is the master, as the Sentinels say.
    ///
    /// # Panics
    /// When they do not say the same for long.
    #[must_use]
    pub fn master(&self) -> usize {
        wait_until_blocking(|| self.agreed(), PATIENCE, "the Sentinels agree")
    }

    /// Kills the master without a warning, waits until the other one has its place, and gives the killed one.
    ///
    /// # Panics
    /// When no server takes its place.
    pub fn fail_over(&mut self) -> usize {
        let killed = self.master();
        self.servers[killed].kill9();
        let taken = || self.agreed().filter(|master| *master != killed);
        let master = wait_until_blocking(taken, PATIENCE, "the replica is made the master");
        let rules = || self.servers[master].raw(0, &["ROLE"]).contains("master").then_some(());
        wait_until_blocking(rules, PATIENCE, "the replica is the master");
        killed
    }

    fn agreed(&self) -> Option<usize> {
        let mut masters = self.sentinels.iter().map(|sentinel| {
            let answer = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).ok()?;
            answer.lines().nth(4)?.parse().ok()
        });
        let port: u16 = masters.next()??;
        masters.all(|other| other == Some(port)).then_some(())?;
        self.servers.iter().position(|server| server.port() == port)
    }
}

impl Sentinel {
    fn start(master: u16) -> Self {
        let dir =
            tempfile::Builder::new().prefix("mycora-sentinel-").tempdir().expect("a temporary directory");
        let port = free_port();
        let file = dir.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {dir}\nlogfile {dir}/sentinel.log\n\
             sentinel monitor {MASTER} 127.0.0.1 {master} 2\nsentinel down-after-milliseconds {MASTER} 400\n\
             sentinel failover-timeout {MASTER} 4000\n",
            dir = dir.path().display()
        );
        std::fs::write(&file, text).expect("the configuration is written");
        let child = spawn(Command::new(program()).arg(&file).arg("--sentinel"));
        let sentinel = Self { child, port, _dir: dir };
        let answers = || sentinel.ask(&["PING"]).ok().filter(|answer| answer.contains("PONG"));
        let _ = wait_until_blocking(answers, PATIENCE, "the Sentinel answers");
        sentinel
    }

    fn ask(&self, args: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(encode(args).as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// The value after a name, in an array of texts.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    answer.lines().skip_while(|line| *line != name).nth(2)
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // A failure means that it is dead already, as intended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
