//! Ending everything that a job has started, whatever it did to be left alone.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandbox::{Confinement, InitCommand, InitEvent, processes};
use testkit::{PATIENCE, wait_until};

use crate::setup::{SandboxTestDir, end_of};

/// Leaves its session and its group, empties its environment, and goes on in the background.
const ESCAPE: &str = "env -i /usr/bin/setsid /bin/sh -c 'env -i /usr/bin/setsid /bin/sh -c \"echo \\$\\$ > escaped; exec /bin/sleep 600\" & exit 0' &\n";

async fn escaped(place: &SandboxTestDir) -> u32 {
    let look = || async { std::fs::read_to_string(place.dir.join("escaped")).ok()?.trim().parse().ok() };
    wait_until(look, PATIENCE, "it has escaped").await
}

async fn is_gone(pid: u32) {
    wait_until(|| async { processes::observe(pid).is_err().then_some(()) }, PATIENCE, "it is gone").await;
}

#[tokio::test]
async fn what_left_its_session_is_ended_with_the_rest() {
    let place = SandboxTestDir::new();
    let (mut child, out) =
        place.start("/bin/sh", &["-c", &format!("{ESCAPE}exec sleep 600")], Confinement::default());
    let Some(InitEvent::Started { pid: script }) = child.next().await.unwrap() else {
        panic!("it did not start")
    };
    let pid = escaped(&place).await;
    let seen = processes::observe(pid).unwrap();
    assert_ne!(seen.session, script, "it has a session of its own");
    assert!(!processes::environ_has(pid, b"HERE="), "and nothing of ours in its environment");
    child.send_command(InitCommand::Kill).await.unwrap();
    let outcome = end_of(child, out).await;
    is_gone(pid).await;
    assert!(outcome.ended.iter().any(|ended| ended.pid == pid && ended.name == "sleep"), "{outcome:?}");
    assert_eq!(outcome.signal, Some(9));

    // By itself, without an init above it, it outlives the kill of its group.
    std::fs::remove_file(place.dir.join("escaped")).unwrap();
    let mut alone = Command::new("/usr/bin/setsid")
        .args(["/bin/sh", "-c", &format!("{ESCAPE}exec sleep 600")])
        .current_dir(&place.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = escaped(&place).await;
    let group = rustix::process::Pid::from_raw(alone.id().try_into().unwrap()).unwrap();
    kill_process_group(group, Signal::KILL).unwrap();
    alone.wait().unwrap();
    let left = processes::observe(pid).expect("it lives on");
    assert!(processes::kill(left));
}

#[tokio::test]
async fn what_a_script_leaves_behind_is_ended_with_it() {
    let place = SandboxTestDir::new();
    let script = format!("{ESCAPE}while [ ! -s escaped ]; do :; done; exit 0");
    let outcome = place.shell(&script, Confinement::default()).await;
    assert_eq!((outcome.code, outcome.left), (Some(0), true));
    let pid = escaped(&place).await;
    assert!(processes::observe(pid).is_err(), "{outcome:?}");
}

/// Script whose first thread ends alone: the kernel shows the process as ended, while another thread goes on.
const HEADLESS: &str = "
import ctypes, os, platform, threading, time
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=time.sleep, args=(600,)).start()
    with open('escaped', 'w') as file:
        file.write(f'{os.getpid()}\\n')
    exit_thread = {'x86_64': 60, 'aarch64': 93}[platform.machine()]
    ctypes.CDLL(None).syscall(exit_thread, 0)
while True:
    try:
        pid = int(open('escaped').read())
        if open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] == 'Z':
            break
    except (OSError, ValueError):
        pass
";

#[tokio::test]
async fn what_goes_on_without_its_first_thread_is_ended() {
    let place = SandboxTestDir::new();
    let outcome = place.run("/usr/bin/python3", &["-I", "-c", HEADLESS], Confinement::default()).await;
    assert_eq!((outcome.code, outcome.left), (Some(0), true), "{outcome:?}");
    let pid = escaped(&place).await;
    is_gone(pid).await;
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(outcome.ended.iter().map(|ended| ended.pid).collect::<Vec<_>>(), [pid], "{outcome:?}");
}

/// A name is whatever bytes a process gives itself, and the kernel passes them on as they are.
#[tokio::test]
async fn what_calls_itself_by_no_text_is_ended() {
    let place = SandboxTestDir::new();
    let attack = "import ctypes, os, signal\nctypes.CDLL(None).prctl(15, b'\\xff) Z 0', 0, 0, 0)\n\
                  if os.fork(): signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w')\n\
                  while True: signal.pause()";
    let (mut child, out) = place.start("/usr/bin/python3", &["-I", "-c", attack], Confinement::default());
    let Some(InitEvent::Started { pid }) = child.next().await.unwrap() else { panic!("it did not start") };
    let ready = || async { place.dir.join("ready").exists().then_some(()) };
    wait_until(ready, PATIENCE, "it has its name").await;
    assert_eq!(processes::name(pid), "\u{fffd}) Z 0");
    child.send_command(InitCommand::Kill).await.unwrap();
    let outcome = tokio::time::timeout(PATIENCE, end_of(child, out)).await.expect("an end");
    assert_eq!((outcome.signal, outcome.ended.len()), (Some(9), 1), "{outcome:?}");
}

#[tokio::test]
async fn everything_ends_when_the_runner_lets_go() {
    let place = SandboxTestDir::new();
    let (mut child, _out) =
        place.start("/bin/sh", &["-c", &format!("{ESCAPE}exec sleep 600")], Confinement::default());
    let Some(InitEvent::Started { pid: script }) = child.next().await.unwrap() else {
        panic!("it did not start")
    };
    let pid = escaped(&place).await;
    let init = child.pid();
    drop(child);
    for pid in [pid, script, init] {
        is_gone(pid).await;
    }
}

/// A runner that is killed cannot let go of anything by itself.
#[tokio::test]
async fn everything_ends_when_the_runner_is_killed() {
    let place = SandboxTestDir::new();
    // This test, started again as a runner that has one job.
    let test = std::env::current_exe().unwrap();
    let mut runner = Command::new(test)
        .args(["--exact", "ending::a_runner_with_one_job"])
        .env("JOB_DIR", &place.dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = escaped(&place).await;
    runner.kill().unwrap();
    runner.wait().unwrap();
    is_gone(pid).await;
}

/// Does nothing by itself: it is the runner of the test before.
#[tokio::test]
async fn a_runner_with_one_job() {
    let Some(dir) = std::env::var_os("JOB_DIR") else { return };
    let place = SandboxTestDir { dir: Path::new(&dir).to_owned(), ..SandboxTestDir::new() };
    let (child, out) =
        place.start("/bin/sh", &["-c", &format!("{ESCAPE}exec sleep 600")], Confinement::default());
    end_of(child, out).await;
}

/// An init that ends while orders are on their way to it resets the connection.
#[tokio::test]
async fn the_end_event_arrives_although_commands_are_still_queued() {
    let place = SandboxTestDir::new();
    for _ in 0..20 {
        let (mut child, out) =
            place.start("/bin/sh", &["-c", "sleep 600 & exec sleep 600"], Confinement::default());
        let Some(InitEvent::Started { pid }) = child.next().await.unwrap() else {
            panic!("it did not start")
        };
        let both = || async { (processes::below(pid).is_ok_and(|below| !below.is_empty())).then_some(()) };
        wait_until(both, PATIENCE, "it has started another").await;
        // It finds both at once, and never reads the second: the first is obeyed until nothing is left.
        let init = i32::try_from(child.pid()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(init, Signal::STOP).unwrap();
        child.send_command(InitCommand::Kill).await.unwrap();
        child.send_command(InitCommand::Kill).await.unwrap();
        kill_process(init, Signal::CONT).unwrap();
        assert_eq!(end_of(child, out).await.ended.len(), 1);
    }
}

#[tokio::test]
async fn a_script_gets_sigterm_before_it_is_killed() {
    let place = SandboxTestDir::new();
    let script = "trap 'echo asked; exit 7' TERM; echo ready > ready; while :; do sleep 0.01; done";
    let (child, out) = place.start("/bin/sh", &["-c", script], place.confined());
    let ready = || async { place.dir.join("ready").exists().then_some(()) };
    wait_until(ready, PATIENCE, "it waits").await;
    child.send_command(InitCommand::Terminate).await.unwrap();
    let outcome = end_of(child, out).await;
    assert!(outcome.code == Some(7) && outcome.output.ends_with("asked\n"), "{outcome:?}");
}
