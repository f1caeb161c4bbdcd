//! One engine: a process that was started by way of the launcher, and the socket to it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::{Reason, ReasonCode};
use rustix::net::RecvFlags;
use sandbox::{CgroupSlot, InitCommand, InitEvent, SandboxProgram, SandboxRequest, SandboxedJob, records};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::idle::EngineKey;
use crate::RHAI_MEMORY_BYTES_MAX;
use crate::engine::{EXIT_OUT_OF_MEMORY, NAME, STACK_BYTES, STEP_BYTES_MAX};
use crate::isolation::Isolator;
use crate::runtime::ScriptJob;
use crate::wire::{self, EngineProtocolError, FromEngineFrame, HEAD_BYTES};
use crate::workspace::broken;

/// How many jobs one serves.
const JOBS_MAX: u32 = 1000;
/// A script that took longer may have used much of the stack and of the memory, which only the end of the process gives
/// back; to start another takes little of that time.
const SHORT: Duration = Duration::from_millis(500);
/// How long the end of a process may take of which the socket is closed.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that an engine may hold beyond its script's limit: one step's allocations, a deep stack, and the engine itself.
const OVERHEAD_BYTES: u64 = STEP_BYTES_MAX + STACK_BYTES as u64;
/// The bound of the addresses of an engine, where no control group bounds its memory. The stack and the program are in it.
const ADDRESS_BYTES: u64 = RHAI_MEMORY_BYTES_MAX + OVERHEAD_BYTES + 1024 * 1024 * 1024;

/// One engine. Dropped, its process ends.
#[derive(Debug)]
pub(crate) struct EngineProcess {
    child: SandboxedJob,
    receiver: EngineSocket,
    slot: Option<CgroupSlot>,
    /// How many jobs it has begun, and when it began the last.
    jobs: u32,
    begun: Instant,
    _record: records::SandboxRecordGuard,
}

/// The socket to an engine.
#[derive(Debug)]
pub(crate) struct EngineSocket(BufReader<UnixStream>);

/// How an engine ended that should not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineFailure {
    OutOfMemory,
    Exited(i32),
    Signalled(i32),
    Unknown,
}

impl fmt::Display for EngineFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |signal| match signal {
            libc::SIGABRT => " (SIGABRT)",
            libc::SIGBUS => " (SIGBUS)",
            libc::SIGILL => " (SIGILL)",
            libc::SIGKILL => " (SIGKILL)",
            libc::SIGSEGV => " (SIGSEGV)",
            libc::SIGSYS => " (SIGSYS)",
            _ => "",
        };
        match self {
            Self::OutOfMemory => f.write_str("the engine ended for its memory"),
            Self::Exited(code) => write!(f, "the engine ended with exit code {code}"),
            Self::Signalled(signal) => write!(f, "the engine ended by signal {signal}{}", name(*signal)),
            Self::Unknown => f.write_str("the engine ended in an unknown way"),
        }
    }
}

impl EngineProcess {
    /// Starts one.
    ///
    /// # Errors
    /// Why that is not possible.
    pub(super) async fn start(
        running: &Path,
        isolator: &Isolator,
        key: EngineKey,
        job: &ScriptJob,
    ) -> Result<Self, Reason> {
        let failed = |error: io::Error| broken("no engine can be started for the script", &error);
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("{NAME}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let slot = isolator.engine_slot(&name);
        if let Some(slot) = &slot {
            bound(slot, job).map_err(failed)?;
        }
        let cgroups: Vec<_> = slot.iter().flat_map(CgroupSlot::dirs).cloned().collect();
        let confinement = isolator.engine_confinement(key.owner, cgroups.clone(), ADDRESS_BYTES);
        let program = SandboxProgram::Builtin(NAME.to_owned());
        let request = SandboxRequest {
            program,
            args: Vec::new(),
            env: std::collections::BTreeMap::new(),
            dir: "/".into(),
            confinement,
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        let theirs = Stdio::from(OwnedFd::from(theirs));
        let mut child =
            SandboxedJob::start(isolator.launcher(), &request, theirs, Stdio::null()).map_err(failed)?;
        // Nothing goes with it but its processes.
        let nowhere = running.join(&name).join("nowhere");
        let record = records::write(running, &name, child.pid(), nowhere, cgroups).map_err(failed)?;
        match child.next().await.map_err(failed)? {
            Some(InitEvent::Started { .. }) => {}
            Some(InitEvent::Refused { layer, detail }) if layer != "exec" => {
                let detail = format!("{layer}: {detail}");
                return Err(Reason::new(ReasonCode::IsolationUnavailable, detail));
            }
            other => return Err(failed(io::Error::other(format!("{other:?}")))),
        }
        ours.set_nonblocking(true).map_err(failed)?;
        let receiver = EngineSocket(BufReader::new(UnixStream::from_std(ours).map_err(failed)?));
        Ok(Self { child, receiver, slot, jobs: 1, begun: Instant::now(), _record: record })
    }

    /// Returns true if the engine waits for a job, and the bounds of this one could be set.
    pub(super) fn is_ready(&mut self, job: &ScriptJob) -> bool {
        let mut byte = [0; 1];
        // Nothing is heard of one that waits; one that has ended has closed its end. Not by way of the event loop, which may
        // not have seen it yet.
        let received = rustix::net::recv(
            self.receiver.0.get_ref().as_fd(),
            &mut byte[..],
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        let waits = matches!(received, Err(rustix::io::Errno::AGAIN)) && self.receiver.0.buffer().is_empty();
        self.jobs += 1;
        self.begun = Instant::now();
        waits && self.slot.as_ref().is_none_or(|slot| bound(slot, job).is_ok())
    }

    /// Returns true if the engine serves no further job.
    pub(super) fn is_worn(&self) -> bool {
        self.jobs >= JOBS_MAX || self.begun.elapsed() > SHORT
    }

    /// The socket, and what its processes are told by.
    pub(crate) fn parts(&mut self) -> (&mut EngineSocket, &SandboxedJob) {
        (&mut self.receiver, &self.child)
    }

    /// Waits for the end of one whose socket is of no use any more, and gives what it was.
    pub(crate) async fn fate(&mut self) -> EngineFailure {
        let mut fate = tokio::time::timeout(END_TIMEOUT, self.wait_for_end()).await;
        if fate.is_err() {
            // One that is gone needs no order.
            let _ = self.child.send_command(InitCommand::Kill).await;
            fate = tokio::time::timeout(END_TIMEOUT, self.wait_for_end()).await;
        }
        let is_memory = self.slot.as_ref().is_some_and(|slot| slot.oom_kills() > 0);
        match fate.unwrap_or(EngineFailure::Unknown) {
            EngineFailure::Exited(EXIT_OUT_OF_MEMORY) => EngineFailure::OutOfMemory,
            EngineFailure::Signalled(_) | EngineFailure::Unknown if is_memory => EngineFailure::OutOfMemory,
            other => other,
        }
    }

    async fn wait_for_end(&mut self) -> EngineFailure {
        loop {
            match self.child.next().await {
                Ok(Some(InitEvent::Exited { code, .. })) => return EngineFailure::Exited(code),
                Ok(Some(InitEvent::Signalled { signal, .. })) => return EngineFailure::Signalled(signal),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return EngineFailure::Unknown,
            }
        }
    }

    /// Ends it, out of the way of everything else.
    pub(crate) fn end(self) {
        tokio::spawn(async move {
            let Self { mut child, receiver, slot, .. } = self;
            let _ = child.send_command(InitCommand::Kill).await;
            while let Ok(Some(_)) = child.next().await {}
            drop(receiver);
            // Looks for what is left, which is nothing, and removes the group.
            let _ = tokio::task::spawn_blocking(move || drop(slot)).await;
        });
    }
}

/// Gives an engine the bounds of a job: its memory, and the two threads that it has.
fn bound(slot: &CgroupSlot, job: &ScriptJob) -> io::Result<()> {
    slot.set_limits(job.grants.memory_bytes.min(RHAI_MEMORY_BYTES_MAX) + OVERHEAD_BYTES, 2)
}

impl EngineSocket {
    /// Sends a frame.
    pub(crate) async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(frame).await
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] when it is none that an engine sends, which only one does that was taken over.
    pub(crate) async fn receive(&mut self) -> io::Result<FromEngineFrame> {
        let invalid = |violation: EngineProtocolError| io::Error::new(io::ErrorKind::InvalidData, violation);
        let mut head = [0; HEAD_BYTES];
        self.0.read_exact(&mut head).await?;
        let (length, kind) = wire::head(head).map_err(invalid)?;
        // Grows with what comes: a length is only a claim.
        let mut body = Vec::new();
        let taken = (&mut self.0).take(length as u64).read_to_end(&mut body).await?;
        if taken < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        FromEngineFrame::read(kind, body).map_err(invalid)
    }
}
