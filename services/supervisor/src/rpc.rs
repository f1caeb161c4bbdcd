//! The gRPC front: envelopes in and out, and what people ask.

use std::sync::Arc;

use ::rpc::{Allow, Error, ErrorKind, PolicyTable, Reason};
use bytes::Bytes;
use envelope::Conversation;
use identity::{ServiceName, VerifyingKey};
use model::limits::TIMEOUT_SECS_MAX;
use model::supervision::JobLogPiece;
use model::{JobKey, Timestamp};
use mycelium::{Peer, Receipt};
use proto::convert::envelope as envelope_convert;
use proto::convert::runner::instance_to_wire;
use proto::convert::time::to_wire as time_to_wire;
use proto::v1::supervisor_service_server::SupervisorService;
use proto::v1::{
    AttachRequest, AttachResponse, AttachWelcome, DrainRequest, DrainResponse, GetSupervisorRequest,
    GetSupervisorResponse, ListInstancesRequest, ListInstancesResponse, ReadJobLogRequest,
    ReadJobLogResponse, ResumeRequest, ResumeResponse, SucceedCoordinatorRequest, SucceedCoordinatorResponse,
    attach_request, attach_response,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use queue::{Authority, PassedOn};

use crate::drain;
use crate::intake::{Intake, Supervisor};
use crate::read_back::{self, ReadError};
use crate::succession::SuccessionError;

/// Who may call what.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[
    ("/mycora.v1.SupervisorService/Attach", &[Allow::Service(ServiceName::MyceliumGateway)]),
    ("/mycora.v1.SupervisorService/GetSupervisor", &[Allow::AnyService, Allow::Admin]),
    ("/mycora.v1.SupervisorService/ListInstances", &[Allow::AnyService, Allow::Admin]),
    ("/mycora.v1.SupervisorService/Drain", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/Resume", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/ReadJobLog", &[Allow::Admin]),
    ("/mycora.v1.SupervisorService/SucceedCoordinator", &[Allow::Admin]),
];

/// Payloads that may wait to go out to one coordinator.
const OUTBOX_LEN: usize = 64;

/// Serves gateways and people.
pub struct SupervisorRpc {
    supervisor: Supervisor,
    stop: CancellationToken,
}

impl SupervisorRpc {
    /// Streams end when `stop` is cancelled.
    #[must_use]
    pub const fn new(supervisor: Supervisor, stop: CancellationToken) -> Self {
        Self { supervisor, stop }
    }
}

#[tonic::async_trait]
impl SupervisorService for SupervisorRpc {
    type AttachStream = ReceiverStream<Result<AttachResponse, Status>>;
    type ReadJobLogStream = ReceiverStream<Result<ReadJobLogResponse, Status>>;

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
        let intake = Intake::attached(self.supervisor.clone(), Arc::clone(&conversation));
        let peer = Peer::new(outbox, intake);
        let key = self.supervisor.voice.root().to_string();
        let welcome = attach_response::Frame::Welcome(AttachWelcome { key });
        // There is room for one, and nobody else sends.
        outgoing.try_send(Ok(AttachResponse { frame: Some(welcome) })).ok();
        let (supervisor, stop) = (self.supervisor.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = receive(requests, &supervisor, &coordinator, &peer, &conversation) => {}
                () = send(payloads, outgoing, &conversation) => {}
                () = stop.cancelled() => {}
            }
            supervisor.coordinators.left(&coordinator, &peer);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_supervisor(
        &self,
        _: Request<GetSupervisorRequest>,
    ) -> Result<Response<GetSupervisorResponse>, Status> {
        let presence = self.supervisor.presence.now();
        let attached = u32::try_from(self.supervisor.coordinators.all().len()).unwrap_or(u32::MAX);
        let drain::Progress { drain, queued, running } =
            drain::progress(&self.supervisor).await.map_err(store_trouble)?;
        let bus = self.supervisor.coordinators.bus_standing();
        let mycelium_address = bus.key().map(|key| format!("mycelium:{key}"));
        Ok(Response::new(GetSupervisorResponse {
            key: self.supervisor.voice.root().to_string(),
            mycelium_address: mycelium_address.unwrap_or_default(),
            mycelium_problem: bus.problem,
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
        let DrainRequest { deadline_secs } = request.into_inner();
        if deadline_secs.is_some_and(|secs| secs > TIMEOUT_SECS_MAX) {
            return Err(refused("deadline_secs", format!("at most {TIMEOUT_SECS_MAX} are allowed")));
        }
        self.supervisor.presence.known().await;
        let progress = drain::begin(&self.supervisor, deadline_secs).await.map_err(store_trouble)?;
        Ok(Response::new(DrainResponse {
            queued: progress.queued,
            running: progress.running,
            drain_deadline_time: progress.drain.and_then(|drain| drain.deadline).map(time_to_wire),
        }))
    }

    async fn resume(&self, _: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        self.supervisor.presence.known().await;
        drain::end(&self.supervisor).await.map_err(store_trouble)?;
        Ok(Response::new(ResumeResponse {}))
    }

    async fn read_job_log(
        &self,
        request: Request<ReadJobLogRequest>,
    ) -> Result<Response<Self::ReadJobLogStream>, Status> {
        let ReadJobLogRequest { job_key, offset } = request.into_inner();
        let key: JobKey = job_key.parse().map_err(|error| refused("job_key", error))?;
        let first = read_back::log(&self.supervisor, key, offset, 0).await.map_err(not_read)?;
        let (pieces, stream) = mpsc::channel(1);
        let (supervisor, stop) = (self.supervisor.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = send_log(&supervisor, key, first, &pieces) => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn succeed_coordinator(
        &self,
        request: Request<SucceedCoordinatorRequest>,
    ) -> Result<Response<SucceedCoordinatorResponse>, Status> {
        let SucceedCoordinatorRequest { old_coordinator, new_coordinator } = request.into_inner();
        let key = |field: &str, text: &str| {
            text.parse::<VerifyingKey>().map_err(|error| refused(field, error)).map(|key| key.to_string())
        };
        let (old, new) =
            (key("old_coordinator", &old_coordinator)?, key("new_coordinator", &new_coordinator)?);
        if old == new {
            return Err(refused("new_coordinator", "it is the old one"));
        }
        let passed = self.supervisor.succeed(&old, &new, Authority::Operator).await;
        let PassedOn { contexts, jobs } = passed.map_err(not_succeeded)?;
        Ok(Response::new(SucceedCoordinatorResponse { contexts, jobs }))
    }

    async fn list_instances(
        &self,
        _: Request<ListInstancesRequest>,
    ) -> Result<Response<ListInstancesResponse>, Status> {
        let instances = self.supervisor.presence.now().instances.iter().map(instance_to_wire).collect();
        Ok(Response::new(ListInstancesResponse { instances }))
    }
}

/// Sends a log until its end as it is then, or until nobody reads it any more.
async fn send_log(
    supervisor: &Supervisor,
    key: JobKey,
    first: JobLogPiece,
    pieces: &mpsc::Sender<Result<ReadJobLogResponse, Status>>,
) {
    let mut piece = first;
    loop {
        let JobLogPiece { offset, text, next_offset, size, complete } = piece;
        let at_end = complete || next_offset >= size;
        if pieces.send(Ok(ReadJobLogResponse { offset, text, size, complete })).await.is_err() || at_end {
            return;
        }
        piece = match read_back::log(supervisor, key, next_offset, 0).await {
            Ok(piece) => piece,
            Err(error) => {
                // Whoever has gone away needs no answer.
                let _ = pieces.send(Err(not_read(error))).await;
                return;
            }
        };
    }
}

fn not_succeeded(error: SuccessionError) -> Status {
    match error {
        SuccessionError::Unknown(root) => {
            Error::not_found(format!("a context that is bound to coordinator {root}")).into()
        }
        SuccessionError::Policy(_) | SuccessionError::Succeeded(_) => {
            Error::new(ErrorKind::FailedPrecondition, Reason::WrongState, error.to_string()).into()
        }
        SuccessionError::Store(error) => store_trouble(error),
    }
}

fn not_read(error: ReadError) -> Status {
    match error {
        ReadError::Unknown(_) | ReadError::Gone(_) => Error::not_found(error.to_string()).into(),
        ReadError::Store(error) => store_trouble(error),
        ReadError::File { .. } => Error::internal(error).into(),
    }
}

fn store_trouble(error: kv::Error) -> Status {
    let message = "the supervisor's store does not answer; try again";
    Error::unavailable(Reason::StoreUnavailable, message).because(error).into()
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
    supervisor: &Supervisor,
    coordinator: &str,
    peer: &Peer,
    conversation: &Conversation,
) {
    let mut arrived = false;
    loop {
        match requests.message().await {
            Ok(Some(AttachRequest { frame: Some(attach_request::Frame::Envelope(envelope)) })) => {
                let opened = conversation.open(envelope_convert::from_wire(envelope), Timestamp::now());
                // Not before it has signed something: until then anybody may say that they are it.
                if !arrived && opened.is_ok() {
                    supervisor.coordinators.arrived(coordinator, peer);
                    arrived = true;
                }
                peer.receive_opened(opened, Receipt::default());
            }
            Ok(Some(_)) => tracing::debug!("a frame of an attachment that says nothing was ignored"),
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
        let said = match conversation.say(&payload, Timestamp::now()) {
            Ok(said) => said,
            Err(error) => {
                tracing::error!(%error, "a payload cannot be signed");
                continue;
            }
        };
        let frame = attach_response::Frame::Envelope(envelope_convert::to_wire(said));
        if outgoing.send(Ok(AttachResponse { frame: Some(frame) })).await.is_err() {
            return;
        }
    }
}
