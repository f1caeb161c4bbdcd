//! Engines: what ends one ends one job, and what one reaches.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use model::execution::{Grants, Outcome as Kind};
use model::id::Uid;
use model::{ContextUid, Execution, JobKey, ReasonCode, ScriptType};
use runner::RunnerSettings;
use rustix::process::{Pid, Signal, kill_process};
use sandbox::{IsolationLayers, processes};
use testkit::{PATIENCE, wait_until};

use crate::setup::{AttemptTestOutcome, RunnerTestBench, job};

const EMBEDDED: [ScriptType; 3] = [ScriptType::Rhai, ScriptType::Osis, ScriptType::Sal];

fn rhai(script: &str) -> Execution {
    job(ScriptType::Rhai, script)
}

fn code(outcome: &AttemptTestOutcome) -> Option<ReasonCode> {
    outcome.end.reason.as_ref().map(|reason| reason.code)
}

/// The engines of the runner in a work directory, as their processes.
fn engines(work: &Path) -> BTreeSet<u32> {
    let instances = fs::read_dir(work.join("instances")).expect("instances").flatten();
    let running =
        instances.flat_map(|instance| fs::read_dir(instance.path().join("running")).expect("records"));
    let inits = running.flatten().filter_map(|record| {
        // A record goes with its engine.
        let record: serde_json::Value = serde_json::from_slice(&fs::read(record.path()).ok()?).ok()?;
        let pid = record["job"].as_str()?.starts_with("engine-").then(|| record["pid"].as_u64())??;
        u32::try_from(pid).ok()
    });
    let below = inits.flat_map(|init| processes::below(init).unwrap_or_default());
    below.map(|process| process.pid).collect()
}

/// The one engine there is.
fn engine(bench: &RunnerTestBench) -> u32 {
    let all = engines(&bench.work());
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().expect("one")
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a small number")).expect("a number");
    kill_process(pid, signal).expect("it is there");
}

async fn next_works(bench: &mut RunnerTestBench) {
    let outcome = bench.run(rhai("result(\"a\", 1)")).await;
    assert_eq!(outcome.result("a"), "1", "{outcome:?}");
}

#[tokio::test]
async fn an_order_that_contradicts_itself_ends_no_job() {
    let mut bench = RunnerTestBench::new().await;
    for script in [
        "let a = []; for n in 0..80 { a.push(if n % 3 == 0 { 0.0 / 0.0 } else { (n * 7919 % 101).to_float() }); } \
         a.sort(); result(\"n\", a.len());",
        "let a = []; for n in 0..80 { a.push(n); } a.sort(|x, y| if (x * 7 + y * 13) % 5 < 2 { -1 } else { 1 }); \
         result(\"n\", a.len());",
    ] {
        for script_type in EMBEDDED {
            let outcome = bench.run(job(script_type, script)).await;
            assert_eq!((outcome.end.outcome, outcome.result("n")), (Kind::Succeeded, "80"), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn one_engine_serves_jobs_of_one_context_one_after_another() {
    let mut bench = RunnerTestBench::new().await;
    next_works(&mut bench).await;
    let first = engine(&bench);
    for script_type in EMBEDDED {
        let outcome = bench.run(job(script_type, "let leak = 1; fn leaks() { 1 }")).await;
        assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
        assert_eq!(engine(&bench), first, "{script_type}");
    }
    let leaked = bench.run(rhai("print(leak + leaks())")).await;
    assert_eq!(leaked.end.exit_code, Some(1), "nothing of a script is there for the next: {leaked:?}");
    let mut other = rhai("1");
    other.job_key.context = ContextUid(Uid::from_bits(2));
    assert_eq!(bench.run(other).await.end.outcome, Kind::Succeeded);
    assert_eq!(engines(&bench.work()).len(), 2, "another context has one of its own");
    // Functions of other languages are not there, neither in the engine nor behind it.
    for (script_type, call) in [
        (ScriptType::Rhai, "osis_list(\"c\")"),
        (ScriptType::Rhai, "run(\"true\")"),
        (ScriptType::Osis, "http_get(\"http://127.0.0.1/\")"),
        (ScriptType::Sal, "osis_list(\"c\")"),
    ] {
        let outcome = bench.run(job(script_type, call)).await;
        assert!(outcome.log.contains("Function not found"), "{call}: {outcome:?}");
    }
}

/// Also where nothing of what confines scripts stands.
#[tokio::test]
async fn an_engine_reaches_nothing() {
    let none = IsolationLayers { files: false, syscalls: false, cgroup: false, owner: false, broker: false };
    for layers in [IsolationLayers::default(), none] {
        let mut bench = RunnerTestBench::with(|settings| RunnerSettings { layers, ..settings }).await;
        next_works(&mut bench).await;
        let engine = engine(&bench);
        nothing_can_be_opened(engine);
        let layers = bench.runner.isolation_support().layers.clone();
        let has = |layer: &str| layers.iter().any(|one| one.starts_with(layer));
        let status = proc_file(engine, "status");
        assert_eq!(field(&status, "CapEff:"), "0000000000000000");
        assert_eq!(field(&status, "NoNewPrivs:"), "1");
        assert_eq!(field(&status, "Seccomp:") == "2", has("seccomp"), "{layers:?}");
        let own = rustix::process::getuid().as_raw().to_string();
        let user = field(&status, "Uid:").split_whitespace().next().expect("a user").to_owned();
        assert_eq!(user != own, has("own-uid"), "{layers:?}");
        assert_eq!(proc_file(engine, "cgroup").contains("/engine-"), has("cgroup"), "{layers:?}");
        let addresses = limit(engine, "Max address space");
        assert_eq!(addresses == "unlimited", has("cgroup"), "{addresses}");
        // What is in the environment of the runner is not in it.
        assert_eq!(proc_file(engine, "environ"), "");
    }
}

fn proc_file(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it lives")
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
    line[name.len()..].trim().to_owned()
}

fn limit(pid: u32, name: &str) -> String {
    field(&proc_file(pid, "limits"), name).split_whitespace().next().expect("a value").to_owned()
}

/// All the descriptors that there may be are in use, and none of them leads anywhere but to the runner.
fn nothing_can_be_opened(engine: u32) {
    let open = fs::read_dir(format!("/proc/{engine}/fd")).expect("it lives").flatten();
    let open: BTreeSet<_> = open
        .map(|entry| {
            let target = fs::read_link(entry.path()).expect("a descriptor").display().to_string();
            (entry.file_name().display().to_string(), target.split(':').next().unwrap_or_default().to_owned())
        })
        .collect();
    let expected = [("0", "/dev/null"), ("1", "socket"), ("2", "/dev/null")];
    assert_eq!(open, expected.map(|(fd, target)| (fd.to_owned(), target.to_owned())).into());
    for (name, most) in [("Max open files", "3"), ("Max file size", "0"), ("Max core file size", "0")] {
        assert_eq!(limit(engine, name), most, "{name}");
    }
}

/// The engine dies as by a panic within a panic, a stack overflow, or the kernel.
#[tokio::test]
async fn an_engine_that_dies_ends_one_job_by_name() {
    let mut bench = RunnerTestBench::new().await;
    let work = bench.work();
    let waits =
        "print(\"ready\"); loop { try { result(\"n\", read_file(\"go\")); break; } catch { sleep(0.05); } }";
    let mut other = rhai(waits);
    other.job_key.context = ContextUid(Uid::from_bits(2));
    other.timeout_secs = 600;
    let other = bench.accept(other).await;
    bench.printed(other, "ready").await;
    let others = engines(&work);
    for (sent, name) in [
        (Signal::ABORT, "the engine ended by signal 6 (SIGABRT)"),
        (Signal::SEGV, "the engine ended by signal 11 (SIGSEGV)"),
        (Signal::KILL, "the engine ended by signal 9 (SIGKILL)"),
        // Not from the runner.
        (Signal::TERM, "the engine was told by somebody else to end"),
    ] {
        let key = bench.accept(rhai("print(\"begun\"); loop { }")).await;
        let begun = || async { engines(&work).difference(&others).next().copied() };
        let engine = wait_until(begun, PATIENCE, "it has an engine").await;
        bench.printed_of(key, "begun").await;
        signal(engine, sent);
        let outcome = bench.end_among(key).await;
        assert_eq!((outcome.end.outcome, code(&outcome)), (Kind::Failed, Some(ReasonCode::RuntimeError)));
        assert!(outcome.reason().contains(name), "{outcome:?}");
        let gone = || async { (engines(&work) == others).then_some(()) };
        wait_until(gone, PATIENCE, "it is not used again").await;
        let next = bench.accept(rhai("result(\"a\", 1)")).await;
        assert_eq!(bench.end_among(next).await.result("a"), "1");
        let idle = engines(&work).difference(&others).next().copied().expect("it waits for the next");
        // One that dies while it waits ends none.
        signal(idle, Signal::KILL);
        wait_until(async || processes::observe(idle).is_err().then_some(()), PATIENCE, "it is gone").await;
        let next = bench.accept(rhai("result(\"a\", 2)")).await;
        let outcome = bench.end_among(next).await;
        assert_eq!(outcome.result("a"), "2", "{outcome:?}");
        let left = engines(&work).difference(&others).next().copied().expect("another one");
        signal(left, Signal::KILL);
        wait_until(gone, PATIENCE, "it is gone").await;
    }
    let dir = queue::work_dir::jobs_dir(&work, other.context).join(other.to_string());
    fs::write(dir.join("half"), "50").expect("its directory is there");
    fs::rename(dir.join("half"), dir.join("go")).expect("a file");
    let outcome = bench.end_among(other).await;
    assert_eq!(outcome.result("n"), "50", "another context has noticed nothing: {outcome:?}");
}

/// A script that computes without end within one step makes its engine deaf to orders.
#[tokio::test]
async fn an_engine_that_does_not_hear_is_killed() {
    let mut bench = RunnerTestBench::new().await;
    for stop in [false, true] {
        let mut execution = rhai("print(\"begun\"); loop { }");
        execution.timeout_secs = if stop { 600 } else { 1 };
        let key = bench.accept(execution).await;
        bench.printed(key, "begun").await;
        signal(engine(&bench), Signal::STOP);
        if stop {
            bench.supervisor.stop(key, 0).await.expect("an answer");
        }
        let ended = tokio::time::timeout(PATIENCE, bench.end_of(key)).await.expect("an end in time");
        assert_eq!(ended.end.outcome, if stop { Kind::Stopped } else { Kind::TimedOut }, "{ended:?}");
        next_works(&mut bench).await;
    }
}

/// A stop is heard within a step, so that what was printed before is not lost.
#[tokio::test]
async fn a_script_that_is_stopped_ends_at_its_next_step() {
    let mut bench = RunnerTestBench::new().await;
    for script in ["print(\"begun\"); loop { }", "print(\"begun\"); sleep(600);"] {
        let key = bench.accept(rhai(script)).await;
        bench.printed(key, "begun").await;
        let began = std::time::Instant::now();
        bench.supervisor.stop(key, 0).await.expect("an answer");
        assert_eq!(bench.end_of(key).await.end.outcome, Kind::Stopped, "{script}");
        assert!(began.elapsed() < PATIENCE, "{script}");
    }
    next_works(&mut bench).await;
}

#[tokio::test]
async fn memory_ends_one_job() {
    // Without control groups as well, where the addresses of an engine are bounded.
    for cgroup in [true, false] {
        let layers = IsolationLayers { cgroup, ..IsolationLayers::default() };
        let mut bench = RunnerTestBench::with(|settings| RunnerSettings { layers, ..settings }).await;
        for script in [
            "fn f(n) { let s = `${n}`; s.pad(4_000_000, 'x'); f(n + 1); s } f(0)",
            "let a = []; a.pad(100_000, 1.5); fn g(a, n) { let b = a; let c = a; g([b, n], n) } g(a, 1)",
            "let s = \"\"; s.pad(4_000_000, 'x'); let n = 0; loop { result(`${n}`, s); n += 1; }",
        ] {
            let grants = Grants { memory_bytes: 32 << 20, ..Grants::default() };
            let key = bench.accept_with(rhai(script), grants).await;
            let outcome = tokio::time::timeout(PATIENCE, bench.end_of(key)).await.expect("an end");
            assert_eq!(code(&outcome), Some(ReasonCode::OutOfMemory), "{script}: {outcome:?}");
            assert!(outcome.reason().contains("33554432"), "{outcome:?}");
            next_works(&mut bench).await;
        }
    }
}

#[tokio::test]
async fn what_a_script_prints_is_seen_while_it_runs() {
    let mut bench = RunnerTestBench::new().await;
    // Many short steps, and few long ones.
    for endless in ["loop { }", "let list = []; list.pad(200_000, \"b\"); loop { list.sort(); }"] {
        let key: JobKey =
            bench.accept(rhai(&format!("print(\"first\"); debug(\"second\"); {endless}"))).await;
        let printed = bench.printed(key, "second");
        tokio::time::timeout(PATIENCE, printed).await.expect("it is sent without waiting for the end");
        bench.supervisor.stop(key, 0).await.expect("an answer");
        assert_eq!(bench.end_of(key).await.end.outcome, Kind::Stopped);
    }
    let long = "let s = \"\"; s.pad(200_000, 'a'); print(s); debug(\"b\"); print(\"c\");";
    let outcome = bench.run(rhai(long)).await;
    assert!(outcome.log.len() > 200_000 && outcome.log.ends_with("\"b\"\nc\n"), "{}", outcome.log.len());
}

#[tokio::test]
async fn scripts_that_sleep_at_once_are_stopped() {
    let bench = RunnerTestBench::with(|settings| RunnerSettings { slots: 8, ..settings }).await;
    let mut keys = BTreeSet::new();
    for _ in 0..8 {
        keys.insert(bench.accept(rhai("sleep(600)")).await);
    }
    let all = || async { (engines(&bench.work()).len() == 8).then_some(()) };
    wait_until(all, PATIENCE, "all of them sleep").await;
    for key in &keys {
        bench.supervisor.stop(*key, 0).await.expect("an answer");
    }
    let mut bench = bench;
    for key in keys {
        let ended = tokio::time::timeout(Duration::from_secs(60), bench.end_among(key)).await;
        assert_eq!(ended.expect("an end").end.outcome, Kind::Stopped);
    }
}
