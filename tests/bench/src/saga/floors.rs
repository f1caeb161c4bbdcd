//! What the store and the broker do at best.

use std::sync::Arc;
use std::time::Instant;

use broker::{Broker, Headers, Outgoing};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use store::{Batch, Expect, LaneKey, Op, Outcome, RowKey};

use super::stage::{self, Backend, Ground};
use super::{Error, per_second};

/// Commits of the measurement.
const COMMITS: usize = 20_000;
/// Commits that are under way at a time, as in a lane.
const AT_ONCE: usize = 64;
/// Messages of the measurement.
const MESSAGES: usize = 20_000;

/// Commits a second, each of four rows as a transition has them.
pub(super) async fn store(backend: Backend) -> Result<f64, Error> {
    let ground = Ground::new(backend).await?;
    let lane = LaneKey::new("s:t0:floor:0");
    let epoch = ground.store.take(&lane).await?;
    let value = Bytes::from(vec![b'x'; 400]);
    let begin = Instant::now();
    stream::iter(0..COMMITS)
        .map(|number| {
            let key = |table: &str| RowKey::new(&format!("{table}:{number:020}"));
            let puts = ["saga", "journal", "dedupe"].map(|table| Op::Put(key(table), value.clone()));
            let checkpoint = Op::Put(RowKey::new("checkpoint:floor"), Bytes::from(number.to_string()));
            let ops = puts.into_iter().chain([checkpoint]).collect();
            let batch = Batch { lane: lane.clone(), epoch, expect: vec![Expect::Absent(key("saga"))], ops };
            let store = Arc::clone(&ground.store);
            async move {
                match store.commit(batch).await? {
                    Outcome::Committed(_) => Ok::<_, Error>(()),
                    other => Err(format!("a commit of the floor was not taken: {other:?}").into()),
                }
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(per_second(COMMITS, begin.elapsed()))
}

/// Messages a second, published one behind the other without waiting for each.
pub(super) async fn publish(broker: &dyn Broker) -> Result<f64, Error> {
    let payload = Bytes::from(vec![b'x'; 400]);
    let message = |number| Outgoing {
        subject: "tenant.t0.aggregate.Floor.x".to_owned(),
        message_id: format!("floor-{number}"),
        headers: Headers::new(),
        payload: payload.clone(),
    };
    let begin = Instant::now();
    stage::publish(broker, (0..MESSAGES).map(message)).await?;
    Ok(per_second(MESSAGES, begin.elapsed()))
}
