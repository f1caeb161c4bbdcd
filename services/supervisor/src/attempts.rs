//! Attempts as operators handle them: running one here without a coordinator, waiting for one, stopping one.
//! Also makes repeated requests of operators idempotent.

use std::sync::Arc;

use model::flow::EnvVars;
use model::id::Uid;
use model::{
    Attempt, BlobHash, Execution, FlowUid, Isolation, JobId, JobKey, Name, ScriptSource, ScriptType,
};
use mycelium::JsonRpcError;
use queue::{JobAcceptError, JobOffer, OPERATOR, QueueJobSnapshot, QueueJobStatus};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::admission::admit;
use crate::coordinator_requests::SupervisorState;

/// Attempt that an operator asks to run.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorAttemptSpec {
    /// Type of the script, which selects its executor.
    pub script_type: ScriptType,
    /// Text of the script.
    pub script: String,
    /// Environment variables of the script.
    pub env_vars: EnvVars,
    /// Run time in seconds.
    pub timeout_secs: u32,
    /// The group it must run in.
    pub group: Option<Name>,
    /// The instance it must run on.
    pub instance: Option<u32>,
    /// The isolation that it needs at least.
    pub isolation: Isolation,
    /// Allows the script to use the network.
    pub network: bool,
}

/// Why an operator's attempt is not run.
#[derive(Debug, thiserror::Error)]
pub enum RunAttemptError {
    /// Refused as a coordinator's job would be.
    #[error("{0}")]
    Refused(JsonRpcError),
    /// The queue does not accept the attempt.
    #[error("the queue does not accept the attempt")]
    Queue(#[source] JobAcceptError),
    /// Redis failed.
    #[error("the supervisor's store does not answer")]
    Store(#[source] kv::Error),
}

/// Current state of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptSnapshot {
    /// Key of the attempt.
    pub key: JobKey,
    /// The root of the coordinator that sent it; empty when an operator did.
    pub coordinator: String,
    /// State of the attempt.
    pub state: QueueJobSnapshot,
}

impl AttemptSnapshot {
    /// Returns true for an attempt that may still run.
    const fn is_open(&self) -> bool {
        matches!(self.state.status, QueueJobStatus::Queued | QueueJobStatus::Started)
    }
}

impl SupervisorState {
    /// Accepts an attempt in the same way as those of coordinators. The same request id means the same attempt.
    ///
    /// # Errors
    /// A [`RunAttemptError`]; with `KEY_CONFLICT` when the request id came with another attempt before.
    pub(crate) async fn run_attempt(
        &self,
        request_id: &str,
        wanted: OperatorAttemptSpec,
    ) -> Result<JobKey, RunAttemptError> {
        let context = self.queue.operator_context().await.map_err(RunAttemptError::Store)?;
        let flow = match request_id {
            "" => Uid::random(),
            id => uid_of(id),
        };
        let job_key = JobKey { context, flow: FlowUid(flow), job: JobId(1), attempt: Attempt(1) };
        let execution = execution(job_key, wanted);
        let (grants, condition) =
            admit(self, &execution, OPERATOR).await.map_err(RunAttemptError::Refused)?;
        let weight = self.policy.rules().weight(context);
        let offer = JobOffer { execution, coordinator: OPERATOR.to_owned(), grants, condition, weight };
        self.queue.accept(offer).await.map_err(RunAttemptError::Queue)?;
        self.metrics.accepted.inc();
        Ok(job_key)
    }

    /// Returns the current state of an attempt; nothing when it is not known here.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub(crate) async fn attempt(&self, key: JobKey) -> kv::Result<Option<AttemptSnapshot>> {
        let Some(state) = self.queue.status(key).await? else { return Ok(None) };
        let origin = self.queue.origin(key).await?.map(|(coordinator, _)| coordinator);
        let coordinator = origin.filter(|name| name != OPERATOR).unwrap_or_default();
        Ok(Some(AttemptSnapshot { key, coordinator, state }))
    }

    /// Returns the state of an attempt once it has ended, or at the deadline.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub(crate) async fn ended_attempt(
        &self,
        key: JobKey,
        deadline: Instant,
    ) -> kv::Result<Option<AttemptSnapshot>> {
        let mut listener = self.attempt_watchers.subscribe(key);
        loop {
            let known = self.attempt(key).await?;
            let is_open = known.as_ref().is_some_and(AttemptSnapshot::is_open);
            if !is_open || tokio::time::timeout_at(deadline, listener.next()).await.is_err() {
                return Ok(known);
            }
        }
    }
}

/// Derives a uid from a text, always the same one.
fn uid_of(text: &str) -> Uid {
    let hash = BlobHash::of(text.as_bytes()).to_string();
    hash[..32].parse().expect("a hash has more than 32 hex digits")
}

fn execution(job_key: JobKey, wanted: OperatorAttemptSpec) -> Execution {
    let OperatorAttemptSpec {
        script_type,
        script,
        env_vars,
        timeout_secs,
        group,
        instance,
        isolation,
        network,
    } = wanted;
    let name = |text: &str| text.parse::<Name>().expect("it is a name");
    Execution {
        env_vars,
        timeout_secs,
        group,
        instance,
        isolation,
        network,
        traceparent: ::rpc::current_trace().map(|trace| trace.to_string()),
        ..Execution::of_script(
            job_key,
            name("operator"),
            name("attempt"),
            script_type,
            ScriptSource::Inline(script),
        )
    }
}

/// Lock for operators' requests: they run one at a time, and each request id takes effect once. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct OperatorRequestLock(Arc<Mutex<()>>);

/// A request that holds the lock.
pub(crate) struct OperatorRequestGuard<'a> {
    _held: MutexGuard<'a, ()>,
    supervisor: &'a SupervisorState,
    id: &'a str,
    hash: String,
}

/// Outcome of looking up an operator request by its id.
pub(crate) enum OperatorRequestCheck<'a> {
    /// The request is new: it must be carried out, and then recorded.
    New(OperatorRequestGuard<'a>),
    /// Carried out before, as the same request.
    Repeated,
    /// Another request was carried out under this id.
    Conflict,
}

impl SupervisorState {
    /// Waits for the lock, and looks up the request's id; `what` is its content. A request without an id is always new.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub(crate) async fn check_request<'a>(
        &'a self,
        id: &'a str,
        what: &str,
    ) -> kv::Result<OperatorRequestCheck<'a>> {
        let held = self.requests.0.lock().await;
        let hash = BlobHash::of(what.as_bytes()).to_string();
        if !id.is_empty() {
            match self.queue.completed_request(id).await? {
                Some(known) if known == hash => return Ok(OperatorRequestCheck::Repeated),
                Some(_) => return Ok(OperatorRequestCheck::Conflict),
                None => {}
            }
        }
        Ok(OperatorRequestCheck::New(OperatorRequestGuard { _held: held, supervisor: self, id, hash }))
    }
}

impl OperatorRequestGuard<'_> {
    /// Records that the request was carried out. If a crash prevents this, a repetition carries it out again: safe for all.
    ///
    /// # Errors
    /// Any [`kv::Error`].
    pub(crate) async fn done(self) -> kv::Result<()> {
        if self.id.is_empty() {
            Ok(())
        } else {
            self.supervisor.queue.record_request(self.id, &self.hash).await
        }
    }
}
