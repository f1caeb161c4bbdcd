//! How a lane goes from one replica to the next.
//!
//! Its owner is named by a row of the lane. Whoever is to own it waits until that row is gone, or its replica, so that calls that
//! are under way come to their end where they began. A former owner that takes longer than it may is fenced out.

use std::time::Duration;

use store::LaneKey;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use workflow::instance::decode;
use workflow::{LaneRowKey, WorkflowLane};

use super::heartbeats::SagaReplicaFeed;
use crate::lane::rows::{OwnerRow, row};
use crate::lane::{LaneEnvironment, LaneExit};

/// A former owner is given so much longer than calls under way have.
const SLACK: Duration = Duration::from_secs(5);

/// A lane that is to be owned, and given up in time.
pub(super) struct LaneHandover {
    /// The lane.
    pub(super) lane: WorkflowLane,
    /// Feed of the other replicas.
    pub(super) heard: SagaReplicaFeed,
    /// Environment that the lane works in.
    pub(super) around: LaneEnvironment,
    /// How long calls under way may take to end.
    pub(super) grace: Duration,
    /// Has the lane given up.
    pub(super) stop: CancellationToken,
    /// Ends what is still under way after that.
    pub(super) cut: CancellationToken,
}

impl LaneHandover {
    /// Waits until the lane is free and owns it. Once it is to be given up, what is under way has its time.
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
                tracing::warn!(lane = %self.lane, "what is under way is cut: it took longer than {:?} to end", self.grace);
                self.cut.cancel();
                owned.await
            }
        };
        (self.lane, ended)
    }

    /// Waits until no other replica has the lane. It is asked for with every beat.
    async fn free(&mut self) {
        let begin = Instant::now();
        let mut is_told = false;
        loop {
            // Before the row is read: what changes since is seen by the next beat.
            self.heard.beats.borrow_and_update();
            match self.holder().await {
                Ok(None) => return,
                Ok(Some(holder)) if begin.elapsed() > self.grace + SLACK => {
                    tracing::warn!(lane = %self.lane, holder, "the lane is taken from a replica that does not give it up");
                    return;
                }
                Ok(Some(holder)) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::info!(lane = %self.lane, holder, "the lane is waited for");
                    }
                }
                Err(why) => tracing::warn!(lane = %self.lane, "who owns the lane is not known: {why}"),
            }
            if self.heard.beats.changed().await.is_err() {
                // Nobody beats any more: this replica is ending.
                return std::future::pending().await;
            }
        }
    }

    /// Another replica that lives and has not given up the lane.
    async fn holder(&self) -> Result<Option<String>, String> {
        let key = LaneKey::new(&self.lane.to_string());
        let read = self.around.store.read(&key, &[row(&LaneRowKey::owner())]).await;
        let found = read.map_err(|error| error.to_string())?.pop().flatten();
        let Some(found) = found else { return Ok(None) };
        let owner: OwnerRow = decode(&found.value).map_err(|error| error.to_string())?;
        let view = self.heard.view.borrow();
        if view.members.is_empty() {
            return Err("no other replica is heard of".to_owned());
        }
        let is_other = owner.replica != *self.around.replica;
        Ok(Some(owner.replica).filter(|holder| is_other && view.has(holder)))
    }
}
