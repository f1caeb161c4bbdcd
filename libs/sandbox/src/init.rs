//! The first process of one job: starts the script, waits for everything that it starts, ends it on command.
//!
//! It is a program of its own (the runner's, started again), with one thread until the script's process was forked,
//! so that the code between `fork` and `exec` may be ordinary code. It stays outside of everything that
//! confines the script. Orphans below it become its children, so it knows when nothing is left;
//! and when the runner is gone, however that ended, its socket hangs up and it ends everything.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::exit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::EndedProcess;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group};

use crate::broker::{self, SyscallBroker};
use crate::confine::{self, LayerFailure};
use crate::confinement::{Builtin, SandboxRequest};
use crate::probe::{TRY_CONNECT, TRY_SOCKET, try_connect, try_socket};
use crate::processes;
use crate::protocol::{DATAGRAM_BYTES_MAX, ENDED_MAX, InitCommand, InitEvent};

/// The argument by which a program knows that it is to be the launcher.
pub(crate) const ARGUMENT: &str = "sandbox-launch";

/// Becomes the launcher when this program was started as such, and does not return then. To be called before
/// anything else in `main`, while there is one thread. Requests may name `builtins` in place of an executable.
pub fn launch_if_asked(builtins: &[Builtin]) {
    for (name, attack) in [(TRY_SOCKET, try_socket as fn() -> i32), (TRY_CONNECT, try_connect)] {
        if std::env::args_os().nth(1).is_some_and(|argument| argument == name) {
            exit(attack());
        }
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
        match run(builtins) {
            Ok(never) => match never {},
            Err(error) => {
                // Standard error has no reader; the runner sees the socket closed.
                let _ = writeln!(io::stderr(), "the launcher failed: {error}");
                exit(1);
            }
        }
    }
}

enum Never {}

fn run(builtins: &[Builtin]) -> io::Result<Never> {
    close_inherited();
    // The socket to the runner is standard input, output and error are the script's.
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let request = receive(&socket)?;
    // What operators see in a list of processes.
    rustix::thread::set_name(c"mycora-init")?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // No process of the same user may look into it, or change it.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let rules = &request.confinement.broker;
    let handing = broker::listener_handoff(rules)?;
    let (failure, failing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A stop of the whole service signals all of its processes: this one still has to end the others.
    block_signals(true);
    let init = rustix::process::getpid();
    // SAFETY: this process has one thread, so the child may do whatever it could have done itself.
    let script = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            drop(failure);
            usual_signals();
            block_signals(false);
            let refused = confine::become_script(&request, init, handing, builtins);
            let refused = serde_json::to_vec(&refused).unwrap_or_default();
            let _ = File::from(failing).write_all(&refused);
            exit(1);
        }
        pid => Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?,
    };
    drop(failing);
    let listener = match handing {
        Some(handing) => broker::receive_listener(script, handing)?,
        None => None,
    };
    // The script's, and not ours: their other ends would not be seen closed.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let mut refused = Vec::new();
    File::from(failure).read_to_end(&mut refused)?;
    if !refused.is_empty() {
        let LayerFailure { layer, detail } = serde_json::from_slice(&refused)?;
        send_event(&socket, &InitEvent::Refused { layer, detail });
        exit(0);
    }
    send_event(&socket, &InitEvent::Started { pid: script.as_raw_nonzero().get().unsigned_abs() });
    let broker = listener
        .map(|listener| SyscallBroker::new(listener, rules, script.as_raw_nonzero().get().unsigned_abs()));
    let job = InitProcess {
        socket,
        state: Mutex::new(InitProcessState { script: Some(script), ended: Vec::new() }),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| serve_commands(&job));
        if let Some(broker) = &broker {
            scope.spawn(|| broker.serve(scope));
        }
        reap_children(&job, script)
    })
}

/// Closes descriptors that the runner left open for every program: a pipe would not be seen closed while this
/// process lives.
fn close_inherited() {
    // SAFETY: nothing of this process has opened a descriptor yet, so none that it owns is closed. A kernel before
    // 5.9 cannot do it, and keeps them.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

/// Gives every signal its usual effect: what the runner was started to ignore (`nohup`, a shell's background) is no concern of
/// a script.
fn usual_signals() {
    for signal in 1..=64 {
        // SAFETY: sets a disposition that needs no handler; those that cannot be set are refused and stay.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Lets no signal through that can be held back, or all of them.
fn block_signals(block: bool) {
    let mut signals = std::mem::MaybeUninit::uninit();
    let fill = if block { libc::sigfillset } else { libc::sigemptyset };
    // SAFETY: the set is filled before it is read, and both live on this stack; nothing else is touched.
    unsafe {
        fill(signals.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, signals.as_ptr(), std::ptr::null_mut());
    }
}

/// Receives the request, which comes as a file: it may be long, and no other process may see it.
fn receive(socket: &OwnedFd) -> io::Result<SandboxRequest> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut extra = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut parts, &mut extra, RecvFlags::CMSG_CLOEXEC)?;
    let handed = extra.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let file = File::from(handed.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(serde_json::from_reader(io::BufReader::new(file))?)
}

struct InitProcess {
    socket: OwnedFd,
    state: Mutex<InitProcessState>,
}

struct InitProcessState {
    /// Process id of the script's own process, until it was waited for: only then can the number be reused.
    script: Option<Pid>,
    ended: Vec<EndedProcess>,
}

impl InitProcess {
    fn state(&self) -> MutexGuard<'_, InitProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send_event(socket: &OwnedFd, event: &InitEvent) {
    if let Ok(text) = serde_json::to_vec(event) {
        // Should the runner be gone, that shows elsewhere.
        let _ = rustix::net::send(socket, &text, SendFlags::NOSIGNAL);
    }
}

/// Waits for everything that ends, until nothing is left.
fn reap_children(job: &InitProcess, script: Pid) -> ! {
    loop {
        // Looks first and collects under the lock, so that a pid that is free again is never signalled.
        let waiting = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let none_left = matches!(
            rustix::process::waitid(rustix::process::WaitId::All, waiting),
            Err(rustix::io::Errno::CHILD)
        );
        let mut state = job.state();
        let mut ended = None;
        let mut left = !none_left;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == script => {
                    state.script = None;
                    ended = Some(status);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    left = false;
                    break;
                }
            }
        }
        if let Some(status) = ended {
            let event = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => InitEvent::Exited { code, left },
                (None, signal) => InitEvent::Signalled { signal: signal.unwrap_or_default(), left },
            };
            send_event(&job.socket, &event);
        }
        if !left {
            send_event(&job.socket, &InitEvent::Over { ended: std::mem::take(&mut state.ended) });
            exit(0);
        }
    }
}

/// Does what the runner says, and ends everything when it says no more.
fn serve_commands(job: &InitProcess) {
    let mut text = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let order = match rustix::net::recv(&job.socket, &mut text[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok((0, _)) | Err(_) => {
                kill(job);
                return;
            }
            Ok((length, _)) => serde_json::from_slice(&text[..length]),
        };
        match order {
            Ok(InitCommand::Terminate) => {
                let state = job.state();
                if let Some(script) = state.script {
                    // A group that is gone needs no signal.
                    let _ = kill_process_group(script, Signal::TERM);
                }
            }
            Ok(InitCommand::Kill) => kill(job),
            Ok(InitCommand::Go) | Err(_) => {}
        }
    }
}

/// Kills everything below until nothing is left; [`reap_children`] ends this process then.
fn kill(job: &InitProcess) {
    let own = std::process::id();
    let script = job.state().script.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    loop {
        let found = processes::below(own).unwrap_or_default();
        for process in found {
            // Noted before it can be collected, which may be the last thing that happens here.
            let mut state = job.state();
            let name = processes::name(process.pid);
            let is_new = Some(process.pid) != script
                && state.ended.len() < ENDED_MAX
                && !state.ended.iter().any(|one| one.pid == process.pid);
            if processes::kill(process) && is_new {
                state.ended.push(EndedProcess { pid: process.pid, name });
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
