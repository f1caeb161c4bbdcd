//! The broker: what a script may not do itself, its init does in its place, or refuses.
//!
//! ```text
//! script ── connect, sendmsg, chmod, fork ─► kernel ── notification ─► init: copies what it means, decides,
//!    ▲                                                                       │ does it on a duplicate of the descriptor
//!    └──────────────────────────── answer ───────────────────────────────────┘
//! ```
//!
//! A filter of system calls sees numbers, not what they point to, and what a script points to another of its threads may
//! change. So nothing that was decided by its memory is ever continued by the kernel: the init works on its own copy. Only
//! forks are continued, which are decided by a count alone.

mod attributes;
mod caller;
mod filter;
mod fork_counter;
mod network;
mod notification;
mod send;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use model::AddressRange;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use self::caller::SyscallCaller;
pub(crate) use self::filter::{ListenerHandoff, install_filter, listener_handoff, receive_listener};
use self::fork_counter::ForkCounter;
use self::network::SocketOperation;
use self::notification::{PendingSyscall, SeccompListener};
use crate::confinement;

/// How many calls may block at once. Each has a thread.
const BLOCKED_MAX: usize = 256;
const STACK_BYTES: usize = 128 * 1024;
/// How often it is checked whether blocking calls still have a waiting caller.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Verdict on a system call.
enum SyscallVerdict {
    /// The broker executed the call, with this result.
    Done(i64),
    /// The call fails.
    Failed(Errno),
    /// The kernel does it: only for what no memory of the script decides.
    Proceed,
    /// The broker executes the call, which may block.
    Blocks(SocketOperation),
}

impl<T: Into<i64>> From<Result<T, Errno>> for SyscallVerdict {
    fn from(result: Result<T, Errno>) -> Self {
        result.map_or_else(Self::Failed, |value| Self::Done(value.into()))
    }
}

/// Broker of one job's system calls, with the rules it decides by.
pub(crate) struct SyscallBroker {
    listener: SeccompListener,
    addresses: Vec<AddressRange>,
    /// Directories in which attributes may change, by the names that the kernel gives them.
    places: Vec<PathBuf>,
    count: Mutex<ForkCounter>,
    /// Calls that block, and who executes them, from when that thread runs.
    blocked: Mutex<Vec<(u64, Option<libc::pthread_t>)>>,
    capabilities: Option<CapabilitySets>,
}

impl SyscallBroker {
    /// Serves the calls that come from `listener`, for the job whose first process is `script`.
    pub(crate) fn new(listener: OwnedFd, rules: &confinement::BrokerRules, script: u32) -> Self {
        let places = rules.attributes.iter().flatten();
        Self {
            listener: SeccompListener::new(listener),
            addresses: rules.addresses.clone().unwrap_or_default(),
            places: places.filter_map(|place| std::fs::canonicalize(place).ok()).collect(),
            count: Mutex::new(ForkCounter::new(rules.processes, rules.jobs_below.then_some(script))),
            blocked: Mutex::default(),
            capabilities: rustix::thread::capabilities(None).ok(),
        }
    }

    /// Answers every call, until no process is left that could make one.
    pub(crate) fn serve<'scope, 'env>(&'scope self, scope: &'scope Scope<'scope, 'env>) {
        interruptible();
        loop {
            match self.wait() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => return,
            }
            let call = match self.listener.receive() {
                Ok(call) => call,
                // The caller is gone.
                Err(Errno::NOENT | Errno::INTR) => continue,
                Err(_) => return,
            };
            match self.judge(&call) {
                SyscallVerdict::Done(value) => self.listener.answer(call.id, Ok(value)),
                SyscallVerdict::Failed(error) => self.listener.answer(call.id, Err(error)),
                SyscallVerdict::Proceed => self.listener.proceed(call.id),
                SyscallVerdict::Blocks(act) => self.block(scope, call.id, act),
            }
        }
    }

    /// Waits for a call; false when it is time to look after those that block.
    fn wait(&self) -> Result<bool, Errno> {
        let interval = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_INTERVAL.subsec_nanos()) };
        let timeout = (!self.blocked().is_empty()).then_some(&interval);
        let mut polled = [PollFd::new(&self.listener, PollFlags::IN)];
        let ready = match poll(&mut polled, timeout) {
            Err(Errno::INTR) => return Ok(false),
            other => other?,
        };
        if ready == 0 {
            for (id, thread) in self.blocked().iter() {
                if let Some(thread) = thread
                    && !self.listener.is_valid(*id)
                {
                    // SAFETY: a thread takes itself out of the list, under its lock, before it ends.
                    unsafe { libc::pthread_kill(*thread, libc::SIGUSR1) };
                }
            }
            return Ok(false);
        }
        if polled[0].revents().contains(PollFlags::IN) { Ok(true) } else { Err(Errno::PIPE) }
    }

    fn blocked(&self) -> MutexGuard<'_, Vec<(u64, Option<libc::pthread_t>)>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what may block on a thread of its own, so that no other call waits for it.
    fn block<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, id: u64, act: SocketOperation) {
        let run = move || {
            interruptible();
            // SAFETY: gives a number.
            let own = unsafe { libc::pthread_self() };
            for (_, thread) in self.blocked().iter_mut().filter(|(other, _)| *other == id) {
                *thread = Some(own);
            }
            let done = self.unprivileged(|| act.execute());
            self.blocked().retain(|(other, _)| *other != id);
            self.listener.answer(id, done);
        };
        let has_room = self.blocked().len() < BLOCKED_MAX;
        // Known before it runs, so that it is looked after from the next wait on.
        self.blocked().push((id, None));
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        if !has_room || builder.spawn_scoped(scope, run).is_err() {
            self.blocked().retain(|(other, _)| *other != id);
            self.listener.answer(id, Err(Errno::AGAIN));
        }
    }

    fn judge(&self, call: &PendingSyscall) -> SyscallVerdict {
        if filter::is_fork(call.number) {
            let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
            return match count.admits(call.thread) {
                Ok(true) => SyscallVerdict::Proceed,
                Ok(false) => SyscallVerdict::Failed(Errno::AGAIN),
                Err(_) => SyscallVerdict::Failed(Errno::NOMEM),
            };
        }
        let caller = match SyscallCaller::of(&self.listener, call) {
            Ok(caller) => caller,
            Err(error) => return SyscallVerdict::Failed(error),
        };
        let judged = match call.number {
            libc::SYS_connect => network::connect(&caller, call, &self.addresses),
            libc::SYS_bind => network::bind(&caller, call),
            libc::SYS_sendto => send::send_to(&caller, call, &self.addresses),
            libc::SYS_sendmsg => send::send_message(&caller, call, &self.addresses),
            libc::SYS_sendmmsg => send::send_messages(&caller, call, &self.addresses, self),
            // Nor is a file found with more rights than the script's.
            _ => self
                .unprivileged(|| attributes::change(&caller, call, &self.places))
                .map(AllowedSyscall::Change),
        };
        match judged {
            Err(error) => SyscallVerdict::Failed(error),
            Ok(AllowedSyscall::Sent(count)) => SyscallVerdict::Done(count),
            Ok(AllowedSyscall::Change(change)) => self.unprivileged(|| change.execute()).into(),
            Ok(AllowedSyscall::Act(act)) => match self.unprivileged(|| act.attempt()) {
                Some(done) => done.into(),
                None => SyscallVerdict::Blocks(act),
            },
        }
    }

    /// Does something with no more rights than scripts have: an init that is root's has all capabilities otherwise.
    fn unprivileged<T>(&self, act: impl FnOnce() -> T) -> T {
        let Some(all) = self.capabilities.filter(|all| !all.effective.is_empty()) else { return act() };
        let none = CapabilitySets { effective: CapabilitySet::empty(), ..all };
        if rustix::thread::set_capabilities(None, none).is_err() {
            // Nothing takes capabilities from a thread that may not give up its own.
            std::process::abort();
        }
        let done = act();
        // Should it fail, then calls fail from here on.
        let _ = rustix::thread::set_capabilities(None, all);
        done
    }
}

/// A call that was understood and allowed.
enum AllowedSyscall {
    Act(SocketOperation),
    Change(attributes::AttributeChange),
    /// Done already.
    Sent(i64),
}

/// Lets a signal that does nothing interrupt what blocks in this thread.
fn interruptible() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the structures are filled before they are read and live on this stack; the handler touches nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut());
    }
}

/// Turns a result of the C library into a `Result`, with the error number of a call that failed.
fn checked(result: impl Into<i64>) -> Result<i64, Errno> {
    match result.into() {
        -1 => Err(io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)),
        value => Ok(value),
    }
}
