//! The supervisor's side: accept, stop, look after.

use std::sync::Arc;

use keys::legacy::legacy_claims;
use keys::nonce::nonce_owner;
use keys::supervisor as k;
use keys::{ControlScope, InstanceRef, LegacyQueue, WorkQueue};
use kv::{Cmd, Error, Kv, KvConnection, Pipeline, Result, ScriptCall, Value};
use model::execution::{AttemptEnd, Outcome};
use model::id::Uid;
use model::{JobKey, Reason, ReasonCode, Timestamp};

use crate::accept_error::JobAcceptError;
use crate::commands::{InstanceCommand, TypeCommandReader};
use crate::event::{QueueEventKind, QueueEventReader, QueuedJobOrigin, encode};
use crate::job::{QueueJobSnapshot, QueueJobStatus, fields};
use crate::legacy::{PushBinding, is_plain};
use crate::offer::{AcceptCondition, JobOffer};
use crate::presence::PresenceRecord;
use crate::script::{ACCEPT, HAND_BACK, LOSE, PUT_BACK, REFUSE_WAITING, STATISTICS, STOP, TELL_AGAIN};
use crate::{QUEUE_LEN_MAX, STOP_MARK_KEEP};

/// How many jobs one script looks after at most.
const BATCH: usize = 200;

/// A job that is in the supervisor's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferAcceptance {
    /// True for a job that was not known before.
    pub is_new: bool,
    /// Where it stands.
    pub status: QueueJobStatus,
}

/// Outcome of a request to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopOutcome {
    /// The job never arrived; it will be refused if it does, for 24 hours.
    Unknown,
    /// The job waited in its queue; it ended as stopped.
    Stopped,
    /// The job runs; its instance got a stop. The end follows as an event.
    Stopping {
        /// `<type>:<group>:<n>`.
        instance: String,
    },
    /// The job had ended before.
    Ended(QueueJobStatus),
}

/// How a queue is doing.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueStats {
    /// Which one.
    pub queue: WorkQueue,
    /// How many jobs wait.
    pub depth: u64,
    /// How long the first of them has waited.
    pub oldest_age_secs: f64,
    /// How many were ever taken from it.
    pub taken: u64,
    /// How many were taken in a second, over the last minute or two.
    pub taken_per_sec: f64,
}

/// The supervisor's side of the protocol. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SupervisorQueues {
    kv: Kv,
    db: KvConnection,
    push: Arc<[PushBinding]>,
    /// True if foreign clients may push into queues, and foreign workers take from them.
    pub(crate) open: bool,
}

impl SupervisorQueues {
    /// Works in `database` of a supervisor's own Redis.
    #[must_use]
    pub fn new(kv: Kv, database: u32) -> Self {
        let db = kv.database(database);
        Self { kv, db, push: Arc::default(), open: false }
    }

    /// Offers jobs to old workers as well, from now on. Jobs that were offered before stay offered.
    #[must_use]
    pub fn with_legacy_workers(self, push: Vec<PushBinding>) -> Self {
        Self { push: push.into(), ..self }
    }

    /// Sets whether the queues are open to foreign clients; [`Self::note_open`] passes that to the instances.
    #[must_use]
    pub fn with_open_queues(self, open: bool) -> Self {
        Self { open, ..self }
    }

    /// The supervisor's own name: random, made with its store.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn name(&self) -> Result<String> {
        let fresh = Uid::random().to_string();
        self.db.cmd(Cmd::new("HSETNX").arg(k::SUPERVISOR).arg("name").arg(&fresh)).await?;
        self.db.cmd(Cmd::new("HGET").arg(k::SUPERVISOR).arg("name")).await?.text()
    }

    /// Accepts a job. Idempotent by job key: the state of a known job is repeated as an event, even an end that was
    /// acknowledged before, since its coordinator may have lost that.
    ///
    /// # Errors
    /// A [`JobAcceptError`].
    pub async fn accept(&self, offer: JobOffer) -> std::result::Result<OfferAcceptance, JobAcceptError> {
        let call = self.accept_call(offer, None).map_err(JobAcceptError::Store)?;
        self.db.call(call).await.and_then(accepted).map_err(JobAcceptError::of)
    }

    /// Takes several jobs in, in one round trip and in this order. Each has its own result.
    pub async fn accept_all(
        &self,
        offers: Vec<JobOffer>,
    ) -> Vec<std::result::Result<OfferAcceptance, JobAcceptError>> {
        self.accept_all_through(offers, None).await
    }

    /// Accepts jobs of coordinators that are reached through a node of a bus. The node is kept with each job that is taken,
    /// since after a restart the coordinator must still be found.
    pub async fn accept_all_through(
        &self,
        offers: Vec<JobOffer>,
        node: Option<&str>,
    ) -> Vec<std::result::Result<OfferAcceptance, JobAcceptError>> {
        let mut pipeline = Pipeline::new();
        let mut unwritable = Vec::new();
        let count = offers.len();
        for (at, offer) in offers.into_iter().enumerate() {
            match self.accept_call(offer, node) {
                Ok(call) => {
                    pipeline.call(call);
                }
                Err(error) => unwritable.push((at, error)),
            }
        }
        let mut results: Vec<_> = match self.db.pipeline(&pipeline).await {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| answer.and_then(accepted).map_err(JobAcceptError::of))
                .collect(),
            Err(error) => (0..pipeline.len()).map(|_| Err(JobAcceptError::Store(error.clone()))).collect(),
        };
        for (at, error) in unwritable {
            results.insert(at.min(results.len()), Err(JobAcceptError::Store(error)));
        }
        debug_assert_eq!(results.len(), count, "one result for each offer");
        results
    }

    /// Stops a job wherever it is, or remembers to refuse it.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn stop(&self, key: JobKey, grace_secs: u32) -> Result<StopOutcome> {
        self.db.call(stop_call(key, grace_secs)?).await.and_then(stop_outcome)
    }

    /// Stops several jobs in one round trip. Each has its own result; may be repeated.
    pub async fn stop_all(&self, stops: &[(JobKey, u32)]) -> Vec<Result<StopOutcome>> {
        if stops.is_empty() {
            return Vec::new();
        }
        let calls: Result<Vec<_>> = stops.iter().map(|(key, grace)| stop_call(*key, *grace)).collect();
        let stopping = async {
            let mut pipeline = Pipeline::new();
            for call in calls? {
                pipeline.call(call);
            }
            self.db.pipeline(&pipeline).await
        };
        match stopping.await {
            Ok(answers) => answers.into_iter().map(|answer| answer.and_then(stop_outcome)).collect(),
            Err(error) => stops.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Returns the known state of a job; nothing when the job is unknown or no longer known.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn status(&self, key: JobKey) -> Result<Option<QueueJobSnapshot>> {
        let fields = ["state", "hash", "claimed_by", "started_at", "log_offset", "end"];
        QueueJobSnapshot::from_value(self.db.cmd(Cmd::new("HMGET").arg(&k::job(key)).args(fields)).await?)
    }

    /// Returns a job's origin and its coordinator; nothing when the job is not known.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn origin(&self, key: JobKey) -> Result<Option<(String, QueuedJobOrigin)>> {
        let fields = ["coordinator", "context_id", "flow_id"];
        let answer = self.db.cmd(Cmd::new("HMGET").arg(&k::job(key)).args(fields)).await?;
        let [coordinator, context_id, flow_id] = answer.tuple()?;
        let Some(coordinator) = coordinator.optional_text()? else {
            return Ok(None);
        };
        let number = |value: Value| -> Result<u32> {
            u32::try_from(value.uint()?).map_err(|_| Error::Protocol("an id beyond 32 bits".to_owned()))
        };
        let origin = QueuedJobOrigin {
            context_id: model::ContextId(number(context_id)?),
            flow_id: model::FlowId(number(flow_id)?),
        };
        Ok(Some((coordinator, origin)))
    }

    /// Reads what happens to jobs. One reader per supervisor; it connects when it is first used.
    #[must_use]
    pub fn events(&self) -> QueueEventReader {
        QueueEventReader::new(self.db.clone(), self.kv.blocking(self.db.database()))
    }

    /// Every instance that is present.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn instances(&self) -> Result<Vec<(InstanceRef, PresenceRecord)>> {
        let known = self.known_instances().await?;
        let records = self.presence_of(&known).await?;
        let present =
            known.into_iter().zip(records).filter_map(|(instance, record)| Some((instance, record?)));
        let parse = |(instance, text): (InstanceRef, String)| match serde_json::from_str(&text) {
            Ok(record) => Some((instance, record)),
            Err(error) => {
                tracing::warn!(%instance, %error, "the presence of an instance cannot be read");
                None
            }
        };
        Ok(present.filter_map(parse).collect())
    }

    /// Instances that joined, did not leave, and are not present. See [`crate::InstanceLossDetector`].
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn absent(&self) -> Result<Vec<InstanceRef>> {
        let known = self.known_instances().await?;
        let records = self.presence_of(&known).await?;
        Ok(known.into_iter().zip(records).filter(|(_, record)| record.is_none()).map(|(at, _)| at).collect())
    }

    /// Ends everything that an absent instance had started, as lost. Its processes must be dead. Gives
    /// how many there were; none when it is present again.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn end_lost(&self, instance: &InstanceRef) -> Result<usize> {
        end_claims(&self.db, instance, false).await
    }

    /// Puts back everything that was popped and never claimed. Gives how much there was.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn requeue_unclaimed(&self) -> Result<u64> {
        let mut count = 0;
        for queue in self.queues().await? {
            count += requeue_unclaimed_in(&self.db, &queue.to_string()).await?;
        }
        Ok(count)
    }

    /// Gives every job that still waits back to its coordinator, unstarted. Gives how many there were.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn return_waiting(&self) -> Result<u64> {
        let mut count = 0;
        for queue in self.queues().await? {
            loop {
                let call = HAND_BACK.call(&[queue.to_string()]).named(kv::named![count: BATCH]);
                let answer = self.db.call(call).await?;
                let [looked_at, returned] = answer.tuple()?;
                count += returned.uint()?;
                if looked_at.uint()? < BATCH as u64 {
                    break;
                }
            }
        }
        Ok(count)
    }

    /// Ends every job that waits in a queue, with the reason that no instance provides its isolation. Returns how many
    /// there were.
    /// See [`crate::UnmetIsolationDetector`].
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn refuse_waiting(&self, queue: &WorkQueue) -> Result<u64> {
        let detail = format!(
            "isolation `{}` is demanded, and the instances for it on this machine give less",
            queue.isolation()
        );
        let reason = Reason::new(ReasonCode::IsolationUnavailable, detail);
        let text = reason.to_string();
        let event = encode(&QueueEventKind::Ended(Box::new(AttemptEnd::unstarted(
            Outcome::Failed,
            Some(reason),
            Timestamp::now(),
        ))))?;
        let mut count = 0;
        loop {
            let named = kv::named![count: BATCH, event: &event, why: &text];
            let call = REFUSE_WAITING.call(&[queue.to_string()]).named(named);
            let refused = self.db.call(call).await?.uint()?;
            count += refused;
            if refused < BATCH as u64 {
                return Ok(count);
            }
        }
    }

    /// Measures every queue, and writes what it found beside it.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn statistics(&self) -> Result<Vec<QueueStats>> {
        let queues = self.queues().await?;
        let mut pipeline = Pipeline::new();
        for queue in &queues {
            pipeline.call(STATISTICS.call(&[queue.to_string()]));
        }
        let answers = self.db.pipeline(&pipeline).await?;
        let parse = |(queue, answer): (WorkQueue, Result<Value>)| -> Result<QueueStats> {
            let [depth, age, taken, rate] = answer?.tuple()?;
            let (oldest_age_secs, taken_per_sec) = (number(age)?, number(rate)?);
            Ok(QueueStats {
                queue,
                depth: depth.uint()?,
                oldest_age_secs,
                taken: taken.uint()?,
                taken_per_sec,
            })
        };
        queues.into_iter().zip(answers).map(parse).collect()
    }

    /// Sends a command to every live instance of a scope, and gives how many got it.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub async fn command(&self, scope: &ControlScope, command: &InstanceCommand) -> Result<usize> {
        let text = serde_json::to_string(command)
            .map_err(|error| Error::Protocol(format!("a command cannot be written: {error}")))?;
        let mut pipeline = Pipeline::new();
        for (instance, _) in self.instances().await? {
            let meant = match scope {
                ControlScope::Type(script_type) => instance.script_type == *script_type,
                ControlScope::Instance(one) => instance == *one,
            };
            if meant {
                let list = ControlScope::Instance(instance).to_string();
                pipeline.cmd(Cmd::new("RPUSH").arg(&list).arg(&text));
            }
        }
        let answers = self.db.pipeline(&pipeline).await?;
        let count = answers.len();
        answers.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(count)
    }

    /// Sends the end of a job again, which its coordinator has acknowledged and may have lost.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn resend_end(&self, key: JobKey) -> Result<()> {
        let call = TELL_AGAIN.call::<&str>(&[]).named(kv::named![key: &key.to_string()]);
        self.db.call(call).await.map(|_: Value| ())
    }

    /// Reports the start of every running job again. Its coordinator may have taken it for lost
    /// while the supervisor was not reachable. Returns how many there were.
    ///
    /// # Errors
    /// Any [`kv::Error`]; may be repeated.
    pub async fn resend_started(&self) -> Result<u64> {
        let mut count = 0;
        let mut claims: Vec<_> = self.known_instances().await?.iter().map(k::claims).collect();
        let old = self.db.cmd(Cmd::new("SMEMBERS").arg(k::OLD_QUEUES)).await?.texts()?;
        claims.extend(
            old.iter().filter_map(|name| LegacyQueue::parse(name)).map(|queue| legacy_claims(&queue)),
        );
        for claims in claims {
            let claims = Cmd::new("ZRANGE").arg(&claims).arg(0).arg(-1);
            for key in self.db.cmd(claims).await?.texts()? {
                self.db.call(TELL_AGAIN.call::<&str>(&[]).named(kv::named![key: &key])).await?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Waits for commands to whole types, on a connection of its own. One per supervisor.
    #[must_use]
    pub fn type_control(&self) -> TypeCommandReader {
        TypeCommandReader::new(self.kv.blocking(self.db.database()))
    }

    pub(crate) fn db(&self) -> &KvConnection {
        &self.db
    }

    fn accept_call(&self, offer: JobOffer, node: Option<&str>) -> Result<ScriptCall> {
        let mut queue = offer.queue();
        if self.open && !is_plain(&offer.execution, &offer.grants) {
            queue = queue.closed();
        }
        let key = offer.execution.job_key;
        let (binding, jobs) = (k::context_binding(key.context), k::context_jobs(key.context));
        let queue = queue.to_string();
        let keys = ACCEPT.keys([("binding", &binding), ("jobs", &jobs), ("queue", &queue)]);
        let old = self.push.iter().find(|binding| binding.fits(&offer.execution, &offer.grants));
        let (condition, nonce, nonce_end) = match &offer.condition {
            AcceptCondition::None => ("", String::new(), 0),
            AcceptCondition::Known => ("known", String::new(), 0),
            AcceptCondition::Signed { nonce, expires } => ("", nonce_owner(nonce), expires.as_millis()),
        };
        let (hash, fields) = fields(offer.execution, &offer.grants)?;
        let mut call = ACCEPT.call(&keys).named(kv::named![
            key: &key.to_string(),
            hash: &hash.to_string(),
            coordinator: &offer.coordinator,
            queue_max: QUEUE_LEN_MAX,
            old_queue: &old.map(|binding| binding.queue.to_string()).unwrap_or_default(),
            condition: condition,
            nonce: &nonce,
            nonce_end: nonce_end,
            node: node.unwrap_or_default(),
            weight: offer.weight.get(),
        ]);
        for (name, value) in fields {
            call = call.arg(name).arg(&value);
        }
        Ok(call)
    }

    pub(crate) fn kv(&self) -> &Kv {
        &self.kv
    }

    pub(crate) async fn queues(&self) -> Result<Vec<WorkQueue>> {
        let names = self.db.cmd(Cmd::new("SMEMBERS").arg(k::QUEUES)).await?.texts()?;
        let mut queues: Vec<_> = names.iter().filter_map(|name| WorkQueue::parse(name)).collect();
        queues.sort();
        Ok(queues)
    }

    async fn known_instances(&self) -> Result<Vec<InstanceRef>> {
        let names = self.db.cmd(Cmd::new("SMEMBERS").arg(k::INSTANCES)).await?.texts()?;
        let mut instances: Vec<_> = names.iter().filter_map(|name| InstanceRef::parse(name)).collect();
        instances.sort();
        Ok(instances)
    }

    async fn presence_of(&self, instances: &[InstanceRef]) -> Result<Vec<Option<String>>> {
        if instances.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = instances.iter().map(k::presence).collect();
        let answer = self.db.cmd(Cmd::new("MGET").args(&keys)).await?;
        answer.array()?.into_iter().map(Value::optional_text).collect()
    }
}

fn stop_call(key: JobKey, grace_secs: u32) -> Result<ScriptCall> {
    let end = AttemptEnd::unstarted(Outcome::Stopped, None, Timestamp::now());
    let why = "its old worker cannot be told; what it still does is ignored";
    Ok(STOP.call::<&str>(&[]).named(kv::named![
        key: &key.to_string(),
        grace_secs: grace_secs,
        refuse_secs: STOP_MARK_KEEP.as_secs(),
        event: &encode(&QueueEventKind::Ended(Box::new(end)))?,
        reason: &json(&Reason::new(ReasonCode::Stopped, why))?,
    ]))
}

fn json(reason: &Reason) -> Result<String> {
    serde_json::to_string(reason)
        .map_err(|error| Error::Protocol(format!("a reason cannot be written: {error}")))
}

fn number(value: Value) -> Result<f64> {
    let text = value.text()?;
    text.parse().map_err(|_| Error::Protocol(format!("`{text}` is no number")))
}

fn stop_outcome(answer: Value) -> Result<StopOutcome> {
    let [outcome, instance] = answer.tuple()?;
    Ok(match outcome.text()?.as_str() {
        "unknown" => StopOutcome::Unknown,
        "stopped" if instance == Value::Bytes(Vec::new()) => StopOutcome::Stopped,
        "stopping" => StopOutcome::Stopping { instance: instance.text()? },
        ended => StopOutcome::Ended(QueueJobStatus::parse(ended)?),
    })
}

fn accepted(answer: Value) -> Result<OfferAcceptance> {
    let [fresh, status] = answer.tuple()?;
    Ok(OfferAcceptance { is_new: fresh.int()? == 1, status: QueueJobStatus::parse(&status.text()?)? })
}

/// Ends what an instance had started, as lost; `own` when the instance itself does, in a new life.
pub(crate) async fn end_claims(db: &KvConnection, instance: &InstanceRef, own: bool) -> Result<usize> {
    let reason = Reason::new(ReasonCode::InstanceLost, format!("instance {instance} vanished"));
    let reason = json(&reason)?;
    let mut count = 0;
    loop {
        let call = LOSE.call(&[k::presence(instance)]).named(kv::named![
            instance: &instance.to_string(),
            count: BATCH,
            reason: &reason,
            is_own: own,
        ]);
        let mut answer = db.call(call).await?.array()?.into_iter();
        let looked_at = answer.next().map_or(Ok(-1), |value| value.int())?;
        count += answer.count();
        if looked_at < i64::try_from(BATCH).unwrap_or(i64::MAX) {
            return Ok(count);
        }
    }
}

/// Puts jobs back that were popped from one queue and never claimed.
pub(crate) async fn requeue_unclaimed_in(db: &KvConnection, queue: &str) -> Result<u64> {
    let mut count = 0;
    loop {
        let returned = db.call(PUT_BACK.call(&[queue]).named(kv::named![count: BATCH])).await?.int()?;
        // Less than nothing: there may be more.
        let found = u64::try_from(returned).unwrap_or_default();
        count += found;
        if returned >= 0 && found < BATCH as u64 {
            return Ok(count);
        }
    }
}
