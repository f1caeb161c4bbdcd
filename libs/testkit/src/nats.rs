//! A private NATS server with JetStream for one test.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::port::free_port;
use crate::process::TestProcess;
use crate::wait::wait_until_blocking;

/// Names another program than `nats-server`, by its path.
const PROGRAM: &str = "MYCORA_NATS_SERVER";
/// Where Debian has it, which is not in everybody's `PATH`.
const OF_DEBIAN: &str = "/usr/sbin/nats-server";
/// How long a server may take until JetStream answers.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A private `nats-server` in a temporary directory, killed when dropped.
///
/// Listens on a port of the loopback interface, the same for its whole life. Keeps streams and consumers in its
/// directory over [`NatsServer::kill9`] and [`NatsServer::restart`], as far as that version does.
#[derive(Debug)]
pub struct NatsServer {
    // It ends before its directory goes.
    process: TestProcess,
    port: u16,
    dir: TempDir,
    /// Variables of its environment.
    environment: Vec<(String, String)>,
    /// True for a server that accepts clients without a login.
    is_open: bool,
}

/// Copy of a server's files at a moment: see [`NatsServer::restore`].
#[derive(Debug)]
pub struct NatsSnapshot(TempDir);

impl NatsServer {
    /// Starts one and waits until JetStream answers.
    ///
    /// # Panics
    /// When there is no `nats-server`, or it does not start; says why.
    #[must_use]
    pub fn start() -> Self {
        Self::with("", &[], true)
    }

    /// Starts one with more configuration, which asks for a login, and with these variables in its environment. Waits until it takes
    /// connections.
    ///
    /// # Panics
    /// As [`NatsServer::start`].
    #[must_use]
    pub fn configured(more: &str, environment: &[(&str, &str)]) -> Self {
        Self::with(more, environment, false)
    }

    fn with(more: &str, environment: &[(&str, &str)], is_open: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("mycora-nats-").tempdir().expect("a temporary directory");
        let port = free_port();
        let store = dir.path().join("store");
        let config = format!("listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store:?} }}\n{more}");
        std::fs::write(dir.path().join("nats.conf"), config).expect("written");
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let process = spawn(dir.path(), &environment);
        let mut server = Self { process, port, dir, environment, is_open };
        server.wait();
        server
    }

    /// Where clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// The address of it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the INFO that the server sends to each client, as JSON; its `version` among it.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn info(&self) -> String {
        let (_, info) = connect(self.address()).expect("the server answers");
        info
    }

    /// Kills it without a warning, and leaves it dead.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts it again, on the same port and directory, after killing it if it runs.
    ///
    /// # Panics
    /// As [`NatsServer::start`].
    pub fn restart(&mut self) {
        self.kill9();
        self.process = spawn(self.dir.path(), &self.environment);
        self.wait();
    }

    /// Stops its process in its tracks; its connections stay open and silent.
    ///
    /// # Panics
    /// When it is not running.
    pub fn pause(&self) {
        self.process.suspend();
    }

    /// Lets a paused process go on.
    ///
    /// # Panics
    /// When it is not running.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Kills it and starts it on an empty directory: no stream is left, nor a consumer.
    ///
    /// # Panics
    /// When its directory cannot be emptied, or as [`NatsServer::start`].
    pub fn wipe(&mut self) {
        self.kill9();
        std::fs::remove_dir_all(self.store()).expect("removed");
        self.restart();
    }

    /// Removes all messages of a stream; the stream and its consumers stay, and sequences go on.
    ///
    /// # Panics
    /// When there is no such stream.
    pub fn empty(&self, stream: &str) {
        let answer = self.ask(&format!("$JS.API.STREAM.PURGE.{stream}"), "");
        assert!(answer.contains("\"success\":true"), "{stream} cannot be emptied: {answer}");
    }

    /// Kills it, copies what it has on its disk, and starts it again.
    ///
    /// # Panics
    /// When that cannot be copied, or as [`NatsServer::start`].
    #[must_use]
    pub fn snapshot(&mut self) -> NatsSnapshot {
        self.kill9();
        let copy = TempDir::new().expect("a temporary directory");
        copy_dir(&self.store(), copy.path());
        self.restart();
        NatsSnapshot(copy)
    }

    /// Kills it and starts it with what it had before: messages that it has acknowledged since are gone, and their
    /// sequences are given to others.
    ///
    /// # Panics
    /// When its files cannot be replaced, or as [`NatsServer::start`].
    pub fn restore(&mut self, to: &NatsSnapshot) {
        self.kill9();
        std::fs::remove_dir_all(self.store()).expect("removed");
        copy_dir(to.0.path(), &self.store());
        self.restart();
    }

    /// Sends one request by itself and gives the answer, such as `$JS.API.STREAM.INFO.<name>`. For looking at a server from
    /// the outside.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn ask(&self, subject: &str, payload: &str) -> String {
        ask(self.address(), subject, payload).unwrap_or_else(|error| panic!("{subject}: {error}"))
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn wait(&mut self) {
        let _ = self.process.wait_for_line("Server is ready", START_TIMEOUT);
        let answers = || match self.is_open {
            true => ask(self.address(), "$JS.API.INFO", "").is_ok().then_some(()),
            false => connect(self.address()).is_ok().then_some(()),
        };
        wait_until_blocking(answers, START_TIMEOUT, "JetStream answers");
    }
}

/// The program that is the server.
fn program() -> OsString {
    let of_debian = || Path::new(OF_DEBIAN).exists().then(|| OF_DEBIAN.into());
    std::env::var_os(PROGRAM).or_else(of_debian).unwrap_or_else(|| "nats-server".into())
}

fn spawn(dir: &Path, environment: &[(String, String)]) -> TestProcess {
    let program = program();
    let mut command = Command::new(&program);
    command.arg("-c").arg(dir.join("nats.conf")).envs(environment.iter().map(|(name, value)| (name, value)));
    let is_there = Command::new(&program).arg("--version").output();
    if let Err(error) = is_there {
        panic!(
            "{} cannot be started ({error}); install it, on Debian and Ubuntu with `apt-get install nats-server`, or name \
             another one with {PROGRAM}",
            program.display()
        );
    }
    TestProcess::spawn("nats-server", &mut command)
}

/// A connection, and the first line of the server.
fn connect(address: SocketAddr) -> io::Result<(BufReader<TcpStream>, String)> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut stream = BufReader::new(stream);
    let mut info = String::new();
    stream.read_line(&mut info)?;
    let info = info.strip_prefix("INFO ").map(|info| info.trim_end().to_owned());
    Ok((stream, info.ok_or(io::ErrorKind::InvalidData)?))
}

fn ask(address: SocketAddr, subject: &str, payload: &str) -> io::Result<String> {
    let (mut stream, _) = connect(address)?;
    let length = payload.len();
    write!(
        stream.get_mut(),
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {length}\r\n{payload}\r\n"
    )?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(rest) = line.strip_prefix("MSG answer 1 ") {
            // Where an answer to the answer would go may stand before it.
            let length = rest.split_ascii_whitespace().next_back().and_then(|length| length.parse().ok());
            let length = length.ok_or(io::ErrorKind::InvalidData)?;
            let mut answer = vec![0; length];
            stream.read_exact(&mut answer)?;
            return String::from_utf8(answer).map_err(|_| io::ErrorKind::InvalidData.into());
        }
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}
