//! Behaviour that is particular to rhai jobs.

use std::process::Command;

use kv::Kv;
use model::execution::Outcome as Kind;
use model::{Grants, ReasonCode, ScriptType};
use queue::{JobOffer, QueueEventKind, SupervisorQueues};
use testkit::{PATIENCE, RedisServer, TestProcess, wait_until};

use crate::setup::{RunnerTestBench, inputs, job, place};

#[tokio::test]
async fn a_rhai_job_merges() {
    let mut bench = RunnerTestBench::new().await;
    let mut execution = job(
        ScriptType::Rhai,
        r#"
        let total = 0;
        for node in inputs.keys() { total += inputs[node].rows; }
        print(`total ${total} ${env.WORD}`);
        result("total", total);
        result(#{ list: [1, 2.5, "x"], word: env.WORD });
        write_file("report.json", to_json(#{ total: total }));
        let back = parse_json(read_file("report.json"));
        result("back", back.total == total);
        "#,
    );
    execution.env_vars.insert("WORD".into(), "w".into());
    execution.inputs = inputs(&[("rows", "41")]);
    execution.outputs = vec!["report.json".into()];
    let outcome = bench.run(execution).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    let result: Vec<_> = outcome.end.result.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(result, [("back", "true"), ("list", "[1,2.5,\"x\"]"), ("total", "41"), ("word", "w")]);
    assert_eq!(outcome.log, "total 41 w\n");
    let blob = outcome.end.outputs["report.json"];
    let kept = queue::work_dir::blob_path(&bench.work(), crate::setup::context(), blob.sha256);
    assert_eq!(std::fs::read_to_string(kept).expect("an output"), "{\"total\":41}");
}

#[tokio::test]
async fn a_directory_is_made_for_those_that_come_to_it() {
    let mut bench = RunnerTestBench::new().await;
    let jobs = queue::work_dir::jobs_dir(&bench.work(), crate::setup::context());
    for (script_type, script) in [
        (ScriptType::Rhai, r#"result("a", 1)"#),
        (ScriptType::Sal, r#"result("a", env("HOME"))"#),
        (ScriptType::Osis, r#"osis_set("c", "id", #{ a: 1 })"#),
    ] {
        let outcome = bench.run(job(script_type, script)).await;
        assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
        assert!(!jobs.exists(), "{script_type} came to none");
    }
    let mut promises = job(ScriptType::Rhai, "1");
    promises.outputs = vec!["out".into()];
    assert!(bench.run(promises).await.reason().contains("it did not make output `out`"));
    for (script_type, script) in [
        (ScriptType::Rhai, r#"try { read_file("absent") } catch { write_file("there", "x") }"#),
        (ScriptType::Sal, r#"if exists("absent") || list_dir(".") != [".mycora/"] { throw "what is it?" }"#),
        (ScriptType::Sal, r#"if run("ls", ["-A"]).out != ".mycora\n" { throw "what is it?" }"#),
    ] {
        let outcome = bench.run(job(script_type, script)).await;
        assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
        assert!(jobs.exists());
        let gone = || async { bench.attempts().is_empty().then_some(()) };
        wait_until(gone, PATIENCE, "the directory is gone").await;
        std::fs::remove_dir(&jobs).expect("empty");
    }
}

#[tokio::test]
async fn a_rhai_failure_is_logged_with_its_line_or_message() {
    let mut bench = RunnerTestBench::new().await;
    for (script, code, part) in [
        ("exit(5);", 5, ""),
        ("let x = 1;\nlet y = x + missing;", 1, "line 2"),
        ("let x = ;", 1, "line 1"),
        ("throw \"up\"", 1, "up"),
    ] {
        let outcome = bench.run(job(ScriptType::Rhai, script)).await;
        assert_eq!((outcome.end.outcome, outcome.end.exit_code), (Kind::Failed, Some(code)), "{script}");
        assert!(outcome.log.contains(part), "{script}: {}", outcome.log);
    }
}

#[tokio::test]
async fn a_rhai_job_stays_inside() {
    let mut bench = RunnerTestBench::new().await;
    for (script, part) in [
        ("read_file(\"/etc/passwd\")", "leads out"),
        ("write_file(\"../x\", \"y\")", "leads out"),
        ("import \"other\" as o;", "import"),
        ("eval(\"1\")", "eval"),
        ("let f = |x| x; f.curry(1)", "name of a property"),
        ("let k = 1; [1].map(|x| x + k)", "a closure does not see the variables around it"),
        ("let s = \"\"; s.pad(8_000_000, 'x'); s.replace(\"x\", s)", "Length of string too large"),
        ("let s = \"\"; s.pad(8_000_000, 'x'); s.split(\"\")", "Size of array/BLOB too large"),
        ("let a = []; a.pad(300_000, 1)", "Size of array/BLOB too large"),
        ("let a = 1; for n in 0..200 { a = [a]; } print(a)", "nested deeper than 120"),
        ("let a = 1; for n in 0..200 { a = [a]; } to_json(a)", "nested deeper than 120"),
        ("let s = \"x\"; loop { s += s; }", "Length of string too large"),
        ("fn f(n) { f(n + 1) } f(0)", "Stack overflow"),
    ] {
        let outcome = bench.run(job(ScriptType::Rhai, script)).await;
        assert_eq!(outcome.end.exit_code, Some(1), "{script}: {outcome:?}");
        assert!(outcome.log.to_lowercase().contains(&part.to_lowercase()), "{script}: {}", outcome.log);
    }
}

#[tokio::test]
async fn bounded_functions_do_what_the_standard_ones_do() {
    let mut bench = RunnerTestBench::new().await;
    let script = r##"
        fn same(got, expected) { if got != expected { throw `${got} instead of ${expected}`; } }
        let t = "a-b-b";
        t.replace("b", "cc"); same(t, "a-cc-cc");
        t.replace("cc", 'd'); same(t, "a-d-d");
        t.replace('d', "e"); same(t, "a-e-e");
        t.replace('e', 'f'); same(t, "a-f-f");
        same(t.split("-"), ["a", "f", "f"]);
        same(t.split('-', 2), ["a", "f-f"]);
        same(t.split("-", -1), ["a-f-f"]);
        same(t.split_rev("-", 2), ["f", "a-f"]);
        same(" a  b ".split(), ["a", "b"]);
        same("ab".to_chars(), ['a', 'b']);
        same("" + [1, "a", 'c', 2.5, (), true, #{x: [1]}], `[1, "a", 'c', 2.5, (), true, #{"x": [1]}]`);
        same([1, 2.0] == [1.0, 2], true);
        same(#{a: [1]} == #{a: [1], b: 2}, false);
        same([#{a: "x"}].contains(#{a: "x"}), true);
        same(parse_json(to_json(#{a: [1, 2.5, (), "x", true, 9223372036854775807]})),
             #{a: [1, 2.5, (), "x", true, 9223372036854775807]});
    "##;
    let outcome = bench.run(job(ScriptType::Rhai, script)).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{}", outcome.log);
}

/// Scripts that take all the memory they can, in as many ways as there are to hold it.
const GREEDY: [&str; 7] = [
    "let all = #{}; let n = 0; loop { n += 1; let s = `${n}`; s.pad(160_000, 'x'); all[s.len() + `${n}`] = s; }",
    "fn f(n) { let s = `${n}`; s.pad(16_000_000, 'x'); let a = []; a.pad(90_000, [n]); f(n + 1) } f(0)",
    "let s = \"\"; s.pad(60_000, '1'); s.replace(\"1\", \"{\\\"a\\\":{}},\"); let m = parse_json(`[${s}1]`); \
     fn f(m, n) { f(m + [n], n + 1) } f(m, 0)",
    "let a = []; a.pad(100_000, 1.5); fn g(a, n) { let b = a; let c = a; let d = a; let e = a; g([b, n], n) } g(a, 1)",
    "let s = \"\"; s.pad(3_000_000, '1'); s.replace(\"1\", \"[],\"); s = `[${s}1]`; let a = parse_json(s); loop { }",
    "let s = \"\"; s.pad(16_000_000, 'x'); let f = []; loop { result(`${f.len()}`, s); f.push(1); }",
    "let a = [1]; loop { let b = []; b.pad(150_000, 7); a = a.map(|x| { let c = []; c.pad(150_000, 8); c }); f(b) } \
     fn f(b) { let c = b; c.push(1); f(c) }",
];

#[tokio::test]
async fn a_greedy_script_ends_before_the_machine_does() {
    let redis = RedisServer::start();
    let place = place();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mycora-runner"));
    command
        .args(["--redis-url", &redis.url(), "--types", "rhai", "--ops-listen", "127.0.0.1:0", "--work-dir"])
        .arg(place.path().join("work"));
    let mut runner = TestProcess::spawn("runner", &mut command);
    let _ = runner.wait_for_line("take jobs", PATIENCE);
    let supervisor = SupervisorQueues::new(Kv::new(redis.url().parse().expect("a url")), 0);
    let mut reader = supervisor.events();
    let before = peak_bytes(runner.pid());
    for script in GREEDY {
        let mut execution = job(ScriptType::Rhai, script);
        // Memory ends it, not the clock of a machine with other work.
        execution.timeout_secs = 600;
        let offer = JobOffer {
            execution,
            coordinator: "c".into(),
            grants: Grants::default(),
            condition: queue::AcceptCondition::None,
            weight: std::num::NonZeroU32::MIN,
        };
        supervisor.accept(offer).await.expect("an accepted job");
        let end = 'ended: loop {
            for event in reader.next(std::future::pending()).await.expect("events") {
                if let QueueEventKind::Ended(end) = event.kind {
                    break 'ended end;
                }
            }
        };
        let peak = peak_bytes(runner.pid());
        println!("{} MiB more at most, {:?}: {script}", (peak - before) >> 20, end.reason);
        assert_eq!(end.outcome, Kind::Failed, "{script}: {end:?}");
        // What it held was in its engine; what comes of that to the runner is a result at most.
        assert!(peak - before < 64 << 20, "{} MiB: {script}", (peak - before) >> 20);
    }
}

/// The most memory that a process has had.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel tells it");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

#[tokio::test]
async fn an_end_for_memory_is_reported_and_a_policy_may_lower_the_limit() {
    let mut bench = RunnerTestBench::new().await;
    let script = "let a = []; for n in 0..20 { let s = `${n}`; s.pad(500_000, 'x'); a.push(s); } result(\"n\", a.len());";
    assert_eq!(bench.run(job(ScriptType::Rhai, script)).await.result("n"), "20");
    let grants = Grants { memory_bytes: 8 << 20, ..Grants::default() };
    let key = bench.accept_with(job(ScriptType::Rhai, script), grants).await;
    let outcome = bench.end_of(key).await;
    assert_eq!(
        outcome.end.reason.as_ref().map(|reason| reason.code),
        Some(ReasonCode::OutOfMemory),
        "{outcome:?}"
    );
    assert!(outcome.reason().contains("8388608"), "{}", outcome.reason());
}

#[tokio::test]
async fn values_nested_without_end_do_not_end_the_runner() {
    let mut bench = RunnerTestBench::new().await;
    let (open, close) = ("[#{a:".repeat(12), "}]".repeat(12));
    let script = format!(
        "let a = []; for n in 0..250 {{ a = {open} a {close}; }} let b = a; \
         result(\"same\", a == b); result(\"in\", [a].contains(b)); try {{ print(a); }} catch {{ print(\"caught\"); }}"
    );
    let outcome = bench.run(job(ScriptType::Rhai, &script)).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    assert_eq!(
        (outcome.result("same"), outcome.result("in"), outcome.log.as_str()),
        ("true", "true", "caught\n")
    );
}
