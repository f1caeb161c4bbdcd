//! Scripts that are processes.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use model::{Reason, ReasonCode};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use crate::interrupt::Interrupt;
use crate::output::{Printer, Stream};
use crate::processes::{self, Observed};
use crate::results;
use crate::runtime::{End, Job, Tools};
use crate::spawner::Spawner;
use crate::sweep::RunningRecord;
use crate::workspace::runtime_error;
use crate::{OUTPUT_GRACE, RESULT_FILE_BYTES_MAX, SCRIPT_PATH, TERMINATE_GRACE};

/// Runs scripts as processes.
#[derive(Debug, Clone)]
pub(crate) struct Launcher {
    root: PathBuf,
    boot: String,
    spawner: Spawner,
}

/// An interpreter and what stands before the script's path on its command line.
#[derive(Debug, Clone)]
pub(crate) struct Interpreter {
    /// The real executable.
    pub(crate) program: PathBuf,
    /// Its arguments before the script.
    pub(crate) args: Vec<OsString>,
    /// The name under which the script is laid beside its files.
    pub(crate) script_name: &'static str,
}

/// Why the wait for a process is over.
enum Over {
    Exited,
    OutOfTime,
    Interrupted,
}

impl Launcher {
    /// With what the runner has.
    pub(crate) fn new(tools: &Tools<'_>) -> Self {
        Self { root: tools.root.to_owned(), boot: tools.boot.to_owned(), spawner: tools.spawner.clone() }
    }

    /// Runs a job with an interpreter, to its end.
    pub(crate) async fn run(&self, interpreter: &Interpreter, job: Job) -> End {
        match self.try_run(interpreter, &job).await {
            Ok(end) => end,
            Err(reason) => End::Broken(reason),
        }
    }

    async fn try_run(&self, interpreter: &Interpreter, job: &Job) -> Result<End, Reason> {
        let command = command(interpreter, job)?;
        let key = job.execution.job_key.to_string();
        let failed = |what: &str, error: &io::Error| runtime_error(&format!("{what}: {error}"));
        let shown = interpreter.program.display();
        let child = self.spawner.spawn(command).await;
        let mut child = child.map_err(|error| failed(&format!("{shown} cannot be started"), &error))?;
        let record = RunningRecord::write(&self.root, child.id(), &self.boot, &key);
        let watched = Watched::new(&child);
        let (record, watched) = match record.and_then(|record| Ok((record, watched?))) {
            Ok(both) => both,
            Err(error) => {
                // Not a process that nobody would find again.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed("the process cannot be watched", &error));
            }
        };
        let pumps = [
            child.stdout.take().map(|out| pump(OwnedFd::from(out), Stream::Out, job.printer.clone())),
            child.stderr.take().map(|err| pump(OwnedFd::from(err), Stream::Err, job.printer.clone())),
        ];
        let limits = Limits::new(job);
        let over = watched.wait(&limits).await;
        let mark = processes::mark_below(job.workspace.dir());
        let leader = watched.leader;
        watched.end(&over, &limits).await;
        let status = child.wait().map_err(|error| failed("the end of the process is unknown", &error))?;
        drain(pumps, !matches!(over, Over::Exited), leader, mark).await;
        drop(record);
        Ok(match over {
            Over::OutOfTime => End::TimedOut,
            Over::Interrupted => End::Interrupted,
            Over::Exited => exited(status, job),
        })
    }
}

fn exited(status: ExitStatus, job: &Job) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => {
            let result = match job.workspace.read_own("result", RESULT_FILE_BYTES_MAX) {
                Ok(text) => results::parse(&text.unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                    Err(Reason::new(ReasonCode::ResultTooLarge, format!("$MYCORA_RESULT: {error}")))
                }
                Err(error) => Err(runtime_error(&format!("$MYCORA_RESULT cannot be read: {error}"))),
            };
            End::Exited { code, result }
        }
        (None, Some(signal)) => End::Signalled(signal),
        (None, None) => End::Broken(runtime_error("the process ended in an unknown way")),
    }
}

fn command(interpreter: &Interpreter, job: &Job) -> Result<Command, Reason> {
    let workspace = &job.workspace;
    let script = workspace.write_own(interpreter.script_name, &job.script)?;
    let inputs = workspace.write_own("inputs.json", &job.inputs)?;
    let result = workspace.write_own("result", "")?;
    let key = job.execution.job_key;
    let mut command = Command::new(&interpreter.program);
    command
        .args(&interpreter.args)
        .arg(script)
        .current_dir(workspace.dir())
        .env_clear()
        .env("PATH", SCRIPT_PATH)
        .envs(&job.env)
        .env("MYCORA_CONTEXT", job.execution.context_id.to_string())
        .env("MYCORA_FLOW", job.execution.flow_id.to_string())
        .env("MYCORA_JOB", key.job.to_string())
        .env("MYCORA_ATTEMPT", key.attempt.to_string())
        .env("MYCORA_RESULT", result)
        .env("MYCORA_INPUTS", inputs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(parent) = &job.execution.traceparent {
        command.env("TRACEPARENT", parent);
    }
    Ok(command)
}

/// What ends a process that does not end by itself.
struct Limits<'a> {
    interrupt: &'a Interrupt,
    time: Option<Instant>,
}

impl<'a> Limits<'a> {
    /// From now on.
    fn new(job: &'a Job) -> Self {
        // A time limit beyond what a clock can count is none.
        let time = job.time_limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { interrupt: &job.interrupt, time }
    }

    async fn out_of_time(&self) {
        match self.time {
            Some(time) => tokio::time::sleep_until(time).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until no more time is left since any of them was reached, whichever it was that ended it first.
    async fn grace_over(&self) {
        let out_of_time = async {
            self.out_of_time().await;
            tokio::time::sleep(TERMINATE_GRACE).await;
        };
        tokio::select! {
            biased;
            () = self.interrupt.grace_over() => {}
            () = out_of_time => {}
        }
    }
}

/// A process whose end can be awaited without anybody collecting it.
struct Watched {
    handle: AsyncFd<OwnedFd>,
    group: Pid,
    leader: Option<Observed>,
}

impl Watched {
    fn new(child: &Child) -> io::Result<Self> {
        let group =
            i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(group, PidfdFlags::NONBLOCK)?;
        // SAFETY: the descriptor is owned by what it is registered with, which closes it last.
        let handle = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
        let handle = handle.map_err(|error| error.into_parts().1)?;
        Ok(Self { handle, group, leader: processes::observe(child.id()).ok() })
    }

    /// Waits until it has ended. It keeps its number until it is collected.
    async fn exited(&self) {
        // Failing would mean that the runtime is going down.
        let _ = self.handle.readable().await;
    }

    async fn wait(&self, limits: &Limits<'_>) -> Over {
        tokio::select! {
            biased;
            () = self.exited() => Over::Exited,
            () = limits.interrupt.raised() => Over::Interrupted,
            () = limits.out_of_time() => Over::OutOfTime,
        }
    }

    /// Ends what is left of its group: after a polite request and some grace, unless it has ended by itself.
    async fn end(&self, over: &Over, limits: &Limits<'_>) {
        if !matches!(over, Over::Exited) {
            tokio::select! {
                biased;
                () = limits.grace_over() => {}
                () = self.asked() => {}
            }
        }
        self.signal(Signal::KILL);
        self.exited().await;
    }

    async fn asked(&self) {
        self.signal(Signal::TERM);
        self.exited().await;
    }

    /// Its leader was not collected yet, so the group's number cannot be anybody else's.
    fn signal(&self, signal: Signal) {
        // A group that is gone needs no signal.
        let _ = kill_process_group(self.group, signal);
    }
}

type Pump = tokio::task::JoinHandle<()>;

fn pump(descriptor: OwnedFd, stream: Stream, printer: Printer) -> Pump {
    tokio::spawn(async move {
        let mut receiver = match pipe::Receiver::from_owned_fd(descriptor) {
            Ok(receiver) => receiver,
            Err(error) => {
                tracing::warn!(%error, "the output of a script cannot be read");
                return;
            }
        };
        loop {
            let mut piece = Vec::with_capacity(16 * 1024);
            match receiver.read_buf(&mut piece).await {
                Ok(1..) => printer.print(stream, piece).await,
                Ok(0) | Err(_) => return,
            }
        }
    })
}

/// Reads what is left in the pipes. What still holds them, or was started by a script that had to be
/// killed, has left the group: it is looked for by its session and its environment.
async fn drain(pumps: [Option<Pump>; 2], killed: bool, leader: Option<Observed>, mark: Vec<u8>) {
    let mut pumps: Vec<_> = pumps.into_iter().flatten().collect();
    if killed {
        end_escaped(leader, mark.clone()).await;
    }
    for at_last in [killed, true] {
        let mut left = Vec::new();
        let deadline = tokio::time::Instant::now() + OUTPUT_GRACE;
        for mut pump in pumps {
            if tokio::time::timeout_at(deadline, &mut pump).await.is_err() {
                left.push(pump);
            }
        }
        pumps = left;
        if pumps.is_empty() || at_last {
            break;
        }
        end_escaped(leader, mark.clone()).await;
    }
    for pump in pumps {
        pump.abort();
    }
}

async fn end_escaped(leader: Option<Observed>, mark: Vec<u8>) {
    let look = move || {
        processes::kill_all(|process| {
            leader.is_some_and(|leader| {
                leader.session == process.session && leader.start_ticks <= process.start_ticks
            }) && processes::observe(process.session).is_err()
                || processes::environ_has(process.pid, &mark)
        })
    };
    match tokio::task::spawn_blocking(look).await {
        Ok(Ok(ended)) if !ended.is_empty() => {
            tracing::info!(count = ended.len(), "ended what a script left behind")
        }
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "what a script left behind cannot be ended"),
        Err(error) => tracing::warn!(%error, "what a script left behind was not looked for"),
    }
}

/// Looks for a program in the directories that scripts find programs in, then in those of this process.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> =
        std::env::split_paths(&own).chain(std::env::split_paths(SCRIPT_PATH)).collect();
    candidates.iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::interrupt::{Cause, Order};

    #[tokio::test]
    async fn a_stop_with_much_grace_does_not_lift_the_time_limit() {
        let interrupt = Interrupt::default();
        interrupt.raise(Order { cause: Cause::Requested, grace: Duration::from_secs(3600) });
        let limits = Limits { interrupt: &interrupt, time: Some(Instant::now()) };
        tokio::time::timeout(testkit::PATIENCE, limits.grace_over()).await.expect("the limit's own grace");
        let unlimited = Limits { interrupt: &interrupt, time: None };
        assert!(tokio::time::timeout(Duration::ZERO, unlimited.grace_over()).await.is_err());
        interrupt.raise(Order { cause: Cause::Drained, grace: Duration::ZERO });
        unlimited.grace_over().await;
    }
}
