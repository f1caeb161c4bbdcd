//! Other processes, and what of ours a script might find.

use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};

use sandbox::Confinement;

use crate::setup::{SandboxTestDir, end_of, text};

/// Process of another party, of the same user.
struct Bystander(Child);

impl Bystander {
    fn new() -> Self {
        let mut command = Command::new("/bin/sleep");
        command.arg("600").stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn no_process_outside_can_be_signalled() {
    let place = SandboxTestDir::new();
    let mut other = Bystander::new();
    let attack = format!("kill -0 {}", other.0.id());
    // Its own files and system calls it may use; the rest of Landlock's rules keeps signals in.
    let kept = place.shell(&attack, place.confined()).await;
    assert!(kept.code.is_some_and(|code| code != 0), "{kept:?}");
    let to_init = place.shell("kill -9 $PPID; echo $?", place.confined()).await;
    assert!(to_init.output.ends_with("1\n"), "{to_init:?}");
    assert!(other.lives());
    let broken = place.shell(&attack, Confinement { files: None, ..place.confined() }).await;
    assert_eq!(broken.code, Some(0), "{broken:?}");
}

#[tokio::test]
async fn another_job_is_out_of_reach() {
    let place = SandboxTestDir::new();
    let (mut first, out) = place.start("/bin/sh", &["-c", "exec sleep 600"], place.confined());
    let pid = loop {
        if let Some(sandbox::InitEvent::Started { pid }) = first.next().await.unwrap() {
            break pid;
        }
    };
    let second = place.shell(&format!("kill -9 {pid}"), place.confined()).await;
    assert!(second.code.is_some_and(|code| code != 0), "{second:?}");
    first.send_command(sandbox::InitCommand::Kill).await.unwrap();
    assert_eq!(end_of(first, out).await.signal, Some(9), "it lived until it was ended");
}

/// By tracing, and by the files that the kernel has of each process.
#[tokio::test]
async fn no_process_is_traced_or_read() {
    let place = SandboxTestDir::new();
    // Another job, since what has more privileges than a script is out of its reach anyway.
    let theirs = SandboxTestDir::new();
    let (mut other, _out) = theirs.start("/bin/sleep", &["600"], Confinement::default());
    let Some(sandbox::InitEvent::Started { pid }) = other.next().await.unwrap() else {
        panic!("it did not start")
    };
    let trace = format!(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         traced = libc.ptrace(16, {pid}, 0, 0) == 0\nif traced: os.waitpid({pid}, 0); libc.ptrace(17, {pid}, 0, 0)\n\
         raise SystemExit(not traced)"
    );
    let python =
        async |confinement| place.run("/usr/bin/python3", &["-I", "-S", "-c", &trace], confinement).await;
    // Each of the two layers is enough.
    for confinement in [
        place.confined(),
        Confinement { syscalls: None, ..place.confined() },
        Confinement { files: None, ..place.confined() },
    ] {
        let kept = python(confinement).await;
        assert_eq!(kept.code, Some(1), "{kept:?}");
    }
    let broken = python(Confinement::default()).await;
    assert_eq!(broken.code, Some(0), "{broken:?}");

    let read = format!("tr '\\0' '\\n' < /proc/{pid}/environ");
    let kept = place.shell(&read, place.confined()).await;
    assert!(kept.code.is_some_and(|code| code != 0) && !kept.output.contains("HERE"), "{kept:?}");
    let broken = place.shell(&read, Confinement { files: None, ..place.confined() }).await;
    assert!(broken.output.contains("HERE="), "{broken:?}");
}

/// Their limits, turns and processors; and memory that no process owns.
#[tokio::test]
async fn nothing_of_others_is_changed_or_left_for_them() {
    let place = SandboxTestDir::new();
    let theirs = SandboxTestDir::new();
    let (mut other, _out) = theirs.start("/bin/sleep", &["600"], Confinement::default());
    let Some(sandbox::InitEvent::Started { pid }) = other.next().await.unwrap() else {
        panic!("it did not start")
    };
    for (attack, own) in [
        (
            "resource.prlimit(OTHER, resource.RLIMIT_NOFILE, (9, 9))",
            "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))",
        ),
        ("os.sched_setaffinity(OTHER, {0})", "os.sched_setaffinity(0, {0})"),
        (
            "os.sched_setscheduler(OTHER, os.SCHED_IDLE, os.sched_param(0))",
            "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        ),
        ("os.setpriority(os.PRIO_PROCESS, OTHER, 7)", "os.setpriority(os.PRIO_PROCESS, 0, 7); os.nice(1)"),
        ("assert libc.shmget(4919, 4096, 0o1666) >= 0", "pass"),
    ] {
        let attack = attack.replace("OTHER", &pid.to_string());
        let script = format!(
            "import ctypes, os, resource\nlibc = ctypes.CDLL(None)\n{own}\ntry:\n  {attack}\n\
             except (PermissionError, AssertionError): raise SystemExit(3)"
        );
        let python =
            async |confinement| place.run("/usr/bin/python3", &["-I", "-c", &script], confinement).await;
        let kept = python(place.confined()).await;
        assert_eq!(kept.code, Some(3), "{attack}: {kept:?}");
        let broken = python(Confinement { syscalls: None, ..place.confined() }).await;
        assert_eq!(broken.code, Some(0), "{attack}: {broken:?}");
    }
    // What the last of them has left.
    let removed = Command::new("/usr/bin/python3")
        .args(["-I", "-c", "import ctypes; l = ctypes.CDLL(None); raise SystemExit(l.shmctl(l.shmget(4919, 0, 0), 0, 0) != 0)"])
        .status()
        .unwrap();
    assert!(removed.success());
}

#[tokio::test]
async fn a_script_inherits_nothing_of_ours() {
    let place = SandboxTestDir::new();
    // One that a careless library has left open for everybody.
    let leaked = std::fs::File::open("/etc/hostname").unwrap();
    // SAFETY: marks a descriptor that is open here.
    unsafe { libc::fcntl(leaked.as_raw_fd(), libc::F_SETFD, 0) };
    let script = "import os\nfor n in range(3, 200):\n  try: os.fstat(n); print('open', n)\n  except OSError: pass\n\
                  print(sorted(os.environ))";
    let outcome = place.python(script, Confinement::default()).await;
    assert_eq!(outcome.output, "['HERE', 'LC_CTYPE', 'PATH']\n", "{outcome:?}");
    let direct = Command::new("/usr/bin/python3").args(["-I", "-S", "-c", script]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&direct.stdout).contains("open"),
        "by itself it would have been handed on"
    );
    drop(leaked);
}

#[tokio::test]
async fn root_has_no_more_power_than_others() {
    let place = SandboxTestDir::new();
    let status = place
        .shell("grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status", Confinement::default())
        .await;
    for line in status.output.lines() {
        let value = line.split('\t').nth(1).unwrap();
        let expected = if line.starts_with("NoNewPrivs") { "1" } else { "0000000000000000" };
        assert_eq!(value, expected, "{status:?}");
    }
    assert_eq!(status.output.lines().count(), 5);
    let secret = place.root.path().join("secret");
    std::fs::write(&secret, "").unwrap();
    std::os::unix::fs::chown(&secret, Some(1), Some(1)).unwrap();
    let attack = format!("chown 0 {0} || chmod 777 {0}", text(&secret));
    let outcome = place.shell(&attack, Confinement::default()).await;
    assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:?}");
}
