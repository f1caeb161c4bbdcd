//! Scripts that mean harm: to the runner, to its disk, to the jobs after them.

use model::execution::{Grants, Outcome as Kind};
use model::limits::OUTPUT_BYTES_MAX;
use model::{ReasonCode, ScriptType};
use runner::RunnerSettings;
use sandbox::{IsolationLayers, processes};
use testkit::{PATIENCE, wait_until};

use crate::setup::{AttemptTestOutcome, RunnerTestBench, job, shell};

fn python(script: &str) -> model::Execution {
    job(ScriptType::Python, script)
}

async fn bench(warm: bool) -> RunnerTestBench {
    RunnerTestBench::with(|mut settings| {
        settings.scripts.warm = warm;
        settings
    })
    .await
}

/// The next job finds everything as it should be.
async fn next_works(bench: &mut RunnerTestBench) {
    let outcome = bench.run(python("import mycora; mycora.result(a=1)")).await;
    assert_eq!((outcome.end.outcome, outcome.result("a")), (Kind::Succeeded, "1"), "{outcome:?}");
    // Nothing waits for that.
    let is_gone = || async { bench.attempts().is_empty().then_some(()) };
    wait_until(is_gone, PATIENCE, "nothing is left of any job").await;
}

fn code(outcome: &AttemptTestOutcome) -> Option<ReasonCode> {
    outcome.end.reason.as_ref().map(|reason| reason.code)
}

#[tokio::test]
async fn a_result_that_is_no_file_of_the_job_is_refused() {
    let mut bench = RunnerTestBench::new().await;
    for (script, expected, part) in [
        ("rm $MYCORA_RESULT; mkfifo $MYCORA_RESULT", ReasonCode::RuntimeError, "no regular file"),
        ("rm $MYCORA_RESULT; mkdir $MYCORA_RESULT", ReasonCode::RuntimeError, "no regular file"),
        ("ln -sf /etc/passwd $MYCORA_RESULT", ReasonCode::RuntimeError, "symbolic link"),
        ("mv .mycora real; ln -s real .mycora", ReasonCode::RuntimeError, "symbolic link"),
        ("truncate -s 500M $MYCORA_RESULT", ReasonCode::ResultTooLarge, "more than"),
    ] {
        let outcome = bench.run(shell(script)).await;
        assert_eq!((outcome.end.outcome, code(&outcome)), (Kind::Failed, Some(expected)), "{outcome:?}");
        assert!(outcome.reason().contains(part), "{outcome:?}");
    }
    next_works(&mut bench).await;
}

/// More directories in each other than the runner may have files open, and than a path has room for.
#[tokio::test]
async fn a_tree_of_any_depth_is_removed() {
    let mut bench = RunnerTestBench::new().await;
    let script = "import os\nhere = os.open('.', os.O_RDONLY)\nfor _ in range(DEPTH):\n  os.mkdir('d', dir_fd=here)\n  \
                  down = os.open('d', os.O_RDONLY, dir_fd=here)\n  os.close(here)\n  here = down";
    // It may be ended for its depth when it takes long.
    bench.run(python(&script.replace("DEPTH", "5000"))).await;
    let locked = "mkdir -p a/b/c; touch a/b/f; chmod 0 a/b/c a/b a";
    assert_eq!(bench.run(shell(locked)).await.end.outcome, Kind::Succeeded);
    next_works(&mut bench).await;
}

#[tokio::test]
async fn nothing_is_hidden_from_the_quota() {
    let mut bench = RunnerTestBench::new().await;
    for script in [
        // Names alone.
        "for n in range(3000): open(str(n), 'w').close()",
        // Deeper than a path reaches.
        "for _ in range(40):\n  os.mkdir('d' * 200)\n  os.chdir('d' * 200)",
    ] {
        let grants = Grants { disk_bytes: 8 << 20, ..Grants::default() };
        let script = format!("import os, time\n{script}\nprint('ready')\ntime.sleep(600)");
        let key = bench.accept_with(python(&script), grants).await;
        let outcome = tokio::time::timeout(PATIENCE, bench.end_of(key)).await.expect("an end");
        assert_eq!(code(&outcome), Some(ReasonCode::QuotaExceeded), "{outcome:?}");
    }
    next_works(&mut bench).await;
}

/// In a warm interpreter as in a cold one: its name is no text, its first thread ends, it ignores what it can.
#[tokio::test]
async fn no_process_hides_from_the_end() {
    let scripts = [
        "libc.prctl(15, b'\\xff\\xfe) Z 0', 0, 0, 0)",
        "libc.prctl(1, 0, 0, 0, 0)\nos.environ.clear()\nos.fork()\nlibc.prctl(15, b'\\xff', 0, 0, 0)",
        "threading.Thread(target=time.sleep, args=(600,)).start()\nprint('ready')\nlibc.syscall(EXIT, 0)",
        "if os.fork() == 0: os.kill(os.getppid(), signal.SIGSTOP)\nelse: print('ready')",
    ];
    let number = if cfg!(target_arch = "x86_64") { "60" } else { "93" };
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        for script in scripts {
            let script = format!(
                "import ctypes, os, signal, threading, time\nlibc = ctypes.CDLL(None)\n\
                 for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n{}\nprint('ready', flush=True)\n\
                 while True: time.sleep(600)",
                script.replace("EXIT", number)
            );
            let key = bench.accept(python(&script)).await;
            bench.printed(key, "ready").await;
            bench.supervisor.stop(key, 0).await.expect("an answer");
            let ended = tokio::time::timeout(PATIENCE, bench.end_of(key)).await;
            let outcome = ended.unwrap_or_else(|_| panic!("warm {warm}: {script}"));
            assert_eq!(outcome.end.outcome, Kind::Stopped, "{outcome:?}");
        }
        next_works(&mut bench).await;
    }
}

/// Whatever a job's variables say, they are there for its script alone.
#[tokio::test]
async fn variables_of_a_job_change_nothing_but_its_script() {
    let mut bench = RunnerTestBench::new().await;
    let trace = bench.seen().join("trace");
    std::fs::write(bench.seen().join("evil.py"), format!("open({trace:?}, 'w')")).expect("a file");
    let place = bench.seen().display().to_string();
    for (name, value) in [
        ("PYTHONSTARTUP", format!("{place}/evil.py")),
        ("PYTHONPATH", place.clone()),
        ("PYTHONHOME", "/nowhere".to_owned()),
        ("PYTHONINSPECT", "1".to_owned()),
        ("PYTHONWARNINGS", "error".to_owned()),
        ("LD_PRELOAD", format!("{place}/absent.so")),
        ("LD_LIBRARY_PATH", place.clone()),
        ("PATH", "/nowhere".to_owned()),
        ("IFS", "/".to_owned()),
        ("MYCORA_RESULT", trace.display().to_string()),
        ("TMPDIR", "/".to_owned()),
        ("HOME", "/".to_owned()),
    ] {
        for script_type in [ScriptType::Python, ScriptType::Shell] {
            let script = if script_type == ScriptType::Python {
                "import mycora, os, sys\nassert 'evil' not in sys.modules\nmycora.result(a=1)"
            } else {
                "echo a=1 > \"$MYCORA_RESULT\""
            };
            let mut execution = job(script_type, script);
            execution.env_vars.insert(name.to_owned(), value.clone());
            let outcome = bench.run(execution).await;
            assert_eq!(outcome.result("a"), "1", "{name}: {outcome:?}");
        }
        next_works(&mut bench).await;
    }
    // The result of a job before it may say anything.
    for script_type in [ScriptType::Python, ScriptType::Shell] {
        let mut execution = job(script_type, "pass");
        execution.env_vars.insert("A".to_owned(), "x\0y".to_owned());
        let outcome = bench.run(execution).await;
        assert_eq!(code(&outcome), Some(ReasonCode::RuntimeError), "{outcome:?}");
    }
    next_works(&mut bench).await;
    assert!(!trace.exists());
}

/// An operator may kill the init by mistake, or the kernel when the machine has no memory left.
#[tokio::test]
async fn a_script_ends_whose_init_was_killed() {
    let all = IsolationLayers::default();
    // Without control groups, what has forgotten whose it is is found by its descent alone.
    for (warm, layers) in
        [(true, all), (false, all), (true, IsolationLayers { cgroup: false, owner: false, ..all })]
    {
        let mut bench = RunnerTestBench::with(|mut settings| {
            settings.scripts.warm = warm;
            RunnerSettings { layers, ..settings }
        })
        .await;
        let pids = bench.seen().join("pids");
        let script = "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\ninit = os.getppid()\nos.environ.clear()\n\
                      if os.fork() == 0: os.setsid()\nopen(PIDS, 'a').write(f'{os.getpid()}\\n')\n\
                      while len(open(PIDS).readlines()) < 2: pass\nopen(PIDS + '.init', 'w').write(str(init))\nprint('ready', flush=True)\ntime.sleep(600)";
        let key =
            bench.accept(python(&script.replace("PIDS", &format!("{:?}", pids.display().to_string())))).await;
        bench.printed(key, "ready").await;
        let init = std::fs::read_to_string(pids.with_extension("init")).expect("a file");
        let init = init.parse().expect("a number");
        assert!(processes::kill(processes::observe(init).expect("it runs")));
        let outcome = tokio::time::timeout(PATIENCE, bench.end_of(key)).await.expect("an end");
        assert_eq!(code(&outcome), Some(ReasonCode::RuntimeError), "{outcome:?}");
        for pid in std::fs::read_to_string(&pids).expect("a file").lines() {
            let pid = pid.parse().expect("a number");
            let is_gone = || async { processes::observe(pid).is_err().then_some(()) };
            wait_until(is_gone, PATIENCE, "it is gone").await;
        }
        next_works(&mut bench).await;
    }
}

#[tokio::test]
async fn a_flood_without_lines_is_bounded() {
    let mut bench = RunnerTestBench::new().await;
    let script = "import os\nfor _ in range(1600): os.write(1, b'\\xff\\x1b' * 32768)\nif os.fork() == 0:\n  os.setsid()\n  \
                  while True: os.write(2, b'x' * 65536)";
    let outcome = tokio::time::timeout(PATIENCE, bench.run(python(script))).await.expect("an end");
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{:?}", outcome.end);
    // A little more for the last piece of each stream, and the word that there was more.
    assert!(outcome.log.len() as u64 <= 2 * (OUTPUT_BYTES_MAX + 64 * 1024), "{}", outcome.log.len());
    next_works(&mut bench).await;
}
