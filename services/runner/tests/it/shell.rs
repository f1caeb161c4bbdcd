//! What is particular to shell jobs, and to the result file of all that have one.

use model::ReasonCode;
use model::execution::Outcome as Kind;

use crate::setup::{Bench, inputs, shell};

#[tokio::test]
async fn a_shell_job_knows_where_it_is_and_nothing_else() {
    let mut bench = Bench::new().await;
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
async fn a_result_file_that_is_none_is_told() {
    let mut bench = Bench::new().await;
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
async fn a_signal_is_told() {
    let mut bench = Bench::new().await;
    let outcome = bench.run(shell("kill -9 $$")).await;
    assert_eq!(outcome.end.exit_code, None);
    assert!(outcome.reason().contains("signal 9"), "{}", outcome.reason());
}
