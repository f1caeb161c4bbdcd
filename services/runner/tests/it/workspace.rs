//! Files, outputs, logs.

use base64::Engine as _;
use model::execution::{FileSource, Outcome as Kind};
use model::job::BlobRef;
use model::{BlobHash, Execution, ReasonCode, ScriptSource};
use queue::work_dir::blob_path;

use crate::setup::{RunnerTestBench, context, shell};

fn blob(bytes: &[u8]) -> BlobRef {
    BlobRef { sha256: BlobHash::of(bytes), size: bytes.len() as u64 }
}

fn inline(bytes: &[u8]) -> FileSource {
    FileSource { blob: blob(bytes), inline: Some(base64::engine::general_purpose::STANDARD.encode(bytes)) }
}

/// Puts a file where the supervisor would.
fn cache(bench: &RunnerTestBench, bytes: &[u8]) -> BlobRef {
    let path = blob_path(&bench.work(), context(), BlobHash::of(bytes));
    std::fs::create_dir_all(path.parent().expect("a directory above")).expect("a directory");
    std::fs::write(path, bytes).expect("a file");
    blob(bytes)
}

#[tokio::test]
async fn files_come_in_and_outputs_go_out() {
    let mut bench = RunnerTestBench::new().await;
    let mut execution =
        shell("cat sub/in.txt big.txt > out.txt; echo changed > big.txt; mkdir d; cp out.txt d/two");
    let cached = cache(&bench, b"from the cache\n");
    execution.files.insert("sub/in.txt".into(), inline(b"inline\n"));
    execution.files.insert("big.txt".into(), FileSource { blob: cached, inline: None });
    execution.outputs = vec!["out.txt".into(), "d/two".into()];
    let outcome = bench.run(execution.clone()).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    let expected = b"inline\nfrom the cache\n";
    assert_eq!(outcome.end.outputs["out.txt"], blob(expected));
    assert_eq!(outcome.end.outputs["d/two"], blob(expected));
    let kept =
        |blob: BlobRef| std::fs::read(blob_path(&bench.work(), context(), blob.sha256)).expect("a blob");
    assert_eq!(kept(blob(expected)), expected);
    assert_eq!(kept(cached), b"from the cache\n", "a script changes its copy only");
    assert_eq!(bench.attempts(), [""; 0], "the directory is gone");
}

#[tokio::test]
async fn a_script_may_be_a_blob() {
    let mut bench = RunnerTestBench::new().await;
    let mut execution = shell("");
    execution.script = ScriptSource::Blob(cache(&bench, b"echo a=1 > $MYCORA_RESULT"));
    assert_eq!(bench.run(execution).await.result("a"), "1");
}

#[tokio::test]
async fn what_is_wrong_with_files_is_named() {
    let mut bench = RunnerTestBench::new().await;
    let fails =
        async |bench: &mut RunnerTestBench, change: fn(&mut Execution), code: ReasonCode, part: &str| {
            let mut execution = shell("ln -s /etc/passwd link; mkdir dir; mkfifo pipe; exit 0");
            change(&mut execution);
            let outcome = bench.run(execution).await;
            assert_eq!(outcome.end.outcome, Kind::Failed, "{outcome:?}");
            assert_eq!(outcome.end.reason.as_ref().map(|reason| reason.code), Some(code), "{outcome:?}");
            assert!(outcome.reason().contains(part), "{}", outcome.reason());
        };
    let broken = ReasonCode::RuntimeError;
    fails(
        &mut bench,
        |job| job.outputs = vec!["absent".into()],
        broken,
        "ended well, but it did not make output `absent`",
    )
    .await;
    fails(&mut bench, |job| job.outputs = vec!["link".into()], broken, "symbolic link").await;
    fails(&mut bench, |job| job.outputs = vec!["dir".into()], broken, "is a directory").await;
    fails(&mut bench, |job| job.outputs = vec!["pipe".into()], broken, "no regular file").await;
    fails(&mut bench, |job| drop(job.files.insert("../x".into(), inline(b""))), broken, "`../x`").await;
    let wrong = |job: &mut Execution| {
        let mut file = inline(b"a");
        file.blob.sha256 = BlobHash::of(b"b");
        job.files.insert("x".into(), file);
    };
    fails(&mut bench, wrong, broken, "hash").await;
    let missing = |job: &mut Execution| {
        job.files.insert("x".into(), FileSource { blob: blob(b"nowhere"), inline: None });
    };
    fails(&mut bench, missing, ReasonCode::BlobMissing, "`x`").await;
    let refers = |job: &mut Execution| {
        job.env_vars.insert("A".into(), "${{ results.split.absent }}".into());
        job.inputs = crate::setup::inputs(&[]);
    };
    fails(&mut bench, refers, ReasonCode::MissingResult, "results.split.absent").await;
}

#[tokio::test]
async fn output_is_whole_up_to_its_bound() {
    let mut bench = RunnerTestBench::new().await;
    let outcome = bench.run(shell("seq 1 100000")).await;
    let numbers: Vec<_> = outcome.log.lines().collect();
    assert_eq!(numbers.len(), 100_000);
    assert!(numbers.iter().zip(1..).all(|(line, n): (_, u32)| **line == n.to_string()));
    assert_eq!(outcome.end.output_bytes, outcome.log.len() as u64);

    let outcome = bench.run(shell("head -c 11000000 /dev/zero | tr '\\0' x; echo still >&2")).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{:?}", outcome.end);
    let last = 16 * 1024 - "still\n".len() as u64;
    assert_eq!(outcome.log.matches('x').count() as u64, model::limits::OUTPUT_BYTES_MAX + last);
    assert_eq!(outcome.log.matches("was dropped").count(), 1);
    assert!(outcome.log.ends_with("xstill\n"));
}
