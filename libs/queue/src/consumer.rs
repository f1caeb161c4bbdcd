//! How an instance gets its jobs.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kv::{BlockingConnection, Cmd, Result, Value};

use crate::consumer_state::{ClaimedJob, JobConsumerState, LostReplyGuard};
use crate::crash_point;
use crate::instance::InstanceSession;
use crate::script::{HELD, STOP_TAKING};
use crate::supervisor::requeue_unclaimed_in;

/// How long one pop waits before it is repeated; it matters only for detecting a dead connection.
const BLOCK: Duration = Duration::from_secs(30);

/// Gives an instance its jobs. One per instance.
#[derive(Debug)]
pub struct JobConsumer {
    instance: InstanceSession,
    blocking: BlockingConnection,
}

/// While this lives every slot is taken: a job that ends may be followed by the next in the same turn.
#[derive(Debug)]
pub struct SlotsFullGuard(InstanceSession);

impl Drop for SlotsFullGuard {
    fn drop(&mut self) {
        self.0.consumer_state().wants_next.store(false, Ordering::Release);
    }
}

impl JobConsumer {
    pub(crate) const fn new(instance: InstanceSession, blocking: BlockingConnection) -> Self {
        Self { instance, blocking }
    }

    /// Takes up to `free` jobs, waiting for the first. Gives none when `cancel` was ready before there
    /// was any, and now and then when there are none.
    ///
    /// Not to be dropped before it is ready: what it took meanwhile would be found only at the next call.
    ///
    /// # Errors
    /// Any [`kv::Error`]; the next call finds what this one took.
    pub async fn next(&mut self, free: usize, cancel: impl Future<Output = ()>) -> Result<Vec<ClaimedJob>> {
        let instance = self.instance.clone();
        if self.consumer_state().reply_lost.load(Ordering::Acquire) {
            let forgotten = self.forgotten().await?;
            if !forgotten.is_empty() {
                return Ok(forgotten);
            }
        }
        // Until the end of this call is reached, an answer may be lost: by an error or by being dropped.
        let doubt = LostReplyGuard::begin(instance.consumer_state());
        let taken = self.take_or_wait(free, cancel).await?;
        doubt.end();
        Ok(taken)
    }

    /// Is handed nothing more, until [`JobConsumer::next`] is called again. Gives the jobs that it was handed before, and those whose
    /// answers were lost.
    ///
    /// # Errors
    /// Any [`kv::Error`]; to be repeated. What it was handed is found by the next call, or ends as lost some time after the
    /// instance has left.
    pub async fn stop(&mut self) -> Result<Vec<ClaimedJob>> {
        let instance = self.instance.clone();
        self.consumer_state().may_have_more.store(true, Ordering::Release);
        {
            // An end that takes would have it handed something again.
            let _nothing = instance.consumer_state().claim_in_flight.write().await;
            let doubt = LostReplyGuard::begin(instance.consumer_state());
            let handed = instance.db().call(instance.of_this_life(&STOP_TAKING)).await?.texts()?;
            if !self.consumer_state().reply_lost.load(Ordering::Acquire) {
                let fetched = instance.fetched(handed).await?;
                doubt.end();
                return Ok(fetched);
            }
        }
        // A job that this instance was handed is among those that it has claimed and does not know of.
        self.forgotten().await
    }

    /// Says that every slot is taken, for as long as what it gives is kept: then [`InstanceSession::wants_next`] where jobs wait.
    #[must_use]
    pub fn full(&self) -> SlotsFullGuard {
        let more = self.consumer_state().may_have_more.load(Ordering::Acquire);
        self.consumer_state().wants_next.store(more, Ordering::Release);
        SlotsFullGuard(self.instance.clone())
    }

    fn consumer_state(&self) -> &JobConsumerState {
        self.instance.consumer_state()
    }

    async fn take_or_wait(
        &mut self,
        free: usize,
        cancel: impl Future<Output = ()>,
    ) -> Result<Vec<ClaimedJob>> {
        if self.consumer_state().may_have_more.load(Ordering::Acquire) {
            let taken = self.take(free, b"", "").await?;
            if !taken.is_empty() {
                return Ok(taken);
            }
        }
        let JobConsumerState { handed, queues, .. } = self.instance.consumer_state();
        let pop = Cmd::new("BLPOP").arg(handed).args(queues).arg(BLOCK.as_secs());
        let others = Cmd::new("LPOP").arg(handed).arg(free.saturating_sub(1));
        let doubted = &self.instance.consumer_state().reply_lost_notify;
        let cancel = async {
            tokio::select! {
                () = cancel => {}
                () = doubted.notified() => {}
            }
        };
        let [popped, others] = self.blocking.run_all([pop, others], BLOCK, cancel).await?;
        if self.instance.was_away() {
            return self.after_absence(popped).await;
        }
        let others = others.texts()?;
        if popped.is_nil() {
            // Others may have set jobs aside meanwhile.
            self.consumer_state().may_have_more.store(true, Ordering::Release);
            return self.instance.fetched(others).await;
        }
        crash_point!("queue.popped");
        let [list, entry] = popped.tuple()?;
        let list = list.text()?;
        if list == *handed {
            let handed = std::iter::once(entry.text()?).chain(others).collect();
            return self.instance.fetched(handed).await;
        }
        let mut fetched = self.instance.fetched(others).await?;
        // Anybody can push anything.
        match self.take(free.saturating_sub(fetched.len()), &entry.bytes()?, &list).await {
            Ok(taken) => fetched.extend(taken),
            Err(error) if fetched.is_empty() => return Err(error),
            Err(error) => {
                tracing::debug!(instance = %self.instance.who(), %error, "what was popped is put back");
                self.consumer_state().reply_lost.store(true, Ordering::Release);
            }
        }
        Ok(fetched)
    }

    /// Takes only jobs that are still this instance's own, after its presence was missing for so long that its jobs may have been ended
    /// as lost. An entry that was popped goes back, since another instance may get it.
    async fn after_absence(&self, popped: Value) -> Result<Vec<ClaimedJob>> {
        if !popped.is_nil() {
            let [list, entry] = popped.tuple()?;
            let list = list.text()?;
            if list != self.consumer_state().handed {
                let back = Cmd::new("LPUSH").arg(&list).arg(&entry.bytes()?);
                self.instance.db().cmd(back).await?;
            }
        }
        self.forgotten().await
    }

    async fn take(&self, free: usize, popped: &[u8], from: &str) -> Result<Vec<ClaimedJob>> {
        let answer = self.instance.db().call(self.consumer_state().take(free, popped, from)).await?;
        crash_point!("queue.taken");
        if self.instance.was_away() {
            return self.forgotten().await;
        }
        self.instance.read_taken(answer).await
    }

    /// Returns the jobs that are claimed in this instance's name and unknown here, because the answer was lost. Jobs that were
    /// popped and not claimed go back to their queue.
    async fn forgotten(&self) -> Result<Vec<ClaimedJob>> {
        let _nothing = self.consumer_state().claim_in_flight.write().await;
        for queue in &self.consumer_state().queues {
            requeue_unclaimed_in(self.instance.db(), queue).await?;
        }
        // Before the query: an answer that is lost from here on counts.
        self.consumer_state().reply_lost.store(false, Ordering::Release);
        let doubt = LostReplyGuard::begin(self.consumer_state());
        let answer = self.instance.db().call(self.instance.of_this_life(&HELD)).await?.array()?;
        let unknown = answer.into_iter().filter(|job| match job {
            Value::Array(parts) => parts
                .first()
                .and_then(|key| key.clone().text().ok())
                .and_then(|key| key.parse().ok())
                .is_none_or(|key| !self.instance.holds(key)),
            _ => true,
        });
        let forgotten = self.instance.read_jobs(Value::Array(unknown.collect())).await?;
        doubt.end();
        self.consumer_state().may_have_more.store(true, Ordering::Release);
        Ok(forgotten)
    }
}
