//! How an instance gets its jobs.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kv::{Blocking, Cmd, Error, Result, Value};
use model::execution::{AttemptEnd, Outcome};
use model::{Execution, Grants, JobKey, Reason, ReasonCode, Timestamp};

use crate::crash_point;
use crate::instance::{Ending, Instance};
use crate::job::execution;
use crate::script::{HELD, TAKE};
use crate::supervisor::put_back;

/// How long one pop waits before it is asked anew; nothing depends on it but a line that went dead.
const BLOCK: Duration = Duration::from_secs(30);

/// A job that this instance has to run now: it is recorded as started.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// What is to run.
    pub execution: Execution,
    /// What the supervisor's policy gives it.
    pub grants: Grants,
    /// When it was recorded as started, by the clock of the supervisor's Redis.
    pub started_at: Timestamp,
}

/// Gives an instance its jobs. One per instance.
#[derive(Debug)]
pub struct Intake {
    instance: Instance,
    blocking: Blocking,
    queues: Arc<[String]>,
    /// How many of them are open: demand nothing, and are not for ours alone.
    places: usize,
    /// Jobs may be there that no blocking pop gives, or that one script takes at once.
    more: bool,
    /// An answer was lost: jobs may be popped and not claimed, or claimed and not known here.
    unsure: bool,
}

impl Intake {
    pub(crate) fn new(instance: Instance, blocking: Blocking) -> Self {
        let queues = instance.who().queues(instance.isolation());
        let places = queues.iter().filter(|queue| queue.is_open()).count();
        let queues = queues.iter().map(ToString::to_string).collect();
        Self { instance, blocking, queues, places, more: true, unsure: true }
    }

    /// Takes up to `free` jobs, waiting for the first. Gives none when `cancel` was ready before there
    /// was any, and now and then when there are none.
    ///
    /// Not to be dropped before it is ready: what it took meanwhile would be found only at the next call.
    ///
    /// # Errors
    /// Any [`kv::Error`]; the next call finds what this one took.
    pub async fn next(&mut self, free: usize, cancel: impl Future<Output = ()>) -> Result<Vec<Taken>> {
        if self.unsure {
            for queue in self.queues.iter() {
                put_back(self.instance.db(), queue).await?;
            }
            let forgotten = self.forgotten().await?;
            self.unsure = false;
            self.more = true;
            if !forgotten.is_empty() {
                return Ok(forgotten);
            }
        }
        // Until the end of this call is reached, an answer may be lost: by an error or by being dropped.
        self.unsure = true;
        let taken = self.take_or_wait(free, cancel).await?;
        self.unsure = false;
        Ok(taken)
    }

    async fn take_or_wait(&mut self, free: usize, cancel: impl Future<Output = ()>) -> Result<Vec<Taken>> {
        if self.more {
            let taken = self.take(free, b"", "").await?;
            if !taken.is_empty() {
                return Ok(taken);
            }
        }
        let pop = Cmd::new("BLPOP").args(self.queues.iter()).arg(BLOCK.as_secs());
        let answer = self.blocking.run(&pop, BLOCK, cancel).await?;
        if answer.is_nil() {
            // Others may have set jobs aside meanwhile.
            self.more = true;
            return Ok(Vec::new());
        }
        crash_point!("queue.popped");
        let [queue, key] = answer.tuple()?;
        // Anybody can push anything.
        self.take(free, &key.bytes()?, &queue.text()?).await
    }

    async fn take(&mut self, free: usize, popped: &[u8], from: &str) -> Result<Vec<Taken>> {
        let call = TAKE
            .call::<&str>(&[])
            .arg(&self.instance.who().to_string())
            .arg(free)
            .arg(popped)
            .arg(from)
            .arg(self.places)
            .arg(self.instance.slots())
            .args(self.queues.iter());
        let answer = self.instance.db().call(call).await?;
        crash_point!("queue.taken");
        let [taken, more] = answer.tuple()?;
        self.more = more.int()? > 0;
        self.parse(taken).await
    }

    /// What is claimed in this instance's name and nobody here knows of: its answer was lost.
    async fn forgotten(&self) -> Result<Vec<Taken>> {
        let call = HELD.call::<&str>(&[]).arg(&self.instance.who().to_string());
        let answer = self.instance.db().call(call).await?.array()?;
        let unknown = answer.into_iter().filter(|job| match job {
            Value::Array(parts) => parts
                .first()
                .and_then(|key| key.clone().text().ok())
                .and_then(|key| key.parse().ok())
                .is_none_or(|key| !self.instance.holds(key)),
            _ => true,
        });
        self.parse(Value::Array(unknown.collect())).await
    }

    async fn parse(&self, answer: Value) -> Result<Vec<Taken>> {
        let mut taken = Vec::new();
        for job in answer.array()? {
            let [key, started_at, job, script, grants] = job.tuple()?;
            let key = key.text()?;
            let key: JobKey = key.parse().map_err(|_| Error::Protocol(format!("`{key}` is no job key")))?;
            let started_at = started_at.text()?;
            let started_at: Timestamp =
                started_at.parse().map_err(|_| Error::Protocol(format!("`{started_at}` is no time")))?;
            self.instance.hold(key);
            match read(&job.text()?, script.text()?, grants.optional_text()?.as_deref()) {
                Ok((execution, grants)) => taken.push(Taken { execution, grants, started_at }),
                Err(error) => self.refuse(key, started_at, &error).await?,
            }
        }
        Ok(taken)
    }

    /// A record that cannot be read, of another version perhaps, must not be taken for ever.
    async fn refuse(&self, key: JobKey, started_at: Timestamp, error: &serde_json::Error) -> Result<()> {
        let detail = format!("this instance cannot read the job: {error}");
        let end = AttemptEnd {
            outcome: Outcome::Failed,
            exit_code: None,
            reason: Some(Reason::new(ReasonCode::RuntimeError, detail)),
            result: model::flow::ResultMap::new(),
            outputs: std::collections::BTreeMap::new(),
            output_bytes: 0,
            ended: Vec::new(),
            instance: Some(self.instance.who().to_string()),
            start_time: Some(started_at),
            end_time: Timestamp::now(),
        };
        self.instance
            .finish(&Ending { job_key: key, end, last_log: None, output_tail: String::new() })
            .await?;
        Ok(())
    }
}

/// What is to run, and what it is given; what a job without grants gets is the default.
pub(crate) fn read(
    job: &str,
    script: String,
    grants: Option<&str>,
) -> serde_json::Result<(Execution, Grants)> {
    let grants = grants.map_or_else(|| Ok(Grants::default()), serde_json::from_str)?;
    Ok((execution(job, script)?, grants))
}
