//! A disk that one job fills: what it holds is seen, it ends, and others go on.

use std::collections::HashMap;
use std::future::pending;
use std::path::Path;

use model::execution::{AttemptEnd, Grants, Outcome as Kind};
use model::id::Uid;
use model::{ContextUid, Execution, JobKey, ReasonCode, ScriptType};
use queue::{QueueEventKind, QueueJobStatus};
use runner::RunnerSettings;
use sandbox::IsolationLayers;
use sandbox::disk_space::FileSystemSpace;
use testkit::{PATIENCE, SmallDisk, wait_until};

use crate::setup::{RunnerTestBench, job, place, shell};

const MIB: u64 = 1 << 20;

/// Root with all layers, and as close to an ordinary user as root can come.
const LAYER_CHOICES: [bool; 2] = [true, false];

async fn bench(all_layers: bool) -> RunnerTestBench {
    RunnerTestBench::with(|settings| {
        let layers = IsolationLayers { cgroup: all_layers, owner: all_layers, ..settings.layers };
        RunnerSettings { layers, ..settings }
    })
    .await
}

/// On a small disk of its own, where there can be one.
async fn bench_on(disk: &SmallDisk) -> RunnerTestBench {
    let work_dir = disk.path().join("work");
    RunnerTestBench::with(|settings| RunnerSettings { work_dir, slots: 8, ..settings }).await
}

fn in_context(number: u128, execution: Execution) -> Execution {
    let job_key = JobKey { context: ContextUid(Uid::from_bits(number)), ..execution.job_key };
    Execution { job_key, ..execution }
}

/// Reads until all of these have ended.
async fn ends(bench: &mut RunnerTestBench, keys: &[JobKey]) -> HashMap<JobKey, AttemptEnd> {
    let mut ends = HashMap::new();
    let all = async {
        while keys.iter().any(|key| !ends.contains_key(key)) {
            for event in bench.reader.next(pending()).await.expect("events") {
                if let QueueEventKind::Ended(end) = event.kind {
                    ends.insert(event.job_key, *end);
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("they end");
    ends
}

fn reason(end: &AttemptEnd) -> (Option<ReasonCode>, String) {
    let reason = end.reason.as_ref();
    (reason.map(|reason| reason.code), reason.map(|reason| reason.detail.clone()).unwrap_or_default())
}

fn waits_for(path: &Path) -> String {
    format!("while ! test -e {}; do sleep 0.05; done", path.display())
}

#[tokio::test]
async fn what_has_no_name_counts_while_anything_of_a_job_holds_it() {
    // No single one is beyond the bound of a file.
    let python = |then: &str| {
        let script = format!(
            "import ctypes, mmap, os, time\n\
             libc = ctypes.CDLL(None)\n\
             libc.mmap.restype = ctypes.c_void_p\n\
             libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n\
             held = []\n\
             for n in range(3):\n  \
               f = open(str(n), 'wb+', 0)\n  \
               os.unlink(str(n))\n  \
               f.write(b'x' * (5 << 20))\n  \
               {then}\n\
             print('holds', flush=True)\n\
             time.sleep(600)"
        );
        job(ScriptType::Python, &script)
    };
    let takes = "exec 3>a; exec 4>b; exec 5>c; rm a b c; for n in 3 4 5; do head -c 5M /dev/zero >&$n; done";
    for all_layers in LAYER_CHOICES {
        let mut bench = bench(all_layers).await;
        for execution in [
            shell(&format!("{takes}; sleep 600")),
            // A child alone holds it, in a session of its own.
            shell(&format!("setsid sh -c '{takes}; exec sleep 600'")),
            python("held.append(f)"),
            python("held.append(libc.mmap(None, 5 << 20, 1, 1, f.fileno(), 0)); f.close()"),
        ] {
            let grants = Grants { disk_bytes: 8 * MIB, ..Grants::default() };
            let shown = format!("{:?}, all layers: {all_layers}", execution.script);
            let key = bench.accept_with(execution, grants).await;
            let end = ends(&mut bench, &[key]).await.remove(&key).expect("it ended");
            let (code, detail) = reason(&end);
            assert_eq!(code, Some(ReasonCode::QuotaExceeded), "{shown}: {end:?}");
            assert_eq!(detail, "its directory, with what is open of it, may hold 8388608 bytes", "{shown}");
        }
    }
}

#[tokio::test]
async fn files_that_are_memory_are_bounded_without_control_groups() {
    let mut bench = bench(false).await;
    let script = "import os, time\n\
                  held = [os.memfd_create('m') for _ in range(4)]\n\
                  for fd in held:\n  \
                    for _ in range(60): os.write(fd, b'x' * (1 << 20))\n\
                  time.sleep(600)";
    let grants = Grants { memory_bytes: 200 * MIB, ..Grants::default() };
    let key = bench.accept_with(job(ScriptType::Python, script), grants).await;
    let end = ends(&mut bench, &[key]).await.remove(&key).expect("it ended");
    assert_eq!(reason(&end).0, Some(ReasonCode::OutOfMemory), "{end:?}");
}

#[tokio::test]
async fn below_the_floor_the_greediest_of_all_contexts_ends() {
    let Some(disk) = SmallDisk::new(64) else { return the_floor_may_be_configured().await };
    let mut bench = bench_on(&disk).await;
    let seen = bench.seen();
    let released = seen.join("go");
    let holds = |context: u128, mebibytes: u64, hides: bool, then: &str| {
        let hide = if hides { "rm f; " } else { "" };
        let script = format!(
            "exec 3>f; {hide}head -c {mebibytes}M /dev/zero >&3; touch {}/{mebibytes}; {then}",
            seen.display()
        );
        in_context(context, shell(&script))
    };
    let waits = waits_for(&released);
    let small = bench.accept(holds(2, 10, false, &waits)).await;
    let large = bench.accept(holds(3, 24, true, "sleep 600")).await;
    let medium = bench.accept(holds(2, 16, false, &waits)).await;
    let both_hold = || async {
        (seen.join("10").exists() && seen.join("24").exists() && seen.join("16").exists()).then_some(())
    };
    wait_until(both_hold, PATIENCE, "they hold what they want").await;
    // 50 of 64 MiB are taken, and within the floor comes somebody who has nothing to do with jobs.
    disk.fill_up("other", 2 * MIB);
    let first = ends(&mut bench, &[large]).await;
    assert!(!first.contains_key(&small) && !first.contains_key(&medium), "{first:?}");
    let (code, detail) = reason(&first[&large]);
    assert_eq!(code, Some(ReasonCode::QuotaExceeded));
    assert!(
        detail.contains("less than its floor of 3355440") && detail.contains("it held the most: 251"),
        "{detail}"
    );
    std::fs::write(released, "").expect("a file");
    let rest = ends(&mut bench, &[small, medium]).await;
    assert!(rest.values().all(|end| end.outcome == Kind::Succeeded), "{rest:?}");
}

/// Without a disk of its own: the floor lies above what is free.
async fn the_floor_may_be_configured() {
    let free = FileSystemSpace::of(&std::env::temp_dir()).expect("a file system").bytes_free;
    let mut bench = RunnerTestBench::with(|mut settings| {
        settings.scripts.disk_floor = Some(free * 2);
        settings
    })
    .await;
    let released = bench.seen().join("go");
    let small = bench.accept(in_context(2, shell(&waits_for(&released)))).await;
    let large = bench.accept(shell("exec 3>f; rm f; head -c 40M /dev/zero >&3; sleep 600")).await;
    let first = ends(&mut bench, &[large]).await;
    assert!(!first.contains_key(&small));
    let (code, detail) = reason(&first[&large]);
    assert_eq!(code, Some(ReasonCode::QuotaExceeded), "{detail}");
    assert!(detail.contains(&format!("less than its floor of {}", free * 2)), "{detail}");
    std::fs::write(released, "").expect("a file");
    assert_eq!(ends(&mut bench, &[small]).await[&small].outcome, Kind::Succeeded);
}

#[tokio::test]
async fn the_floor_may_lie_anywhere() {
    the_floor_may_be_configured().await;
}

#[tokio::test]
async fn runners_of_one_machine_agree_on_who_is_the_greediest() {
    let (disk, shared) = (SmallDisk::new(64), place());
    let work_dir = disk.as_ref().map_or(shared.path(), SmallDisk::path).join("work");
    // Without a disk of its own the floor lies above what is free, and the smaller job holds next to nothing.
    let free = FileSystemSpace::of(shared.path()).expect("a file system").bytes_free;
    let (floor, sizes) = if disk.is_some() { (None, [20, 25]) } else { (Some(free * 2), [8, 40]) };
    let runner = async |instance| {
        RunnerTestBench::with(|mut settings| {
            settings.scripts.disk_floor = floor;
            RunnerSettings { work_dir: work_dir.clone(), instance, ..settings }
        })
        .await
    };
    let (mut one, mut two) = (runner(1).await, runner(2).await);
    let released = one.seen().join("go");
    let holds = |seen: &Path, mebibytes: u64, then: &str| {
        shell(&format!("head -c {mebibytes}M /dev/zero > f; touch {}/holds; {then}", seen.display()))
    };
    let less = one.accept(holds(&one.seen(), sizes[0], &waits_for(&released))).await;
    let more = two.accept(holds(&two.seen(), sizes[1], "sleep 600")).await;
    if let Some(disk) = &disk {
        let hold = [one.seen().join("holds"), two.seen().join("holds")];
        let both_hold = || async { hold.iter().all(|path| path.exists()).then_some(()) };
        wait_until(both_hold, PATIENCE, "both hold what they want").await;
        disk.fill_up("other", 2 * MIB);
    }
    let (code, detail) = reason(&ends(&mut two, &[more]).await[&more]);
    assert_eq!(code, Some(ReasonCode::QuotaExceeded), "{detail}");
    std::fs::write(&released, "").expect("a file");
    assert_eq!(ends(&mut one, &[less]).await[&less].outcome, Kind::Succeeded);
}

#[tokio::test]
async fn on_a_full_disk_nothing_starts_and_nothing_is_a_try() {
    let Some(disk) = SmallDisk::new(64) else { return nothing_starts_below_the_lower_floor().await };
    let mut bench = bench_on(&disk).await;
    let room = bench.accept(shell("true")).await;
    assert_eq!(ends(&mut bench, &[room]).await[&room].outcome, Kind::Succeeded);
    disk.fill_up("other", MIB / 2);
    // Who waits for jobs takes one more, and gives it back.
    let taken = bench.accept(shell("true")).await;
    let end = ends(&mut bench, &[taken]).await.remove(&taken).expect("it ended");
    let (code, detail) = reason(&end);
    assert_eq!((end.outcome, code), (Kind::Failed, Some(ReasonCode::DiskFull)), "{detail}");
    assert!(end.is_disk_full_before_start(), "{end:?}");
    assert!(detail.contains("less than its floor of"), "{detail}");
    let waits = bench.accept(shell("true")).await;
    let state = bench.supervisor.status(waits).await.expect("an answer").expect("known");
    assert_eq!(state.status, QueueJobStatus::Queued);
    disk.empty("other");
    assert_eq!(ends(&mut bench, &[waits]).await[&waits].outcome, Kind::Succeeded);
}

async fn nothing_starts_below_the_lower_floor() {
    let bench = RunnerTestBench::with(|mut settings| {
        settings.scripts.disk_floor = Some(u64::MAX);
        settings
    })
    .await;
    let waits = bench.accept(shell("true")).await;
    let state = bench.supervisor.status(waits).await.expect("an answer").expect("known");
    assert_eq!(state.status, QueueJobStatus::Queued);
}

#[tokio::test]
async fn a_write_to_a_full_disk_is_reported_as_disk_full() {
    let Some(disk) = SmallDisk::new(16) else { return nothing_starts_below_the_lower_floor().await };
    let mut bench = RunnerTestBench::with(|mut settings| {
        settings.scripts.disk_floor = Some(0);
        RunnerSettings { work_dir: disk.path().join("work"), ..settings }
    })
    .await;
    // Its output cannot be kept beside it.
    let mut execution = shell("head -c 10M /dev/zero > out");
    execution.outputs = vec!["out".into()];
    let key = bench.accept(execution).await;
    let end = ends(&mut bench, &[key]).await.remove(&key).expect("it ended");
    assert_eq!((end.exit_code, reason(&end).0), (Some(0), Some(ReasonCode::DiskFull)), "{end:?}");
    assert!(!end.is_disk_full_before_start(), "it ran: {end:?}");
    disk.fill_up("other", 0);
    let key = bench.accept(shell("true")).await;
    let end = ends(&mut bench, &[key]).await.remove(&key).expect("it ended");
    assert!(end.is_disk_full_before_start(), "{end:?}");
}
