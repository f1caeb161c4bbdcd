//! How an instance gets its jobs.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kv::{Blocking, Cmd, Result, Value};

use crate::crash_point;
use crate::instance::Instance;
use crate::script::{HELD, STOP_TAKING};
use crate::supervisor::put_back;
use crate::taking::{Doubt, Taken, Taking};

/// How long one pop waits before it is asked anew; nothing depends on it but a line that went dead.
const BLOCK: Duration = Duration::from_secs(30);

/// Gives an instance its jobs. One per instance.
#[derive(Debug)]
pub struct Intake {
    instance: Instance,
    blocking: Blocking,
}

/// While this lives every slot is taken: a job that ends may be followed by the next in the same turn.
#[derive(Debug)]
pub struct Full(Instance);

impl Drop for Full {
    fn drop(&mut self) {
        self.0.taking().wants_next.store(false, Ordering::Release);
    }
}

impl Intake {
    pub(crate) const fn new(instance: Instance, blocking: Blocking) -> Self {
        Self { instance, blocking }
    }

    /// Takes up to `free` jobs, waiting for the first. Gives none when `cancel` was ready before there
    /// was any, and now and then when there are none.
    ///
    /// Not to be dropped before it is ready: what it took meanwhile would be found only at the next call.
    ///
    /// # Errors
    /// Any [`kv::Error`]; the next call finds what this one took.
    pub async fn next(&mut self, free: usize, cancel: impl Future<Output = ()>) -> Result<Vec<Taken>> {
        let instance = self.instance.clone();
        if self.taking().unsure.load(Ordering::Acquire) {
            let forgotten = self.forgotten().await?;
            if !forgotten.is_empty() {
                return Ok(forgotten);
            }
        }
        // Until the end of this call is reached, an answer may be lost: by an error or by being dropped.
        let doubt = Doubt::begin(instance.taking());
        let taken = self.take_or_wait(free, cancel).await?;
        doubt.end();
        Ok(taken)
    }

    /// Is handed nothing more, until [`Intake::next`] is called again. Gives the jobs that it was handed before, and those whose
    /// answers were lost.
    ///
    /// # Errors
    /// Any [`kv::Error`]; to be repeated. What it was handed is found by the next call, or ends as lost some time after the
    /// instance has left.
    pub async fn stop(&mut self) -> Result<Vec<Taken>> {
        let instance = self.instance.clone();
        self.taking().more.store(true, Ordering::Release);
        {
            // An end that takes would have it handed something again.
            let _nothing = instance.taking().on_its_way.write().await;
            let doubt = Doubt::begin(instance.taking());
            let handed = instance.db().call(instance.of_this_life(&STOP_TAKING)).await?.texts()?;
            if !self.taking().unsure.load(Ordering::Acquire) {
                let fetched = instance.fetched(handed).await?;
                doubt.end();
                return Ok(fetched);
            }
        }
        // A job that this instance was handed is among those that it has claimed and does not know of.
        self.forgotten().await
    }

    /// Says that every slot is taken, for as long as what it gives is kept: then [`Instance::wants_next`] where jobs wait.
    #[must_use]
    pub fn full(&self) -> Full {
        let more = self.taking().more.load(Ordering::Acquire);
        self.taking().wants_next.store(more, Ordering::Release);
        Full(self.instance.clone())
    }

    fn taking(&self) -> &Taking {
        self.instance.taking()
    }

    async fn take_or_wait(&mut self, free: usize, cancel: impl Future<Output = ()>) -> Result<Vec<Taken>> {
        if self.taking().more.load(Ordering::Acquire) {
            let taken = self.take(free, b"", "").await?;
            if !taken.is_empty() {
                return Ok(taken);
            }
        }
        let Taking { handed, queues, .. } = self.instance.taking();
        let pop = Cmd::new("BLPOP").arg(handed).args(queues).arg(BLOCK.as_secs());
        let others = Cmd::new("LPOP").arg(handed).arg(free.saturating_sub(1));
        let doubted = &self.instance.taking().doubted;
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
            self.taking().more.store(true, Ordering::Release);
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
                self.taking().unsure.store(true, Ordering::Release);
            }
        }
        Ok(fetched)
    }

    /// Takes only what is still this instance's own, after it did not show for so long that its jobs may have been ended as lost. An entry
    /// that was popped goes back, since it may be of others.
    async fn after_absence(&self, popped: Value) -> Result<Vec<Taken>> {
        if !popped.is_nil() {
            let [list, entry] = popped.tuple()?;
            let list = list.text()?;
            if list != self.taking().handed {
                let back = Cmd::new("LPUSH").arg(&list).arg(&entry.bytes()?);
                self.instance.db().cmd(back).await?;
            }
        }
        self.forgotten().await
    }

    async fn take(&self, free: usize, popped: &[u8], from: &str) -> Result<Vec<Taken>> {
        let answer = self.instance.db().call(self.taking().take(free, popped, from)).await?;
        crash_point!("queue.taken");
        if self.instance.was_away() {
            return self.forgotten().await;
        }
        self.instance.read_taken(answer).await
    }

    /// What is claimed in this instance's name and nobody here knows of: its answer was lost. What was popped and not claimed is put
    /// back.
    async fn forgotten(&self) -> Result<Vec<Taken>> {
        let _nothing = self.taking().on_its_way.write().await;
        for queue in &self.taking().queues {
            put_back(self.instance.db(), queue).await?;
        }
        // Before they are asked for: an answer that is lost from here on counts.
        self.taking().unsure.store(false, Ordering::Release);
        let doubt = Doubt::begin(self.taking());
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
        self.taking().more.store(true, Ordering::Release);
        Ok(forgotten)
    }
}
