//! The thread that starts processes.
//!
//! The kernel's parent-death signal goes out when the *thread* that started a process ends, so scripts are
//! started by one thread that lives as long as the runner does.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use tokio::sync::oneshot;

struct Request {
    command: Command,
    answer: oneshot::Sender<io::Result<Child>>,
}

/// Starts processes that lead a session of their own and die with the runner. Cheap to clone; the
/// thread ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Spawner(mpsc::Sender<Request>);

impl Spawner {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        close_on_exec()?;
        let (sender, requests) = mpsc::channel::<Request>();
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            for mut request in requests {
                confine(&mut request.command);
                // Nobody waiting any more means that the runner is ending; the child dies with this thread.
                let _ = request.answer.send(request.command.spawn());
            }
        })?;
        Ok(Self(sender))
    }

    /// Starts a process.
    pub(crate) async fn spawn(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other("the thread that starts processes is gone");
        let (answer, child) = oneshot::channel();
        self.0.send(Request { command, answer }).map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }
}

/// What is done in the child before the program begins.
fn confine(command: &mut Command) {
    let parent = rustix::process::getpid();
    let prepare = move || prepare_child(parent);
    // SAFETY: between fork and exec only async-signal-safe things may be done. `prepare_child` makes plain
    // system calls and allocates nothing.
    unsafe {
        command.pre_exec(prepare);
    }
}

fn prepare_child(parent: Pid) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The runner may have died before the line above took effect.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(())
}

/// Keeps descriptors that this process itself was started with from being handed on. Everything that is
/// opened later is closed by default.
fn close_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) =
            name.to_str().and_then(|name| name.parse::<RawFd>().ok()).filter(|number| *number > 2)
        else {
            continue;
        };
        // SAFETY: the descriptor is not closed or kept here. Should somebody close it meanwhile, the
        // call fails, or marks another one that is closed on exec anyway.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC);
    }
    Ok(())
}
