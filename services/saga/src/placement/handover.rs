//! Handover of a lane from one replica to the next.
//!
//! A row of the lane names its owner. The next owner waits until that row or its replica is gone, so that calls under way end where
//! they began. A former owner that takes too long is fenced out.

use std::time::Duration;

use store::LaneKey;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use workflow::instance::decode;
use workflow::{LaneRowKey, WorkflowLane};

use super::heartbeats::SagaReplicaFeed;
use crate::lane::rows::{OwnerRow, row};
use crate::lane::{LaneEnvironment, LaneExit};

/// Extra time for a former owner, beyond the grace for calls under way.
const SLACK: Duration = Duration::from_secs(5);

/// Task that waits for a lane, owns it, and gives it up in time.
pub(super) struct LaneHandover {
    /// The lane.
    pub(super) lane: WorkflowLane,
    /// Feed of the other replicas.
    pub(super) feed: SagaReplicaFeed,
    /// Environment that the lane works in.
    pub(super) around: LaneEnvironment,
    /// How long calls under way may take to end.
    pub(super) grace: Duration,
    /// Cancelled to have the lane given up.
    pub(super) stop: CancellationToken,
    /// Cancelled to cut off work that is still under way after the grace.
    pub(super) cut: CancellationToken,
}

impl LaneHandover {
    /// Waits until the lane is free and owns it. After `stop`, work under way has the grace to end.
    pub(super) async fn run<F: Future<Output = LaneExit>>(
        mut self,
        own: impl FnOnce(CancellationToken) -> F,
    ) -> (WorkflowLane, LaneExit) {
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => {
                let ended = LaneExit::Stopped { lane: self.lane.to_string() };
                return (self.lane, ended);
            }
            () = self.free() => {}
        }
        let owned = own(stop.clone());
        tokio::pin!(owned);
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(self.grace).await;
        };
        let ended = tokio::select! {
            ended = &mut owned => ended,
            () = late => {
                tracing::warn!(lane = %self.lane, "work under way is cut off: it took longer than {:?} to end", self.grace);
                self.cut.cancel();
                owned.await
            }
        };
        (self.lane, ended)
    }

    /// Waits until no other replica has the lane, which is checked after every heartbeat.
    async fn free(&mut self) {
        let begin = Instant::now();
        let mut is_logged = false;
        loop {
            // Marked as seen before the row is read: a later change is noticed after the next heartbeat.
            self.feed.beats.borrow_and_update();
            match self.holder().await {
                Ok(None) => return,
                Ok(Some(holder)) if begin.elapsed() > self.grace + SLACK => {
                    tracing::warn!(lane = %self.lane, holder, "the lane is taken from a replica that does not give it up");
                    return;
                }
                Ok(Some(holder)) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::info!(lane = %self.lane, holder, "the lane is waited for");
                    }
                }
                Err(why) => tracing::warn!(lane = %self.lane, "the owner of the lane is unknown: {why}"),
            }
            if self.feed.beats.changed().await.is_err() {
                // The heartbeats have ended: this replica is ending.
                return std::future::pending().await;
            }
        }
    }

    /// Another live replica that has not given up the lane.
    async fn holder(&self) -> Result<Option<String>, String> {
        let key = LaneKey::new(&self.lane.to_string());
        let read = self.around.store.read(&key, &[row(&LaneRowKey::owner())]).await;
        let found = read.map_err(|error| error.to_string())?.pop().flatten();
        let Some(found) = found else { return Ok(None) };
        let owner: OwnerRow = decode(&found.value).map_err(|error| error.to_string())?;
        let view = self.feed.view.borrow();
        if view.members.is_empty() {
            return Err("the live replicas are not known".to_owned());
        }
        let is_other = owner.replica != *self.around.replica;
        Ok(Some(owner.replica).filter(|holder| is_other && view.has(holder)))
    }
}
