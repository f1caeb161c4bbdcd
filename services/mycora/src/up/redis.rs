//! The private Redis of an all-in-one.
//!
//! It listens on a socket in the data directory only. Its configuration, the
//! passwords included, reaches it through its standard input, so that they
//! stand neither in arguments nor in the environment.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use kv::Endpoint;
use model::id::Uid;
use storage::Durability;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use zeroize::Zeroizing;

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
const SOCKET: &str = "redis.sock";
const PASSWORD: &str = "redis.password";
const RECORD: &str = "redis.pid";
/// The longest path that a unix socket can have, on Linux.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// What the runner pool may do: its queues, and nothing administrative.
const RUNNER_RULES: &str = "~hero:* resetchannels -@all +@read +@write +@stream +@blocking +@connection \
     +@scripting +time -@dangerous -script|flush -script|kill -function +client|unblock +client|id";

/// The server, and how to reach it.
#[derive(Debug)]
pub(super) struct PrivateRedis {
    child: Child,
    socket: PathBuf,
    password: Zeroizing<String>,
    runner_password: Zeroizing<String>,
    record: PathBuf,
}

impl PrivateRedis {
    /// Stops an orphan of an earlier life, and starts the server on the directory's data.
    ///
    /// # Errors
    /// When there is no `redis-server`, it cannot start, or the path of its socket is too long.
    pub(super) async fn start(
        dir: &DataDir,
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
        let mut child = spawn(dir)?;
        let record = dir.join(RECORD);
        let pid = child.id().unwrap_or_default();
        let process = ProcessRecord::of(pid).map_err(UpError::RedisStart)?;
        dir.write_secret(RECORD, &process.to_string())?;
        let text = configuration(dir, durability, memory, &password, &runner_password);
        let mut stdin =
            child.stdin.take().ok_or_else(|| UpError::RedisStart(io::ErrorKind::BrokenPipe.into()))?;
        stdin.write_all(text.as_bytes()).await.map_err(UpError::RedisStart)?;
        drop(stdin);
        let mut redis = Self { child, socket, password, runner_password, record };
        redis.wait_until_ready(dir).await?;
        Ok(redis)
    }

    /// For the coordinator: every database, every command.
    #[must_use]
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint::unix(&self.socket).with_credentials(None, self.password.as_str())
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

    /// Returns when the server has ended by itself, which it should not.
    pub(super) async fn ended(&mut self) -> UpError {
        match self.child.wait().await {
            Ok(status) => UpError::RedisEnded { status: status.to_string() },
            Err(error) => UpError::RedisStart(error),
        }
    }

    /// Whether the server has ended.
    #[must_use]
    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Lets the server write what it has and end.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(super) async fn stop(mut self) -> io::Result<()> {
        let pid = self.child.id().unwrap_or_default();
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap_or_default()) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        // A record that stays is recognised as stale by the next start.
        let _ = std::fs::remove_file(&self.record);
        Ok(())
    }

    async fn wait_until_ready(&mut self, dir: &DataDir) -> Result<(), UpError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().map_err(UpError::RedisStart)? {
                return Err(UpError::RedisEarlyEnd { status: status.to_string(), log: dir.join(LOG) });
            }
            // The socket is there before the data is read; only an answer says that it was.
            if self.socket.exists() && self.answers().await {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(UpError::RedisSlow { secs: START_TIMEOUT.as_secs(), log: dir.join(LOG) });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn answers(&self) -> bool {
        kv::Kv::new(self.endpoint()).database(0).ping().await.is_ok()
    }
}

/// A password that nobody guesses.
fn secret() -> Zeroizing<String> {
    Zeroizing::new(Uid::random().to_string())
}

fn spawn(dir: &DataDir) -> Result<Child, UpError> {
    let spawned = Command::new("redis-server")
        .arg("-")
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
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
    const APPENDED: &str = "appendonlydir";
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
    let fsync = if durability == Durability::Fast { "everysec" } else { "always" };
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
