//! Python, warm and cold: the same is seen either way, and nothing of one job by another.

use std::collections::BTreeMap;
use std::path::Path;

use model::execution::Outcome as Kind;
use model::id::Uid;
use model::{ContextUid, Execution, ReasonCode, ScriptType};
use runner::RunnerSettings;
use sandbox::{IsolationLayers, processes};
use testkit::{PATIENCE, wait_until};

use crate::setup::{AttemptTestOutcome, RunnerTestBench, inputs, job};

fn python(script: &str) -> Execution {
    job(ScriptType::Python, script)
}

/// A runner of python alone.
async fn bench(warm: bool) -> RunnerTestBench {
    RunnerTestBench::with(|mut settings| {
        settings.scripts.warm = warm;
        RunnerSettings { types: vec![ScriptType::Python], ..settings }
    })
    .await
}

async fn succeed(bench: &mut RunnerTestBench, execution: Execution) -> AttemptTestOutcome {
    let outcome = bench.run(execution).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    outcome
}

fn with_file(mut execution: Execution, name: &str, text: &str) -> Execution {
    use base64::Engine as _;
    let source = model::execution::FileSource {
        blob: model::job::BlobRef { sha256: model::BlobHash::of(text.as_bytes()), size: text.len() as u64 },
        inline: Some(base64::engine::general_purpose::STANDARD.encode(text)),
    };
    execution.files.insert(name.to_owned(), source);
    execution
}

/// Processes that execute the interpreter's own file, of this runner: the zygote first, then its inits.
fn interpreters(work: &Path) -> Vec<processes::ProcessSnapshot> {
    let file = work.canonicalize().expect("a directory").join("runtimes");
    let is_one = |process: &processes::ProcessSnapshot| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        let mut arguments = line.split(|byte| *byte == 0);
        arguments.any(|argument| {
            argument.starts_with(file.as_os_str().as_encoded_bytes()) && argument.ends_with(b"zygote.py")
        })
    };
    let mut found: Vec<_> = processes::all().expect("a list").into_iter().filter(is_one).collect();
    found.sort_by_key(|process| (process.start_ticks, process.pid));
    found
}

/// The zygote above an init, which a script sees as its parent.
fn zygote_of(init: &str) -> u32 {
    processes::observe(init.trim().parse().expect("a number")).expect("it waits for the next job").parent
}

#[tokio::test]
async fn an_end_is_what_the_interpreter_makes_of_it() {
    const CASES: &[(&str, i32, &str)] = &[
        ("pass", 0, ""),
        ("import sys\nsys.exit(4)", 4, ""),
        ("import sys\nsys.exit()", 0, ""),
        ("import sys\nsys.exit(-1)", 255, ""),
        ("import sys\nsys.exit('a last word')", 1, "a last word\n"),
        ("import os\nprint('out')\nos._exit(7)", 7, "out\n"),
        ("x = (", 1, "SyntaxError"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        (
            "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
            1,
            "hook ZeroDivisionError\n",
        ),
        (
            "import threading\ngo = threading.Event()\ndef f():\n    go.wait()\n    print('thread')\n\
             threading.Thread(target=f).start()\nprint('main')\ngo.set()",
            0,
            "main\nthread\n",
        ),
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", 0, ""),
        (
            "import atexit, threading\natexit.register(print, 'at exit')\n\
             threading.Thread(target=lambda: print('thread')).start()",
            0,
            "thread\nat exit\n",
        ),
        ("import atexit\natexit.register(print, 'at exit')\n1 / 0", 1, "at exit\n"),
        (
            "class A:\n    def __del__(self):\n        print('gone')\na = A()\ndef f():\n    return a",
            0,
            "gone\n",
        ),
        ("import os\nif os.fork():\n    os.wait()\nprint('both')", 0, "both\nboth\n"),
        (
            "import asyncio\nasync def main():\n    print(await asyncio.to_thread(lambda: 5))\nasyncio.run(main())",
            0,
            "5\n",
        ),
        (
            "import multiprocessing\ndef say():\n    print('other', flush=True)\nif __name__ == '__main__':\n    \
             other = multiprocessing.get_context('spawn').Process(target=say)\n    other.start()\n    other.join()\n    \
             print(other.exitcode)",
            0,
            "other\n0\n",
        ),
        (
            "import sys\nprint(sys.stdin.read() == '', sys.argv == [__file__], __name__)",
            0,
            "True True __main__\n",
        ),
    ];
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        for (script, code, log) in CASES {
            let outcome = bench.run(python(script)).await;
            assert_eq!(outcome.end.exit_code, Some(*code), "warm {warm}: {script}: {outcome:?}");
            assert!(outcome.log.contains(log), "warm {warm}: {script}: {}", outcome.log);
            for ours in ["zygote.py", "bootstrap.py"] {
                assert!(!outcome.log.contains(ours), "{}", outcome.log);
            }
        }
        let outcome = bench.run(python("def f():\n    raise ValueError('bad')\nf()")).await;
        let lines: Vec<_> = outcome.log.lines().collect();
        assert_eq!((lines[0], lines[5]), ("Traceback (most recent call last):", "ValueError: bad"));
        assert!(lines[1].ends_with("script.py\", line 3, in <module>"), "{}", outcome.log);
        let outcome = bench.run(python("import os\nos.kill(os.getpid(), 9)")).await;
        assert!(outcome.reason().contains("signal 9"), "{}", outcome.reason());
    }
}

#[tokio::test]
async fn what_a_script_wrote_is_kept() {
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        // Not closed, and in a cycle besides.
        let mut execution =
            python("file = open('report', 'w')\nfile.write('kept')\ndef f():\n    return file");
        execution.outputs = vec!["report".into()];
        let outcome = succeed(&mut bench, execution).await;
        let blob = outcome.end.outputs["report"];
        let kept = queue::work_dir::blob_path(&bench.work(), crate::setup::context(), blob.sha256);
        assert_eq!(std::fs::read_to_string(kept).expect("an output"), "kept", "warm {warm}");
    }
}

#[tokio::test]
async fn a_script_and_its_module() {
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        let mut execution = python(
            "import mycora, sys, os\n\
             assert os.getcwd() in sys.path and sys.flags.isolated\n\
             split = mycora.inputs()['split']\n\
             mycora.log('rows', split['rows'])\n\
             mycora.result(rows=split['rows'] + 1, names=['a'], warm='asyncio' in sys.modules)\n\
             mycora.result(word=mycora.env('WORD'))\n\
             print(sorted(name for name in os.environ if not name.startswith('MYCORA_')))\n\
             print(os.getpid() == os.getsid(0), open(os.environ['TMPDIR'] + '/x', 'w').write('12'))",
        );
        execution.env_vars = BTreeMap::from([("WORD".into(), "grün".into())]);
        execution.inputs = inputs(&[("rows", "41")]);
        let outcome = succeed(&mut bench, execution).await;
        assert_eq!((outcome.result("rows"), outcome.result("word")), ("42", "grün"));
        assert_eq!(outcome.result("warm"), warm.to_string());
        let env = "['HOME', 'LC_CTYPE', 'PATH', 'TMPDIR', 'WORD']\nTrue 2\n";
        assert!(outcome.log.contains("rows 41\n") && outcome.log.ends_with(env), "{}", outcome.log);

        let lines = "import os\nopen(os.environ['MYCORA_RESULT'], 'a').write('a=1\\nb=x y\\n')";
        let outcome = succeed(&mut bench, python(lines)).await;
        assert_eq!((outcome.result("a"), outcome.result("b")), ("1", "x y"));

        // Modules of its own come before those of the interpreter, but for what that needs itself.
        let own = python("import statistics, os\nprint(statistics.WHOSE, os.name)");
        let own = with_file(with_file(own, "statistics.py", "WHOSE = 'its own'"), "os.py", "1 / 0");
        assert_eq!(succeed(&mut bench, own).await.log, "its own posix\n");
    }
}

#[tokio::test]
async fn output_is_bounded() {
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        let script = "import sys\nfor n in range(11):\n    print('x' * 1048576, end='')\nprint('end', file=sys.stderr)";
        let outcome = succeed(&mut bench, python(script)).await;
        assert!(outcome.log.contains("was dropped, but for its end]"), "warm {warm}");
        assert!(outcome.log.ends_with("xend\n"), "warm {warm}");
    }
}

#[tokio::test]
async fn what_is_printed_to_both_outputs_comes_in_its_order() {
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        let script = "import sys\nfor n in range(300):\n    print(n, file=[sys.stdout, sys.stderr][n % 3 // 2])\nunknown()";
        let outcome = bench.run(python(script)).await;
        assert_eq!(outcome.end.exit_code, Some(1), "{outcome:?}");
        let lines: Vec<&str> = outcome.log.lines().collect();
        let numbers: Vec<String> = (0..300).map(|n| n.to_string()).collect();
        assert_eq!(lines[..300], numbers, "warm {warm}");
        assert_eq!(lines[300], "Traceback (most recent call last):", "warm {warm}");
        assert_eq!(lines.last(), Some(&"NameError: name 'unknown' is not defined"), "warm {warm}");
    }
}

#[tokio::test]
async fn it_can_be_stopped_and_runs_out_of_time() {
    const POLITE: &str = "import signal, sys\ndef asked(*_):\n    print('asked')\n    sys.exit(0)\n\
                          signal.signal(signal.SIGTERM, asked)\nprint('ready')\nwhile True: pass";
    const PLAIN: &str = "print('ready')\nwhile True: pass";
    const STUBBORN: &str = "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                            subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('ready')\nwhile True: pass";
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        for (script, grace, last) in [(POLITE, 3600, "asked\n"), (PLAIN, 3600, ""), (STUBBORN, 0, "")] {
            let key = bench.accept(python(script)).await;
            bench.printed(key, "ready").await;
            bench.supervisor.stop(key, grace).await.expect("an answer");
            let end = tokio::time::timeout(PATIENCE, bench.end_of(key)).await.expect("an end");
            assert_eq!((end.end.outcome, end.log.as_str()), (Kind::Stopped, last), "warm {warm}: {script}");
            let names: Vec<_> = end.end.ended.iter().map(|process| process.name.as_str()).collect();
            assert_eq!(names.contains(&"sleep"), script == STUBBORN, "{names:?}");
        }
        let execution = Execution { timeout_secs: 1, ..python(STUBBORN) };
        assert_eq!(bench.run(execution).await.end.outcome, Kind::TimedOut, "warm {warm}");
        succeed(&mut bench, python("pass")).await;
    }
}

#[tokio::test]
async fn nothing_of_a_job_survives_it() {
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        let pids = bench.seen().join("pids");
        let script = format!(
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        \
             open('{0}', 'a').write(f'{{os.getpid()}}\\n')\n        time.sleep(600)\n    os._exit(0)\n\
             while not os.path.exists('{0}') or not open('{0}').read(): pass",
            pids.display()
        );
        for _ in 0..5 {
            let outcome = succeed(&mut bench, python(&script)).await;
            let pid = std::fs::read_to_string(&pids).expect("it was written");
            let pid: u32 = pid.trim().parse().expect("a number");
            assert!(processes::observe(pid).is_err(), "warm {warm}");
            assert!(outcome.end.ended.iter().any(|process| process.pid == pid), "{:?}", outcome.end);
            std::fs::remove_file(&pids).expect("a file");
        }
    }
}

#[tokio::test]
async fn a_warm_job_leaves_no_trace_for_the_next() {
    const FIRST: &str = "import builtins, gc, json, logging, os, random, signal, sys, tempfile, threading, atexit\n\
        import mycora, decimal, warnings, socket\n\
        leaked = 'secret of the first'\n\
        builtins.leaked = json.leaked = mycora.leaked = sys.leaked = leaked\n\
        mycora.result(leaked=leaked)\n\
        json.dumps = lambda *_: leaked\n\
        os.environ['LEAKED'] = leaked\n\
        os.putenv('LEAKED', leaked)\n\
        os.umask(0)\n\
        os.chdir('/usr')\n\
        sys.path.insert(0, '/leaked')\n\
        sys.setrecursionlimit(777)\n\
        random.seed(1)\n\
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n\
        logging.basicConfig(level=1)\n\
        decimal.getcontext().prec = 3\n\
        atexit.register(print, 'leaked')\n\
        kept = [open(os.environ['TMPDIR'] + '/leaked', 'w'), *socket.socketpair()]\n\
        tempfile.tempdir = '/leaked'\n\
        threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
        print(random.random(), file=open(os.environ['SEEN'], 'w'))\n";
    const SECOND: &str = "import builtins, gc, json, logging, os, random, signal, sys, tempfile, threading\n\
        import mycora, decimal\n\
        assert 'asyncio' in sys.modules\n\
        found = [m.__name__ for m in (builtins, json, mycora, sys) if hasattr(m, 'leaked')]\n\
        assert not found and 'leaked' not in globals(), found\n\
        assert json.dumps({}) == '{}' and mycora._given == {}\n\
        assert 'LEAKED' not in os.environ and os.system('test -z \"$LEAKED\"') == 0\n\
        assert os.umask(0o22) != 0 and os.getcwd() == os.environ['HOME']\n\
        assert '/leaked' not in sys.path and sys.getrecursionlimit() == 1000\n\
        assert random.random() != float(open(os.environ['SEEN']).read())\n\
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL and not signal.pthread_sigmask(0, [])\n\
        assert not logging.getLogger().handlers and decimal.getcontext().prec == 28\n\
        assert tempfile.gettempdir() == os.environ['TMPDIR'] and not os.listdir(os.environ['TMPDIR'])\n\
        assert threading.active_count() == 1 and threading.main_thread().native_id == os.getpid()\n\
        def is_open(number):\n    \
            try: return bool(os.fstat(number))\n    \
            except OSError: return False\n\
        assert [n for n in range(256) if is_open(n)] == [0, 1, 2]\n\
        text = 'secret of ' + 'the first'\n\
        assert not [thing for thing in gc.get_objects() if type(thing) is dict and text in map(str, thing.values())\n    \
            and thing is not globals()]\n";
    let mut bench = bench(true).await;
    let seen = bench.seen().join("random").display().to_string();
    // Two at once have inits of their own, so both orders are there.
    for _ in 0..3 {
        for script in [FIRST, SECOND, SECOND] {
            let mut execution = python(script);
            execution.env_vars = BTreeMap::from([("SEEN".into(), seen.clone())]);
            let outcome = succeed(&mut bench, execution).await;
            assert!(script == FIRST || outcome.end.result.is_empty(), "{outcome:?}");
        }
    }
}

/// Returns the output of a job that reaches out to another one of its context, and to its own init.
async fn reach_out(mut bench: RunnerTestBench) -> String {
    let seen = bench.seen().join("first").display().to_string();
    let first = python(&format!(
        "import os\nopen('mine', 'w').write('secret')\nopen('{seen}', 'w').write(os.getcwd())\nprint('ready')\nwhile True: pass"
    ));
    let running = bench.accept(first).await;
    bench.printed(running, "ready").await;
    let second = python(&format!(
        "import os, signal\nother = open('{seen}').read()\n\
         def refused(what):\n    \
             try: what()\n    \
             except OSError as error: return type(error).__name__\n    \
             return 'allowed'\n\
         print(refused(lambda: open(other + '/mine')), refused(lambda: open(other + '/new', 'w')),\n    \
             refused(lambda: os.kill(os.getppid(), signal.SIGCONT)), refused(lambda: os.listdir('/proc')))"
    ));
    let key = bench.accept(second).await;
    let mut log = String::new();
    loop {
        for event in bench.reader.next(std::future::pending()).await.expect("events") {
            match event.kind {
                queue::QueueEventKind::Log(piece) if event.job_key == key => log.push_str(&piece.text),
                queue::QueueEventKind::Ended(_) if event.job_key == key => return log,
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn a_warm_job_reaches_no_other_job_of_its_context() {
    let confined = bench(true).await;
    if confined.runner.isolation_support().level < model::Isolation::Confined {
        return;
    }
    assert_eq!(
        reach_out(confined).await,
        "PermissionError PermissionError PermissionError PermissionError\n"
    );
    // It is Landlock that keeps them apart, since they are of one user.
    let layers = IsolationLayers { files: false, ..IsolationLayers::default() };
    let bench = RunnerTestBench::with(|settings| RunnerSettings {
        layers,
        types: vec![ScriptType::Python],
        ..settings
    })
    .await;
    assert_eq!(reach_out(bench).await, "allowed allowed allowed allowed\n");
}

#[tokio::test]
async fn contexts_never_share_an_interpreter() {
    let mut bench = bench(true).await;
    let mut zygotes = Vec::new();
    for (context, network) in [(1, false), (2, false), (1, false), (1, true), (2, false)] {
        let mut execution = Execution { network, ..python("import os\nprint(os.getppid())") };
        execution.job_key.context = ContextUid(Uid::from_bits(context));
        zygotes.push(zygote_of(&succeed(&mut bench, execution).await.log));
    }
    assert_eq!((zygotes[0], zygotes[1]), (zygotes[2], zygotes[4]));
    assert!(zygotes[0] != zygotes[1] && zygotes[3] != zygotes[0] && zygotes[3] != zygotes[1], "{zygotes:?}");
}

#[tokio::test]
async fn a_context_that_came_back_has_another_interpreter() {
    let mut bench = bench(true).await;
    let script = "import os\nprint(os.getppid())";
    let before = zygote_of(&succeed(&mut bench, python(script)).await.log);
    // As when the context was dropped.
    let context = queue::work_dir::jobs_dir(&bench.work(), crate::setup::context());
    std::fs::rename(&context, bench.dir.path().join("dropped")).expect("a directory");
    let after = zygote_of(&succeed(&mut bench, python(script)).await.log);
    assert_ne!(before, after);
}

#[tokio::test]
async fn a_job_survives_its_interpreter_and_the_next_has_another() {
    let mut bench = bench(true).await;
    let go = bench.seen().join("go");
    let script = format!(
        "import os, mycora\nprint('ready')\nwhile not os.path.exists('{}'): pass\nmycora.result(a=1)",
        go.display()
    );
    let key = bench.accept(python(&script)).await;
    bench.printed(key, "ready").await;
    let zygote = interpreters(&bench.work())[0];
    assert!(processes::kill(zygote));
    std::fs::write(&go, "").expect("a file");
    let outcome = bench.end_of(key).await;
    assert_eq!((outcome.end.outcome, outcome.result("a")), (Kind::Succeeded, "1"), "{outcome:?}");
    let next =
        succeed(&mut bench, python("import os, sys\nassert 'asyncio' in sys.modules\nprint(os.getppid())"))
            .await;
    assert_ne!(zygote_of(&next.log), zygote.pid);
}

#[tokio::test]
async fn where_python_cannot_be_warmed_it_is_started_anew() {
    let mut bench = bench(true).await;
    let versions = std::fs::read_dir(bench.work().join("runtimes")).expect("a directory");
    for version in versions {
        let zygote = version.expect("a directory").path().join("python/zygote.py");
        std::fs::write(zygote, "raise SystemExit").expect("a file");
    }
    for _ in 0..2 {
        let outcome = succeed(&mut bench, python("import sys\nprint('asyncio' in sys.modules)")).await;
        assert_eq!(outcome.log, "False\n");
    }
}

#[tokio::test]
async fn a_warm_job_is_bounded_and_the_next_is_not_affected() {
    let mut bench = bench(true).await;
    if bench.runner.isolation_support().level < model::Isolation::Contained {
        return;
    }
    let who = "import os\nprint(os.getppid())";
    let zygote = zygote_of(&succeed(&mut bench, python(who)).await.log);
    let outcome = bench.run(python("kept = []\nwhile True: kept.append(b'x' * 16777216)")).await;
    assert_eq!(
        outcome.end.reason.as_ref().map(|reason| reason.code),
        Some(ReasonCode::OutOfMemory),
        "{outcome:?}"
    );
    let bomb = "import os, time\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(600)\n\
                except BlockingIOError:\n    print('no more')";
    let outcome = succeed(&mut bench, python(bomb)).await;
    assert!(outcome.log.ends_with("no more\n") && !outcome.end.ended.is_empty(), "{outcome:?}");
    assert_eq!(zygote_of(&succeed(&mut bench, python(who)).await.log), zygote);
}

#[tokio::test]
async fn a_job_ends_with_its_init_and_nothing_of_it_is_left() {
    let mut bench = bench(true).await;
    let seen = bench.seen().join("pids");
    let script = format!(
        "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n\
         open('{}', 'w').write(f'{{os.getppid()}} {{os.getpid()}} {{child.pid}}')\nprint('ready')\nwhile True: pass",
        seen.display()
    );
    let key = bench.accept(python(&script)).await;
    bench.printed(key, "ready").await;
    let pids = std::fs::read_to_string(&seen).expect("they were written");
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().expect("a number")).collect();
    assert!(processes::kill(processes::observe(pids[0]).expect("the init")));
    let outcome = bench.end_of(key).await;
    assert_eq!(outcome.end.outcome, Kind::Failed, "{outcome:?}");
    assert_eq!(outcome.end.reason.map(|reason| reason.code), Some(ReasonCode::RuntimeError));
    let gone = || async { pids.iter().all(|pid| processes::observe(*pid).is_err()).then_some(()) };
    wait_until(gone, PATIENCE, "nothing is left of it").await;
    succeed(&mut bench, python("pass")).await;
}

#[tokio::test]
async fn a_worn_interpreter_is_replaced() {
    let mut bench = bench(true).await;
    let who = "import os, sys\nassert 'asyncio' in sys.modules\nprint(os.getppid())";
    let first = zygote_of(&succeed(&mut bench, python(who)).await.log);
    let (mut begun, mut ended) = (0, 0);
    // As many as an interpreter serves, and some for the time that the next takes to start.
    while ended < 1200 {
        while begun < (ended + 64).min(1200) {
            bench.accept(python("import sys\nassert 'asyncio' in sys.modules")).await;
            begun += 1;
        }
        let events = bench.reader.next(std::future::pending()).await.expect("events");
        for event in &events {
            if let queue::QueueEventKind::Ended(end) = &event.kind {
                assert_eq!(end.outcome, Kind::Succeeded, "{end:?}");
                ended += 1;
            }
        }
        bench.reader.acknowledge(&events).await.expect("acknowledged");
    }
    let gone = || async { processes::observe(first).is_err().then_some(()) };
    wait_until(gone, PATIENCE, "the first interpreter was let go").await;
    succeed(&mut bench, python(who)).await;
}

#[tokio::test]
async fn nothing_is_left_when_the_runner_ends() {
    let mut bench = bench(true).await;
    succeed(&mut bench, python("pass")).await;
    let work = bench.work();
    assert!(!interpreters(&work).is_empty());
    bench.runner.drain().await;
    let gone = || async { interpreters(&work).is_empty().then_some(()) };
    wait_until(gone, PATIENCE, "the interpreters have ended").await;
}

/// Returns true if an interpreter that scripts of any user can reach has pip.
fn has_pip() -> bool {
    let probe = std::process::Command::new("/usr/bin/python3").args(["-m", "pip", "--version"]).output();
    probe.is_ok_and(|output| output.status.success())
}

/// Modules on PYTHONPATH come behind those beside the script, and before those of the interpreter.
#[tokio::test]
async fn modules_are_loaded_from_the_directories_of_pythonpath() {
    for warm in [true, false] {
        let mut bench = bench(warm).await;
        let mut execution = python(
            "import json, mine, os, sys\nprint(json.HERE, mine.HERE)\n\
             print([os.path.relpath(place) for place in sys.path[1:4]], 'other' in sys.modules)\n\
             import subprocess\nsubprocess.run([sys.executable, '-c', 'import mine; print(mine.HERE)'], check=True)",
        );
        execution.env_vars.insert("PYTHONPATH".into(), "lib:more:/nowhere".into());
        for (name, text) in [
            ("lib/json/__init__.py", "HERE = 'lib'"),
            ("lib/mine.py", "HERE = 'lib'"),
            ("mine.py", "HERE = 'beside the script'"),
            ("more/json.py", "HERE = 'more'"),
        ] {
            execution = with_file(execution, name, text);
        }
        let outcome = succeed(&mut bench, execution).await;
        let expected = "lib beside the script\n['.', 'lib', 'more'] False\nbeside the script\n";
        assert_eq!(outcome.log, expected, "warm: {warm}");
        let outcome = succeed(&mut bench, python("import json\nprint(hasattr(json, 'HERE'))")).await;
        assert_eq!(outcome.log, "False\n", "the next job is not concerned");
    }
}

#[tokio::test]
async fn pip_installs_into_the_directory_of_a_job() {
    if !has_pip() {
        println!("left out: /usr/bin/python3 has no pip");
        return;
    }
    let mut bench = bench(true).await;
    let mut execution = python(
        r#"
import importlib, subprocess, sys, zipfile
with zipfile.ZipFile("greeting-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("greeting.py", "TEXT = 'installed'")
    about = "greeting-1.0.dist-info/"
    wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    names = ["greeting.py", about + "METADATA", about + "WHEEL", about + "RECORD"]
    wheel.writestr(about + "RECORD", "".join(name + ",,\n" for name in names))
install = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", ".", "--target", "lib", "greeting"]
subprocess.run(install, check=True)
importlib.invalidate_caches()
import greeting
print(greeting.TEXT)
"#,
    );
    execution.network = true;
    execution.env_vars.insert("PYTHONPATH".into(), "lib".into());
    let key = bench.accept_with(execution, model::Grants { network: true, ..Default::default() }).await;
    let outcome = bench.end_of(key).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    assert!(
        outcome.log.ends_with(
            "installed
"
        ),
        "{outcome:?}"
    );
}
