//! Bounds of everything that a job starts, together, and of each of its processes.

use sandbox::{BrokerRules, CgroupSlot, Cgroups, Confinement, ProcessLimits};

use crate::setup::SandboxTestDir;

const MIB: u64 = 1024 * 1024;

fn slot(name: &str) -> CgroupSlot {
    let groups = Cgroups::make(&format!("mycora-test-{}-{name}", std::process::id())).unwrap();
    groups.slot("one").unwrap()
}

fn within(slot: &CgroupSlot, place: &SandboxTestDir) -> Confinement {
    Confinement { cgroups: slot.dirs().cloned().collect(), ..place.confined() }
}

#[tokio::test]
async fn a_fork_bomb_is_bounded() {
    let place = SandboxTestDir::new();
    let slot = slot("bomb");
    slot.set_limits(256 * MIB, 20).unwrap();
    // It counts how many it got, and stops at a number that would be far beyond the bound.
    let attack = "import os, signal\nchildren = []\nwhile len(children) < 60:\n  try: pid = os.fork()\n  except OSError: break\n\
                  \x20 if pid == 0: signal.pause()\n  children.append(pid)\nprint(len(children))";
    let kept = place.python(attack, within(&slot, &place)).await;
    assert_eq!((kept.code, kept.output.as_str()), (Some(0), "19\n"), "{kept:?}");
    assert_eq!(kept.ended.len(), 19, "and nothing of it is left");
    let broken = place.python(attack, place.confined()).await;
    assert_eq!(broken.output, "60\n", "{broken:?}");
}

/// The kernel counts the processes of a user of its own even without control groups.
#[tokio::test]
async fn a_user_of_its_own_bounds_processes_as_well() {
    let place = SandboxTestDir::new();
    let attack = "import os, signal\nn = 0\nwhile n < 60:\n  try: pid = os.fork()\n  except OSError: break\n\
                  \x20 if pid == 0: signal.pause()\n  n += 1\nprint(n)";
    let limits = ProcessLimits { processes: Some(20), ..ProcessLimits::default() };
    let owner = Some(1_900_000_777);
    let kept = place.python(attack, Confinement { limits, owner, ..Confinement::default() }).await;
    assert_eq!((kept.code, kept.output.as_str()), (Some(0), "19\n"), "{kept:?}");
    let broken = place.python(attack, Confinement { owner, ..Confinement::default() }).await;
    assert_eq!(broken.output, "60\n");
}

/// Without control groups, for every user, and for each job by itself.
#[tokio::test]
async fn the_init_counts_processes_where_nothing_else_does() {
    let place = SandboxTestDir::new();
    let counted = |processes| BrokerRules { processes: Some(processes), ..BrokerRules::default() };
    let attack = "import os, signal, threading, time\nn = 0\nwhile n < 60:\n  try: pid = os.fork()\n  except BlockingIOError: break\n\
                  \x20 if pid == 0: signal.pause()\n  n += 1\nprint(n)";
    for owner in [None, Some(1_900_000_778)] {
        let mut jobs = Vec::new();
        // Two jobs of one user do not share the bound.
        for _ in 0..2 {
            let confinement = Confinement { owner, broker: counted(20), ..Confinement::default() };
            jobs.push(place.python(attack, confinement).await.output);
        }
        assert_eq!(jobs, ["19\n", "19\n"]);
    }
    let broken = place.python(attack, Confinement::default()).await;
    assert_eq!(broken.output, "60\n");
    // Threads count as well, and what has ended does not.
    let threads = "import threading, os\nfor _ in range(50): os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n\
                   wait = threading.Event()\nn = 0\nwhile n < 60:\n  try: threading.Thread(target=wait.wait, daemon=True).start()\n\
                   \x20 except RuntimeError: break\n  n += 1\nprint(n, flush=True); wait.set()";
    let kept = place.python(threads, Confinement { broker: counted(8), ..Confinement::default() }).await;
    assert_eq!(kept.output, "7\n", "{kept:?}");
}

/// A warm interpreter is above several jobs.
#[tokio::test]
async fn jobs_below_one_process_are_counted_by_themselves() {
    let place = SandboxTestDir::new();
    let attack = "import os, signal\n\
                  def job():\n  n = 0\n  while n < 60:\n    try: pid = os.fork()\n    except BlockingIOError: break\n\
                  \x20   if pid == 0: signal.pause()\n    n += 1\n  os.write(1, b'%d\\n' % n); signal.pause()\n\
                  r, w = os.pipe()\n\
                  for _ in range(3):\n  if os.fork() == 0: job()\nos.close(w); os.waitpid(-1, 0)";
    let broker = BrokerRules { processes: Some(10), jobs_below: true, ..BrokerRules::default() };
    let (child, mut out) = place.start(
        "/usr/bin/python3",
        &["-I", "-S", "-c", attack],
        Confinement { broker, ..Confinement::default() },
    );
    let mut text = [0; 9];
    std::io::Read::read_exact(&mut out, &mut text).unwrap();
    assert_eq!(String::from_utf8_lossy(&text), "10\n10\n10\n");
    drop(child);
}

#[tokio::test]
async fn memory_beyond_the_bound_ends_it() {
    let place = SandboxTestDir::new();
    let slot = slot("memory");
    slot.set_limits(64 * MIB, 20).unwrap();
    // In two processes, neither of which has more than the bound by itself.
    let attack = "import os\npid = os.fork()\na = bytearray(40 << 20)\nfor i in range(0, len(a), 4096): a[i] = 1\n\
                  if pid: raise SystemExit(os.waitpid(pid, 0)[1])\nimport time; time.sleep(0.2)";
    let before = slot.oom_kills();
    let kept = place.python(attack, within(&slot, &place)).await;
    assert!(kept.code != Some(0), "{kept:?}");
    assert!(slot.oom_kills() > before, "and it is known why");
    let broken = place.python(attack, place.confined()).await;
    assert_eq!(broken.code, Some(0), "{broken:?}");
}

#[tokio::test]
async fn each_process_is_bounded() {
    let place = SandboxTestDir::new();
    let limited = |limits| Confinement { limits, ..Confinement::default() };
    let none = ProcessLimits::default();
    for (attack, limits) in [
        ("bytearray(300 << 20)", ProcessLimits { address_space: Some(200 * MIB), ..none }),
        (
            "[open('/dev/null') for _ in range(100)]; x = [open('/dev/null') for _ in range(40)]",
            ProcessLimits { open_files: Some(30), ..none },
        ),
        (
            "f = open('large', 'wb'); f.write(bytes(3 << 20)); f.flush()",
            ProcessLimits { file_size: Some(MIB), ..none },
        ),
        (
            "n = 0\nimport time\nwhile time.process_time() < 1.5: n += 1",
            ProcessLimits { cpu_secs: Some(1), ..none },
        ),
    ] {
        let kept = place.python(attack, limited(limits)).await;
        assert!(kept.code != Some(0), "{attack}: {kept:?}");
        let broken = place.python(attack, limited(none)).await;
        assert_eq!(broken.code, Some(0), "{attack}: {broken:?}");
    }
}

/// Groups that a killed runner left behind are removed even if its work directory is not used again.
#[test]
fn unused_groups_are_removed() {
    let make = |name: &str| Cgroups::make(&format!("mycora-test-{}-{name}", std::process::id())).unwrap();
    let used = make("used");
    let slot = used.slot("one").unwrap();
    let dirs: Vec<_> = slot.dirs().cloned().collect();
    let unused: Vec<_> =
        dirs.iter().map(|dir| dir.parent().unwrap().with_file_name("mycora-test-unused")).collect();
    for dir in &unused {
        std::fs::create_dir_all(dir.join("one")).unwrap();
    }
    let _next = make("next");
    assert!(dirs.iter().all(|dir| dir.exists()) && !unused.iter().any(|dir| dir.exists()));
}

#[tokio::test]
async fn a_slot_is_used_again_and_leaves_nothing() {
    let place = SandboxTestDir::new();
    let groups = Cgroups::make(&format!("mycora-test-{}-again", std::process::id())).unwrap();
    let slot = groups.slot("one").unwrap();
    let dirs: Vec<_> = slot.dirs().cloned().collect();
    for _ in 0..3 {
        slot.set_limits(64 * MIB, 20).unwrap();
        let outcome = place.shell("cat /proc/self/cgroup", within(&slot, &SandboxTestDir::new())).await;
        assert!(outcome.code != Some(0) || outcome.output.contains("again"), "{outcome:?}");
        slot.close();
        assert!(slot.kill_all().unwrap().is_empty());
    }
    // A runner that died has left something in it.
    slot.set_limits(64 * MIB, 20).unwrap();
    let (child, _out) =
        place.start("/bin/sleep", &["600"], Confinement { cgroups: dirs.clone(), ..Confinement::default() });
    let mut child = child;
    assert!(matches!(child.next().await.unwrap(), Some(sandbox::InitEvent::Started { .. })));
    assert_eq!(slot.kill_all().unwrap().len(), 1);
    drop((slot, groups));
    assert!(dirs.iter().all(|dir| !dir.exists()), "{dirs:?}");
}
