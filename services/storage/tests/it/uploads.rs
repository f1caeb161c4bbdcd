//! Idle uploads do not block others.

use proto::v1;
use rpc::ErrorView;
use storage::Config;
use testkit::{PATIENCE, RedisServer, wait_until};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Stage};

/// Those of one actor, as storage's limits say.
const EACH_MAX: usize = 4;

fn piece() -> v1::PutBlobRequest {
    v1::PutBlobRequest { context_id: CONTEXT, data: vec![7; 10].into(), ..Default::default() }
}

/// Sends one piece, and then nothing. The room is taken before another piece than the first is read.
async fn silent(
    stage: &Stage<RedisServer>,
) -> (JoinHandle<Result<(), Status>>, mpsc::Sender<v1::PutBlobRequest>) {
    let (sender, pieces) = mpsc::channel(1);
    let mut jobs = stage.jobs(EXECUTOR);
    let call = tokio::spawn(async move { jobs.put_blob(ReceiverStream::new(pieces)).await.map(drop) });
    for _ in 0..8 {
        sender.send(piece()).await.unwrap();
    }
    (call, sender)
}

#[tokio::test]
async fn an_actor_has_a_share_of_the_room() {
    let stage = Stage::with(RedisServer::start(), Config::default()).await;
    let mut open = Vec::new();
    for _ in 0..EACH_MAX {
        open.push(silent(&stage).await);
    }
    // Refused at once, with a retry delay.
    let refused = stage.jobs(ADMIN).put_blob(tokio_stream::iter([piece()])).await.unwrap_err();
    let view = ErrorView::from(&refused);
    assert_eq!((refused.code(), view.reason.as_str()), (Code::ResourceExhausted, "OVERLOADED"), "{refused}");
    assert!(view.retry_after.is_some(), "{refused}");

    // An upload that is dropped or ends makes room.
    let (left, _pieces) = open.pop().unwrap();
    left.abort();
    let put = || async { stage.jobs(ADMIN).put_blob(tokio_stream::iter([piece()])).await.ok() };
    wait_until(put, PATIENCE, "there is room again").await;
    let (call, pieces) = open.pop().unwrap();
    drop(pieces);
    call.await.unwrap().unwrap();
}
