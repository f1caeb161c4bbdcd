//! Servers that are private children of an all-in-one: started on the data directory, found again after a `kill -9`, and
//! started again when they end by themselves.

mod restart_loop;

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use model::id::Uid;
use tokio::process::{Child, Command};
use zeroize::Zeroizing;

pub(super) use self::restart_loop::ChildHandle;
use super::directory::DataDir;
use super::process::ProcessRecord;
use super::{UpError, UpReporter};

/// How long a child may be silent while it starts. A child that reads its data reports that, and may take as long as it needs.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// How much of the end of its log an error shows.
const LAST_LINES: usize = 5;
const LAST_BYTES: u64 = 4096;

/// Names of a private server: the program's, and those of its files within the data directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChildNames {
    /// The program.
    pub(super) program: &'static str,
    /// Where its process is recorded.
    pub(super) record: &'static str,
    /// Where it logs.
    pub(super) log: &'static str,
    /// Message, when the server has ended, about whatever depends on it.
    pub(super) meanwhile: &'static str,
}

/// State of a server that is starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChildStartState {
    /// The server answers.
    Ready,
    /// The server reports that it reads its data.
    Reading,
    /// The server is silent.
    Silent,
}

/// A server that is restarted as often as necessary.
pub(super) trait ChildServer: Send + Sync + 'static {
    /// Names of the server and its files.
    const NAMES: ChildNames;

    /// Where its files are.
    fn dir(&self) -> &DataDir;

    /// Starts its process.
    ///
    /// # Errors
    /// When it cannot be started.
    fn spawn(&self) -> Result<Child, UpError>;

    /// Writes its configuration to its standard input.
    fn instruct(&self, _: &mut Child) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Looks how far it has come.
    fn progress(&self) -> impl Future<Output = ChildStartState> + Send;
}

/// Starts a server on what its directory holds, and returns when it answers. Dropped before, it is killed.
///
/// # Errors
/// When it cannot be started, or ends before it answers.
pub(super) async fn start<S: ChildServer>(server: &S) -> Result<Child, UpError> {
    let ChildNames { program, record, .. } = S::NAMES;
    let mut child = server.spawn()?;
    let pid = child.id().unwrap_or_default();
    let process = ProcessRecord::of(pid).map_err(|source| UpError::ChildStart { program, source })?;
    server.dir().write_secret(record, &process.to_string())?;
    server.instruct(&mut child).await;
    wait_until_ready(server, &mut child).await?;
    Ok(child)
}

async fn wait_until_ready<S: ChildServer>(server: &S, child: &mut Child) -> Result<(), UpError> {
    let program = S::NAMES.program;
    let log = server.dir().join(S::NAMES.log);
    let mut deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().map_err(|source| UpError::ChildStart { program, source })? {
            let last = last_lines(&log);
            return Err(UpError::ChildEarlyEnd { program, status: status.to_string(), last, log });
        }
        match server.progress().await {
            ChildStartState::Ready => return Ok(()),
            ChildStartState::Reading => deadline = Instant::now() + START_TIMEOUT,
            ChildStartState::Silent => {}
        }
        if Instant::now() > deadline {
            return Err(UpError::ChildSlow { program, secs: START_TIMEOUT.as_secs(), log });
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Lets a server write what it has and end; kills it when that takes too long.
///
/// # Errors
/// When it cannot be signalled.
async fn end<S: ChildServer>(server: &S, mut child: Child) -> io::Result<()> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    }
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        child.kill().await?;
    }
    forget(server);
    Ok(())
}

/// Removes the record of a server's process.
fn forget<S: ChildServer>(server: &S) {
    // A record that stays is recognised as stale by the next start.
    let _ = std::fs::remove_file(server.dir().join(S::NAMES.record));
}

/// Ends the server that a `kill -9` of an earlier `up` left behind.
///
/// # Errors
/// When it cannot be ended.
pub(super) async fn stop_orphan(
    dir: &DataDir,
    names: ChildNames,
    notice: &UpReporter,
) -> Result<(), UpError> {
    let program = names.program;
    let Some(orphan) = recorded(dir, names).filter(ProcessRecord::is_alive) else { return Ok(()) };
    notice.print(&format!("stopping {program} {} of an earlier start that was killed", orphan.pid));
    orphan.end(STOP_TIMEOUT).await.map_err(|source| UpError::ChildStart { program, source })
}

/// Has a server read its configuration and its certificate again, if it runs.
///
/// # Errors
/// When it cannot be signalled.
pub(super) fn reload(dir: &DataDir, names: ChildNames) -> io::Result<()> {
    recorded(dir, names).map_or(Ok(()), |process| process.reload())
}

/// The process of a server that is recorded, which may have ended.
fn recorded(dir: &DataDir, names: ChildNames) -> Option<ProcessRecord> {
    std::fs::read_to_string(dir.join(names.record)).ok()?.trim().parse().ok()
}

/// A command that runs in the data directory, in a process group of its own. Output from before it has read the path of its log
/// goes to that log too.
pub(super) fn command(program: impl AsRef<std::ffi::OsStr>, dir: &DataDir, log: &str) -> Command {
    let log = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join(log));
    let mut command = Command::new(program);
    command
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
        .kill_on_drop(true)
        // Ctrl-C at the terminal is for us: we end the server when its clients have ended.
        .process_group(0);
    command
}

/// An unguessable secret.
pub(super) fn secret() -> Zeroizing<String> {
    Zeroizing::new(Uid::random().to_string())
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
