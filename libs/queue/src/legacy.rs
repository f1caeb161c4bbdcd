//! Legacy workers and legacy dispatchers, which know other keys and no scripts of ours.
//!
//! A job that legacy workers may take stands in one legacy queue beside its own. That entry is the token: the worker that
//! takes it has the job. Our instances take it in the script that claims the job; a legacy worker pops it with a plain
//! command, and a sweep notices, and reads what it writes into the job's hash.

pub(crate) mod end;
pub(crate) mod foreign;
pub(crate) mod import;

pub use foreign::{ForeignJob, ForeignJobWatcher};
pub use import::{JobImportCounts, PopBinding};

use std::time::Duration;

use keys::LegacyQueue;
use keys::supervisor as k;
use kv::{Cmd, Error, Pipeline, Result, ScriptCall, Value};
use model::limits::RESULT_BYTES_MAX;
use model::{ContextUid, Execution, Grants, Isolation, Reason, ReasonCode, ScriptSource, ScriptType};

use crate::legacy::end::LegacyJobEnd;
use crate::script::{FINISH, SWEEP_OLD};
use crate::supervisor::SupervisorQueues;

/// How long after its timeout a job that an old worker took, and never ended, is lost.
pub const OLD_WORKER_PATIENCE: Duration = Duration::from_secs(60);
/// How many bytes of an old worker's job output are reported.
pub const OLD_OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// How many jobs one script looks at.
const BATCH: usize = 200;
/// Most bytes of results and output in one answer, not counting the last of them.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Shows a context's jobs of one type to old workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushBinding {
    /// Where they pop from.
    pub queue: LegacyQueue,
    /// Which jobs.
    pub script_type: ScriptType,
    /// Context of the jobs.
    pub context: ContextUid,
}

impl PushBinding {
    /// Returns true if a legacy worker of this queue can run the job as well as an instance could. A legacy worker
    /// knows the script and its variables as they stand, and nothing else.
    #[must_use]
    pub fn fits(&self, job: &Execution, grants: &Grants) -> bool {
        job.job_key.context == self.context
            && job.script_type == self.script_type
            && (job.group.is_none() && job.instance.is_none())
            && is_plain(job, grants)
    }
}

/// Returns true for a job that is only a script and variables as they stand, which foreign workers run as well as an instance.
#[must_use]
pub fn is_plain(job: &Execution, grants: &Grants) -> bool {
    let plain = |text: &String| !text.contains("${{");
    matches!(job.script, ScriptSource::Inline(_))
        && (job.files.is_empty() && job.outputs.is_empty() && job.inputs.is_empty())
        && (job.isolation == Isolation::Basic && grants.isolation == Isolation::Basic)
        && job.env_vars.values().all(plain)
}

/// Numbers of jobs that a sweep found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LegacySweepCounts {
    /// Jobs that legacy workers have taken since the last sweep.
    pub taken: u64,
    /// Jobs that they have ended.
    pub ended: u64,
    /// Jobs that they will not end any more.
    pub lost: u64,
}

impl SupervisorQueues {
    /// Notices what old workers did since the last time, and gives up for lost what they did not end within its
    /// timeout and `patience` (see [`OLD_WORKER_PATIENCE`]). A job without a timeout is never given up.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn sweep_legacy(&self, patience: Duration) -> Result<LegacySweepCounts> {
        let mut swept = LegacySweepCounts::default();
        let names = self.db().cmd(Cmd::new("SMEMBERS").arg(k::OLD_QUEUES)).await?.texts()?;
        for queue in names.iter().filter_map(|name| LegacyQueue::parse(name)) {
            self.sweep_queue(&queue, patience, &mut swept).await?;
        }
        Ok(swept)
    }

    async fn sweep_queue(
        &self,
        queue: &LegacyQueue,
        patience: Duration,
        swept: &mut LegacySweepCounts,
    ) -> Result<()> {
        let mut kept = 0;
        loop {
            let mut answer = self.db().call(sweep_call(queue, kept, patience)?).await?.array()?.into_iter();
            let mut count = || answer.next().map_or(Ok(0), |value| value.uint());
            let (taken, looked_at, still, lost) = (count()?, count()?, count()?, count()?);
            let ends = answer.map(LegacyJobEnd::from_value).collect::<Result<Vec<_>>>()?;
            swept.taken += taken;
            swept.lost += lost;
            kept += still;
            // If something else has ended them meanwhile, they are gone from there as well.
            swept.ended += self.end_old(queue, &ends).await?;
            if taken == 0 && (looked_at == 0 || looked_at == still && looked_at < BATCH as u64) {
                return Ok(());
            }
        }
    }

    /// Records the ends; gives how many were.
    async fn end_old(&self, queue: &LegacyQueue, ends: &[LegacyJobEnd]) -> Result<u64> {
        if ends.is_empty() {
            return Ok(0);
        }
        let mut pipeline = Pipeline::new();
        for end in ends {
            pipeline.call(end.finish_call(&FINISH, &queue.worker())?);
        }
        let mut count = 0;
        for answer in self.db().pipeline(&pipeline).await? {
            let [recorded, _status]: [Value; 2] = answer?.tuple()?;
            count += recorded.uint()?;
        }
        Ok(count)
    }
}

fn sweep_call(queue: &LegacyQueue, kept: u64, patience: Duration) -> Result<ScriptCall> {
    let reason = Reason::new(ReasonCode::InstanceLost, format!("an old worker of {queue} never ended it"));
    let reason = serde_json::to_string(&reason)
        .map_err(|error| Error::Protocol(format!("a reason cannot be written: {error}")))?;
    Ok(SWEEP_OLD.call(&[queue.to_string()]).named(kv::named![
        kept: kept,
        count: BATCH,
        patience_secs: patience.as_secs(),
        reason: &reason,
        result_bytes_max: 2 * RESULT_BYTES_MAX,
        output_bytes_max: OLD_OUTPUT_BYTES_MAX,
        answer_bytes: ANSWER_BYTES,
    ]))
}
