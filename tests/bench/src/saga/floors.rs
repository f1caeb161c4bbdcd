//! Best that the store and the broker can do.

use std::time::{Duration, Instant};

use broker::{Headers, MessageBroker, Publication};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use store::{CommitOutcome, LaneKey, RowBatch, RowCondition, RowKey, RowOperation};

use super::stage::{self, Backend, Ground};
use super::{Error, per_second};

/// Commits of the measurement.
const COMMITS: usize = 20_000;
/// Commits that are made one after the other.
const ONE_BY_ONE: usize = 2_000;
/// Commits that are under way at a time, as in a lane.
const AT_ONCE: usize = 64;
/// Messages of the measurement.
const MESSAGES: usize = 20_000;

/// A lane in which nothing but commits of this measurement is made.
struct Floor {
    ground: Ground,
    lane: LaneKey,
    epoch: u64,
    value: Bytes,
}

impl Floor {
    async fn new(backend: Backend) -> Result<Self, Error> {
        let ground = Ground::new(backend).await?;
        let lane = LaneKey::new("s:t0:floor:0");
        let epoch = ground.store.acquire_lane(&lane).await?;
        Ok(Self { ground, lane, epoch, value: Bytes::from(vec![b'x'; 400]) })
    }

    /// Commits four rows, as a transition has them.
    async fn commit(&self, number: usize) -> Result<(), Error> {
        let key = |table: &str| RowKey::new(&format!("{table}:{number:020}"));
        let puts =
            ["saga", "journal", "dedupe"].map(|table| RowOperation::Put(key(table), self.value.clone()));
        let checkpoint = RowOperation::Put(RowKey::new("checkpoint:floor"), Bytes::from(number.to_string()));
        let ops = puts.into_iter().chain([checkpoint]).collect();
        let expect = vec![RowCondition::Absent(key("saga"))];
        match self
            .ground
            .store
            .commit(RowBatch { lane: self.lane.clone(), epoch: self.epoch, conditions: expect, ops })
            .await?
        {
            CommitOutcome::Committed(_) => Ok(()),
            other => Err(format!("a commit of the floor was not taken: {other:?}").into()),
        }
    }
}

/// Commits a second, many at once.
pub(super) async fn store(backend: Backend) -> Result<f64, Error> {
    let floor = Floor::new(backend).await?;
    let begin = Instant::now();
    let commits = stream::iter(0..COMMITS).map(|number| floor.commit(number));
    commits.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    Ok(per_second(COMMITS, begin.elapsed()))
}

/// Times of commits, one at a time.
pub(super) async fn commits(backend: Backend) -> Result<Vec<Duration>, Error> {
    let floor = Floor::new(backend).await?;
    let mut times = Vec::with_capacity(ONE_BY_ONE);
    for number in 0..ONE_BY_ONE {
        let begin = Instant::now();
        floor.commit(number).await?;
        times.push(begin.elapsed());
    }
    Ok(times)
}

/// Messages a second, published one behind the other without waiting for each.
pub(super) async fn publish(broker: &dyn MessageBroker) -> Result<f64, Error> {
    let payload = Bytes::from(vec![b'x'; 400]);
    let message = |number| Publication {
        subject: "tenant.t0.aggregate.Floor.x".to_owned(),
        message_id: format!("floor-{number}"),
        headers: Headers::new(),
        payload: payload.clone(),
    };
    let begin = Instant::now();
    stage::publish(broker, (0..MESSAGES).map(message)).await?;
    Ok(per_second(MESSAGES, begin.elapsed()))
}
