//! Reading back of jobs.

use std::path::PathBuf;

use identity::Identity;
use model::limits::LOG_PIECE_BYTES_MAX;
use model::supervision::{
    ContextDrop, EmptyResult, JobLogPiece, JobLogs, JobQuery, JobResult, JobStop, JobStopped, method,
};
use model::{ActorId, Isolation, JobKey};
use proto::v1::{StreamAttemptLogsRequest, StreamAttemptLogsResponse};
use tonic::Code;

use crate::backlog::execution;
use crate::setup::{Coordinator, Machine};

fn log_file(machine: &Machine, key: JobKey) -> PathBuf {
    let dir = machine.work_dir().join("logs").join(key.context.to_string());
    std::fs::create_dir_all(&dir).expect("a directory");
    dir.join(format!("{key}.log"))
}

async fn logs(
    coordinator: &Coordinator,
    key: JobKey,
    offset: u64,
    limit: u32,
) -> Result<JobLogPiece, String> {
    let ask = JobLogs { job_key: key, offset, limit };
    coordinator.call(method::JOB_LOGS, &ask).await.map_err(|(reason, _)| reason)
}

async fn whole(machine: &Machine, key: JobKey, offset: u64) -> Vec<StreamAttemptLogsResponse> {
    let ask = StreamAttemptLogsRequest { job_key: key.to_string(), offset, follow: false };
    let mut stream =
        machine.client(Identity::Admin).stream_attempt_logs(ask).await.expect("allowed").into_inner();
    let mut pieces = Vec::new();
    while let Some(piece) = stream.message().await.expect("a piece") {
        pieces.push(piece);
    }
    pieces
}

#[tokio::test]
async fn logs_are_read_in_pieces_by_their_coordinator_and_the_admin() {
    let machine = Machine::start(|_, _| {}).await;
    let (coordinator, stranger) = (machine.coordinator().await, machine.coordinator().await);
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let job = execution(1, 1);
    let key = job.job_key;
    assert_eq!(logs(&coordinator, key, 0, 0).await, Err("NOT_FOUND".into()));
    coordinator.run(&job).await.expect("accepted");
    let empty = JobLogPiece { offset: 0, text: String::new(), next_offset: 0, size: 0, complete: false };
    assert_eq!(logs(&coordinator, key, 0, 0).await, Ok(empty));

    worker.take().await;
    // Three bytes each, so that no piece ends where it was asked to.
    let text = "€".repeat(LOG_PIECE_BYTES_MAX / 3 * 2);
    std::fs::write(log_file(&machine, key), &text).expect("written");
    let (mut read, mut offset, mut pieces) = (String::new(), 0, 0);
    while offset < text.len() as u64 {
        let piece = logs(&coordinator, key, offset, u32::MAX).await.expect("a piece");
        assert_eq!((piece.offset, piece.size, piece.complete), (offset, text.len() as u64, false));
        (offset, pieces) = (piece.next_offset, pieces + 1);
        read.push_str(&piece.text);
    }
    assert!(read == text && pieces > 1);
    assert_eq!(
        logs(&coordinator, key, 1, 4).await.map(|piece| (piece.offset, piece.text)),
        Ok((3, "€".into()))
    );

    worker.finish(key, |end| end.output_bytes = text.len() as u64).await;
    coordinator.receives_end(key).await;
    let last = logs(&coordinator, key, offset, 0).await.expect("the end");
    assert!(last.complete && last.text.is_empty());
    let result: JobResult =
        coordinator.call(method::JOB_RESULT, &JobQuery { job_key: key }).await.expect("its own");
    assert_eq!((result.state.as_str(), result.end.and_then(|end| end.exit_code)), ("finished", Some(0)));

    assert_eq!(logs(&stranger, key, 0, 0).await, Err("CONTEXT_CLAIMED".into()));
    let nobodys = JobKey { context: model::ContextUid::random(), ..key };
    std::fs::write(log_file(&machine, nobodys), "left").expect("written");
    assert_eq!(logs(&stranger, nobodys, 0, 0).await, Err("NOT_FOUND".into()));
    let claimed = ("CONTEXT_CLAIMED".to_owned(), true);
    for method in [method::JOB_RESULT, method::JOB_STATUS] {
        let answer = stranger.call::<JobResult>(method, &JobQuery { job_key: key }).await;
        assert_eq!(answer, Err(claimed.clone()));
    }
    let stop = JobStop { job_key: key, grace_secs: 0 };
    assert_eq!(stranger.call::<JobStopped>(method::JOB_STOP, &stop).await, Err(claimed));

    let pieces = whole(&machine, key, 0).await;
    assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
    assert!(pieces.len() > 1 && pieces.last().is_some_and(|last| last.complete));
    for (key, code) in
        [("../../etc/passwd", Code::InvalidArgument), (&execution(9, 9).job_key.to_string(), Code::NotFound)]
    {
        let ask = StreamAttemptLogsRequest { job_key: key.to_owned(), offset: 0, follow: false };
        let refused = machine.client(Identity::Admin).stream_attempt_logs(ask).await.expect_err("refused");
        assert_eq!(refused.code(), code);
    }
    let ask = StreamAttemptLogsRequest { job_key: key.to_string(), offset: 0, follow: false };
    let denied = machine
        .client(Identity::Actor(ActorId(1)))
        .stream_attempt_logs(ask)
        .await
        .expect_err("not the admin");
    assert_eq!(denied.code(), Code::PermissionDenied);

    std::fs::remove_file(log_file(&machine, key)).expect("removed");
    assert_eq!(logs(&coordinator, key, 0, 0).await, Err("NOT_FOUND".into()), "not kept any more");
}

#[tokio::test]
async fn a_stop_lists_the_ended_processes_and_a_dropped_context_loses_its_logs() {
    let machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    let job = execution(1, 1);
    let key = job.job_key;
    coordinator.run(&job).await.expect("accepted");
    worker.take().await;
    let stop = JobStop { job_key: key, grace_secs: 0 };
    let stopped: JobStopped = coordinator.call(method::JOB_STOP, &stop).await.expect("its own");
    assert_eq!((stopped.stopped, stopped.state.as_str(), stopped.ended.len()), (false, "stopping", 0));
    let left = model::execution::EndedProcess { pid: 7, name: "sleep".into() };
    worker
        .finish(key, |end| {
            end.outcome = model::execution::Outcome::Stopped;
            end.exit_code = None;
            end.ended = vec![left.clone()];
        })
        .await;
    let stopped: JobStopped = coordinator.call(method::JOB_STOP, &stop).await.expect("its own");
    assert_eq!((stopped.stopped, stopped.state.as_str(), stopped.ended), (true, "stopped", vec![left]));

    let file = log_file(&machine, key);
    std::fs::write(&file, "hello").expect("written");
    let drop = ContextDrop { context_uid: key.context };
    coordinator.call::<EmptyResult>(method::CONTEXT_DROP, &drop).await.expect("dropped");
    assert!(!file.exists());
    assert_eq!(logs(&coordinator, key, 0, 0).await, Err("NOT_FOUND".into()));
}
