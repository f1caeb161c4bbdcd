//! One warm interpreter: a process that was started by way of the launcher, and its forks.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox::{
    CgroupSlot, Confinement, FileRules, InitEvent, SandboxRequest, SandboxedJob, processes, records,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::task::AbortHandle;

use super::pool::InterpreterKey;
use super::wire::{self, InterpreterMessage, InterpreterSocket};
use queue::work_dir::jobs_dir;

use crate::process::ProcessExecutor;
use crate::process_wait::OutputPipes;

/// How long it may take to import everything.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a fork may take.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);
/// How much is kept of what goes wrong in one.
const TROUBLE_BYTES_MAX: usize = 16 * 1024;

/// Configuration that interpreters are started with.
#[derive(Debug)]
pub(super) struct WarmPythonConfig {
    pub(super) launcher: ProcessExecutor,
    /// The work directory.
    pub(super) root: PathBuf,
    /// Where what runs is recorded.
    pub(super) running: PathBuf,
    /// The executable and its arguments.
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// Paths that scripts have to read, in addition to those that every script may.
    pub(super) reads: Vec<PathBuf>,
}

/// A warm interpreter. Dropped, it ends with everything that it has forked.
#[derive(Debug)]
pub(super) struct WarmInterpreter {
    /// Asks for inits.
    control: InterpreterSocket,
    zygote: u32,
    /// Inits that wait for a job.
    free: Mutex<Vec<InterpreterInit>>,
    gone: Arc<AtomicBool>,
    /// Where the context's jobs run, and which directory that was: another one is not open to this interpreter.
    jobs: PathBuf,
    identity: (u64, u64),
    watch: AbortHandle,
    _record: records::SandboxRecordGuard,
}

impl Drop for WarmInterpreter {
    fn drop(&mut self) {
        // With it goes the launcher's socket, and with that everything.
        self.watch.abort();
    }
}

/// An init that serves one job at a time.
#[derive(Debug)]
pub(super) struct InterpreterInit {
    line: InterpreterSocket,
    pid: u32,
    handle: OwnedFd,
    /// Where it was placed; what it forks is born there.
    slot: Option<Weak<CgroupSlot>>,
}

impl WarmInterpreter {
    /// Starts one for the jobs of `key`, and waits until it is warm.
    pub(super) async fn start(recipe: &WarmPythonConfig, key: &InterpreterKey) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let jobs = jobs_dir(&recipe.root, key.context);
        let identity = identity(&jobs)?;
        // It looks for what its jobs have left behind.
        let reads: Vec<PathBuf> = recipe.reads.iter().cloned().chain([PathBuf::from("/proc")]).collect();
        let isolator = recipe.launcher.isolator();
        let around = isolator.base_confinement(&jobs, key.owner, &reads, key.network);
        let request = SandboxRequest {
            program: recipe.program.as_path().into(),
            args: recipe.args.clone(),
            env: std::collections::BTreeMap::new(),
            dir: PathBuf::from("/"),
            confinement: Confinement { broker: key.broker.clone(), ..around },
        };
        let (control, theirs) = InterpreterSocket::open()?;
        let (trouble, their_trouble) = io::pipe()?;
        let trouble = pipe::Receiver::from_owned_fd(trouble.into())?;
        let mut child = SandboxedJob::start(
            recipe.launcher.isolator().launcher(),
            &request,
            Stdio::from(theirs),
            their_trouble.into(),
        )?;
        let name = format!("python-{}-{}", key.context, NUMBER.fetch_add(1, Ordering::Relaxed));
        // Nothing goes with it but its processes.
        let nowhere = recipe.running.join(&name).join("nowhere");
        let record = records::write(&recipe.running, &name, child.pid(), nowhere, Vec::new())?;
        let zygote = match tokio::time::timeout(START_TIMEOUT, child.next()).await?? {
            Some(InitEvent::Started { pid }) => pid,
            other => return Err(io::Error::other(format!("it does not start: {other:?}"))),
        };
        let gone = Arc::new(AtomicBool::new(false));
        let watch = tokio::spawn(watch(child, Arc::clone(&gone))).abort_handle();
        tokio::spawn(report(trouble));
        let interpreter =
            Self { control, zygote, free: Mutex::default(), gone, jobs, identity, watch, _record: record };
        match interpreter.control.receive(START_TIMEOUT).await? {
            InterpreterMessage::Warm => Ok(interpreter),
            other @ InterpreterMessage::Free { .. } => Err(unexpected(other)),
        }
    }

    /// Returns true if the interpreter serves no further job: it has ended, or the context's directory is another one.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || identity(&self.jobs).ok() != Some(self.identity)
    }

    /// An init in `slot`, which has just been forked unless one is free.
    pub(super) async fn acquire_init(&self, slot: Option<&Arc<CgroupSlot>>) -> io::Result<InterpreterInit> {
        let wanted = slot.map(Arc::downgrade);
        let same = |init: &InterpreterInit| match (&init.slot, &wanted) {
            (Some(one), Some(other)) => one.ptr_eq(other),
            (None, None) => true,
            _ => false,
        };
        let free = {
            let mut free = self.free();
            free.iter().position(same).map(|position| free.swap_remove(position))
        };
        match free.filter(InterpreterInit::lives) {
            Some(init) => Ok(init),
            None => self.fork(slot).await,
        }
    }

    async fn fork(&self, slot: Option<&Arc<CgroupSlot>>) -> io::Result<InterpreterInit> {
        let (line, theirs) = InterpreterSocket::open()?;
        self.control.hand(&[theirs.as_fd()]).await?;
        drop(theirs);
        let pid = match line.receive(FORK_TIMEOUT).await? {
            InterpreterMessage::Free { pid } => pid,
            other @ InterpreterMessage::Warm => return Err(unexpected(other)),
        };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let handle = pidfd_open(raw, PidfdFlags::empty())?;
        // Only now it is known to be what the handle is about: nobody else is a child of the interpreter.
        if processes::observe(pid)?.parent != self.zygote {
            return Err(io::Error::other(format!("process {pid} is no fork of the interpreter")));
        }
        let init = InterpreterInit { line, pid, handle, slot: slot.map(Arc::downgrade) };
        if let Some(slot) = slot.map(Arc::clone) {
            // The kernel may take some milliseconds for that.
            tokio::task::spawn_blocking(move || slot.add_process(pid)).await??;
        }
        Ok(init)
    }

    /// Takes an init back whose job is over.
    pub(super) fn release_init(&self, init: InterpreterInit) {
        // It says so before the job is over. One that did not ends with its line.
        if matches!(init.line.try_receive(), Ok(InterpreterMessage::Free { .. })) {
            self.free().push(init);
        } else {
            init.kill();
            // What its job had started is below nobody else but the launcher, and ends with that.
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<InterpreterInit>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A script that is about to run.
pub(super) struct StartingScript {
    pub(super) child: SandboxedJob,
    pub(super) outputs: OutputPipes,
}

impl InterpreterInit {
    fn lives(&self) -> bool {
        // Nothing is heard of one that waits; one that has ended has closed its line.
        self.line.try_receive().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Ends one that does not answer, and what it has forked with it.
    pub(super) fn kill(self) {
        // One that is gone needs no signal.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }

    /// Hands a job over: `request` is what the script's process reads, `files` what it confines itself to.
    pub(super) async fn begin(
        &self,
        request: &[u8],
        files: Option<&FileRules>,
        (outputs, [their_out, their_err]): (OutputPipes, [OwnedFd; 2]),
    ) -> io::Result<StartingScript> {
        let (job, their_job) = wire::pair()?;
        let mut text = File::from(rustix::fs::memfd_create("request", MemfdFlags::CLOEXEC)?);
        text.write_all(request)?;
        let rules = files.map(sandbox::ruleset_descriptor).transpose()?;
        let mut descriptors = vec![their_job.as_fd(), text.as_fd(), their_out.as_fd(), their_err.as_fd()];
        descriptors.extend(rules.as_ref().map(OwnedFd::as_fd));
        let child = SandboxedJob::adopt(job, self.pid)?;
        self.line.hand(&descriptors).await?;
        Ok(StartingScript { child, outputs })
    }
}

/// Sees to the launcher of an interpreter until there is no more need for it.
async fn watch(mut child: SandboxedJob, gone: Arc<AtomicBool>) {
    loop {
        match child.next().await {
            // What it has forked goes on.
            Ok(Some(event @ (InitEvent::Exited { .. } | InitEvent::Signalled { .. }))) => {
                tracing::info!(?event, "a warm python has ended; the next job starts another");
                gone.store(true, Ordering::Relaxed);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                gone.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Tells what the processes of an interpreter complain about, which is nothing of a job's, once they have ended.
async fn report(mut trouble: pipe::Receiver) {
    let mut text = Vec::new();
    let mut piece = vec![0; 4096];
    while let Ok(length @ 1..) = trouble.read(&mut piece).await {
        let room = TROUBLE_BYTES_MAX.saturating_sub(text.len());
        text.extend_from_slice(&piece[..length.min(room)]);
    }
    if !text.is_empty() {
        tracing::warn!(trouble = %String::from_utf8_lossy(&text), "a warm python complained");
    }
}

fn identity(dir: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(dir).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn unexpected(message: InterpreterMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the interpreter said {message:?} out of turn"))
}
