//! The private Redis of an all-in-one.
//!
//! It listens on a socket in the data directory only. Its configuration, the
//! passwords included, reaches it through its standard input, so that they
//! stand neither in arguments nor in the environment. When it ends by itself
//! it is started again on the same data, and clients reconnect.

mod disk_writer;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use kv::{Durability, KvEndpoint};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;
use zeroize::Zeroizing;

use self::disk_writer::DiskWriter;
use super::child::{self, ChildHandle, ChildNames, ChildStartState, secret};
use super::directory::DataDir;
use super::disk::SharedDisk;
use super::{UpError, UpReporter};

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
const NAMES: ChildNames = ChildNames {
    program: "redis-server",
    record: "redis.pid",
    log: LOG,
    meanwhile: "jobs that run go on and report afterwards",
};
/// Hashes whose values are no longer than this, in bytes, and that have no more entries, lie in one piece: records of flows, jobs
/// and messages, which take a third less memory so. More entries than that would be searched one by one.
const RECORD_VALUE_MAX: u32 = 1024;
const RECORD_ENTRIES_MAX: u32 = 128;
/// The longest path that a unix socket can have, on Linux.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// ACL rules of the runner pool: its queues, and nothing administrative.
const RUNNER_RULES: &str = "~hero:* resetchannels -@all +@read +@write +@stream +@blocking +@connection \
     +@scripting +time -@dangerous -script|flush -script|kill -function +client|unblock +client|id";

/// The server, kept running, and how to reach it.
#[derive(Debug)]
pub(super) struct PrivateRedis {
    socket: PathBuf,
    password: Zeroizing<String>,
    runner_password: Zeroizing<String>,
    kept: ChildHandle,
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
        notice: &UpReporter,
    ) -> Result<Self, UpError> {
        let socket = dir.join(SOCKET);
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(UpError::SocketPath { path: socket });
        }
        child::stop_orphan(dir, NAMES, notice).await?;
        prepare_files(dir)?;
        let (password, runner_password) = (secret(), secret());
        dir.write_secret(PASSWORD, &password)?;
        let configuration = configuration(dir, durability, memory, &password, &runner_password);
        let endpoint = endpoint(&socket, &password);
        let server = RedisChild { dir: Arc::clone(dir), configuration, endpoint };
        let child = child::start(&server).await?;
        let writes =
            (durability == Durability::Fast).then(|| DiskWriter::new(dir.join(FILES).join(APPENDED)));
        let writing = async {
            match writes {
                Some(writer) => writer.keep().await,
                None => std::future::pending().await,
            }
            io::Error::other("what brings its data to the disk has ended")
        };
        let kept = ChildHandle::keep(server, child, *notice, writing);
        Ok(Self { socket, password, runner_password, kept })
    }

    /// For the coordinator: every database, every command.
    #[must_use]
    pub(super) fn endpoint(&self) -> KvEndpoint {
        endpoint(&self.socket, &self.password)
    }

    /// For the supervisor: its own database.
    #[must_use]
    pub(super) fn supervisor_endpoint(&self) -> KvEndpoint {
        self.endpoint().with_database(SUPERVISOR_DATABASE)
    }

    /// For the runner pool: the supervisor's database, as a user that can work on queues only.
    #[must_use]
    pub(super) fn runner_endpoint(&self) -> KvEndpoint {
        KvEndpoint::unix(&self.socket)
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

    /// Returns the warning for scripts that can fill the server's disk.
    #[must_use]
    pub(super) fn shared_disk(
        &self,
        dir: &DataDir,
        scripts: &Path,
        floor: Option<u64>,
    ) -> Option<SharedDisk> {
        SharedDisk::of(scripts, &dir.join(FILES), floor)
    }

    /// Returns the handle that keeps the server running.
    pub(super) const fn kept(&mut self) -> &mut ChildHandle {
        &mut self.kept
    }

    /// Returns true when the server has ended and cannot be started again.
    #[must_use]
    pub(super) fn is_lost(&self) -> bool {
        self.kept.is_lost()
    }

    /// Lets the server write what it has and end.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub(super) async fn stop(self) -> Result<(), UpError> {
        self.kept.stop().await
    }
}

/// Parts that the server is started from, as often as necessary.
#[derive(Debug)]
struct RedisChild {
    dir: Arc<DataDir>,
    configuration: Zeroizing<String>,
    endpoint: KvEndpoint,
}

impl child::ChildServer for RedisChild {
    const NAMES: ChildNames = NAMES;

    fn dir(&self) -> &DataDir {
        &self.dir
    }

    fn spawn(&self) -> Result<Child, UpError> {
        let mut command = child::command(NAMES.program, &self.dir, LOG);
        command.arg("-").stdin(Stdio::piped()).spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => UpError::NoRedis,
            _ => UpError::ChildStart { program: NAMES.program, source: error },
        })
    }

    async fn instruct(&self, child: &mut Child) {
        if let Some(mut stdin) = child.stdin.take() {
            // If it has ended by now, its log has the reason.
            let _ = stdin.write_all(self.configuration.as_bytes()).await;
        }
    }

    async fn progress(&self) -> ChildStartState {
        // The socket exists before the data is read; only an answer proves that it was read.
        if !self.dir.join(SOCKET).exists() {
            return ChildStartState::Silent;
        }
        match kv::Kv::new(self.endpoint.clone()).database(0).ping().await {
            // With a full disk it still answers.
            Ok(()) | Err(kv::Error::DiskFull(_)) => ChildStartState::Ready,
            Err(kv::Error::Unreachable { reason, .. }) if reason.contains("LOADING") => {
                ChildStartState::Reading
            }
            Err(_) => ChildStartState::Silent,
        }
    }
}

fn endpoint(socket: &Path, password: &Zeroizing<String>) -> KvEndpoint {
    KvEndpoint::unix(socket).with_credentials(None, password.as_str())
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
         hash-max-listpack-value {RECORD_VALUE_MAX}\n\
         hash-max-listpack-entries {RECORD_ENTRIES_MAX}\n\
         maxmemory {memory}\n\
         maxmemory-policy noeviction\n\
         user default on >{password} ~* &* +@all\n\
         user runner on >{runner_password} {RUNNER_RULES}\n",
        socket = quoted(SOCKET),
        directory = quoted(FILES),
        log = quoted(LOG),
    ))
}
