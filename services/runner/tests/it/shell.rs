//! Behaviour that is particular to shell jobs, and to the result file of all jobs that have one.

use model::ReasonCode;
use model::execution::Outcome as Kind;

use crate::setup::{RunnerTestBench, inputs, shell};

#[tokio::test]
async fn a_shell_job_knows_where_it_is_and_nothing_else() {
    let mut bench = RunnerTestBench::new().await;
    let mut execution = shell(
        "env | cut -d= -f1 | sort | tr '\\n' ' '\necho \"$MYCORA_CONTEXT $MYCORA_FLOW $MYCORA_JOB $MYCORA_ATTEMPT\"\n\
         echo \"$GREETING\" >&2\ncat \"$MYCORA_INPUTS\"; (cat <&3) 2>&1 && echo leaked; ls -A",
    );
    execution.env_vars.insert("GREETING".into(), "hi ${{ results.split.rows }} of ${{ flow.name }}".into());
    execution.inputs = inputs(&[("rows", "1461"), ("what", "days")]);
    execution.traceparent = Some("00-1-1-01".into());
    let outcome = bench.run(execution).await;
    let names = "GREETING HOME MYCORA_ATTEMPT MYCORA_CONTEXT MYCORA_FLOW MYCORA_INPUTS MYCORA_JOB MYCORA_RESULT PATH PWD TMPDIR TRACEPARENT";
    assert!(outcome.log.contains(names), "{}", outcome.log);
    for part in ["5 7 3 2\n", "hi 1461 of flow\n", r#"{"split":{"rows":1461,"what":"days"}}"#] {
        assert!(outcome.log.contains(part), "{part}: {}", outcome.log);
    }
    assert!(!outcome.log.contains("leaked"), "{}", outcome.log);
}

#[tokio::test]
async fn an_invalid_result_file_fails_the_job_with_the_reason() {
    let mut bench = RunnerTestBench::new().await;
    let outcome = bench.run(shell("echo '{\"n\": 1226.0, \"l\": [1, 2]}' > $MYCORA_RESULT")).await;
    assert_eq!((outcome.result("n"), outcome.result("l")), ("1226.0", "[1,2]"));
    let outcome = bench.run(shell("echo nonsense > $MYCORA_RESULT")).await;
    assert_eq!(outcome.end.outcome, Kind::Failed);
    let reason =
        "RUNTIME_ERROR: the script ended well, but line 1 of $MYCORA_RESULT is not key=value: nonsense";
    assert_eq!((outcome.reason().as_str(), outcome.end.exit_code), (reason, Some(0)));
    let outcome = bench.run(shell("head -c 2000000 /dev/zero | tr '\\0' x > $MYCORA_RESULT")).await;
    assert_eq!(outcome.end.reason.map(|reason| reason.code), Some(ReasonCode::ResultTooLarge));
    let outcome = bench.run(shell("rm $MYCORA_RESULT; ln -s /etc/passwd $MYCORA_RESULT")).await;
    assert!(outcome.reason().contains("symbolic link"), "{}", outcome.reason());
}

#[tokio::test]
async fn a_fatal_signal_is_reported() {
    let mut bench = RunnerTestBench::new().await;
    let outcome = bench.run(shell("kill -9 $$")).await;
    assert_eq!(outcome.end.exit_code, None);
    assert!(outcome.reason().contains("signal 9"), "{}", outcome.reason());
}

#[tokio::test]
async fn a_first_line_chooses_the_interpreter() {
    let mut bench = RunnerTestBench::new().await;
    let bash = "list=(a b)\necho \"${list[1]} ${BASH_VERSION:+bash} $-\"";
    for (line, ends) in [("#!/bin/bash", "B"), ("#! /bin/bash -eu", "euB"), ("#!/usr/bin/env bash", "B")] {
        let outcome = bench.run(shell(&format!("{line}\n{bash}"))).await;
        assert_eq!(outcome.end.outcome, Kind::Succeeded, "{line}: {outcome:?}");
        assert!(
            outcome.log.starts_with("b bash ") && outcome.log.trim().ends_with('B'),
            "{line}: {outcome:?}"
        );
        let has_flags = |flags: &str| flags.chars().all(|flag| outcome.log.contains(flag));
        assert!(has_flags(ends), "{line}: {outcome:?}");
    }
    let outcome = bench.run(shell("echo \"${BASH_VERSION:-sh}\"")).await;
    let is_sh = std::fs::canonicalize("/bin/sh").expect("a shell") != std::path::Path::new("/usr/bin/bash");
    assert!(!is_sh || outcome.log == "sh\n", "{outcome:?}");
    for (line, part) in [
        ("#!/opt/nothing/here", "names `/opt/nothing/here`, which is no program of the machine"),
        ("#!bash", "write `#!/usr/bin/env bash`"),
        ("#!/etc/passwd", "names `/etc/passwd`, which is no program"),
    ] {
        let outcome = bench.run(shell(&format!("{line}\necho ran"))).await;
        assert_eq!((outcome.end.outcome, outcome.log.as_str()), (Kind::Failed, ""), "{outcome:?}");
        assert!(outcome.reason().contains(part), "{}", outcome.reason());
    }
}

#[tokio::test]
async fn an_output_that_is_no_file_is_refused_with_a_hint() {
    let mut bench = RunnerTestBench::new().await;
    for (output, part) in [
        (
            "out",
            "output `out` is a directory, and each output is one file: name its files, or pack them (`tar cf out.tar out`)",
        ),
        ("out/{a,b}", "it did not make output `out/{a,b}`, and names of outputs are no patterns"),
        ("nothing", "it did not make output `nothing`"),
    ] {
        let mut execution = shell("mkdir out && echo x > out/a && echo x > out/b");
        execution.outputs.push(output.to_owned());
        let outcome = bench.run(execution).await;
        assert!(outcome.reason().contains(part), "{}", outcome.reason());
    }
}

#[tokio::test]
async fn a_job_that_failed_without_network_gets_a_hint() {
    let mut bench = RunnerTestBench::new().await;
    let instances = bench.supervisor.instances().await.expect("an answer");
    if !instances.iter().all(|(_, presence)| presence.layers.iter().any(|layer| layer == "seccomp")) {
        println!("left out: nothing keeps jobs from the network here");
        return;
    }
    let python = "python3 -c 'import urllib.request; urllib.request.urlopen(\"http://example.com/\")'";
    let address = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'";
    for script in [python, address] {
        let outcome = bench.run(shell(script)).await;
        let hint = "the script exited with 1; by its output it wanted the network, which this job does not have: `network: true`";
        assert!(outcome.reason().contains(hint), "{outcome:?}");
    }
    let outcome = bench.run(shell("cat /nowhere")).await;
    assert!(!outcome.reason().contains("network"), "{outcome:?}");
    let mut execution = shell("echo 'could not resolve host'; exit 1");
    execution.network = true;
    let key = bench.accept_with(execution, model::Grants { network: true, ..Default::default() }).await;
    let outcome = bench.end_of(key).await;
    assert!(outcome.reason().ends_with("the script exited with 1"), "{outcome:?}");
}
