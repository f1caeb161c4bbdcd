//! A private Redis for one test; several for one in `cluster` and `sentinel`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::port::free_port;

pub(crate) mod cluster;
pub(crate) mod sentinel;

/// Names another program than `redis-server`, by its path.
const PROGRAM: &str = "MYCORA_REDIS_SERVER";

/// How long a server may take to answer its first `PING`.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How a private server is set up.
#[derive(Debug, Clone, Default)]
pub struct RedisBuilder {
    tcp: bool,
    persistent: bool,
    password: Option<String>,
    lines: Vec<String>,
}

impl RedisBuilder {
    /// Listens on a TCP port of the loopback interface as well.
    #[must_use]
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Keeps its data over [`RedisServer::kill9`] and [`RedisServer::restart`]: append-only file,
    /// synced with every write.
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Asks for a password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a line of `redis.conf`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// When there is no `redis-server`, or it does not start; says why.
    #[must_use]
    pub fn start(self) -> RedisServer {
        let dir = tempfile::Builder::new().prefix("mycora-redis-").tempdir().expect("a temporary directory");
        let port = if self.tcp { free_port() } else { 0 };
        let mut server = RedisServer { dir, port, setup: self, child: None };
        server.spawn();
        server
    }
}

/// A private `redis-server` in a temporary directory, killed when dropped.
///
/// Listens on a unix socket; has 4096 databases; forgets everything unless made
/// [`RedisBuilder::persistent`].
#[derive(Debug)]
pub struct RedisServer {
    dir: TempDir,
    port: u16,
    setup: RedisBuilder,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts one that listens on its socket only and keeps nothing.
    ///
    /// # Panics
    /// As [`RedisBuilder::start`].
    #[must_use]
    pub fn start() -> Self {
        RedisBuilder::default().start()
    }

    /// For a server with other settings.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// The URL of its socket, with the password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        let query =
            self.setup.password.as_ref().map(|password| format!("?pass={password}")).unwrap_or_default();
        format!("unix://{}{query}", self.socket().display())
    }

    /// The URL of its TCP port.
    ///
    /// # Panics
    /// When it was not built with [`RedisBuilder::tcp`].
    #[must_use]
    pub fn tcp_url(&self) -> String {
        let user = self.setup.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{user}127.0.0.1:{}", self.port())
    }

    /// Returns the server's TCP port.
    ///
    /// # Panics
    /// When it was not built with [`RedisBuilder::tcp`].
    #[must_use]
    pub fn port(&self) -> u16 {
        assert_ne!(self.port, 0, "this server was built without `tcp()`");
        self.port
    }

    /// Returns the path of the server's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Where it keeps its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the server's process id.
    ///
    /// # Panics
    /// When it is not running.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is running").id()
    }

    /// Returns true while the server has not ended, by itself or by [`RedisServer::kill9`].
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills it without a warning, and leaves it dead.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A failure means that it is dead already, as intended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again, on the same socket, port and directory, after stopping it if it runs.
    ///
    /// # Panics
    /// As [`RedisBuilder::start`].
    pub fn restart(&mut self) {
        self.kill9();
        self.spawn();
    }

    /// Stops its process in its tracks; its connections stay open and silent.
    ///
    /// # Panics
    /// When it is not running.
    pub fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets a paused process go on.
    ///
    /// # Panics
    /// When it is not running.
    pub fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Makes it fail to save what it has, as on a full disk: soon it takes no writes, and answers `MISCONF`. Until it is
    /// started again.
    ///
    /// # Panics
    /// When its directory cannot be replaced.
    pub fn lose_disk(&self) {
        let _ = self.raw(0, &["CONFIG", "SET", "save", "3600 1"]);
        // It stays in the directory that it was started in, which is gone then; its socket is not.
        let (dir, away) = (self.dir().to_owned(), self.dir().with_extension("away"));
        std::fs::rename(&dir, &away).expect("moved");
        std::fs::create_dir(&dir).expect("another directory");
        std::fs::rename(away.join("redis.sock"), self.socket()).expect("moved");
        std::fs::remove_dir_all(&away).expect("removed");
        let _ = self.raw(0, &["SET", "something", "to save"]);
        let _ = self.raw(0, &["BGSAVE"]);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("the pid of a child is positive");
        rustix::process::kill_process(pid, signal).expect("the server can be sent a signal");
    }

    /// Sends one command by itself and gives the raw answer, as in `["HGETALL", "flow:1"]`. For looking
    /// at a server from the outside.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    pub fn raw(&self, database: u32, args: &[&str]) -> String {
        self.ask(database, args).expect("the server answers")
    }

    fn ask(&self, database: u32, args: &[&str]) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut request = String::new();
        if let Some(password) = &self.setup.password {
            request.push_str(&encode(&["AUTH", password]));
        }
        request.push_str(&encode(&["SELECT", &database.to_string()]));
        request.push_str(&encode(args));
        request.push_str(&encode(&["QUIT"]));
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let skip = if self.setup.password.is_some() { 2 } else { 1 };
        let mut rest = answer.as_str();
        for _ in 0..skip {
            rest = rest.split_once("\r\n").map_or("", |(_, rest)| rest);
        }
        Ok(rest.strip_suffix("+OK\r\n").unwrap_or(rest).to_owned())
    }

    fn spawn(&mut self) {
        // A socket that a killed server left behind would refuse connections.
        let _ = std::fs::remove_file(self.socket());
        let log = self.dir.path().join("redis.log");
        let mut child = spawn(Command::new(program()).arg("-"));
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        stdin.write_all(self.config(&log).as_bytes()).expect("redis-server reads its configuration");
        drop(stdin);
        self.child = Some(child);
        let begin = Instant::now();
        crate::wait::wait_until_blocking(
            || {
                let child = self.child.as_mut().expect("just started");
                if let Ok(Some(status)) = child.try_wait() {
                    panic!("redis-server ended at once with {status}:\n{}", read(&log));
                }
                assert!(begin.elapsed() < START_TIMEOUT, "redis-server does not answer:\n{}", read(&log));
                let tcp_ready =
                    self.port == 0 || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok();
                (tcp_ready && self.ask(0, &["PING"]).is_ok_and(|answer| answer.contains("PONG")))
                    .then_some(())
            },
            START_TIMEOUT,
            "redis-server answers a PING",
        );
    }

    fn config(&self, log: &Path) -> String {
        let dir = self.dir.path().display();
        let mut config = format!(
            "port {}\nbind 127.0.0.1\nunixsocket {}\nunixsocketperm 600\ndir {dir}\nlogfile {}\ndatabases 4096\n\
             save \"\"\ndaemonize no\n",
            self.port,
            self.socket().display(),
            log.display()
        );
        if self.setup.persistent {
            config.push_str("appendonly yes\nappendfsync always\n");
        }
        if let Some(password) = &self.setup.password {
            config.push_str(&format!("requirepass {password}\n"));
        }
        for line in &self.setup.lines {
            config.push_str(line);
            config.push('\n');
        }
        config
    }
}

/// The program that is the server, and a Sentinel.
fn program() -> OsString {
    std::env::var_os(PROGRAM).unwrap_or_else(|| "redis-server".into())
}

fn spawn(command: &mut Command) -> Child {
    match command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => panic!(
            "{} cannot be started ({error}); install it, on Debian and Ubuntu with `apt-get install redis-server`, or \
             name another one with {PROGRAM}",
            program().display()
        ),
    }
}

fn encode(args: &[&str]) -> String {
    let mut text = format!("*{}\r\n", args.len());
    for arg in args {
        text.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
    }
    text
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill9();
    }
}
