//! Attempts' output, read at the supervisor in pieces.

use std::path::PathBuf;

use proto::v1::LogGapReason;
use queue::{JobOffer, SupervisorQueues};

use crate::suite::{Front, Suite, execution, key};

/// Writes a log as an instance does.
fn print(suite: &Suite, job: u32, text: &str) -> PathBuf {
    let dir = suite.work_dir.path().join("logs").join(key(job).context.to_string());
    std::fs::create_dir_all(&dir).expect("a directory");
    let path = dir.join(format!("{}.log", key(job)));
    std::fs::write(&path, text).expect("written");
    path
}

async fn logs_are_read(front: Front) {
    let (suite, mut worker) = Suite::start(front).await;
    let mut router = suite.router().await;
    router.says(suite.deliver(1, &[execution(1)])).await;
    assert_eq!(router.outcome(1).await, "");
    worker.take(1).await;
    let text = "0123456789€".repeat(20_000);
    let file = print(&suite, 1, &text);

    // Also at once: the answers carry their numbers.
    router.says(suite.read_log(1, key(1), 0, 100_000)).await;
    router.says(suite.read_log(2, key(1), text.len() as u64 - 13, 100_000)).await;
    router.says(suite.read_log(3, key(1), 11, 7)).await;
    let piece = router.log_read(3).await.expect("it is there");
    assert_eq!((piece.offset, &piece.data[..], piece.next_offset), (13, &b"0123456"[..], 20), "a character");
    let piece = router.log_read(2).await.expect("it is there");
    assert_eq!((&piece.data[..], piece.next_offset), ("0123456789€".as_bytes(), text.len() as u64));
    let piece = router.log_read(1).await.expect("it is there");
    assert!(piece.offset == 0 && piece.data.len() > 99_990 && text.as_bytes().starts_with(&piece.data));

    router.says(suite.read_log(4, key(9), 0, 0)).await;
    let refusal = router.log_read(4).await.expect_err("nobody ran it");
    assert_eq!(refusal.reason(), LogGapReason::NotKept);
    assert!(refusal.detail.contains("is not known here"), "{}", refusal.detail);
    std::fs::remove_file(file).expect("removed");
    // It runs and its file is not there: it may not have printed anything yet.
    router.says(suite.read_log(5, key(1), 10, 0)).await;
    let piece = router.log_read(5).await.expect("empty");
    assert!(piece.data.is_empty() && piece.next_offset == 0);
}

#[tokio::test]
async fn logs_are_read_over_a_stream() {
    logs_are_read(Front::Stream).await;
}

#[tokio::test]
async fn logs_are_read_over_the_bus() {
    logs_are_read(Front::Bus).await;
}

#[tokio::test]
async fn unreachable_and_refusing_supervisors_give_different_reasons() {
    let (suite, _worker) = Suite::start(Front::Bus).await;
    let mut router = suite.router().await;
    let supervisor = SupervisorQueues::new(suite.kv.clone(), suite.kv.endpoint().database());
    let theirs = JobOffer {
        execution: execution(1),
        coordinator: "another".into(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    supervisor.accept(theirs).await.expect("accepted");
    print(&suite, 1, "secret");
    router.says(suite.read_log(1, key(1), 0, 0)).await;
    let refusal = router.log_read(1).await.expect_err("another coordinator's");
    assert_eq!(refusal.reason(), LogGapReason::Refused);

    let mut elsewhere = suite.read_log(2, key(1), 0, 0);
    if let proto::internal::v1::exchange_request::Frame::ReadLog(read) = &mut elsewhere {
        read.address = format!("mycelium:{}", "ab".repeat(32));
    }
    router.says(elsewhere).await;
    let refusal = router.log_read(2).await.expect_err("nobody is there");
    assert_eq!(refusal.reason(), LogGapReason::Unreachable);
    assert!(refusal.detail.contains("cannot be reached"), "{}", refusal.detail);
}
