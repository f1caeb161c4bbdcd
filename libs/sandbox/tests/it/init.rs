//! The init of a job survives attacks, and ends processes that do not want to end.

use std::os::fd::AsRawFd as _;

use rustix::process::{Pid, Signal};
use sandbox::{Cgroups, Confinement, InitCommand, InitEvent, ProcessLimits, SandboxedJob, processes};
use testkit::{PATIENCE, wait_until};

use crate::setup::{SandboxTestDir, end_of};

/// Starts as many of itself as it can, and so does each of them.
const BOMB: &str = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass";

async fn started(child: &mut SandboxedJob) -> u32 {
    match child.next().await.unwrap() {
        Some(InitEvent::Started { pid }) => pid,
        other => panic!("it did not start: {other:?}"),
    }
}

fn init_of(child: &SandboxedJob) -> Pid {
    Pid::from_raw(child.pid().try_into().unwrap()).unwrap()
}

/// A user who ends a service, or types at its terminal, sends signals to more than the runner.
#[tokio::test]
async fn signals_do_not_keep_it_from_ending_the_rest() {
    let place = SandboxTestDir::new();
    let (mut child, out) = place.start("/bin/sleep", &["600"], Confinement::default());
    let script = started(&mut child).await;
    let init = init_of(&child);
    assert_ne!(rustix::process::getpgid(Some(init)).unwrap(), rustix::process::getpgrp());
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1] {
        rustix::process::kill_process(init, signal).unwrap();
    }
    child.send_command(InitCommand::Kill).await.unwrap();
    assert_eq!(end_of(child, out).await.signal, Some(9));
    assert!(processes::observe(script).is_err());
}

/// The script itself gets them all.
#[tokio::test]
async fn a_script_gets_its_signals() {
    let place = SandboxTestDir::new();
    for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("PIPE", 13)] {
        let outcome = place.shell(&format!("kill -{signal} $$; exit 1"), place.confined()).await;
        assert_eq!(outcome.signal, Some(number), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_script_does_not_outlive_it() {
    let place = SandboxTestDir::new();
    for owner in [None, Some(1_900_000_556)] {
        let (mut child, _out) =
            place.start("/bin/sleep", &["600"], Confinement { owner, ..Confinement::default() });
        let script = started(&mut child).await;
        assert!(processes::kill(processes::observe(child.pid()).unwrap()));
        let is_gone = || async { processes::observe(script).is_err().then_some(()) };
        wait_until(is_gone, PATIENCE, "the script is gone").await;
        assert_eq!(child.next().await.unwrap(), None, "nothing was said of an end");
    }
}

#[tokio::test]
async fn a_fork_bomb_is_ended() {
    let place = SandboxTestDir::new();
    let groups = Cgroups::make(&format!("mycora-test-{}-ended", std::process::id())).unwrap();
    let slot = groups.slot("one").unwrap();
    slot.set_limits(512 << 20, 100).unwrap();
    let limits = ProcessLimits { processes: Some(100), ..ProcessLimits::default() };
    for confinement in [
        Confinement { cgroups: slot.dirs().cloned().collect(), ..Confinement::default() },
        Confinement { limits, owner: Some(1_900_000_555), ..Confinement::default() },
    ] {
        let (mut child, out) = place.start("/usr/bin/python3", &["-I", "-S", "-c", BOMB], confinement);
        started(&mut child).await;
        let init = child.pid();
        let is_full = || async { (processes::below(init).is_ok_and(|below| below.len() > 80)).then_some(()) };
        wait_until(is_full, PATIENCE, "it has as many as it gets").await;
        child.send_command(InitCommand::Kill).await.unwrap();
        let outcome = end_of(child, out).await;
        assert!(outcome.ended.len() > 10 && outcome.signal == Some(9), "{outcome:?}");
        assert!(processes::observe(init).is_err());
    }
    assert_eq!(slot.kill_all().unwrap(), [], "nothing was left to the slot");
}

#[tokio::test]
async fn who_has_all_the_processes_that_it_may_still_gets_an_answer() {
    let place = SandboxTestDir::new();
    let limits = ProcessLimits { processes: Some(3), ..ProcessLimits::default() };
    let owner = Some(1_900_000_557);
    let mut jobs = Vec::new();
    for _ in 0..5 {
        let (mut child, out) =
            place.start("/bin/sleep", &["600"], Confinement { limits, owner, ..Confinement::default() });
        started(&mut child).await;
        jobs.push((child, out));
    }
    let outcome =
        place.shell("/bin/true & wait $!", Confinement { limits, owner, ..Confinement::default() }).await;
    assert!(outcome.code.is_some_and(|code| code != 0), "it runs, and starts nothing more: {outcome:?}");
}

#[tokio::test]
async fn it_keeps_nothing_open_of_ours() {
    let place = SandboxTestDir::new();
    let (mut pipe, leaked) = std::io::pipe().unwrap();
    // SAFETY: marks a descriptor that is open here.
    unsafe { libc::fcntl(leaked.as_raw_fd(), libc::F_SETFD, 0) };
    let (mut child, _out) = place.start("/bin/sleep", &["600"], Confinement::default());
    started(&mut child).await;
    drop(leaked);
    // It would not be seen closed before the job ends.
    let mut text = String::new();
    std::io::Read::read_to_string(&mut pipe, &mut text).unwrap();
    assert!(processes::observe(child.pid()).is_ok());
}

/// Also where nothing but what always is stands around a script of its own user.
#[tokio::test]
async fn no_other_process_looks_into_it() {
    let place = SandboxTestDir::new();
    let attack = "cat /proc/$PPID/environ || cat /proc/$PPID/mem || ls /proc/$PPID/fd/0/";
    let outcome = place.shell(attack, Confinement::default()).await;
    assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:?}");
}

/// A system call has several numbers, of which a filter could know only one.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn other_numbers_of_system_calls_end_it() {
    let place = SandboxTestDir::new();
    // `getpid` as a program of 32 bits calls it, and as one of x32 does.
    for code in ["b814000000cd80c3", "b8270000400f05c3"] {
        let attack = format!(
            "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('{code}'))\n\
             at = ctypes.addressof(ctypes.c_char.from_buffer(m))\nctypes.CFUNCTYPE(ctypes.c_int)(at)()"
        );
        let kept = place.python(&attack, place.confined()).await;
        assert_eq!(kept.signal, Some(31), "{kept:?}");
        let broken = place.python(&attack, Confinement { syscalls: None, ..place.confined() }).await;
        assert_eq!(broken.code, Some(0), "{broken:?}");
    }
}
