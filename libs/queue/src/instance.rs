//! An instance's side: be there, report, finish.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use keys::InstanceRef;
use keys::supervisor as k;
use kv::{Arg, Error, Kv, KvConnection, Result, Script, ScriptCall, Value};
use model::execution::AttemptEnd;
use model::id::Uid;
use model::{Isolation, JobKey, Timestamp};

use crate::commands::InstanceCommandReader;
use crate::consumer::JobConsumer;
use crate::consumer_state::{ClaimedJob, JobConsumerState, LostReplyGuard};
use crate::event::{LogChunk, QueueEventKind, encode};
use crate::job::QueueJobStatus;
use crate::presence::{PRESENCE_TTL, PresenceRecord};
use crate::script::{FINISH, JOIN, LEAVE, LOG, REFRESH};
use crate::supervisor::end_claims;
use crate::{OUTPUT_TAIL_BYTES_MAX, crash_point};

/// Description that an instance gives of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceDescriptor {
    /// Hostname of the instance's machine.
    pub hostname: String,
    /// Process id of the instance.
    pub pid: u32,
    /// When that process started, in the kernel's clock ticks since boot.
    pub process_start: u64,
    /// How many jobs it runs at once.
    pub slots: u32,
    /// The isolation its jobs get.
    pub isolation: Isolation,
    /// Layers that provide the isolation.
    pub layers: Vec<String>,
    /// The version of its program.
    pub version: String,
}

/// Why an instance could not join.
#[derive(Debug, thiserror::Error)]
pub enum InstanceJoinError {
    /// Another process works under this name, or died so recently that it still seems to.
    #[error(
        "instance {instance} is taken by process {} on {}; give this one another number",
        holder.pid, holder.hostname
    )]
    Taken {
        /// Which instance.
        instance: InstanceRef,
        /// Presence record of the instance that has the name.
        holder: Box<PresenceRecord>,
    },
    /// Redis gave trouble.
    #[error("the queue cannot be reached")]
    Store(#[source] Error),
}

impl From<Error> for InstanceJoinError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// Result of recording something about a running job: recorded, or the job is no longer this instance's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRecordOutcome {
    /// The report is recorded.
    Recorded,
    /// The job was ended by another party meanwhile; nothing was recorded. Absent status: the job is no longer known.
    Closed(Option<QueueJobStatus>),
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEndReport {
    /// Which job.
    pub job_key: JobKey,
    /// How it ended.
    pub end: AttemptEnd,
    /// Output since the last chunk of log.
    pub last_log: Option<LogChunk>,
    /// The end of its output, for its record; cut to [`OUTPUT_TAIL_BYTES_MAX`].
    pub output_tail: String,
}

/// Orders that an instance receives when it refreshes its presence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PresenceRefreshOutcome {
    /// Jobs that are to stop, with seconds of grace. Repeated until they end.
    pub stops: Vec<(JobKey, u32)>,
    /// Jobs that are no longer this instance's, because another party ended them. Their remaining processes must be killed.
    pub closed: Vec<JobKey>,
}

/// The instance's side of the protocol. Cheap to clone.
#[derive(Debug, Clone)]
pub struct InstanceSession(Arc<InstanceSessionInner>);

#[derive(Debug)]
struct InstanceSessionInner {
    db: KvConnection,
    who: InstanceRef,
    name: String,
    life: String,
    joined_at: Timestamp,
    about: InstanceDescriptor,
    held: Mutex<HashSet<JobKey>>,
    /// Jobs that the last refresh found claimed in its name, and that were not known here.
    unknown: Mutex<HashSet<JobKey>>,
    consumer_state: JobConsumerState,
    seen: Mutex<PresenceTracker>,
}

/// When an instance was known to be there.
#[derive(Debug)]
struct PresenceTracker {
    last: Instant,
    /// Others may have taken the instance for lost since the last check.
    was_away: bool,
}

impl PresenceTracker {
    /// Records that the instance has shown its presence at `now`.
    fn show(&mut self, now: Instant) {
        self.was_away |= self.is_over(now);
        self.last = now;
    }

    fn was_away(&mut self, now: Instant) -> bool {
        std::mem::take(&mut self.was_away) || self.is_over(now)
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) > PRESENCE_TTL
    }
}

/// Joins as `who`. Jobs that an earlier life of it had started are ended as lost, so its processes must be dead.
///
/// `replace` says whether the present holder of this name is known to be dead.
///
/// # Errors
/// An [`InstanceJoinError`].
pub async fn join(
    kv: &Kv,
    database: u32,
    who: InstanceRef,
    about: InstanceDescriptor,
    replace: impl FnOnce(&PresenceRecord) -> bool,
) -> std::result::Result<(InstanceSession, JobConsumer, InstanceCommandReader), InstanceJoinError> {
    let db = kv.database(database);
    let instance = InstanceSession(Arc::new(InstanceSessionInner {
        db,
        name: who.to_string(),
        life: Uid::random().to_string(),
        joined_at: Timestamp::now(),
        consumer_state: JobConsumerState::new(&who, about.isolation, about.slots),
        who,
        about,
        held: Mutex::default(),
        unknown: Mutex::default(),
        seen: Mutex::new(PresenceTracker { last: Instant::now(), was_away: false }),
    }));
    if let Some(holder) = instance.enter(false).await? {
        if !replace(&holder) {
            return Err(InstanceJoinError::Taken {
                instance: instance.0.who.clone(),
                holder: Box::new(holder),
            });
        }
        instance.enter(true).await?;
    }
    let lost = end_claims(instance.db(), &instance.0.who, true).await?;
    if lost > 0 {
        tracing::warn!(instance = %instance.0.name, lost, "ended what an earlier life of this instance had started");
    }
    let intake = JobConsumer::new(instance.clone(), kv.blocking(database));
    let control = InstanceCommandReader::new(kv.blocking(database), &instance.0.who);
    Ok((instance, intake, control))
}

impl InstanceSession {
    /// Which instance this is.
    #[must_use]
    pub fn who(&self) -> &InstanceRef {
        &self.0.who
    }

    /// The isolation its jobs get.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        self.0.about.isolation
    }

    pub(crate) fn consumer_state(&self) -> &JobConsumerState {
        &self.0.consumer_state
    }

    /// How many jobs it has taken and not finished.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.held().len()
    }

    /// Shows that it is still there. To be called every [`crate::PRESENCE_INTERVAL`].
    ///
    /// # Errors
    /// [`Error::Refused`] with `REPLACED` when another process works under its name; any [`kv::Error`].
    pub async fn refresh(&self) -> Result<PresenceRefreshOutcome> {
        let before: Vec<_> = self.held().iter().copied().collect();
        let call = REFRESH.call(&[k::presence(&self.0.who)]).named(kv::named![
            instance: &self.0.name,
            life: &self.0.life,
            record: &self.record()?,
            live_secs: PRESENCE_TTL.as_secs(),
        ]);
        let answer = self.0.db.call(call).await?;
        self.seen().show(Instant::now());
        let mut refreshed = PresenceRefreshOutcome::default();
        let mut own = HashSet::new();
        for held in answer.array()? {
            let [key, grace] = held.tuple()?;
            let Ok(key) = key.text()?.parse::<JobKey>() else { continue };
            own.insert(key);
            if let Ok(grace) = grace.uint() {
                refreshed.stops.push((key, u32::try_from(grace).unwrap_or(u32::MAX)));
            }
        }
        self.look_for_unknown(&own);
        refreshed.closed = before.into_iter().filter(|key| !own.contains(key) && self.holds(*key)).collect();
        Ok(refreshed)
    }

    /// Finds jobs that were given over a line that has broken since: claimed in this instance's name, and not known here twice in a row.
    fn look_for_unknown(&self, own: &HashSet<JobKey>) {
        let unknown: HashSet<JobKey> = own.iter().copied().filter(|key| !self.holds(*key)).collect();
        let mut before = self.0.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        let is_lost = unknown.iter().any(|key| before.contains(key));
        *before = if is_lost { HashSet::new() } else { unknown };
        if is_lost {
            self.consumer_state().note_lost_reply();
        }
    }

    /// Records what a running job printed.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn log(&self, key: JobKey, piece: LogChunk) -> Result<JobRecordOutcome> {
        let call = LOG.call::<&str>(&[]).named(kv::named![
            key: &key.to_string(),
            instance: &self.0.name,
            log_offset: piece.end(),
            log: &encode(&QueueEventKind::Log(piece))?,
        ]);
        outcome_of(self.0.db.call(call).await?)
    }

    /// Records the end of a job, together with the last of its log.
    ///
    /// # Errors
    /// Any [`kv::Error`]; has to be repeated, with the same ending, until it is recorded or closed.
    pub async fn finish(&self, ending: &JobEndReport) -> Result<JobRecordOutcome> {
        crash_point!("queue.before_finish");
        let call = self.end(ending, |end| FINISH.call::<&str>(&[]).named(end))?;
        let outcome = outcome_of(self.0.db.call(call).await?)?;
        self.held().remove(&ending.job_key);
        Ok(outcome)
    }

    /// Returns true while every slot is taken and jobs may wait, so that an ended job should be followed by the next in one turn.
    #[must_use]
    pub fn wants_next(&self) -> bool {
        self.consumer_state().wants_next.load(Ordering::Acquire)
    }

    /// Ends a job as [`InstanceSession::finish`] does, and takes the next one for the freed slot, if one waits.
    ///
    /// # Errors
    /// Any [`kv::Error`]. Record the end again with [`InstanceSession::finish`]; a job that may have been taken is found by
    /// [`JobConsumer::next`].
    pub async fn finish_and_take(
        &self,
        ending: &JobEndReport,
    ) -> Result<(JobRecordOutcome, Option<ClaimedJob>)> {
        crash_point!("queue.before_finish");
        let taking = self.consumer_state();
        let _on_its_way = taking.claim_in_flight.read().await;
        if !self.wants_next() {
            // It takes nothing more since.
            return Ok((self.finish(ending).await?, None));
        }
        let doubt = LostReplyGuard::begin(taking);
        let call = self.end(ending, |end| taking.finish_and_take().args(end.map(|(_, value)| value)))?;
        let [ended, taken] = self.0.db.call(call).await?.tuple()?;
        crash_point!("queue.finished_and_taken");
        let outcome = outcome_of(ended)?;
        self.held().remove(&ending.job_key);
        if self.was_away() {
            // A job that this instance was given may have been ended as lost: it is found if it is still its own.
            return Ok((outcome, None));
        }
        let next = self.read_taken(taken).await?.pop();
        doubt.end();
        Ok((outcome, next))
    }

    /// Leaves: is not present any more. What it still holds will be ended as lost by its next life.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn leave(&self) -> Result<()> {
        self.0.db.call(self.of_this_life(&LEAVE)).await.map(|_| ())
    }

    /// Returns true if the instance may have been taken for lost since the last call: it showed no presence for too long.
    pub(crate) fn was_away(&self) -> bool {
        self.seen().was_away(Instant::now())
    }

    fn seen(&self) -> MutexGuard<'_, PresenceTracker> {
        // Nothing can panic while it is locked.
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of a script that does nothing for an instance whose place another has taken.
    pub(crate) fn of_this_life(&self, script: &'static Script) -> ScriptCall {
        let call = script.call(&[k::presence(&self.0.who)]);
        call.named(kv::named![instance: &self.0.name, life: &self.0.life])
    }

    pub(crate) fn db(&self) -> &KvConnection {
        &self.0.db
    }

    pub(crate) fn hold(&self, key: JobKey) {
        self.held().insert(key);
    }

    pub(crate) fn let_go(&self, key: JobKey) {
        self.held().remove(&key);
    }

    pub(crate) fn holds(&self, key: JobKey) -> bool {
        self.held().contains(&key)
    }

    fn held(&self) -> MutexGuard<'_, HashSet<JobKey>> {
        // Nothing can panic while it is locked.
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn enter(&self, replace: bool) -> Result<Option<PresenceRecord>> {
        let call = JOIN.call(&[k::presence(&self.0.who)]).named(kv::named![
            instance: &self.0.name,
            life: &self.0.life,
            record: &self.record()?,
            live_secs: PRESENCE_TTL.as_secs(),
            is_takeover: replace,
        ]);
        let Some(holder) = self.0.db.call(call).await?.optional_text()? else {
            return Ok(None);
        };
        let unreadable =
            |error| Error::Protocol(format!("the presence of {} cannot be read: {error}", self.0.name));
        serde_json::from_str(&holder).map(Some).map_err(unreadable)
    }

    fn record(&self) -> Result<String> {
        let about = &self.0.about;
        let record = PresenceRecord {
            pid: about.pid,
            process_start: about.process_start,
            hostname: about.hostname.clone(),
            started_at: self.0.joined_at,
            version: about.version.clone(),
            capabilities: vec![self.0.who.script_type.to_string(), format!("isolation:{}", about.isolation)],
            last_heartbeat: Timestamp::now(),
            slots: about.slots,
            busy: u32::try_from(self.busy()).unwrap_or(u32::MAX),
            isolation: about.isolation,
            layers: about.layers.clone(),
            life: self.0.life.clone(),
        };
        serde_json::to_string(&record)
            .map_err(|error| Error::Protocol(format!("presence cannot be written: {error}")))
    }

    /// A call that ends a job; `begin` makes it with those arguments of `finish` that have a name.
    fn end(
        &self,
        ending: &JobEndReport,
        begin: impl FnOnce([(&'static str, Arg<'_>); 6]) -> ScriptCall,
    ) -> Result<ScriptCall> {
        let end = &ending.end;
        let result = serde_json::to_string(&end.result)
            .map_err(|error| Error::Protocol(format!("a result cannot be written: {error}")))?;
        let event = encode(&QueueEventKind::Ended(Box::new(end.clone())))?;
        let (log_offset, log) = match &ending.last_log {
            None => (0, String::new()),
            Some(piece) => (piece.end(), encode(&QueueEventKind::Log(piece.clone()))?),
        };
        let call = begin(kv::named![
            key: &ending.job_key.to_string(),
            instance: &self.0.name,
            status: QueueJobStatus::of(end.outcome).as_str(),
            event: &event,
            log_offset: log_offset,
            log: &log,
        ]);
        let mut call = call.args(["result", &result, "output", tail(&ending.output_tail)]);
        if let Some(code) = end.exit_code {
            call = call.arg("exit_code").arg(code);
        }
        if let Some(reason) = &end.reason {
            call = call.arg("error").arg(&reason.to_string());
        }
        Ok(call)
    }
}

fn outcome_of(answer: Value) -> Result<JobRecordOutcome> {
    let [recorded, status] = answer.tuple()?;
    if recorded.int()? == 1 {
        return Ok(JobRecordOutcome::Recorded);
    }
    let status = status.text()?;
    if status == "gone" {
        Ok(JobRecordOutcome::Closed(None))
    } else {
        QueueJobStatus::parse(&status).map(Some).map(JobRecordOutcome::Closed)
    }
}

/// The end of a text, cut where a character begins.
pub(crate) fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(OUTPUT_TAIL_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_did_not_show_was_away_whatever_comes_first_when_it_goes_on() {
        let began = Instant::now();
        let late = began + 2 * PRESENCE_TTL;
        let mut seen = PresenceTracker { last: began, was_away: false };
        assert!(!seen.was_away(began + PRESENCE_TTL));
        assert!(seen.was_away(late) && seen.was_away(late), "until it has shown itself");
        seen.show(late);
        assert!(seen.was_away(late), "also when it has shown itself before it was asked");
        assert!(!seen.was_away(late), "told once");
        seen.show(late + PRESENCE_TTL);
        assert!(!seen.was_away(late + PRESENCE_TTL));
    }
}
