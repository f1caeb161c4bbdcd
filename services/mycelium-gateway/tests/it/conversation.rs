//! Jobs go there, and what happens to them comes back.

use identity::Identity;
use model::execution::{AttemptEnd, FileSource, Outcome};
use model::job::BlobRef;
use model::{ActorId, BlobHash, ReasonCode, ReportKind, ScriptSource, Timestamp};
use proto::v1;
use proto::v1::gateway_service_client::GatewayServiceClient;
use queue::{JobEndReport, LogChunk};
use testkit::{PATIENCE, wait_until};

use crate::suite::{Front, Received, Suite, execution, key};

/// When an attempt printed something.
const PRINTED: Timestamp = Timestamp::from_millis(1_800_000_000_250);

pub(crate) fn started(kind: &ReportKind) -> Option<()> {
    matches!(kind, ReportKind::Started { .. }).then_some(())
}

pub(crate) fn accepted(kind: &ReportKind) -> Option<()> {
    matches!(kind, ReportKind::Accepted { .. }).then_some(())
}

pub(crate) fn ended(kind: &ReportKind) -> Option<AttemptEnd> {
    match kind {
        ReportKind::Ended(end) => Some((**end).clone()),
        _ => None,
    }
}

pub(crate) fn end(outcome: Outcome) -> AttemptEnd {
    AttemptEnd {
        outcome,
        exit_code: Some(0),
        reason: None,
        result: [("k".to_owned(), "v".to_owned())].into(),
        outputs: std::collections::BTreeMap::new(),
        output_bytes: 3,
        ended: Vec::new(),
        instance: Some("shell:default:1".into()),
        start_time: Some(Timestamp::from_millis(1)),
        end_time: Timestamp::from_millis(2),
    }
}

/// Nothing is left to be told: every event was answered and removed.
pub(crate) async fn all_answered(suite: &Suite) {
    let database = suite.kv.endpoint().database();
    let empty = || async { (suite.redis.raw(database, &["XLEN", "hero:done"]) == ":0\r\n").then_some(()) };
    wait_until(empty, PATIENCE, "every event was answered").await;
}

async fn jobs_go_there_and_come_back(front: Front) {
    let (suite, mut worker) = Suite::start(front).await;
    let mut router = suite.router().await;

    let small = suite.storage.put(b"a small file");
    let large_bytes = vec![b'x'; 1_200_000];
    let large = suite.storage.put(&large_bytes);
    let script = suite.storage.put(b"echo from a blob");
    let mut with_files = execution(1);
    with_files.script = ScriptSource::Blob(script);
    with_files.files.insert("small.txt".into(), FileSource { blob: small, inline: None });
    with_files.files.insert("large.bin".into(), FileSource { blob: large, inline: None });
    with_files.outputs.push("out.txt".into());
    router.says(suite.deliver(1, &[with_files, execution(2)])).await;
    assert_eq!(router.outcome(1).await, "");
    for job in [1, 2] {
        router.report(key(job), accepted).await;
    }

    let taken = worker.take(2).await;
    assert_eq!(taken[0].execution.job_key, key(1));
    assert!(taken[0].execution.files.values().all(|file| file.inline.is_none()), "kept once, as a file");
    let blobs = suite.work_dir.path().join("blobs").join(key(1).context.to_string());
    for (blob, bytes) in
        [(small, &b"a small file"[..]), (large, &large_bytes), (script, &b"echo from a blob"[..])]
    {
        let path = blobs.join(blob.sha256.to_string());
        assert_eq!(std::fs::read(path).expect("fetched"), bytes);
    }
    router.report(key(1), started).await;
    router.report(key(2), started).await;

    let output = b"an output of more than one piece ".repeat(20_000);
    let made = BlobRef { sha256: BlobHash::of(&output), size: output.len() as u64 };
    std::fs::write(blobs.join(made.sha256.to_string()), &output).expect("written");
    worker
        .instance
        .log(key(1), LogChunk { offset: 0, text: "hi\n".into(), time: Some(PRINTED) })
        .await
        .expect("logged");
    let mut how = end(Outcome::Succeeded);
    how.outputs.insert("out.txt".into(), made);
    let ending =
        |job, end| JobEndReport { job_key: key(job), end, last_log: None, output_tail: String::new() };
    worker.instance.finish(&ending(1, how.clone())).await.expect("finished");
    worker.instance.finish(&ending(2, end(Outcome::Failed))).await.expect("finished");

    assert_eq!(router.report(key(1), ended).await, how);
    assert_eq!(suite.storage.get(made).expect("pushed before"), output);
    assert_eq!(router.report(key(2), ended).await.outcome, Outcome::Failed);
    let log = router
        .next_matching(|item| if let Received::Log(log) = item { Some(log.clone()) } else { None })
        .await;
    assert_eq!((log.offset, &log.data[..], log.context_id, log.flow_id), (0, &b"hi\n"[..], 1, 7));
    assert_eq!(log.runner_id, 1, "where all of it can be read");
    assert_eq!(log.print_millis, PRINTED.as_millis());
    router.handled(vec![log.report_id]).await;
    all_answered(&suite).await;
}

#[tokio::test]
async fn jobs_go_there_and_come_back_over_a_stream() {
    jobs_go_there_and_come_back(Front::Stream).await;
}

#[tokio::test]
async fn jobs_go_there_and_come_back_over_the_bus() {
    jobs_go_there_and_come_back(Front::Bus).await;
}

async fn unacknowledged_reports_are_sent_again(front: Front) {
    let (suite, mut worker) = Suite::start(front).await;
    let mut first = suite.router().await;
    first.says(suite.deliver(1, &[execution(1)])).await;
    assert_eq!(first.outcome(1).await, "");
    worker.take(1).await;
    let start_report = first.next_matching(|item| match item {
        Received::Report(_, report) => started(&report.kind),
        _ => None,
    });
    start_report.await;
    drop(first);

    let mut second = suite.router().await;
    second.report(key(1), started).await;
    second.says(suite.deliver(9, &[execution(1)])).await;
    assert_eq!(second.outcome(9).await, "", "the same job again is the same job");
    // Whoever sends it again may have lost what was said of it.
    second.report(key(1), started).await;
    let ending = JobEndReport {
        job_key: key(1),
        end: end(Outcome::Succeeded),
        last_log: None,
        output_tail: String::new(),
    };
    worker.instance.finish(&ending).await.expect("finished");
    second.report(key(1), ended).await;
    all_answered(&suite).await;
}

#[tokio::test]
async fn unacknowledged_reports_are_sent_again_over_a_stream() {
    unacknowledged_reports_are_sent_again(Front::Stream).await;
}

#[tokio::test]
async fn unacknowledged_reports_are_sent_again_over_the_bus() {
    unacknowledged_reports_are_sent_again(Front::Bus).await;
}

#[tokio::test]
async fn refusals_and_stops_are_reports() {
    let (suite, mut worker) = Suite::start(Front::Stream).await;
    let mut router = suite.router().await;

    // Stopped before it came: reported at once, and refused when it comes.
    router.says(suite.stop(key(1))).await;
    assert_eq!(router.report(key(1), ended).await.outcome, Outcome::Stopped);
    let mut other = execution(3);
    let missing = BlobRef { sha256: BlobHash::of(b"nowhere"), size: 7 };
    other.files.insert("f".into(), FileSource { blob: missing, inline: None });
    router.says(suite.deliver(1, &[execution(1), execution(2), other])).await;
    assert_eq!(router.report(key(1), ended).await.outcome, Outcome::Stopped);
    let rejected = |kind: &ReportKind| match kind {
        ReportKind::Rejected { reason, lasting, counts } => Some((reason.code, *lasting, *counts)),
        _ => None,
    };
    assert_eq!(router.report(key(3), rejected).await, (ReasonCode::BlobMissing, true, false));
    router.report(key(2), accepted).await;
    assert_eq!(router.outcome(1).await, "", "after the refusals were acknowledged");

    // The same key with other content.
    let mut changed = execution(2);
    changed.script = ScriptSource::Inline("echo something else".into());
    router.says(suite.deliver(2, &[changed])).await;
    assert_eq!(router.report(key(2), rejected).await, (ReasonCode::Refused, true, false));
    assert_eq!(router.outcome(2).await, "");

    // Stopped in its queue.
    router.says(suite.stop(key(2))).await;
    assert_eq!(router.report(key(2), ended).await.outcome, Outcome::Stopped);
    all_answered(&suite).await;
    router.says(suite.deliver(3, &[execution(4)])).await;
    assert_eq!(router.outcome(3).await, "");
    assert_eq!(worker.take(1).await[0].execution.job_key, key(4), "nothing of the others is in the way");
}

#[tokio::test]
async fn who_is_not_there_is_an_outcome() {
    let (suite, _worker) = Suite::start(Front::Bus).await;
    let mut router = suite.router().await;
    let deliver = |delivery_id, address: &str| {
        let nodes = vec![serde_json::to_vec(&execution(1)).expect("JSON").into()];
        proto::internal::v1::exchange_request::Frame::Deliver(proto::internal::v1::Deliver {
            delivery_id,
            address: address.to_owned(),
            topic: "supervisor.rpc".into(),
            nodes,
            timeout_millis: 10,
            ..Default::default()
        })
    };
    router.says(deliver(1, &format!("mycelium:{}", "ab".repeat(32)))).await;
    let error = router.outcome(1).await;
    assert!(error.contains("is not connected"), "{error}");
    router.says(deliver(2, "nonsense")).await;
    let error = router.outcome(2).await;
    assert!(error.contains("is not an address"), "{error}");
}

#[tokio::test]
async fn the_gateway_reports_the_state_of_its_conversations() {
    let (suite, _worker) = Suite::start(Front::Stream).await;
    let ask =
        async |who| GatewayServiceClient::new(suite.channel(who)).get_gateway(v1::GetGatewayRequest {}).await;
    let refused = ask(Identity::Actor(ActorId(1))).await.expect_err("it shows every tenant's addresses");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    let answer = ask(Identity::Admin).await;
    let gateway = answer.expect("allowed").into_inner();
    assert_eq!((gateway.coordinator.as_str(), gateway.bus.as_str()), (suite.coordinator.as_str(), "memory"));
    let peer = &gateway.peers[0];
    assert_eq!(
        (peer.address.as_str(), peer.connected, peer.last_error.as_str()),
        (&*suite.address, true, "")
    );
    assert_eq!(peer.supervisor.len(), 32);
}
