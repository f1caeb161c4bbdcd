//! A Redis whose disk is full: nothing is lost, and callers receive the reason.

use keys::Layout;
use proto::internal::v1 as wire;
use testkit::{PATIENCE, wait_until};
use tonic::Code;

use crate::stage::{Stage, create, failure};

#[tokio::test]
async fn a_store_whose_disk_is_full_says_so_and_loses_no_step() {
    let stage = Stage::over(testkit::RedisServer::start(), Layout::Database).await;
    let flow = stage.started(1).await;
    stage.redis.lose_disk();
    let refused = || async { stage.flows().create_flow(create(1)).await.err() };
    let status = wait_until(refused, PATIENCE, "writes are refused").await;
    assert_eq!(failure::<()>(Err(status.clone())), (Code::Unavailable, "DISK_FULL".to_owned()));
    assert!(rpc::ErrorView::from(&status).retry_after.is_some());
    // It is sent again when there is room.
    assert_eq!(stage.commit(flow.step()).await.refusal(), wire::CommitRefusal::UnknownOutcome);
}
