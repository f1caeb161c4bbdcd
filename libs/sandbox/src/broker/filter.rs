//! The filter that notifies of calls, and how its other end comes to the init.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::process::{DumpableBehavior, Pid, PidfdFlags, pidfd_open};
use seccompiler::sock_filter;

use super::attributes;
use crate::confinement::BrokerRules;

#[cfg(target_arch = "x86_64")]
const FORKS: &[libc::c_long] = &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const FORKS: &[libc::c_long] = &[libc::SYS_clone, libc::SYS_clone3];
/// `sendto` as well, but only with an address.
const NETWORK: &[libc::c_long] = &[libc::SYS_connect, libc::SYS_bind, libc::SYS_sendmsg, libc::SYS_sendmmsg];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// Returns whether a call makes a process or a thread.
pub(super) fn is_fork(number: libc::c_long) -> bool {
    FORKS.contains(&number)
}

/// Where the parts of `seccomp_data` lie.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
/// The address of `sendto`, the fifth argument, in two halves.
const ADDRESS_AT: [u32; 2] = [48, 52];
const X32_BIT: u32 = 0x4000_0000;

const fn step(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    #[expect(clippy::cast_possible_truncation, reason = "codes have 16 bits")]
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

const fn load(at: u32) -> sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at)
}

const fn jump_equal(value: u32, jt: u8, jf: u8) -> sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value)
}

const fn give(action: u32) -> sock_filter {
    step(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

/// The program of the filter: calls of other numberings end the process, brokered calls cause a notification.
fn program(rules: &BrokerRules) -> Vec<sock_filter> {
    let kill = give(libc::SECCOMP_RET_KILL_PROCESS);
    let notify = give(libc::SECCOMP_RET_USER_NOTIF);
    let allow = give(libc::SECCOMP_RET_ALLOW);
    let mut program =
        vec![load(ARCHITECTURE_AT), jump_equal(ARCHITECTURE, 1, 0), kill.clone(), load(NUMBER_AT)];
    if cfg!(target_arch = "x86_64") {
        program.push(step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32_BIT));
        program.push(kill);
    }
    let mut numbers: Vec<libc::c_long> = Vec::new();
    numbers.extend(rules.addresses.iter().flat_map(|_| NETWORK));
    numbers.extend(rules.attributes.iter().flat_map(|_| attributes::calls()));
    numbers.extend(rules.processes.iter().flat_map(|_| FORKS));
    let number = |number: libc::c_long| u32::try_from(number).unwrap_or(u32::MAX);
    for one in numbers {
        program.extend([jump_equal(number(one), 0, 1), notify.clone()]);
    }
    if rules.addresses.is_some() {
        program.extend([
            jump_equal(number(libc::SYS_sendto), 0, 6),
            load(ADDRESS_AT[0]),
            jump_equal(0, 0, 2),
            load(ADDRESS_AT[1]),
            jump_equal(0, 1, 0),
            notify,
            allow.clone(),
        ]);
    }
    program.push(allow);
    program
}

/// Puts the filter in force for this process and all that it starts, and returns the listener of their calls.
fn restrict(rules: &BrokerRules) -> io::Result<OwnedFd> {
    if ARCHITECTURE == 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "there is no filter for this processor"));
    }
    let mut program = program(rules);
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    // The same structure under two names.
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr().cast() };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the program outlives the call, which copies it.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    let listens = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // The second flag keeps signals that do not end the process from interrupting a call that was received, so that none is done
    // twice; Linux 5.19 and later.
    let mut listener = install(listens | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    if listener < 0 {
        listener = install(listens);
    }
    match i32::try_from(listener) {
        // SAFETY: the kernel has just made it for us.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The pipes over which the script's process sends the number of its listener, and learns that the init has it.
pub(crate) struct ListenerHandoff {
    sent: (OwnedFd, OwnedFd),
    taken: (OwnedFd, OwnedFd),
}

/// Makes them, where they are needed.
pub(crate) fn listener_handoff(rules: &BrokerRules) -> io::Result<Option<ListenerHandoff>> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    if rules.is_idle() { Ok(None) } else { Ok(Some(ListenerHandoff { sent: pipe()?, taken: pipe()? })) }
}

/// Puts the filter in force, and waits until the init has its other end. Nothing of ours is in the way of the init then.
pub(crate) fn install_filter(rules: &BrokerRules, handing: ListenerHandoff) -> io::Result<()> {
    let ListenerHandoff { sent: (_, sender), taken: (receiver, taken) } = handing;
    drop(taken);
    // Else only root could take it. All that is in this process is in its own files and environment as well.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let listener = restrict(rules)?;
    rustix::io::write(&sender, &listener.as_raw_fd().to_ne_bytes())?;
    drop(sender);
    match rustix::io::read(&receiver, &mut [0; 1][..])? {
        1 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the init cannot take the listener")),
    }
}

/// Takes the other end of the filter from the script's process; nothing when that was refused before.
pub(crate) fn receive_listener(script: Pid, handing: ListenerHandoff) -> io::Result<Option<OwnedFd>> {
    let ListenerHandoff { sent: (receiver, sender), taken: (_, taken) } = handing;
    drop(sender);
    let mut number = [0; 4];
    if rustix::io::read(&receiver, &mut number[..])? != number.len() {
        return Ok(None);
    }
    let process = pidfd_open(script, PidfdFlags::empty())?;
    // A failure here shows at the script's process: the pipe closes without an answer.
    let Ok(listener) = duplicate(&process, i32::from_ne_bytes(number)) else { return Ok(None) };
    rustix::io::write(&taken, &[1])?;
    Ok(Some(listener))
}

/// Duplicates a descriptor of another process.
pub(super) fn duplicate(process: &OwnedFd, descriptor: i32) -> Result<OwnedFd, rustix::io::Errno> {
    // SAFETY: duplicates a descriptor, and touches no memory.
    let duplicate =
        super::checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })?;
    let duplicate = i32::try_from(duplicate).map_err(|_| rustix::io::Errno::BADF)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}
