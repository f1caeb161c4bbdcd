//! Storage over a master that Sentinels name.

use keys::Layout;
use kv::Durability;
use proto::internal::v1::CommitRefusal;
use storage::Config;
use testkit::{PATIENCE, RedisSentinels, wait_until};

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_replicated_is_there_after_a_failover() {
    let config = Config { layout: Layout::Database, durability: Durability::Replicated, ..Config::default() };
    let mut stage =
        Stage::with(RedisSentinels::of(&testkit::RedisServer::builder().persistent()), config).await;
    let mut flow = stage.started(1).await;
    let step = flow.step();
    stage.apply(&mut flow, step.clone()).await;
    let mut connected = stage.connected.clone();
    connected.wait_for(|connected| *connected).await.unwrap();
    let redis = &mut stage.redis;
    let _ = tokio::task::block_in_place(|| redis.fail_over());
    connected.wait_for(|connected| *connected).await.unwrap();
    // Nobody has it beside the new master, so nothing counts as kept; but what was kept is there.
    stage.config.durability = Durability::Synced;
    stage.start().await;
    let again = || async {
        let answer = stage.commit(step.clone()).await;
        (answer.refusal() != CommitRefusal::UnknownOutcome).then_some(answer)
    };
    let answer = wait_until(again, PATIENCE, "the new master is found").await;
    assert_eq!((answer.refusal(), answer.revision), (CommitRefusal::Unspecified, flow.revision));
    let step = flow.step();
    stage.apply(&mut flow, step).await;
}
