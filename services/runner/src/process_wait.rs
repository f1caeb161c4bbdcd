//! Wait for the end of all of a job's processes, whichever runtime started them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use model::execution::EndedProcess;
use model::limits::ENDED_PROCESSES_MAX;
use model::{Reason, ReasonCode};
use sandbox::open_files::FileScope;
use sandbox::{InitCommand, InitEvent, SandboxedJob};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::Instant;

use crate::interrupt::Interrupt;
use crate::job_usage::{JobUsage, JobUsageProbe};
use crate::output::{ScriptOutputSender, ScriptStream};
use crate::runtime::{ScriptEnd, ScriptJob};
use crate::workspace::runtime_error;
use crate::{OUTPUT_GRACE, QUOTA_INTERVAL, RESULT_FILE_BYTES_MAX, TERMINATE_GRACE, results};

/// Why the wait for a script was over before it ended by itself.
#[derive(Debug, PartialEq, Eq)]
enum ScriptStopReason {
    OutOfTime,
    Interrupted,
    Quota(Reason),
}

/// How the script's own process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptExitStatus {
    Exited(i32),
    Signalled(i32),
}

/// Observed state of a job's processes.
#[derive(Debug, Default)]
struct ProcessTreeState {
    refused: Option<Reason>,
    /// The script's own process was there.
    started: bool,
    cut: Option<ScriptStopReason>,
    status: Option<ScriptExitStatus>,
    /// True once the init has reported that nothing is left.
    over: bool,
}

/// Supervises a job from its start until none of its processes is left.
///
/// Notes in the job which processes had to be killed.
///
/// # Errors
/// [`ScriptNotStarted`] when the script did not run.
pub(crate) async fn wait_for_exit(
    mut child: SandboxedJob,
    outputs: OutputPipes,
    job: &ScriptJob,
) -> Result<ScriptEnd, ScriptNotStarted> {
    let look = watched(&child, job);
    let kills_before = job.slot.as_ref().map_or(0, |slot| slot.oom_kills());
    let pumps = outputs.into_iter().map(|(stream, pipe)| pump(pipe, stream, job.printer.clone())).collect();
    let seen = watch(&mut child, &look, job).await;
    if !seen.over {
        // The init, which ends all processes of the job, was ended itself.
        end_by_slot(job).await;
    }
    drain(pumps, job).await;
    if let Some(reason) = seen.refused {
        return Err(ScriptNotStarted(reason));
    }
    let killed_for_memory = job.slot.as_ref().is_some_and(|slot| slot.oom_kills() > kills_before);
    Ok(match (seen.cut, seen.status) {
        (Some(ScriptStopReason::OutOfTime), _) => ScriptEnd::TimedOut,
        (Some(ScriptStopReason::Interrupted), _) => ScriptEnd::Interrupted,
        (Some(ScriptStopReason::Quota(reason)), _) => ScriptEnd::Broken(reason),
        (None, Some(ScriptExitStatus::Signalled(_)) | None) if killed_for_memory => {
            ScriptEnd::Broken(out_of_memory(job))
        }
        (None, Some(ScriptExitStatus::Exited(code))) => exited(code, job),
        (None, Some(ScriptExitStatus::Signalled(signal))) => ScriptEnd::Signalled(signal),
        (None, None) if !seen.started => {
            return Err(ScriptNotStarted(runtime_error("what starts it ended before it did")));
        }
        (None, None) => ScriptEnd::Broken(runtime_error("the process ended in an unknown way")),
    })
}

/// The ends of pipes from which what a process prints is read.
pub(crate) type OutputPipes = Vec<(ScriptStream, OwnedFd)>;

/// Makes pipes for the output of a job's process: our ends, and its standard output and error. Both are one pipe where they need
/// not be distinguished, which keeps the order of the output.
pub(crate) fn outputs(job: &ScriptJob) -> io::Result<(OutputPipes, [OwnedFd; 2])> {
    let (ours, out) = io::pipe()?;
    let mut outputs = vec![(ScriptStream::Out, ours.into())];
    let err = if job.printer.distinguishes_streams() {
        let (ours, err) = io::pipe()?;
        outputs.push((ScriptStream::Err, ours.into()));
        err
    } else {
        out.try_clone()?
    };
    Ok((outputs, [out.into(), err.into()]))
}

/// A script that did not run, and why.
#[derive(Debug)]
pub(crate) struct ScriptNotStarted(pub(crate) Reason);

/// Reads the events of a job until none of its processes is left, and has it ended when that is due.
async fn watch(child: &mut SandboxedJob, look: &JobUsageProbe, job: &ScriptJob) -> ProcessTreeState {
    let mut seen = ProcessTreeState::default();
    let time = JobTimeLimit::of(job);
    let mut killing = false;
    loop {
        let running = seen.cut.is_none() && seen.status.is_none();
        let order = tokio::select! {
            biased;
            event = child.next() => match event {
                Ok(Some(event)) => apply_event(event, &mut seen, job),
                Ok(None) => return seen,
                Err(error) => {
                    tracing::warn!(
                        key = %job.execution.job_key, %error,
                        "events of a job's processes cannot be read"
                    );
                    return seen;
                }
            },
            () = job.interrupt.raised(), if running => {
                seen.cut = Some(ScriptStopReason::Interrupted);
                Some(InitCommand::Terminate)
            }
            () = time.out(), if running => {
                seen.cut = Some(ScriptStopReason::OutOfTime);
                Some(InitCommand::Terminate)
            }
            reason = beyond_quota(look, job), if running => {
                seen.cut = Some(ScriptStopReason::Quota(reason));
                Some(InitCommand::Kill)
            }
            () = time.grace_over(&job.interrupt), if seen.cut.is_some() && !killing => Some(InitCommand::Kill),
        };
        if let Some(order) = order {
            if order == InitCommand::Kill {
                killing = true;
                if let Some(slot) = &job.slot {
                    // Closing the slot stops processes that keep forking, which would be hard to kill otherwise.
                    slot.close();
                }
            }
            // An init that is gone needs no command.
            let _ = child.send_command(order).await;
        }
    }
}

/// Applies an event of the init, and returns the command that it requires.
fn apply_event(event: InitEvent, seen: &mut ProcessTreeState, job: &ScriptJob) -> Option<InitCommand> {
    let (status, left) = match event {
        InitEvent::Refused { layer, detail } => {
            let code =
                if layer == "exec" { ReasonCode::RuntimeError } else { ReasonCode::IsolationUnavailable };
            let detail = format!("{layer}: {detail}");
            seen.refused = Some(Reason::new(code, detail));
            return None;
        }
        InitEvent::Started { .. } => {
            seen.started = true;
            return None;
        }
        InitEvent::Over { ended } => {
            seen.over = true;
            job.killed.note(ended);
            return None;
        }
        InitEvent::Exited { code, left } => (ScriptExitStatus::Exited(code), left),
        InitEvent::Signalled { signal, left } => (ScriptExitStatus::Signalled(signal), left),
    };
    seen.status = Some(status);
    // When a script ends, everything that it has started is killed.
    left.then_some(InitCommand::Kill)
}

/// When a job's time is over.
pub(crate) struct JobTimeLimit(Option<Instant>, Option<Duration>);

impl JobTimeLimit {
    /// Starts the time limit of a job now.
    pub(crate) fn of(job: &ScriptJob) -> Self {
        // A limit beyond the range of the clock means no limit.
        Self(job.time_limit.and_then(|limit| Instant::now().checked_add(limit)), job.time_limit)
    }

    /// Returns the processor time in seconds that one process can use within the limit, on all cores; a bound behind the clock.
    pub(crate) fn cpu_secs(&self) -> Option<u64> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        self.1.map(|limit| (limit + TERMINATE_GRACE).as_secs().saturating_add(1).saturating_mul(cores))
    }

    async fn out(&self) {
        match self.0 {
            Some(time) => tokio::time::sleep_until(time).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the grace period is over, of the time limit or of an interrupt, whichever is over first.
    async fn grace_over(&self, interrupt: &Interrupt) {
        let out_of_time = async {
            self.out().await;
            tokio::time::sleep(TERMINATE_GRACE).await;
        };
        tokio::select! {
            biased;
            () = interrupt.grace_over() => {}
            () = out_of_time => {}
        }
    }
}

/// Registers the job for measurements of its usage.
fn watched(child: &SandboxedJob, job: &ScriptJob) -> JobUsageProbe {
    let workspace = &job.workspace;
    let owner = workspace.owner().unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let scope = FileScope { dir: workspace.dir().to_owned(), owner };
    let cgroups = job.slot.iter().flat_map(|slot| slot.dirs()).cloned().collect();
    workspace.share().watch(child.pid(), cgroups, scope)
}

/// Waits until the job, or its context, holds more than it may, or the disk is nearly full, and returns the reason. The kernel
/// does not report that, so the usage is polled; the size of one file is a limit of each process.
async fn beyond_quota(look: &JobUsageProbe, job: &ScriptJob) -> Reason {
    let looks = async {
        loop {
            tokio::time::sleep(QUOTA_INTERVAL).await;
            if let Some(reason) = quota_exceeded(look, job).await {
                return reason;
            }
        }
    };
    tokio::select! {
        reason = looks => reason,
        reason = job.workspace.share().end_requested() => reason,
    }
}

async fn quota_exceeded(look: &JobUsageProbe, job: &ScriptJob) -> Option<Reason> {
    let (look, bytes_max) = (look.clone(), job.grants.disk_bytes);
    let looked = tokio::task::spawn_blocking(move || look.take(bytes_max));
    let JobUsage { bytes, memory_bytes, .. } = looked.await.ok()?;
    if bytes > bytes_max {
        let detail = format!("its directory, with what is open of it, may hold {bytes_max} bytes");
        return Some(Reason::new(ReasonCode::QuotaExceeded, detail));
    }
    if job.slot.is_none() && memory_bytes > job.grants.memory_bytes {
        // Without a control group, nothing else counts files in memory.
        return Some(out_of_memory(job));
    }
    job.workspace.share().note(bytes)
}

fn out_of_memory(job: &ScriptJob) -> Reason {
    let detail = format!("it and what it started may use {} bytes", job.grants.memory_bytes);
    Reason::new(ReasonCode::OutOfMemory, detail)
}

fn exited(code: i32, job: &ScriptJob) -> ScriptEnd {
    let result = match job.workspace.read_own("result", RESULT_FILE_BYTES_MAX) {
        Ok(text) => results::parse(&text.unwrap_or_default()),
        Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
            Err(Reason::new(ReasonCode::ResultTooLarge, format!("$MYCORA_RESULT: {error}")))
        }
        Err(error) => Err(runtime_error(&format!("$MYCORA_RESULT cannot be read: {error}"))),
    };
    ScriptEnd::Exited { code, result }
}

/// Processes that had to be killed when a job was over. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct KilledProcesses(std::sync::Arc<std::sync::Mutex<Vec<EndedProcess>>>);

impl KilledProcesses {
    fn note(&self, ended: Vec<EndedProcess>) {
        let mut noted = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let room = ENDED_PROCESSES_MAX.saturating_sub(noted.len());
        noted.extend(ended.into_iter().take(room));
    }

    /// All that was noted.
    pub(crate) fn take(&self) -> Vec<EndedProcess> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

type OutputPump = tokio::task::JoinHandle<()>;

fn pump(descriptor: OwnedFd, stream: ScriptStream, printer: ScriptOutputSender) -> OutputPump {
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

/// Reads what is left in the pipes. A process that still holds them has escaped from the job's process tree.
async fn drain(mut pumps: Vec<OutputPump>, job: &ScriptJob) {
    for at_last in [false, true] {
        let mut left = Vec::new();
        let deadline = Instant::now() + OUTPUT_GRACE;
        for mut pump in pumps {
            if tokio::time::timeout_at(deadline, &mut pump).await.is_err() {
                left.push(pump);
            }
        }
        pumps = left;
        if pumps.is_empty() || at_last {
            break;
        }
        end_by_slot(job).await;
    }
    for pump in pumps {
        pump.abort();
    }
}

/// Ends processes left by a job that are not its descendants any more: found by its control group, and by their environment.
async fn end_by_slot(job: &ScriptJob) {
    let (slot, dir) = (job.slot.clone(), job.workspace.dir().to_owned());
    let look = move || end_marked(slot.as_deref(), &dir);
    match tokio::task::spawn_blocking(look).await {
        Ok(Ok(ended)) if ended.is_empty() => {}
        Ok(Ok(ended)) => {
            tracing::info!(key = %job.execution.job_key, count = ended.len(), "ended what a script left behind");
            job.killed.note(ended);
        }
        Ok(Err(error)) => tracing::warn!(%error, "what a script left behind cannot be ended"),
        Err(error) => tracing::warn!(%error, "what a script left behind was not looked for"),
    }
}

fn end_marked(slot: Option<&sandbox::CgroupSlot>, dir: &Path) -> std::io::Result<Vec<EndedProcess>> {
    let mut ended = match slot {
        Some(slot) => slot.kill_all()?,
        None => Vec::new(),
    };
    ended.extend(sandbox::records::end_marked(dir)?);
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::{InterruptCause, InterruptRequest as EndOrder};

    #[tokio::test]
    async fn a_stop_with_much_grace_does_not_lift_the_time_limit() {
        let interrupt = Interrupt::default();
        interrupt.raise(EndOrder { cause: InterruptCause::Requested, grace: Duration::from_secs(3600) });
        let limited = JobTimeLimit(Some(Instant::now()), Some(Duration::ZERO));
        tokio::time::timeout(testkit::PATIENCE, limited.grace_over(&interrupt))
            .await
            .expect("the limit's own grace");
        let unlimited = JobTimeLimit(None, None);
        assert!(tokio::time::timeout(Duration::ZERO, unlimited.grace_over(&interrupt)).await.is_err());
        interrupt.raise(EndOrder { cause: InterruptCause::Drained, grace: Duration::ZERO });
        unlimited.grace_over(&interrupt).await;
    }
}
