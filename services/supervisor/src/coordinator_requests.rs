//! Handler of coordinators' requests. One implementation for the bus and for gRPC.

use std::sync::Arc;

use envelope::{Conversation, EnvelopeSigner};
use futures_util::future::{BoxFuture, join_all};
use model::supervision::{
    ContextDrop, EmptyResult, JOBS_FORGET_MAX, JobAccepted, JobLogs, JobQuery, JobStatus, JobStop,
    JobStopped, JobsForget, STATE_UNKNOWN, method,
};
use model::{ContextUid, Execution, ExecutionHead, FlowUid, Grants, JobKey, ScriptSource};
use mycelium::PublicKey;
use mycelium::json_rpc::{
    INVALID_PARAMS, JsonRpcError, JsonRpcHandler, JsonRpcPeer, JsonRpcRequest, JsonRpcResult,
    METHOD_NOT_FOUND, answer,
};
use queue::{AcceptCondition, JobAcceptError, JobOffer, StopOutcome, SupervisorQueues as Queue};
use sandbox::disk_space::DiskFloors;
use service::{Sequencer, Ticket, crash_point};

use crate::accept_span::AcceptSpan;
use crate::admission::{admit, disk_full, known_or, without_room};
use crate::attempt_watchers::AttemptWatchers;
use crate::attempts::OperatorRequestLock;
use crate::blobs::{BlobCache, BlobPurpose, BlobUseGuard};
use crate::coordinators::Coordinators;
use crate::drain::DrainState;
use crate::dropped_contexts::DroppedContexts;
use crate::external_workers::ExternalWorkers;
use crate::logs::AttemptLogStore;
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::presence::PresenceView;
use crate::refused_attempts::RefusedAttempts;
use crate::results::{self, JobReadError};
use crate::root_rotation;
use crate::work_dir::WorkDir;

/// State that the supervisor's handlers and tasks share. Cheap to clone.
#[derive(Clone)]
pub struct SupervisorState {
    /// Queues of the supervisor.
    pub queue: Queue,
    /// Work directory that the instances of this machine share.
    pub work_dir: WorkDir,
    /// The bytes of its jobs.
    pub blobs: BlobCache,
    /// Logs of the attempts.
    pub logs: AttemptLogStore,
    /// Policy for what jobs may do.
    pub policy: Policy,
    /// Drain state: whether new jobs are taken.
    pub draining: DrainState,
    /// Free space that must remain on the disk of the jobs.
    pub floors: DiskFloors,
    /// Coordinators that can be reached.
    pub coordinators: Coordinators,
    /// Instances that work here.
    pub presence: PresenceView,
    /// Script types that external workers run.
    pub external_workers: ExternalWorkers,
    /// Contexts that were dropped lately.
    pub dropped_contexts: DroppedContexts,
    /// Attempts that were refused lately.
    pub refused_attempts: RefusedAttempts,
    /// Signer of the supervisor's messages.
    pub signer: Arc<EnvelopeSigner>,
    /// Watchers of attempts.
    pub attempt_watchers: AttemptWatchers,
    /// Keeps attempts of a flow in order while they are accepted.
    pub accepting: Sequencer<FlowUid>,
    /// Lock that makes each operator request run once.
    pub requests: OperatorRequestLock,
    /// Counters of the supervisor.
    pub metrics: Metrics,
}

impl SupervisorState {
    /// Creates a conversation with a coordinator that is not known yet.
    #[must_use]
    pub fn conversation(&self) -> Conversation {
        let metrics = self.metrics.clone();
        Conversation::new(Arc::clone(&self.signer), Arc::new(move |refusal| metrics.refused(refusal.code())))
            .with_successors(root_rotation::successor_check(self.coordinators.clone()))
    }

    /// Removes the logs of these attempts: their flow is gone, and nothing else of them is kept.
    pub(crate) async fn remove_attempt_logs(&self, keys: &[JobKey]) {
        self.metrics.attempts_forgotten.inc_by(keys.len() as u64);
        if let Err(error) = self.logs.remove(keys).await {
            // The pruning of old logs removes them later.
            tracing::warn!(%error, "logs of forgotten attempts cannot be removed yet");
        }
    }
}

/// Answers one coordinator.
pub struct CoordinatorRequestHandler {
    supervisor: SupervisorState,
    /// Conversation in which requests arrive; it knows their signer.
    conversation: Arc<Conversation>,
    /// The bus node that requests come from. A bus has no attach call: a coordinator arrives with its first message.
    node: Option<PublicKey>,
}

impl CoordinatorRequestHandler {
    /// Answers a coordinator that is attached; the attach call reports its arrival.
    #[must_use]
    pub fn attached(supervisor: SupervisorState, conversation: Arc<Conversation>) -> Arc<Self> {
        Arc::new(Self { supervisor, conversation, node: None })
    }

    /// Answers a coordinator on a bus.
    #[must_use]
    pub fn on_bus(
        supervisor: SupervisorState,
        conversation: Arc<Conversation>,
        node: PublicKey,
    ) -> Arc<Self> {
        Arc::new(Self { supervisor, conversation, node: Some(node) })
    }
}

impl JsonRpcHandler for CoordinatorRequestHandler {
    fn handle(
        &self,
        from: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let Some(root) = self.conversation.root() else {
            let unknown = JsonRpcError::refused("UNKNOWN_SIGNER", true, "the request is not signed");
            return Box::pin(async move { requests.iter().map(|_| Err(unknown.clone())).collect() });
        };
        let (supervisor, coordinator) = (self.supervisor.clone(), root.to_string());
        if supervisor.coordinators.is_retired(&coordinator) {
            // The refusal is not lasting: the successor root may send the same requests.
            let succeeded =
                JsonRpcError::refused("ROOT_SUCCEEDED", false, "this coordinator has another root now");
            requests.iter().for_each(|_| supervisor.metrics.refused(succeeded.reason()));
            return Box::pin(async move { requests.iter().map(|_| Err(succeeded.clone())).collect() });
        }
        if self.node.is_some() {
            supervisor.coordinators.connected(&coordinator, from);
        }
        let node = self.node.filter(|node| !supervisor.coordinators.is_at(&coordinator, *node));
        // Attempts are accepted in the order in which they were sent, however long it takes to read them.
        let turn = first_flow(&requests).map(|flow| supervisor.accepting.ticket(flow));
        let work = CoordinatorRequestBatch { supervisor, coordinator, peer: from.clone(), node, turn };
        Box::pin(async move {
            match work.keep_node().await {
                Ok(()) => work.answer_all(requests).await,
                Err(error) => work.answer_none(&requests, error).await,
            }
        })
    }
}

/// One payload's requests.
struct CoordinatorRequestBatch {
    supervisor: SupervisorState,
    coordinator: String,
    peer: JsonRpcPeer,
    /// The node of the bus that the payload came from, unless that is stored already.
    node: Option<PublicKey>,
    /// The place among other payloads with attempts of the same flow.
    turn: Option<Ticket<FlowUid>>,
}

/// Returns the flow of the first attempt to run. A coordinator sends the attempts of one flow together.
fn first_flow(requests: &[JsonRpcRequest]) -> Option<FlowUid> {
    let run = requests.iter().find(|request| request.method == method::JOB_RUN)?;
    Some(job_to_run(run)?.flow)
}

/// Returns the attempt that a request wants to run; nothing for any other request.
fn job_to_run(request: &JsonRpcRequest) -> Option<JobKey> {
    if request.method != method::JOB_RUN {
        return None;
    }
    Some(ExecutionHead::read(request.params.get().as_bytes()).ok()?.job_key)
}

impl CoordinatorRequestBatch {
    /// Stores the coordinator's node before the supervisor accepts anything from it, so that events reach the coordinator
    /// after a restart, too. Nothing is stored for a coordinator without contexts here: anyone can be one.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the node cannot be stored: then nothing may be accepted.
    async fn keep_node(&self) -> Result<(), JsonRpcError> {
        let Some(node) = self.node else { return Ok(()) };
        let kept = self.supervisor.queue.note_node(&self.coordinator, &node.to_string()).await;
        if kept.map_err(unavailable)? {
            self.supervisor.coordinators.note_node(&self.coordinator, node);
        }
        Ok(())
    }

    /// Answers all requests with this error; attempts that are known here are not refused.
    async fn answer_none(&self, requests: &[JsonRpcRequest], error: JsonRpcError) -> Vec<JsonRpcResult> {
        let answers = requests.iter().map(|request| async {
            match job_to_run(request) {
                Some(job) => {
                    let refusal = without_room(&self.supervisor, job, error.clone()).await;
                    Err(self.note(job, refusal))
                }
                None => Err(error.clone()),
            }
        });
        join_all(answers).await
    }

    /// Answers all requests: queues the jobs in one round trip, stops attempts in one, looks attempts up together, and then
    /// handles the others.
    async fn answer_all(mut self, requests: Vec<JsonRpcRequest>) -> Vec<JsonRpcResult> {
        let (runs, others): (Vec<_>, Vec<_>) =
            requests.into_iter().enumerate().partition(|(_, request)| request.method == method::JOB_RUN);
        let (queries, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, request)| request.method == method::JOB_STATUS);
        let (stops, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, request)| request.method == method::JOB_STOP);
        let turn = self.turn.take();
        let mut answers: Vec<(usize, JsonRpcResult)> = self.run(runs, turn).await;
        answers.extend(self.stop(stops).await);
        let looked_up = queries.iter().map(|(place, request)| async {
            let answer = async { self.status(&request.read()?).await };
            (*place, answer.await)
        });
        answers.extend(join_all(looked_up).await);
        for (place, request) in others {
            answers.push((place, self.other(&request).await));
        }
        answers.sort_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn run(
        &self,
        requests: Vec<(usize, JsonRpcRequest)>,
        turn: Option<Ticket<FlowUid>>,
    ) -> Vec<(usize, JsonRpcResult)> {
        let prepared = join_all(requests.iter().map(|(_, request)| self.prepare(request))).await;
        let mut answers = Vec::with_capacity(requests.len());
        let (mut places, mut offers) = (Vec::new(), Vec::new());
        // Held until Redis knows which jobs need these blobs.
        let mut blobs_in_use = Vec::new();
        for ((place, _), prepared) in requests.iter().zip(prepared) {
            match prepared {
                Ok((offer, in_use, span)) => {
                    places.push((*place, offer.execution.job_key, span));
                    offers.push(offer);
                    blobs_in_use.push(in_use);
                }
                Err(error) => {
                    self.supervisor.metrics.refused(error.reason());
                    answers.push((*place, Err(error)));
                }
            }
        }
        if offers.is_empty() {
            return answers;
        }
        crash_point("supervisor.received");
        if let Some(turn) = &turn {
            turn.wait_for_turn().await;
        }
        let node = self.node.map(|node| node.to_string());
        let accepted = self.supervisor.queue.accept_all_through(offers, node.as_deref()).await;
        crash_point("supervisor.kept");
        drop(turn);
        if let Some(node) = self.node.filter(|_| accepted.iter().any(Result::is_ok)) {
            self.supervisor.coordinators.note_node(&self.coordinator, node);
        }
        let accepted = places.into_iter().zip(accepted).map(|((place, job, span), result)| async move {
            let answer = self.accepted(job, result).await;
            span.answered(&answer);
            (place, answer)
        });
        answers.extend(join_all(accepted).await);
        answers
    }

    /// Reads a job, checks whether it is admitted, and makes sure that its blobs are here.
    async fn prepare(
        &self,
        request: &JsonRpcRequest,
    ) -> Result<(JobOffer, BlobUseGuard, AcceptSpan), JsonRpcError> {
        let mut execution: Execution = request.read()?;
        let (job, span) = (execution.job_key, AcceptSpan::begin(&execution));
        let taken = match self.supervisor.refused_attempts.get(&self.coordinator, job) {
            Some(refusal) => Err(refusal),
            None => self.take(&mut execution).await.map_err(|refusal| self.note(job, refusal)),
        };
        span.answered(&taken);
        let ((grants, condition), in_use) = taken?;
        let coordinator = self.coordinator.clone();
        let weight = self.supervisor.policy.rules().weight(job.context);
        Ok((JobOffer { execution, coordinator, grants, condition, weight }, in_use, span))
    }

    async fn take(
        &self,
        execution: &mut Execution,
    ) -> Result<((Grants, AcceptCondition), BlobUseGuard), JsonRpcError> {
        let (grants, mut condition) = admit(&self.supervisor, execution, &self.coordinator).await?;
        let in_use = self.supervisor.blobs.use_for(execution);
        if condition != AcceptCondition::Known
            && let Err(refusal) = self.fetch(execution).await
        {
            // An attempt that has ended needs no blobs, and they may be gone by now.
            known_or(&self.supervisor, execution.job_key, refusal).await?;
            condition = AcceptCondition::Known;
        }
        Ok(((grants, condition), in_use))
    }

    /// Remembers that an attempt is refused: its coordinator takes this as the attempt's end.
    fn note(&self, job: JobKey, refusal: JsonRpcError) -> JsonRpcError {
        self.supervisor.refused_attempts.note(&self.coordinator, job, &refusal);
        refusal
    }

    /// Makes sure that the blobs of a job are on this machine.
    async fn fetch(&self, execution: &mut Execution) -> Result<(), JsonRpcError> {
        let purpose = BlobPurpose { job_key: execution.job_key, context_id: execution.context_id };
        let blobs = &self.supervisor.blobs;
        let refused = |error: crate::error::BlobError| match error.is_disk_full() {
            true => disk_full(error.to_string()),
            false => JsonRpcError::refused("BLOB_MISSING", error.is_lasting(), error.to_string()),
        };
        for file in execution.files.values_mut() {
            blobs.settle(file, purpose, &self.peer).await.map_err(refused)?;
        }
        if let ScriptSource::Blob(script) = execution.script {
            blobs.fetch(script, purpose, &self.peer).await.map_err(refused)?;
        }
        Ok(())
    }

    async fn accepted(
        &self,
        job: JobKey,
        result: Result<queue::OfferAcceptance, JobAcceptError>,
    ) -> JsonRpcResult {
        let metrics = &self.supervisor.metrics;
        match result {
            Ok(accepted) => {
                if accepted.is_new {
                    metrics.accepted.inc()
                } else {
                    metrics.repeated.inc()
                }
                answer(&JobAccepted { accepted: true, supervisor: self.supervisor.presence.name() })
            }
            Err(refusal) => {
                let mut error =
                    JsonRpcError::refused(refusal.code(), refusal.is_permanent(), refusal.to_string());
                if let JobAcceptError::Store(kv::Error::DiskFull(_) | kv::Error::Oom(_)) = refusal {
                    error = without_room(&self.supervisor, job, error).await;
                }
                metrics.refused(error.reason());
                Err(self.note(job, error))
            }
        }
    }

    async fn other(&self, request: &JsonRpcRequest) -> JsonRpcResult {
        match request.method.as_str() {
            method::SUPERVISOR_INFO => answer(&self.supervisor.presence.announcement().0),
            method::CONTEXT_DROP => self.drop_context(&request.read()?).await,
            method::COORDINATOR_SUCCEED => self.succeed(request).await,
            method::JOB_RESULT => self.result(&request.read()?).await,
            method::JOB_LOGS => self.logs(&request.read()?).await,
            method::JOBS_FORGET => self.forget(request).await,
            other => {
                let message =
                    format!("a supervisor has no method `{}`", other.chars().take(64).collect::<String>());
                Err(JsonRpcError::of_protocol(METHOD_NOT_FOUND, message))
            }
        }
    }

    async fn succeed(&self, request: &JsonRpcRequest) -> JsonRpcResult {
        let succeeded = root_rotation::announced(&self.supervisor, &self.coordinator, request).await?;
        // Contexts may be bound to this root from now on, so its node must be stored.
        self.keep_node().await?;
        Ok(succeeded)
    }

    async fn stop(&self, requests: Vec<(usize, JsonRpcRequest)>) -> Vec<(usize, JsonRpcResult)> {
        let mut answers = Vec::with_capacity(requests.len());
        let (mut places, mut stops) = (Vec::new(), Vec::new());
        let reading = requests.iter().map(|(_, request)| async {
            let stop: JobStop = request.read()?;
            self.check(stop.job_key.context).await.map(|_| (stop.job_key, stop.grace_secs))
        });
        for ((place, _), stop) in requests.iter().zip(join_all(reading).await) {
            match stop {
                Ok(stop) => {
                    places.push(*place);
                    stops.push(stop);
                }
                Err(error) => answers.push((*place, Err(error))),
            }
        }
        let outcomes = self.supervisor.queue.stop_all(&stops).await;
        let stopped = stops.iter().zip(outcomes).map(|((key, _), outcome)| self.stopped(*key, outcome));
        answers.extend(places.into_iter().zip(join_all(stopped).await));
        answers
    }

    async fn stopped(&self, key: JobKey, outcome: kv::Result<StopOutcome>) -> JsonRpcResult {
        let mut ended = Vec::new();
        let (stopped, state) = match outcome.map_err(unavailable)? {
            StopOutcome::Unknown => (true, STATE_UNKNOWN),
            StopOutcome::Stopped => (true, "stopped"),
            StopOutcome::Stopping { .. } => (false, "stopping"),
            StopOutcome::Ended(status) => {
                let known = self.supervisor.queue.status(key).await.map_err(unavailable)?;
                ended = known.and_then(|state| state.end).map(|end| end.ended).unwrap_or_default();
                (true, status.as_str())
            }
        };
        answer(&JobStopped { stopped, state: state.to_owned(), ended })
    }

    /// Refuses a context that is bound to another coordinator. Returns true if this coordinator owns the
    /// context, false if it has no owner.
    async fn check(&self, context: ContextUid) -> Result<bool, JsonRpcError> {
        match self.supervisor.queue.coordinator_of(context).await.map_err(unavailable)? {
            Some(bound) if self.supervisor.coordinators.current_root(&bound) != self.coordinator => {
                let message = format!("context {context} is bound to another coordinator");
                Err(JsonRpcError::refused("CONTEXT_CLAIMED", true, message))
            }
            bound => Ok(bound.is_some()),
        }
    }

    async fn result(&self, query: &JobQuery) -> JsonRpcResult {
        self.check(query.job_key.context).await?;
        answer(&results::result(&self.supervisor, query.job_key).await.map_err(not_read)?)
    }

    /// Reads a piece of a log. A log is a file, which may outlive the record of its context: the log of a
    /// context without an owner is refused as unknown.
    async fn logs(&self, ask: &JobLogs) -> JsonRpcResult {
        let is_bound = self.check(ask.job_key.context).await?;
        if !is_bound {
            return Err(not_read(JobReadError::Unknown(ask.job_key)));
        }
        let piece = results::log(&self.supervisor, ask.job_key, ask.offset, ask.limit).await;
        answer(&piece.map_err(not_read)?)
    }

    async fn status(&self, query: &JobQuery) -> JsonRpcResult {
        self.check(query.job_key.context).await?;
        let queue = &self.supervisor.queue;
        let Some(state) = queue.status(query.job_key).await.map_err(unavailable)? else {
            let (state, instance, start_time, end) = (STATE_UNKNOWN.to_owned(), None, None, None);
            return answer(&JobStatus { state, instance, start_time, end });
        };
        if state.end.as_ref().is_some_and(|end| !end.outputs.is_empty()) {
            // The outputs must be handed over before the end is of use; the event does that.
            queue.resend_end(query.job_key).await.map_err(unavailable)?;
        }
        answer(&JobStatus {
            state: state.status.as_str().to_owned(),
            instance: state.instance,
            start_time: state.started_at,
            end: state.end.map(Box::new),
        })
    }

    async fn forget(&self, request: &JsonRpcRequest) -> JsonRpcResult {
        let JobsForget { job_keys } = request.read()?;
        if job_keys.len() > JOBS_FORGET_MAX {
            let message = format!("{}: at most {JOBS_FORGET_MAX} jobs per call are allowed", request.method);
            return Err(JsonRpcError::of_protocol(INVALID_PARAMS, message));
        }
        let forgotten = self.supervisor.queue.forget(&job_keys, &self.coordinator).await;
        self.supervisor.remove_attempt_logs(&forgotten.map_err(unavailable)?).await;
        answer(&EmptyResult {})
    }

    async fn drop_context(&self, request: &ContextDrop) -> JsonRpcResult {
        let context = request.context_uid;
        match self.supervisor.queue.drop_context(context, &self.coordinator).await {
            Ok(0) => {}
            Ok(running) => {
                let message = format!("{running} attempts of the context are still being stopped");
                return Err(JsonRpcError::refused("STILL_RUNNING", false, message));
            }
            Err(error) if error.code() == Some("CONTEXT_CLAIMED") => {
                return Err(JsonRpcError::refused("CONTEXT_CLAIMED", true, error.to_string()));
            }
            Err(error) => return Err(unavailable(error)),
        }
        self.supervisor.dropped_contexts.note(&self.coordinator, context);
        self.supervisor.work_dir.drop_context(context).await.map_err(|(path, error)| {
            tracing::warn!(
                %context, path = %path.display(), %error,
                "files of a dropped context cannot be removed"
            );
            JsonRpcError::refused("UNAVAILABLE", false, "its files cannot be removed yet; try again")
        })?;
        self.supervisor.metrics.contexts_dropped.inc();
        tracing::info!(%context, "a context was forgotten");
        answer(&EmptyResult {})
    }
}

fn not_read(error: JobReadError) -> JsonRpcError {
    match error {
        JobReadError::Unknown(_) | JobReadError::Gone(_) => {
            JsonRpcError::refused("NOT_FOUND", true, error.to_string())
        }
        JobReadError::Store(_) | JobReadError::File { .. } => unavailable(error),
    }
}

pub(crate) fn unavailable(error: impl std::error::Error + 'static) -> JsonRpcError {
    tracing::warn!(error = service::error_chain(&error), "a request could not be answered");
    let mut causes =
        std::iter::successors(Some(&error as &(dyn std::error::Error + 'static)), |error| error.source());
    if causes.any(|cause| matches!(cause.downcast_ref(), Some(kv::Error::DiskFull(_)))) {
        return disk_full("the disk of the supervisor's store is full; try again".to_owned());
    }
    JsonRpcError::refused("UNAVAILABLE", false, "the supervisor's store failed; try again")
}
