//! Behaviour that all languages share, checked with each.

use std::time::Duration;

use model::execution::Outcome as Kind;
use model::limits::OUTPUT_BYTES_MAX;
use model::{ReasonCode, ScriptType};
use runner::RunnerSettings;
use sandbox::IsolationLayers;
use testkit::{PATIENCE, wait_until};

use crate::setup::{AttemptTestOutcome, RunnerTestBench, inputs, job};

/// One language in the words that the checks need.
struct LanguageSamples {
    script_type: ScriptType,
    /// Gives `a` = 1 and `b` = `x y`, in the forms that it has.
    results: &'static [&'static str],
    /// Gives a result, says `gone wrong`, exits with 3.
    fails: &'static str,
    /// Prints 11,000,000 `x` and then `still` to its other output.
    floods: &'static str,
    /// Prints `ready` and goes on for ever.
    endless: &'static [&'static str],
    /// Prints its input `split.rows`.
    reads: &'static str,
}

const SHELL: LanguageSamples = LanguageSamples {
    script_type: ScriptType::Shell,
    results: &[
        "echo a=1 >> $MYCORA_RESULT; echo 'b=x y' >> $MYCORA_RESULT",
        "echo '{\"a\": 1, \"b\": \"x y\"}' > $MYCORA_RESULT",
    ],
    fails: "echo gone wrong >&2; echo a=1 > $MYCORA_RESULT; exit 3",
    floods: "head -c 11000000 /dev/zero | tr '\\0' x; echo still >&2",
    endless: &["echo ready; while :; do :; done", "echo ready; sleep 600"],
    reads: "grep -o 1461 $MYCORA_INPUTS",
};

const RHAI: LanguageSamples = LanguageSamples {
    script_type: ScriptType::Rhai,
    results: &["result(\"a\", 1); result(#{ b: \"x y\" });"],
    fails: "debug(\"gone wrong\"); result(\"a\", 1); exit(3);",
    floods: "let s = \"\"; s.pad(1_000_000, 'x'); for n in 0..11 { print(s); } debug(\"still\");",
    endless: &[
        "print(\"ready\"); loop { }",
        "print(\"ready\"); sleep(600);",
        "print(\"ready\"); let list = []; list.pad(200_000, \"b\"); loop { list.sort(); list.contains(\"a\"); }",
        "print(\"ready\"); let s = \"\"; s.pad(16_000_000, 'x'); loop { s.contains(\"y\"); s.to_upper(); }",
    ],
    reads: "print(inputs.split.rows);",
};

const OSIS: LanguageSamples = LanguageSamples {
    script_type: ScriptType::Osis,
    endless: &[
        "print(\"ready\"); loop { osis_set(\"c\", \"a\", #{ n: 1 }); }",
        "print(\"ready\"); loop { osis_list(\"c\"); }",
    ],
    ..RHAI
};

const SAL: LanguageSamples = LanguageSamples {
    script_type: ScriptType::Sal,
    endless: &[
        "print(\"ready\"); run(\"sleep\", [\"600\"]);",
        "print(\"ready\"); loop { run(\"true\"); }",
        "print(\"ready\"); loop { try { run(\"sh\", [\"-c\", \"trap '' TERM; sleep 600\"]); } catch { } }",
    ],
    ..RHAI
};

const RUST: LanguageSamples = LanguageSamples {
    script_type: ScriptType::Rust,
    results: &[
        "fn main() { std::fs::write(std::env::var(\"MYCORA_RESULT\").unwrap(), \"a=1\\nb=x y\\n\").unwrap(); }",
        "fn main() { std::fs::write(std::env::var(\"MYCORA_RESULT\").unwrap(), r#\"{\"a\": 1, \"b\": \"x y\"}\"#).unwrap(); }",
    ],
    fails: "fn main() { eprintln!(\"gone wrong\"); std::process::exit(3); }",
    floods: "fn main() { print!(\"{}\", \"x\".repeat(11_000_000)); eprintln!(\"still\"); }",
    endless: &["fn main() { println!(\"ready\"); loop { std::hint::spin_loop(); } }"],
    reads: "fn main() { let all = std::fs::read_to_string(std::env::var(\"MYCORA_INPUTS\").unwrap()).unwrap(); \
            assert!(all.contains(\"1461\")); println!(\"1461\"); }",
};

const V: LanguageSamples = LanguageSamples {
    script_type: ScriptType::V,
    // In words that compilers before 0.3 understand as well.
    results: &["import os\nos.write_file(os.getenv('MYCORA_RESULT'), 'a=1\\nb=x y\\n') or { panic(err) }"],
    fails: "eprintln('gone wrong')\nexit(3)",
    floods: "print('x'.repeat(11000000))\neprintln('still')",
    endless: &["println('ready')\nflush_stdout()\nfor {}"],
    reads: "import os\ntext := os.read_file(os.getenv('MYCORA_INPUTS')) or { '' }\n\
            println(if text.contains('1461') { '1461' } else { '' })",
};

/// Every language that this machine has.
async fn bench() -> (RunnerTestBench, Vec<LanguageSamples>) {
    // A compiler may be where only its owner gets to.
    let bench = RunnerTestBench::with(|settings| RunnerSettings {
        layers: IsolationLayers { owner: false, ..settings.layers },
        ..settings
    })
    .await;
    let offered: Vec<_> = bench.runner.instances().iter().map(|instance| instance.script_type).collect();
    let samples: Vec<_> = [SHELL, RHAI, OSIS, SAL, RUST, V]
        .into_iter()
        .filter(|samples| offered.contains(&samples.script_type))
        .collect();
    assert!(samples.len() >= 4, "{offered:?}");
    (bench, samples)
}

fn assert_kind(outcome: &AttemptTestOutcome, kind: Kind, script: &str) {
    assert_eq!(outcome.end.outcome, kind, "{script}: {outcome:?}");
}

#[tokio::test]
async fn every_language_gives_results_in_all_its_forms() {
    let (mut bench, samples) = bench().await;
    for samples in samples {
        for script in samples.results {
            let outcome = bench.run(job(samples.script_type, script)).await;
            assert_kind(&outcome, Kind::Succeeded, script);
            assert_eq!((outcome.result("a"), outcome.result("b")), ("1", "x y"), "{script}");
        }
        let mut execution = job(samples.script_type, samples.reads);
        execution.inputs = inputs(&[("rows", "1461")]);
        assert_eq!(bench.run(execution).await.log, "1461\n", "{}", samples.reads);
    }
    // Nobody waits for that before a job ends.
    let gone = || async { bench.attempts().is_empty().then_some(()) };
    wait_until(gone, PATIENCE, "no directory is left").await;
}

#[tokio::test]
async fn every_failure_has_its_code() {
    let (mut bench, samples) = bench().await;
    for samples in samples {
        let outcome = bench.run(job(samples.script_type, samples.fails)).await;
        assert_kind(&outcome, Kind::Failed, samples.fails);
        assert_eq!(outcome.end.exit_code, Some(3), "{outcome:?}");
        assert_eq!(outcome.end.reason.as_ref().map(|reason| reason.code), Some(ReasonCode::ExitCode));
        assert!(outcome.log.contains("gone wrong"), "{outcome:?}");
        assert!(outcome.end.result.is_empty(), "{outcome:?}");
    }
}

#[tokio::test]
async fn output_is_bounded_in_every_language() {
    let (mut bench, samples) = bench().await;
    for samples in samples {
        let outcome = bench.run(job(samples.script_type, samples.floods)).await;
        assert_kind(&outcome, Kind::Succeeded, samples.floods);
        let printed = outcome.log.matches(['x', '\n']).count() as u64;
        let most = OUTPUT_BYTES_MAX + 17 * 1024;
        assert!((OUTPUT_BYTES_MAX..most).contains(&printed), "{printed}: {}", samples.floods);
        assert_eq!(outcome.log.matches("was dropped").count(), 1, "{}", samples.floods);
        assert!(outcome.log.contains("still"), "{}", samples.floods);
    }
}

#[tokio::test]
async fn every_language_can_be_stopped() {
    let (mut bench, samples) = bench().await;
    for samples in samples {
        for script in samples.endless {
            let mut execution = job(samples.script_type, script);
            execution.timeout_secs = 0;
            let key = bench.accept(execution).await;
            bench.printed(key, "ready").await;
            bench.supervisor.stop(key, 0).await.expect("an answer");
            let outcome = tokio::time::timeout(PATIENCE, bench.end_of(key)).await.expect("an end in time");
            assert_kind(&outcome, Kind::Stopped, script);
        }
    }
    assert_eq!(bench.attempts(), [""; 0], "no directory is left");
}

#[tokio::test]
async fn every_language_runs_out_of_time() {
    let (mut bench, samples) = bench().await;
    for samples in samples {
        for script in samples.endless {
            let begin = std::time::Instant::now();
            let mut execution = job(samples.script_type, script);
            execution.timeout_secs = 2;
            let outcome = bench.run(execution).await;
            assert_kind(&outcome, Kind::TimedOut, script);
            assert_eq!(outcome.end.reason.map(|reason| reason.code), Some(ReasonCode::Timeout), "{script}");
            assert!(begin.elapsed() < Duration::from_secs(30), "{script}");
        }
    }
}
