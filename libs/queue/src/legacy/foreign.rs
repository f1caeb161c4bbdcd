//! Jobs that foreign clients push into our own queues, and jobs that foreign workers take from them.
//!
//! Instances set aside entries of a queue that are no jobs of ours; the supervisor adopts or refuses them. Where queues are
//! open, foreign workers may take jobs of ours as well, with a plain pop: a missing job is theirs when they say so in its
//! hash, and is put back when none does.

use std::future::Future;
use std::time::Duration;

use keys::supervisor as k;
use keys::{LegacyJob, LegacyQueue, WorkQueue};
use kv::{BlockingConnection, Cmd, Pipeline, Result, Value};
use model::id::Uid;
use model::limits::{ENV_BYTES_MAX, SCRIPT_BYTES_MAX};
use model::{ContextUid, Execution, Grants, ScriptType};

use crate::QUEUE_LEN_MAX;
use crate::legacy::import::{JobImportCandidate, JobImportEntry};
use crate::script::{FIND_FOREIGN, LOOK_AT_OLD, SWEEP_OPEN};
use crate::supervisor::SupervisorQueues;

/// How many are settled with one round trip: each brings its script along.
const BATCH: usize = 50;
/// How many jobs of a queue one look compares with its list.
const LOOKED_AT: usize = 200;
/// How long a worker of others may have a job before it says so in its hash.
const SILENCE: Duration = Duration::from_secs(30);
/// How long one wait lasts; nothing depends on it but a line that went dead.
const BLOCK: Duration = Duration::from_secs(30);
/// The field with the context of jobs of others.
const CONTEXT_FIELD: &str = "open_context";
/// Why they are refused.
const CLOSED: &str = "QUEUES_CLOSED: this queue is for jobs of Mycora alone; its supervisor adopts those of others when it is \
                      started with --open-queues (`mycora up --legacy`)";
/// Why one is refused that would be one too many.
const FULL: &str = "QUEUE_FULL: as many jobs wait as may";

/// A job of others in a queue of ours, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignJob {
    /// Where it was pushed.
    pub queue: String,
    /// Entry that was pushed; bytes that are not text are replaced.
    pub entry: String,
    /// Why it is not run; nothing for one that waits for an instance now.
    pub refused: Option<String>,
}

/// Waits for jobs of others, on a connection of its own.
#[derive(Debug)]
pub struct ForeignJobWatcher(BlockingConnection);

impl ForeignJobWatcher {
    /// Waits until there is something to settle. Ends without when `cancel` is ready first, and now and then.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn wait(&mut self, cancel: impl Future<Output = ()>) -> Result<()> {
        // Takes the first, and puts it back where it was.
        let look = Cmd::new("BLMOVE").arg(k::FOREIGN).arg(k::FOREIGN).arg("LEFT").arg("LEFT");
        self.0.run(&look.arg(BLOCK.as_secs()), BLOCK, cancel).await.map(drop)
    }
}

impl SupervisorQueues {
    /// Keeps whether the queues are open, for everybody who works with them.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn note_open(&self) -> Result<()> {
        let note = if self.open {
            Cmd::new("HSET").arg(k::SUPERVISOR).arg(k::OPEN_FIELD).arg(1)
        } else {
            Cmd::new("HDEL").arg(k::SUPERVISOR).arg(k::OPEN_FIELD)
        };
        self.db().cmd(note).await.map(drop)
    }

    /// The context of jobs of others: random, made with the first of them, and no coordinator's. None is needed where they are refused.
    async fn open_context(&self) -> Result<ContextUid> {
        if !self.open {
            return Ok(ContextUid(Uid::from_bits(0)));
        }
        let fresh = Uid::random().to_string();
        self.db().cmd(Cmd::new("HSETNX").arg(k::SUPERVISOR).arg(CONTEXT_FIELD).arg(&fresh)).await?;
        let kept = self.db().cmd(Cmd::new("HGET").arg(k::SUPERVISOR).arg(CONTEXT_FIELD)).await?.text()?;
        let uid =
            kept.parse().map_err(|_| kv::Error::Protocol(format!("`{CONTEXT_FIELD}` is no uid: {kept}")))?;
        Ok(ContextUid(uid))
    }

    /// Waits for what others push. One per supervisor.
    #[must_use]
    pub fn foreign_watch(&self) -> ForeignJobWatcher {
        ForeignJobWatcher(self.kv().blocking(self.db().database()))
    }

    /// Settles what others pushed into queues of ours, up to a number of entries: adopts it where queues are open, and refuses it
    /// where they are not. `grant` says what each is given, or why it may not run. How each ends is written where its dispatcher
    /// looks for it.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn settle_foreign(
        &self,
        grant: impl Fn(&Execution) -> std::result::Result<Grants, String>,
    ) -> Result<Vec<ForeignJob>> {
        let context = self.open_context().await?;
        let look = LOOK_AT_OLD.call(&[k::FOREIGN]).named(kv::named![
            count: BATCH,
            script_bytes_max: SCRIPT_BYTES_MAX,
            variables_bytes_max: ENV_BYTES_MAX,
        ]);
        let open = self.open;
        let grant = |job: &Execution| if open { grant(job) } else { Err(CLOSED.to_owned()) };
        let mut settled = Vec::new();
        for value in self.db().call(look).await?.array()? {
            settled.extend(self.settle(context, value, &grant).await?);
        }
        Ok(settled)
    }

    async fn settle(
        &self,
        context: ContextUid,
        value: Value,
        grant: impl Fn(&Execution) -> std::result::Result<Grants, String>,
    ) -> Result<Option<ForeignJob>> {
        let found = JobImportCandidate::read(value, |entry| entry_of(context, entry), grant)?;
        let (queue, entry) = found.at().pushed.clone();
        let mut why = if self.open { found.why().to_owned() } else { CLOSED.to_owned() };
        if why.is_empty()
            && let Some(call) = found.import_call(QUEUE_LEN_MAX)?
        {
            match self.db().call(call).await?.text()?.as_str() {
                "taken" => return Ok(Some(ForeignJob { queue, entry, refused: None })),
                "full" => why = FULL.to_owned(),
                // Pushed twice, or taken back meanwhile.
                _ => return Ok(None),
            }
        }
        let count = self.db().call(found.refuse_call(&why)).await?.uint()?;
        Ok((count > 0).then_some(ForeignJob { queue, entry, refused: Some(why) }))
    }

    /// Finds foreign entries for types of which no instance is here, since nothing else would look at them. Does nothing where
    /// queues are open: foreign workers may be there.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn find_foreign(&self, unserved: impl Iterator<Item = ScriptType>) -> Result<()> {
        if self.open {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        for script_type in unserved {
            for priority in 0..=k::PRIORITY_MAX {
                let queue = WorkQueue::shared(script_type).with_priority(priority);
                pipeline.call(FIND_FOREIGN.call(&[queue.to_string()]).named(kv::named![count: LOOKED_AT]));
            }
        }
        for answer in self.db().pipeline(&pipeline).await? {
            answer?;
        }
        Ok(())
    }

    /// Notices which jobs foreign workers have taken from our queues, and puts back those that no worker claims. Does nothing
    /// where queues are not open.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn sweep_open(&self) -> Result<()> {
        if !self.open {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        for queue in self.queues().await?.iter().filter(|queue| queue.is_open()) {
            let named = kv::named![count: LOOKED_AT, silence_secs: SILENCE.as_secs()];
            pipeline.call(SWEEP_OPEN.call(&[queue.to_string()]).named(named));
        }
        for answer in self.db().pipeline(&pipeline).await? {
            let [taken, back] = answer?.tuple()?;
            let (taken, back) = (taken.uint()?, back.uint()?);
            if taken + back > 0 {
                tracing::debug!(taken, back, "jobs were taken by workers of others, or put back");
            }
        }
        Ok(())
    }
}

/// Reads an item of the list of foreign entries: the queue and, behind a space, the entry that was pushed.
fn entry_of(context: ContextUid, entry: Vec<u8>) -> JobImportEntry {
    let text = String::from_utf8_lossy(&entry).into_owned();
    let (name, pushed) = text.split_once(' ').unwrap_or((&text, ""));
    // Only scripts write there, and what they are given are queues.
    let queue = WorkQueue::parse(name).unwrap_or_else(|| WorkQueue::shared(ScriptType::Shell));
    let job = LegacyJob::parse(&LegacyQueue::Work(queue.clone()), pushed);
    JobImportEntry {
        list: k::FOREIGN.to_owned(),
        pushed: (name.to_owned(), pushed.to_owned()),
        job,
        entry,
        script_type: queue.script_type(),
        context,
        // Adopted, it is for our instances: workers of others know it as its dispatcher has named it.
        queue: queue.closed(),
    }
}
