//! The bound on what all jobs of a context hold.

use std::collections::HashMap;
use std::future::pending;

use model::execution::{AttemptEnd, Outcome as Kind};
use model::{Grants, JobKey, ReasonCode, ScriptType};
use queue::QueueEventKind;
use queue::work_dir::context_dir;
use testkit::PATIENCE;

use crate::setup::{RunnerTestBench, context, job, shell};

const REASON: &str = "QUOTA_EXCEEDED: its context may hold 10485760 bytes on this machine";

fn grants() -> Grants {
    Grants { context_disk_bytes: 10 << 20, ..Grants::default() }
}

/// Reads until all of these have ended.
async fn ends(bench: &mut RunnerTestBench, keys: &[JobKey]) -> HashMap<JobKey, AttemptEnd> {
    let mut ends = HashMap::new();
    while keys.iter().any(|key| !ends.contains_key(key)) {
        for event in bench.reader.next(pending()).await.expect("events") {
            if let QueueEventKind::Ended(end) = event.kind {
                ends.insert(event.job_key, *end);
            }
        }
    }
    ends
}

#[tokio::test]
async fn of_jobs_that_hold_too_much_together_the_largest_ends() {
    let mut bench = RunnerTestBench::new().await;
    let seen = bench.seen();
    let holds = |mebibytes: u32, then: &str| {
        shell(&format!("head -c {mebibytes}M /dev/zero > f; touch {}/{mebibytes}; {then}", seen.display()))
    };
    let released = seen.join("go");
    let waits = format!("while ! test -e {}; do sleep 0.05; done", released.display());
    let small = bench.accept_with(holds(4, &waits), grants()).await;
    let large = bench.accept_with(holds(7, "sleep 600"), grants()).await;
    let first = ends(&mut bench, &[large]).await;
    assert!(!first.contains_key(&small), "it held less");
    let end = &first[&large];
    let reason = end.reason.as_ref().expect("a reason").to_string();
    assert_eq!((end.outcome, reason.as_str()), (Kind::Failed, REASON));
    assert!(seen.join("7").exists() && seen.join("4").exists(), "each alone is within its own bound");
    std::fs::write(released, "").expect("a file");
    assert_eq!(ends(&mut bench, &[small]).await[&small].outcome, Kind::Succeeded);
}

#[tokio::test]
async fn what_a_script_in_the_runner_writes_counts() {
    let mut bench = RunnerTestBench::new().await;
    let script = r#"let s = ""; s.pad(1_000_000, 'x'); for n in 0..20 { write_file(`f${n}`, s); }"#;
    let key = bench.accept_with(job(ScriptType::Rhai, script), grants()).await;
    let outcome = bench.end_of(key).await;
    assert_eq!(outcome.end.exit_code, Some(1));
    assert!(outcome.log.contains(REASON), "{outcome:?}");
}

#[tokio::test]
async fn a_full_context_runs_only_what_needs_no_directory() {
    let mut bench = RunnerTestBench::new().await;
    let store = context_dir(&bench.work(), context()).join("store");
    std::fs::create_dir_all(&store).expect("a directory");
    std::fs::write(store.join("much"), vec![1; 11 << 20]).expect("a file");
    // What is kept is seen soon after the context has its first job.
    let refused = async {
        loop {
            let key = bench.accept_with(shell("true"), grants()).await;
            if let Some(reason) = bench.end_of(key).await.end.reason {
                return reason;
            }
        }
    };
    let reason = tokio::time::timeout(PATIENCE, refused).await.expect("a job is refused");
    assert_eq!((reason.code, reason.to_string().as_str()), (ReasonCode::QuotaExceeded, REASON));
    let key = bench.accept_with(job(ScriptType::Rhai, "1"), grants()).await;
    assert_eq!(bench.end_of(key).await.end.outcome, Kind::Succeeded);
}
