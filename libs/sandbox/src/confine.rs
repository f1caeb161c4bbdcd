//! Putting the layers around the process that becomes the script.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::Mode;
use rustix::process::{Gid, Pid, Resource, Rlimit, Signal, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::broker::ListenerHandoff;
use crate::confinement::{Builtin, ProcessLimits, SandboxProgram, SandboxRequest};
use crate::{broker, files, syscalls};

/// Exit code of a builtin that panicked, the same as that of other programs.
const PANICKED: i32 = 101;
/// Which access a script's files lack by default: others do not write them.
const SCRIPT_UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// A layer that could not be put around the script.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LayerFailure {
    pub(crate) layer: String,
    pub(crate) detail: String,
}

/// Becomes the script, confined; returns only when that fails.
pub(crate) fn become_script(
    request: &SandboxRequest,
    init: Pid,
    handing: Option<ListenerHandoff>,
    builtins: &[Builtin],
) -> LayerFailure {
    let refused = |detail| LayerFailure { layer: "exec".into(), detail };
    match &request.program {
        SandboxProgram::File(program) => match confine(request, init, handing) {
            Err(refused) => refused,
            Ok(()) => {
                let mut command = Command::new(program);
                command.args(&request.args).env_clear().envs(&request.env).stdin(Stdio::null());
                let error = command.exec();
                refused(format!("{}: {error}", program.display()))
            }
        },
        SandboxProgram::Builtin(name) => {
            let Some(builtin) = builtins.iter().find(|builtin| builtin.name == name) else {
                return refused(format!("the launcher has no builtin `{name}`"));
            };
            // The socket to the runner, by which it would be taken for its own init.
            if let Err(refused) = layer("descriptors", without_input()) {
                return refused;
            }
            match confine(request, init, handing).and_then(|()| layer("descriptors", close_all())) {
                Err(refused) => refused,
                Ok(()) => {
                    let code = std::panic::catch_unwind(builtin.run).unwrap_or(PANICKED);
                    // Nothing of this process is run at its end: the descriptors that it would use are closed already.
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(code) }
                }
            }
        }
    }
}

/// Gives a process without `exec` nothing to read; `exec` itself would do so.
fn without_input() -> io::Result<()> {
    let null = fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(())
}

/// Closes the descriptors that [`close_on_exec`] has only marked, for a process without `exec`. Their owners never drop
/// them, since the process ends without that.
fn close_all() -> io::Result<()> {
    // SAFETY: nothing that this process still does uses a descriptor beyond standard error.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if closed == 0 {
        return Ok(());
    }
    // A kernel before 5.9. Whatever the bound is now, nothing was opened beyond the first of these.
    for number in 3..1024 {
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }
    Ok(())
}

fn confine(
    request: &SandboxRequest,
    init: Pid,
    handing: Option<ListenerHandoff>,
) -> Result<(), LayerFailure> {
    let confinement = &request.confinement;
    layer("session", session())?;
    layer("cgroup", enter(&confinement.cgroups))?;
    // Opened while everything may be opened, and put in force last.
    let network = confinement.syscalls.is_none_or(|syscalls| syscalls.network);
    let rules = confinement.files.as_ref().map(|rules| files::ruleset(rules, network)).transpose();
    let rules = layer("landlock", rules)?;
    layer("privileges", drop_privileges(confinement.owner))?;
    // Not earlier: a change of the user resets it.
    layer("session", end_with(init))?;
    // Not before: who becomes a user that has more processes than this could not execute anything.
    layer("limits", limit(&confinement.limits))?;
    layer("directory", rustix::process::chdir(&request.dir).map_err(io::Error::from))?;
    layer("descriptors", close_on_exec())?;
    if let Some(rules) = rules {
        layer("landlock", files::restrict(rules))?;
    }
    if let Some(allowed) = confinement.syscalls {
        layer("seccomp", syscalls::restrict(allowed))?;
    }
    if let Some(handing) = handing {
        layer("broker", broker::install_filter(&confinement.broker, handing))?;
    }
    Ok(())
}

fn layer<T>(name: &str, result: io::Result<T>) -> Result<T, LayerFailure> {
    result.map_err(|error| LayerFailure { layer: name.to_owned(), detail: error.to_string() })
}

fn session() -> io::Result<()> {
    rustix::process::setsid()?;
    // The ordinary one: that of the service is for its own files. What a script makes lies in a closed directory.
    rustix::process::umask(SCRIPT_UMASK);
    Ok(())
}

fn enter(cgroups: &[PathBuf]) -> io::Result<()> {
    for cgroup in cgroups {
        fs::write(cgroup.join("cgroup.procs"), "0")
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", cgroup.display())))?;
    }
    Ok(())
}

fn limit(limits: &ProcessLimits) -> io::Result<()> {
    let ProcessLimits { cpu_secs, address_space, open_files, file_size, processes } = *limits;
    for (resource, most) in [
        (Resource::Core, Some(0)),
        (Resource::Cpu, cpu_secs),
        (Resource::As, address_space),
        (Resource::Nofile, open_files),
        (Resource::Fsize, file_size),
        (Resource::Nproc, processes),
    ] {
        let Some(most) = most else { continue };
        // One that is lower already stays.
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// Makes the process die with its init, also when another process killed that.
fn end_with(init: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(init) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(())
}

/// Becomes the owner, or stays who it is with nothing that only root may do.
fn drop_privileges(owner: Option<u32>) -> io::Result<()> {
    drop_bounding_set()?;
    if let Some(owner) = owner {
        let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// So that root's programs get no capabilities by being executed.
fn drop_bounding_set() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Not known to this kernel, or not ours to drop: then there is none to be got either.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            other => other?,
        }
    }
    Ok(())
}

/// The script gets standard input, output and error, and nothing else of ours.
fn close_on_exec() -> io::Result<()> {
    // SAFETY: marks descriptors, and touches no memory.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == 0 {
        return Ok(());
    }
    // A kernel before 5.11.
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) =
            name.to_str().and_then(|name| name.parse::<i32>().ok()).filter(|number| *number > 2)
        else {
            continue;
        };
        // SAFETY: marks a descriptor, and touches no memory.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}
