//! How jobs are requested, and how the answers are read.

use std::sync::atomic::{AtomicBool, Ordering};

use keys::supervisor as k;
use keys::{InstanceRef, WorkQueue};
use kv::{Arg, Result, ScriptCall, Value};
use model::execution::{AttemptEnd, Outcome};
use model::{Execution, ExecutionRecord, Grants, Isolation, JobKey, Reason, ReasonCode, Timestamp};
use tokio::sync::{Notify, RwLock};

use crate::crash_point;
use crate::instance::{InstanceSession, JobEndReport};
use crate::script::{FINISH_AND_TAKE, TAKE};

/// A job that this instance has to run now: it is recorded as started.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedJob {
    /// Attempt to run.
    pub execution: Execution,
    /// Grants that the supervisor's policy gives the job.
    pub grants: Grants,
    /// When it was recorded as started, by the clock of the supervisor's Redis.
    pub started_at: Timestamp,
}

/// State of an instance's job intake.
#[derive(Debug)]
pub(crate) struct JobConsumerState {
    instance: String,
    slots: u32,
    pub(crate) queues: Vec<String>,
    /// How many of them are open: demand nothing, and are not for ours alone.
    places: usize,
    /// How their names can end: the demands of each, separated by commas.
    demands: String,
    /// Where it is handed jobs.
    pub(crate) handed: String,
    /// Jobs may be there that no blocking pop gives, or that one script takes at once.
    pub(crate) may_have_more: AtomicBool,
    /// An answer was lost: jobs may be popped and not claimed, or claimed and not known here.
    pub(crate) reply_lost: AtomicBool,
    /// Every slot is taken and jobs may wait: one that is over is followed by the next.
    pub(crate) wants_next: AtomicBool,
    /// Read while a claim of one job is on its way beside the intake; written by who looks for claims that are not known here, and
    /// by who takes nothing more.
    pub(crate) claim_in_flight: RwLock<()>,
    /// Wakes an intake that waits when an answer was lost beside it.
    pub(crate) reply_lost_notify: Notify,
}

impl JobConsumerState {
    pub(crate) fn new(who: &InstanceRef, isolation: Isolation, slots: u32) -> Self {
        let queues = who.queues(isolation);
        Self {
            instance: who.to_string(),
            slots,
            places: queues.iter().filter(|queue| queue.is_open()).count(),
            demands: demands(&WorkQueue::shared(who.script_type), &queues),
            queues: queues.iter().map(ToString::to_string).collect(),
            handed: k::handed(who),
            may_have_more: AtomicBool::new(true),
            reply_lost: AtomicBool::new(true),
            wants_next: AtomicBool::new(false),
            claim_in_flight: RwLock::new(()),
            reply_lost_notify: Notify::new(),
        }
    }

    /// Something may have been lost: it is looked for, also by an intake that waits.
    pub(crate) fn note_lost_reply(&self) {
        self.reply_lost.store(true, Ordering::Release);
        self.reply_lost_notify.notify_one();
    }

    /// Asks for up to `free` jobs, and for what a pop has given `from` a queue, or nothing.
    pub(crate) fn take(&self, free: usize, popped: &[u8], from: &str) -> ScriptCall {
        let call = TAKE.call::<&str>(&[]).named(self.arguments(free, popped, from));
        call.args(&self.queues).arg(&self.demands)
    }

    /// Asks for the job after one that has ended; to be followed by the arguments of `finish`.
    pub(crate) fn finish_and_take(&self) -> ScriptCall {
        let arguments = self.arguments(1, b"", "");
        let take_arguments = arguments.len() + self.queues.len() + 1;
        let call = FINISH_AND_TAKE.call::<&str>(&[]).named(kv::named![take_arguments: take_arguments]);
        call.args(arguments.map(|(_, value)| value)).args(&self.queues).arg(&self.demands)
    }

    /// The arguments of `take` that have a name.
    fn arguments<'a>(&'a self, free: usize, popped: &'a [u8], from: &'a str) -> [(&'static str, Arg<'a>); 6] {
        kv::named![
            instance: &self.instance,
            free: free,
            popped: popped,
            popped_from: from,
            places: self.places,
            slots: self.slots,
        ]
    }
}

/// Answers may be lost until this is over.
pub(crate) struct LostReplyGuard<'a>(Option<&'a JobConsumerState>);

impl<'a> LostReplyGuard<'a> {
    pub(crate) const fn begin(taking: &'a JobConsumerState) -> Self {
        Self(Some(taking))
    }

    /// Nothing was lost.
    pub(crate) fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for LostReplyGuard<'_> {
    fn drop(&mut self) {
        if let Some(taking) = self.0 {
            taking.note_lost_reply();
        }
    }
}

impl InstanceSession {
    /// Reads the answer to a request for jobs.
    pub(crate) async fn read_taken(&self, answer: Value) -> Result<Vec<ClaimedJob>> {
        let [taken, more, handed] = answer.tuple()?;
        self.consumer_state().may_have_more.store(more.int()? > 0, Ordering::Release);
        let mut jobs = self.fetched(handed.texts()?).await?;
        jobs.extend(self.read_jobs(taken).await?);
        Ok(jobs)
    }

    /// Jobs that were handed over: `<key> <time> <bytes of the job> <bytes of the script>`, and on the next line job, script and grants.
    pub(crate) async fn fetched(&self, handed: Vec<String>) -> Result<Vec<ClaimedJob>> {
        if handed.is_empty() {
            return Ok(Vec::new());
        }
        crash_point!("queue.fetched");
        let mut jobs = Vec::with_capacity(handed.len());
        for entry in &handed {
            match parts(entry) {
                Some(parts) => jobs.push(Value::Array(parts.map(|part| Value::Bytes(part.into())).into())),
                // A foreign client wrote it there: the scripts write no such entry.
                None => tracing::warn!(instance = %self.who(), "a handed-over entry cannot be read"),
            }
        }
        self.read_jobs(Value::Array(jobs)).await
    }

    /// Reads jobs, each as key, time, job, script and grants.
    pub(crate) async fn read_jobs(&self, answer: Value) -> Result<Vec<ClaimedJob>> {
        let mut taken = Vec::new();
        for job in answer.array()? {
            let [key, started_at, job, script, grants] = job.tuple()?;
            let (key, started_at, job, script) =
                (key.text()?, started_at.text()?, job.text()?, script.text()?);
            let grants = grants.optional_text()?.filter(|text| !text.is_empty());
            let (Ok(key), Ok(started_at)) = (key.parse::<JobKey>(), started_at.parse::<Timestamp>()) else {
                // None of ours; the others are not to be lost with it.
                tracing::warn!(instance = %self.who(), "an entry that it took is not a job");
                continue;
            };
            self.hold(key);
            match read(&job, script, grants.as_deref()) {
                Ok((execution, grants)) => taken.push(ClaimedJob { execution, grants, started_at }),
                Err(error) => {
                    if let Err(error) = self.refuse(key, started_at, &error).await {
                        // The others are not to be lost with it: it is found again.
                        tracing::warn!(%key, %error, "a job that cannot be read is not refused yet");
                        self.let_go(key);
                        self.consumer_state().note_lost_reply();
                    }
                }
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
            instance: Some(self.who().to_string()),
            start_time: Some(started_at),
            end_time: Timestamp::now(),
        };
        self.finish(&JobEndReport { job_key: key, end, last_log: None, output_tail: String::new() }).await?;
        Ok(())
    }
}

/// How the names of these queues can end besides their priority, each between commas; `shared` is the most general of them.
fn demands(shared: &WorkQueue, queues: &[WorkQueue]) -> String {
    let shared = shared.to_string();
    let ends = queues.iter().filter_map(|queue| {
        let queue = queue.to_string();
        let end = queue.strip_prefix(&shared)?;
        (!end.contains(":group:") && !end.contains(":prio:")).then(|| end.to_owned())
    });
    ends.fold(",".to_owned(), |demands, end| demands + &end + ",")
}

/// Key, time, job, script and grants of a job that was handed over; nothing for any other entry.
fn parts(entry: &str) -> Option<[&str; 5]> {
    let (head, bodies) = entry.split_once('\n')?;
    let mut head = head.split(' ');
    let (key, time) = (head.next()?, head.next()?);
    let (job, rest) = bodies.split_at_checked(head.next()?.parse().ok()?)?;
    let (script, grants) = rest.split_at_checked(head.next()?.parse().ok()?)?;
    Some([key, time, job, script, grants])
}

/// Reads the attempt to run and its grants; a job without grants gets the default ones.
pub(crate) fn read(
    job: &str,
    script: String,
    grants: Option<&str>,
) -> serde_json::Result<(Execution, Grants)> {
    let grants = grants.map_or_else(|| Ok(Grants::default()), serde_json::from_str)?;
    Ok((ExecutionRecord::read(job, script)?, grants))
}
