//! The gRPC front end: streams of envelopes for gateways, and calls by operators.

mod attempts;

use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Allow, Error, ErrorKind, PolicyTable, RpcReason};
use bytes::Bytes;
use envelope::Conversation;
use identity::{ServiceName, VerifyingKey};
use model::limits::TIMEOUT_SECS_MAX;
use model::{JobKey, Timestamp};
use mycelium::{JsonRpcPeer, Receipt};
use proto::convert::envelope as envelope_convert;
use proto::convert::runner::instance_to_wire;
use proto::convert::time::to_wire as time_to_wire;
use proto::v1::supervisor_service_server::SupervisorService;
use proto::v1::{
    AttachRequest, AttachResponse, AttachWelcome, DrainRequest, DrainResponse, GetAttemptRequest,
    GetAttemptResponse, GetSupervisorRequest, GetSupervisorResponse, ListInstancesRequest,
    ListInstancesResponse, ResumeRequest, ResumeResponse, RunAttemptRequest, RunAttemptResponse,
    StopAttemptRequest, StopAttemptResponse, StreamAttemptLogsRequest, StreamAttemptLogsResponse,
    SucceedCoordinatorRequest, SucceedCoordinatorResponse, WaitAttemptRequest, WaitAttemptResponse,
    attach_request, attach_response,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use queue::{RootTransferCounts, RotationAuthority};

use crate::attempts::{OperatorRequestCheck, OperatorRequestGuard};
use crate::coordinator_requests::{CoordinatorRequestHandler, SupervisorState};
use crate::drain;
use crate::results::{self, JobReadError};
use crate::root_rotation::CoordinatorRotationError;

/// Policy table: which callers may call which methods.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[
    ("/mycora.v1.SupervisorService/Attach", &[Allow::Service(ServiceName::MyceliumGateway)]),
    ("/mycora.v1.SupervisorService/GetSupervisor", &[Allow::AnyService, Allow::Admin]),
    ("/mycora.v1.SupervisorService/ListInstances", &[Allow::AnyService, Allow::Admin]),
    ("/mycora.v1.SupervisorService/Drain", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/Resume", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/RunAttempt", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/GetAttempt", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/WaitAttempt", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/StopAttempt", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/StreamAttemptLogs", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/SucceedCoordinator", &[Allow::Admin]),
];

/// Time limit of WaitAttempt unless the request has one.
const WAIT_SECS_DEFAULT: u32 = 30;
/// Maximum time limit of WaitAttempt: less than a call may take.
const WAIT_SECS_MAX: u32 = 50;
/// Delay after which a request that the full store rejected should be retried.
const STORE_FULL_RETRY: Duration = Duration::from_secs(5);
/// Seconds that a stopped script gets to end by itself, unless the request says otherwise.
const STOP_GRACE_SECS_DEFAULT: u32 = 5;
/// Maximum of the grace period in seconds.
const STOP_GRACE_SECS_MAX: u32 = 3600;
/// Payloads that may wait to go out to one coordinator.
const OUTBOX_LEN: usize = 64;

/// Serves gateways and people.
pub struct SupervisorRpc {
    supervisor: SupervisorState,
    stop: CancellationToken,
}

impl SupervisorRpc {
    /// Streams end when `stop` is cancelled.
    #[must_use]
    pub const fn new(supervisor: SupervisorState, stop: CancellationToken) -> Self {
        Self { supervisor, stop }
    }

    /// Takes the lock for a request; returns nothing when the request was carried out before.
    async fn turn<'a>(
        &'a self,
        request_id: &'a str,
        what: &str,
    ) -> Result<Option<OperatorRequestGuard<'a>>, Status> {
        match self.supervisor.check_request(request_id, what).await.map_err(store_trouble)? {
            OperatorRequestCheck::New(turn) => Ok(Some(turn)),
            OperatorRequestCheck::Repeated => Ok(None),
            OperatorRequestCheck::Conflict => {
                let message = "the request id was used with another body before";
                Err(Error::new(ErrorKind::AlreadyExists, RpcReason::RequestIdReused, message).into())
            }
        }
    }
}

#[tonic::async_trait]
impl SupervisorService for SupervisorRpc {
    type AttachStream = ReceiverStream<Result<AttachResponse, Status>>;
    type StreamAttemptLogsStream = ReceiverStream<Result<StreamAttemptLogsResponse, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let mut requests = request.into_inner();
        let coordinator = match requests.message().await?.and_then(|first| first.frame) {
            Some(attach_request::Frame::Hello(hello)) => parse_root(&hello.coordinator)?,
            _ => return Err(refused("frame", "the first frame of an attachment is `hello`")),
        };
        self.supervisor.presence.known().await;
        let (outbox, payloads) = mpsc::channel(OUTBOX_LEN);
        let (outgoing, stream) = mpsc::channel(1);
        let conversation = self.supervisor.conversation().with_root(coordinator);
        let coordinator = coordinator.to_string();
        let conversation = Arc::new(conversation.with_name(coordinator.clone()));
        let intake = CoordinatorRequestHandler::attached(self.supervisor.clone(), Arc::clone(&conversation));
        let peer = JsonRpcPeer::new(outbox, intake);
        let key = self.supervisor.signer.root().to_string();
        let welcome = attach_response::Frame::Welcome(AttachWelcome { key });
        // There is room for one frame, and nothing else was sent yet.
        outgoing.try_send(Ok(AttachResponse { frame: Some(welcome) })).ok();
        let (supervisor, stop) = (self.supervisor.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = receive(requests, &supervisor, &coordinator, &peer, &conversation) => {}
                () = send(payloads, outgoing, &conversation) => {}
                () = stop.cancelled() => {}
            }
            supervisor.coordinators.disconnected(&coordinator, &peer);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_supervisor(
        &self,
        _: Request<GetSupervisorRequest>,
    ) -> Result<Response<GetSupervisorResponse>, Status> {
        let presence = self.supervisor.presence.now();
        let attached = u32::try_from(self.supervisor.coordinators.all().len()).unwrap_or(u32::MAX);
        let drain::DrainProgress { drain, queued, running } =
            drain::progress(&self.supervisor).await.map_err(store_trouble)?;
        let bus = self.supervisor.coordinators.bus_status();
        let mycelium_address = bus.key().map(|key| format!("mycelium:{key}"));
        Ok(Response::new(GetSupervisorResponse {
            key: self.supervisor.signer.root().to_string(),
            mycelium_address: mycelium_address.unwrap_or_default(),
            mycelium_problem: bus.problem,
            intake_problem: self.supervisor.policy.intake_problem().unwrap_or_default().to_owned(),
            supervisor: presence.supervisor,
            version: presence.version,
            queued,
            attached,
            draining: drain.is_some(),
            running,
            drain_time: drain.map(|drain| time_to_wire(drain.since)),
            drain_deadline_time: drain.and_then(|drain| drain.deadline).map(time_to_wire),
        }))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        let DrainRequest { request_id, deadline_secs } = request.into_inner();
        let mut violations = model::Violations::new();
        attempts::check_request_id(&request_id, &mut violations);
        if deadline_secs.is_some_and(|secs| secs > TIMEOUT_SECS_MAX) {
            violations.add("deadline_secs", format!("at most {TIMEOUT_SECS_MAX} are allowed"));
        }
        violations.into_result(Some(())).map_err(Error::from)?;
        self.supervisor.presence.known().await;
        let progress = match self.turn(&request_id, &format!("drain {deadline_secs:?}")).await? {
            Some(turn) => {
                let progress = drain::begin(&self.supervisor, deadline_secs).await.map_err(store_trouble)?;
                turn.done().await.map_err(store_trouble)?;
                progress
            }
            None => drain::progress(&self.supervisor).await.map_err(store_trouble)?,
        };
        Ok(Response::new(DrainResponse {
            queued: progress.queued,
            running: progress.running,
            drain_deadline_time: progress.drain.and_then(|drain| drain.deadline).map(time_to_wire),
        }))
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        let ResumeRequest { request_id } = request.into_inner();
        let mut violations = model::Violations::new();
        attempts::check_request_id(&request_id, &mut violations);
        violations.into_result(Some(())).map_err(Error::from)?;
        self.supervisor.presence.known().await;
        if let Some(turn) = self.turn(&request_id, "resume").await? {
            drain::end(&self.supervisor).await.map_err(store_trouble)?;
            turn.done().await.map_err(store_trouble)?;
        }
        Ok(Response::new(ResumeResponse {}))
    }

    async fn run_attempt(
        &self,
        request: Request<RunAttemptRequest>,
    ) -> Result<Response<RunAttemptResponse>, Status> {
        let (request_id, wanted) = attempts::wanted(request.into_inner()).map_err(Error::from)?;
        self.supervisor.presence.known().await;
        let key = self.supervisor.run_attempt(&request_id, wanted).await.map_err(attempts::not_run)?;
        let attempt = attempts::found(key, self.supervisor.attempt(key).await)?;
        Ok(Response::new(RunAttemptResponse { attempt }))
    }

    async fn get_attempt(
        &self,
        request: Request<GetAttemptRequest>,
    ) -> Result<Response<GetAttemptResponse>, Status> {
        let key = attempts::parse_key(&request.into_inner().job_key)?;
        let attempt = attempts::found(key, self.supervisor.attempt(key).await)?;
        Ok(Response::new(GetAttemptResponse { attempt }))
    }

    async fn wait_attempt(
        &self,
        request: Request<WaitAttemptRequest>,
    ) -> Result<Response<WaitAttemptResponse>, Status> {
        let WaitAttemptRequest { job_key, timeout_secs } = request.into_inner();
        let mut violations = model::Violations::new();
        let key: Option<JobKey> = violations.take("job_key", job_key.parse());
        if timeout_secs > WAIT_SECS_MAX {
            violations.add("timeout_secs", format!("at most {WAIT_SECS_MAX} are allowed"));
        }
        let key = violations.into_result(key).map_err(Error::from)?;
        let secs = if timeout_secs == 0 { WAIT_SECS_DEFAULT } else { timeout_secs };
        let deadline = Instant::now() + Duration::from_secs(secs.into());
        let ended = tokio::select! {
            ended = self.supervisor.ended_attempt(key, deadline) => ended,
            () = self.stop.cancelled() => {
                return Err(Error::unavailable(RpcReason::Draining, "the supervisor is ending").into());
            }
        };
        Ok(Response::new(WaitAttemptResponse { attempt: attempts::found(key, ended)? }))
    }

    async fn stop_attempt(
        &self,
        request: Request<StopAttemptRequest>,
    ) -> Result<Response<StopAttemptResponse>, Status> {
        let StopAttemptRequest { request_id, job_key, grace_secs } = request.into_inner();
        let mut violations = model::Violations::new();
        attempts::check_request_id(&request_id, &mut violations);
        let key: Option<JobKey> = violations.take("job_key", job_key.parse());
        let grace_secs = grace_secs.unwrap_or(STOP_GRACE_SECS_DEFAULT);
        if grace_secs > STOP_GRACE_SECS_MAX {
            violations.add("grace_secs", format!("at most {STOP_GRACE_SECS_MAX} are allowed"));
        }
        let key = violations.into_result(key).map_err(Error::from)?;
        // Stopping an unknown attempt would make the supervisor refuse it for a day.
        attempts::found(key, self.supervisor.attempt(key).await)?;
        if let Some(turn) = self.turn(&request_id, &format!("stop {key} {grace_secs}")).await? {
            let stopped = self.supervisor.queue.stop_all(&[(key, grace_secs)]).await;
            for outcome in stopped {
                outcome.map_err(store_trouble)?;
            }
            turn.done().await.map_err(store_trouble)?;
        }
        let attempt = attempts::found(key, self.supervisor.attempt(key).await)?;
        Ok(Response::new(StopAttemptResponse { attempt }))
    }

    async fn stream_attempt_logs(
        &self,
        request: Request<StreamAttemptLogsRequest>,
    ) -> Result<Response<Self::StreamAttemptLogsStream>, Status> {
        let StreamAttemptLogsRequest { job_key, offset, follow } = request.into_inner();
        let key = attempts::parse_key(&job_key)?;
        let listener = self.supervisor.attempt_watchers.subscribe(key);
        let first = results::log(&self.supervisor, key, offset, 0).await.map_err(not_read)?;
        let (pieces, stream) = mpsc::channel(1);
        let (supervisor, stop) = (self.supervisor.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = attempts::send_log(&supervisor, key, first, (follow, listener), &pieces) => {}
                () = stop.cancelled() => {
                    let ending = Error::unavailable(RpcReason::Draining, "the supervisor is ending; resume after the last piece");
                    // A caller that does not read does not need the reason.
                    let _ = pieces.try_send(Err(ending.into()));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn succeed_coordinator(
        &self,
        request: Request<SucceedCoordinatorRequest>,
    ) -> Result<Response<SucceedCoordinatorResponse>, Status> {
        let SucceedCoordinatorRequest { old_coordinator, new_coordinator } = request.into_inner();
        let mut violations = model::Violations::new();
        let mut key = |field: &str, text: &str| {
            violations.take(field, text.parse::<VerifyingKey>()).map(|key| key.to_string())
        };
        let (old, new) = (key("old_coordinator", &old_coordinator), key("new_coordinator", &new_coordinator));
        if old.is_some() && old == new {
            violations.add("new_coordinator", "it is the old one");
        }
        let (old, new) = violations.into_result(old.zip(new)).map_err(Error::invalid)?;
        let passed = self.supervisor.succeed(&old, &new, RotationAuthority::Operator).await;
        let RootTransferCounts { contexts, jobs } = passed.map_err(not_succeeded)?;
        Ok(Response::new(SucceedCoordinatorResponse { contexts, jobs }))
    }

    async fn list_instances(
        &self,
        _: Request<ListInstancesRequest>,
    ) -> Result<Response<ListInstancesResponse>, Status> {
        let (announced, left_out) = self.supervisor.presence.announcement();
        let left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
        let instances = announced.instances.iter().map(instance_to_wire).collect();
        Ok(Response::new(ListInstancesResponse { instances, left_out }))
    }
}

fn not_succeeded(error: CoordinatorRotationError) -> Status {
    match error {
        CoordinatorRotationError::Unknown(root) => {
            Error::not_found(format!("a context that is bound to coordinator {root}")).into()
        }
        CoordinatorRotationError::Policy(_) | CoordinatorRotationError::Succeeded(_) => {
            Error::new(ErrorKind::FailedPrecondition, RpcReason::WrongState, error.to_string()).into()
        }
        CoordinatorRotationError::Store(error) => store_trouble(error),
    }
}

fn not_read(error: JobReadError) -> Status {
    match error {
        JobReadError::Unknown(_) | JobReadError::Gone(_) => Error::not_found(error.to_string()).into(),
        JobReadError::Store(error) => store_trouble(error),
        JobReadError::File { .. } => Error::internal(error).into(),
    }
}

fn store_trouble(error: kv::Error) -> Status {
    if let kv::Error::DiskFull(_) = error {
        return Error::disk_full("the disk of the supervisor's store is full").with_cause(error).into();
    }
    if let kv::Error::Oom(_) = error {
        let message =
            "the supervisor's store is out of memory; it has room again when jobs that it keeps have ended";
        let full = Error::new(ErrorKind::ResourceExhausted, RpcReason::StoreFull, message);
        return full.retry_after(STORE_FULL_RETRY).with_cause(error).into();
    }
    let message = "the supervisor's store does not answer; try again";
    Error::unavailable(RpcReason::StoreUnavailable, message).with_cause(error).into()
}

fn parse_root(text: &str) -> Result<VerifyingKey, Status> {
    text.parse().map_err(|error| refused("hello.coordinator", error))
}

fn refused(field: &str, why: impl std::fmt::Display) -> Status {
    let mut violations = model::Violations::new();
    violations.add(field, why);
    Error::invalid(violations).into()
}

async fn receive(
    mut requests: Streaming<AttachRequest>,
    supervisor: &SupervisorState,
    coordinator: &str,
    peer: &JsonRpcPeer,
    conversation: &Conversation,
) {
    let mut arrived = false;
    loop {
        match requests.message().await {
            Ok(Some(AttachRequest { frame: Some(attach_request::Frame::Envelope(envelope)) })) => {
                let opened = conversation.open(envelope_convert::from_wire(envelope), Timestamp::now());
                // Only after it has signed a message: until then anyone may claim to be this coordinator.
                if !arrived && opened.is_ok() {
                    supervisor.coordinators.connected(coordinator, peer);
                    arrived = true;
                }
                peer.receive_opened(opened, Receipt::default());
            }
            Ok(Some(_)) => tracing::debug!("an empty frame of an attachment was ignored"),
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(%status, "an attachment broke off");
                return;
            }
        }
    }
}

async fn send(
    mut payloads: mpsc::Receiver<Bytes>,
    outgoing: mpsc::Sender<Result<AttachResponse, Status>>,
    conversation: &Conversation,
) {
    while let Some(payload) = payloads.recv().await {
        let envelope = match conversation.sign(&payload, Timestamp::now()) {
            Ok(envelope) => envelope,
            Err(error) => {
                tracing::error!(%error, "a payload cannot be signed");
                continue;
            }
        };
        let frame = attach_response::Frame::Envelope(envelope_convert::to_wire(envelope));
        if outgoing.send(Ok(AttachResponse { frame: Some(frame) })).await.is_err() {
            return;
        }
    }
}
