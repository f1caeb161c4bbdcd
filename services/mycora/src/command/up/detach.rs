//! `mycora up --detach`: the same program again, in a session of its own, with a log file for a terminal.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use service::{LogFile, TelemetryFlags, telemetry};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::failure::{CliError, error_chain};
use crate::output;
use crate::up;

/// Flag that is typed, and the one that the started process is given in its place.
const DETACH: &str = "--detach";
const DETACHED: &str = "--detached";
/// Marks the end of the text on standard output once it serves.
const READY: u8 = 0;
/// How much of its log is shown when it does not start.
const TAIL_BYTES_MAX: u64 = 4096;

/// Starts an all-in-one that outlives the terminal, and passes on its output once it serves.
///
/// # Errors
/// When one has the directory already, or it does not start: with the end of its log.
pub(super) async fn run(data_dir: &Path) -> Result<u8, CliError> {
    let mut interrupted = Box::pin(tokio::signal::ctrl_c());
    let (path, log) = up::log_file(data_dir).map_err(|error| super::failed(&error))?;
    let cannot = |error: std::io::Error| CliError::Failed(format!("cannot start in the background: {error}"));
    let begin = std::fs::metadata(&path).map_err(cannot)?.len();
    let mut child = spawn(&log).map_err(cannot)?;
    let mut stdout = BufReader::new(child.stdout.take().ok_or_else(|| cannot(broken_pipe()))?);
    let mut printed = Vec::new();
    tokio::select! {
        read = stdout.read_until(READY, &mut printed) => read.map_err(cannot)?,
        _ = &mut interrupted => return Err(end(child).await),
    };
    if printed.pop() == Some(READY) {
        return output::print_bytes(&printed).map(|()| 0);
    }
    let status = child.wait().await.map_err(cannot)?;
    Err(not_started(status, &path, begin))
}

/// Becomes independent of the terminal, as the process that [`run`] starts.
///
/// # Errors
/// When it cannot, or logging cannot be set up.
pub(super) fn become_independent(
    data_dir: &Path,
    flags: &TelemetryFlags,
) -> Result<telemetry::Telemetry, CliError> {
    // It fails for who leads a group already, and is independent.
    let _ = rustix::process::setsid();
    let log = LogFile::open(&data_dir.join(up::LOG))
        .map_err(|error| CliError::Failed(format!("the log cannot be written: {error}")))?;
    telemetry::init_to_file("mycora", flags, log).map_err(|error| CliError::Invalid(error_chain(&error)))
}

/// Writes the end mark.
pub(super) fn ready() {
    // Who waited for it may be gone; then it runs all the same.
    let _ = output::print_bytes(&[READY]);
}

fn spawn(log: &LogFile) -> std::io::Result<Child> {
    let mut arguments = std::env::args_os();
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let instead = |argument: OsString| if argument == DETACH { DETACHED.into() } else { argument };
    command.args(arguments.map(instead));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.handle()?).spawn()
}

/// Ends what was started halfway.
async fn end(mut child: Child) -> CliError {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
    let _ = child.wait().await;
    CliError::Interrupted("interrupted; nothing was started".to_owned())
}

/// Builds the error for a process that did not start, with its log since `begin`.
fn not_started(status: ExitStatus, log: &Path, begin: u64) -> CliError {
    let tail = tail(log, begin).unwrap_or_default();
    let text = format!("mycora did not start; {} says:\n{}", log.display(), tail.trim_end());
    match status.code() {
        Some(2) => CliError::Invalid(text),
        Some(3) => CliError::Unreachable(text),
        Some(_) => CliError::Failed(text),
        None => CliError::Failed(format!("{text}\n({status})")),
    }
}

fn tail(log: &Path, begin: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let from = begin.max(file.metadata()?.len().saturating_sub(TAIL_BYTES_MAX));
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Drop a first line whose beginning is cut off.
    Ok(if from > begin {
        text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned())
    } else {
        text
    })
}

fn broken_pipe() -> std::io::Error {
    std::io::ErrorKind::BrokenPipe.into()
}
