//! A Redis whose disk is full: nothing is lost, and callers receive the reason.

use keys::Layout;
use proto::internal::v1 as wire;
use testkit::{PATIENCE, wait_until};
use tonic::Code;

use crate::stage::{Stage, create, failure};

#[tokio::test]
async fn a_full_disk_of_redis_is_reported_and_no_step_is_lost() {
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
