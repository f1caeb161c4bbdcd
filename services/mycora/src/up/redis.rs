//! The private Redis of an all-in-one.
//!
//! It listens on a socket in the data directory only. Its configuration, the
//! passwords included, reaches it through its standard input, so that they
//! stand neither in arguments nor in the environment. When it ends by itself
//! it is started again on the same data, and clients connect anew.

mod disk_writer;
mod keeper;

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv::{Durability, Endpoint};
use model::id::Uid;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use self::disk_writer::DiskWriter;
use self::keeper::{Keeper, Loss};
use super::directory::DataDir;
use super::disk::SharedDisk;
use super::process::ProcessRecord;
use super::{Notice, UpError};

/// Databases of the server: contexts 1 to 4094, and the last one for the supervisor.
pub(super) const DATABASES: u32 = 4096;
/// Where the supervisor's keys live.
pub(super) const SUPERVISOR_DATABASE: u32 = DATABASES - 1;

/// Where it keeps its data and its log.
pub(super) const FILES: &str = "redis";
const LOG: &str = "redis/redis.log";
const APPENDED: &str = "appendonlydir";
const SOCKET: &str = "redis.sock";
const PASSWORD: &str = "redis.password";
const RECORD: &str = "redis.pid";
/// The longest path that a unix socket can have, on Linux.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// How long it may say nothing while it starts. One that reads its data says so, and may take as long as it needs.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// How much of the end of its log an error shows.
const LAST_LINES: usize = 5;
const LAST_BYTES: u64 = 4096;

/// What the runner pool may do: its queues, and nothing administrative.
const RUNNER_RULES: &str = "~hero:* resetchannels -@all +@read +@write +@stream +@blocking +@connection \
     +@scripting +time -@dangerous -script|flush -script|kill -function +client|unblock +client|id";

/// The server, kept running, and how to reach it.
#[derive(Debug)]
pub(super) struct PrivateRedis {
    socket: PathBuf,
    password: Zeroizing<String>,
    runner_password: Zeroizing<String>,
    /// Ends it, and what keeps it running.
    stop: CancellationToken,
    keeper: JoinHandle<io::Result<()>>,
    lost: watch::Receiver<Option<Loss>>,
}

impl PrivateRedis {
    /// Stops an orphan of an earlier life, starts the server on the directory's data, and keeps it running.
    ///
    /// # Errors
    /// When there is no `redis-server`, it cannot start, or the path of its socket is too long.
    pub(super) async fn start(
        dir: &Arc<DataDir>,
        durability: Durability,
        memory: u64,
        notice: &Notice,
    ) -> Result<Self, UpError> {
        let socket = dir.join(SOCKET);
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(UpError::SocketPath { path: socket });
        }
        stop_orphan(dir, notice).await?;
        prepare_files(dir)?;
        let (password, runner_password) = (secret(), secret());
        dir.write_secret(PASSWORD, &password)?;
        let configuration = configuration(dir, durability, memory, &password, &runner_password);
        let endpoint = endpoint(&socket, &password);
        let server = Server { dir: Arc::clone(dir), configuration, endpoint };
        let child = server.start().await?;
        let (stop, (lose, lost)) = (CancellationToken::new(), watch::channel(None));
        let keeper = Keeper { server, notice: *notice, stop: stop.clone(), lose };
        let writes =
            (durability == Durability::Fast).then(|| DiskWriter::new(dir.join(FILES).join(APPENDED)));
        let keeper = tokio::spawn(async move {
            let writing = async {
                match writes {
                    Some(writer) => writer.keep().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                kept = keeper.keep(child) => kept,
                () = writing => Err(io::Error::other("what brings its data to the disk has ended")),
            }
        });
        Ok(Self { socket, password, runner_password, stop, keeper, lost })
    }

    /// For the coordinator: every database, every command.
    #[must_use]
    pub(super) fn endpoint(&self) -> Endpoint {
        endpoint(&self.socket, &self.password)
    }

    /// For the supervisor: its own database.
    #[must_use]
    pub(super) fn supervisor_endpoint(&self) -> Endpoint {
        self.endpoint().with_database(SUPERVISOR_DATABASE)
    }

    /// For the runner pool: the supervisor's database, as a user that can work on queues only.
    #[must_use]
    pub(super) fn runner_endpoint(&self) -> Endpoint {
        Endpoint::unix(&self.socket)
            .with_credentials(Some("runner".into()), self.runner_password.as_str())
            .with_database(SUPERVISOR_DATABASE)
    }

    /// The command that opens a prompt at the server.
    #[must_use]
    pub(super) fn cli_line(&self, dir: &DataDir, database: u32) -> String {
        format!(
            "REDISCLI_AUTH=\"$(cat {})\" redis-cli -s {} -n {database}",
            dir.join(PASSWORD).display(),
            self.socket.display()
        )
    }

    /// What is to be said when scripts can fill its disk.
    #[must_use]
    pub(super) fn shared_disk(
        &self,
        dir: &DataDir,
        scripts: &Path,
        floor: Option<u64>,
    ) -> Option<SharedDisk> {
        SharedDisk::of(scripts, &dir.join(FILES), floor)
    }

    /// Returns when the server has ended by itself and cannot be started again. Cancel safe.
    pub(super) async fn lost(&mut self) -> UpError {
        match self.lost.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(loss)) => loss.error(),
            _ => UpError::Task("what keeps redis-server running".to_owned()),
        }
    }

    /// Whether the server has ended and cannot be started again.
    #[must_use]
    pub(super) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// Lets the server write what it has and end.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(super) async fn stop(self) -> io::Result<()> {
        self.stop.cancel();
        self.keeper.await.map_err(io::Error::other)?
    }
}

/// What a server is started from, as often as it has to be.
#[derive(Debug)]
struct Server {
    dir: Arc<DataDir>,
    configuration: Zeroizing<String>,
    endpoint: Endpoint,
}

impl Server {
    /// Starts it on what its directory holds, and returns when it answers. Dropped before, it is killed.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it answers.
    async fn start(&self) -> Result<Child, UpError> {
        let mut child = spawn(&self.dir)?;
        let pid = child.id().unwrap_or_default();
        let process = ProcessRecord::of(pid).map_err(UpError::RedisStart)?;
        self.dir.write_secret(RECORD, &process.to_string())?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that has ended by now says why below.
            let _ = stdin.write_all(self.configuration.as_bytes()).await;
        }
        self.wait_until_ready(&mut child).await?;
        Ok(child)
    }

    async fn wait_until_ready(&self, child: &mut Child) -> Result<(), UpError> {
        let (socket, log) = (self.dir.join(SOCKET), self.dir.join(LOG));
        let mut deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait().map_err(UpError::RedisStart)? {
                let last = last_lines(&log);
                return Err(UpError::RedisEarlyEnd { status: status.to_string(), last, log });
            }
            // The socket is there before the data is read; only an answer says that it was.
            if socket.exists() {
                match kv::Kv::new(self.endpoint.clone()).database(0).ping().await {
                    // A full disk does not hinder it from answering what is asked.
                    Ok(()) | Err(kv::Error::DiskFull(_)) => return Ok(()),
                    Err(kv::Error::Unreachable { reason, .. }) if reason.contains("LOADING") => {
                        deadline = Instant::now() + START_TIMEOUT;
                    }
                    Err(_) => {}
                }
            }
            if Instant::now() > deadline {
                return Err(UpError::RedisSlow { secs: START_TIMEOUT.as_secs(), log });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Lets it write what it has and end; kills it when that takes too long.
    async fn end(&self, mut child: Child) -> io::Result<()> {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
            child.kill().await?;
        }
        self.forget();
        Ok(())
    }

    /// Removes the record of its process.
    fn forget(&self) {
        // A record that stays is recognised as stale by the next start.
        let _ = std::fs::remove_file(self.dir.join(RECORD));
    }
}

fn endpoint(socket: &Path, password: &Zeroizing<String>) -> Endpoint {
    Endpoint::unix(socket).with_credentials(None, password.as_str())
}

/// The end of its log; empty when there is none.
fn last_lines(log: &Path) -> String {
    let read = || {
        let mut file = std::fs::File::open(log)?;
        let from = file.metadata()?.len().saturating_sub(LAST_BYTES);
        io::Seek::seek(&mut file, io::SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, LAST_BYTES), &mut bytes)?;
        io::Result::Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

/// A password that nobody guesses.
fn secret() -> Zeroizing<String> {
    Zeroizing::new(Uid::random().to_string())
}

fn spawn(dir: &DataDir) -> Result<Child, UpError> {
    // What it says before it has read where its log is.
    let log = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join(LOG));
    let spawned = Command::new("redis-server")
        .arg("-")
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
        .kill_on_drop(true)
        // Ctrl-C at the terminal is for us: we end the server when its clients have ended.
        .process_group(0)
        .spawn();
    spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => UpError::NoRedis,
        _ => UpError::RedisStart(error),
    })
}

/// Makes the directory of its data, and takes over what earlier versions kept beside it.
fn prepare_files(dir: &DataDir) -> Result<(), UpError> {
    let (before, now) = (dir.join(APPENDED), dir.private(FILES)?.join(APPENDED));
    match std::fs::rename(&before, now) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(UpError::Directory { path: before, source: error })
        }
        _ => Ok(()),
    }
}

fn configuration(
    dir: &DataDir,
    durability: Durability,
    memory: u64,
    password: &str,
    runner_password: &str,
) -> Zeroizing<String> {
    // Nothing is answered before the kernel has it; `DiskWriter` brings it to the disk.
    let fsync = if durability == Durability::Fast { "no" } else { "always" };
    let quoted = |name: &str| format!("{:?}", dir.join(name).display().to_string());
    Zeroizing::new(format!(
        "port 0\n\
         unixsocket {socket}\n\
         unixsocketperm 600\n\
         dir {directory}\n\
         logfile {log}\n\
         databases {DATABASES}\n\
         appendonly yes\n\
         appendfsync {fsync}\n\
         save \"\"\n\
         maxmemory {memory}\n\
         maxmemory-policy noeviction\n\
         user default on >{password} ~* &* +@all\n\
         user runner on >{runner_password} {RUNNER_RULES}\n",
        socket = quoted(SOCKET),
        directory = quoted(FILES),
        log = quoted(LOG),
    ))
}

/// Ends the server that a `kill -9` of an earlier `up` left behind.
async fn stop_orphan(dir: &DataDir, notice: &Notice) -> Result<(), UpError> {
    let Ok(text) = std::fs::read_to_string(dir.join(RECORD)) else { return Ok(()) };
    let Some(orphan) = text.trim().parse::<ProcessRecord>().ok().filter(ProcessRecord::is_alive) else {
        return Ok(());
    };
    notice.say(&format!("stopping redis-server {} of an earlier start that was killed", orphan.pid));
    orphan.end(STOP_TIMEOUT).await.map_err(UpError::RedisStart)
}
