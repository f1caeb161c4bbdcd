//! Queries about jobs and instances that a supervisor needs to maintain its machine.

use std::collections::HashSet;

use keys::legacy::legacy_claims;
use keys::supervisor as k;
use keys::{InstanceRef, LegacyQueue};
use kv::{Cmd, Error, Pipeline, Result, Value};
use model::{BlobHash, ContextUid, Execution, JobKey, ScriptSource, Timestamp};
use serde::{Deserialize, Serialize};

use crate::event::QueueEventKind;
use crate::presence::PresenceRecord;
use crate::script::EXPEL;
use crate::supervisor::SupervisorQueues;

/// The field of the supervisor's own hash that says that it drains.
const DRAIN: &str = "drain";
/// Records read in one round trip.
const BATCH: usize = 200;

/// A supervisor takes nothing new. Stays so over its restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorDrain {
    /// Since when.
    pub since: Timestamp,
    /// When what runs is ended; absent: each instance knows for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

impl SupervisorQueues {
    /// Returns the supervisor's drain; nothing when it takes new jobs.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn drain(&self) -> Result<Option<SupervisorDrain>> {
        let text = self.db().cmd(Cmd::new("HGET").arg(k::SUPERVISOR).arg(DRAIN)).await?.optional_text()?;
        let unreadable = |error| Error::Protocol(format!("the drain cannot be read: {error}"));
        text.map(|text| serde_json::from_str(&text).map_err(unreadable)).transpose()
    }

    /// Remembers that it takes nothing new, or that it does again.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn set_drain(&self, drain: Option<SupervisorDrain>) -> Result<()> {
        let cmd = match drain {
            None => Cmd::new("HDEL").arg(k::SUPERVISOR).arg(DRAIN),
            Some(drain) => {
                let text = serde_json::to_string(&drain)
                    .map_err(|error| Error::Protocol(format!("the drain cannot be written: {error}")))?;
                Cmd::new("HSET").arg(k::SUPERVISOR).arg(DRAIN).arg(&text)
            }
        };
        self.db().cmd(cmd).await.map(drop)
    }

    /// The coordinator that a context is bound to; nothing while there is none.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn coordinator_of(&self, context: ContextUid) -> Result<Option<String>> {
        let binding = k::context_binding(context);
        self.db().cmd(Cmd::new("HGET").arg(&binding).arg("coordinator")).await?.optional_text()
    }

    /// Returns the jobs that an instance has started and not ended.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn claims_of(&self, instance: &InstanceRef) -> Result<Vec<JobKey>> {
        let claims = Cmd::new("ZRANGE").arg(&k::claims(instance)).arg(0).arg(-1);
        Ok(job_keys(&self.db().cmd(claims).await?.texts()?))
    }

    /// Everything that was started and has not ended, old workers' jobs among it.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn running(&self) -> Result<Vec<JobKey>> {
        let instances = self.db().cmd(Cmd::new("SMEMBERS").arg(k::INSTANCES)).await?.texts()?;
        let old = self.db().cmd(Cmd::new("SMEMBERS").arg(k::OLD_QUEUES)).await?.texts()?;
        let mut pipeline = Pipeline::new();
        for instance in instances.iter().filter_map(|name| InstanceRef::parse(name)) {
            pipeline.cmd(Cmd::new("ZRANGE").arg(&k::claims(&instance)).arg(0).arg(-1));
        }
        for queue in old.iter().filter_map(|name| LegacyQueue::parse(name)) {
            pipeline.cmd(Cmd::new("ZRANGE").arg(&legacy_claims(&queue)).arg(0).arg(-1));
        }
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let mut running = Vec::new();
        for claims in self.db().pipeline(&pipeline).await? {
            running.extend(job_keys(&claims?.texts()?));
        }
        Ok(running)
    }

    /// Makes an instance absent whose process is known to be dead; [`SupervisorQueues::end_lost`] then ends what it
    /// had started. False: another life of it is there meanwhile.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn expel(&self, instance: &InstanceRef, dead: &PresenceRecord) -> Result<bool> {
        let call = EXPEL.call(&[k::presence(instance)]).named(kv::named![life: &dead.life]);
        let answer = self.db().call(call).await?;
        Ok(answer.int()? == 1)
    }

    /// Returns the blobs that jobs of a context still need: scripts and files of jobs whose end was not acknowledged
    /// yet, and the outputs of their ends. Blobs of jobs that are accepted meanwhile may be missing.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn blobs_in_use(&self, context: ContextUid) -> Result<HashSet<BlobHash>> {
        // Records whose end was acknowledged have a time there, at which they expire.
        let all = Cmd::new("ZRANGEBYSCORE").arg(&k::context_jobs(context)).arg("+inf").arg("+inf");
        let keys = job_keys(&self.db().cmd(all).await?.texts()?);
        let mut blobs = HashSet::new();
        for part in keys.chunks(BATCH) {
            let mut pipeline = Pipeline::new();
            for key in part {
                pipeline.cmd(Cmd::new("HMGET").arg(&k::job(*key)).arg("job").arg("end"));
            }
            for record in self.db().pipeline(&pipeline).await? {
                let [job, end]: [Value; 2] = record?.tuple()?;
                blobs.extend(needed(job.optional_text()?, end.optional_text()?)?);
            }
        }
        Ok(blobs)
    }
}

fn job_keys(texts: &[String]) -> Vec<JobKey> {
    // Anybody can write anything; a text that is no job key is no job of ours.
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// The blobs that one job's record names. One that cannot be read would lose some of them, so that it is an error.
pub(crate) fn needed(job: Option<String>, end: Option<String>) -> Result<Vec<BlobHash>> {
    let unreadable = |error| Error::Protocol(format!("a job's record cannot be read: {error}"));
    let mut blobs = Vec::new();
    if let Some(job) = job {
        let job: Execution = serde_json::from_str(&job).map_err(unreadable)?;
        blobs.extend(job.files.values().map(|file| file.blob.sha256));
        if let ScriptSource::Blob(script) = job.script {
            blobs.push(script.sha256);
        }
    }
    if let Some(end) = end
        && let QueueEventKind::Ended(end) = serde_json::from_str(&end).map_err(unreadable)?
    {
        blobs.extend(end.outputs.values().map(|output| output.sha256));
    }
    Ok(blobs)
}
