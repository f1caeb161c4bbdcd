//! The gRPC front: envelopes in and out, and what people ask.

use ::rpc::{Allow, Error, PolicyTable};
use bytes::Bytes;
use identity::ServiceName;
use model::id::Uid;
use mycelium::json_rpc::{PAYLOAD_TYPE, Peer};
use proto::convert::runner::instance_to_wire;
use proto::v1::supervisor_service_server::SupervisorService;
use proto::v1::{
    AttachRequest, AttachResponse, Envelope, GetSupervisorRequest, GetSupervisorResponse,
    ListInstancesRequest, ListInstancesResponse, attach_request,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::intake::{Intake, Supervisor};

/// Who may call what.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[
    ("/mycora.v1.SupervisorService/Attach", &[Allow::Service(ServiceName::MyceliumGateway)]),
    ("/mycora.v1.SupervisorService/GetSupervisor", &[Allow::Authenticated]),
    ("/mycora.v1.SupervisorService/ListInstances", &[Allow::Authenticated]),
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

    async fn attach(
        &self,
        request: Request<Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let mut requests = request.into_inner();
        let coordinator = match requests.message().await?.and_then(|first| first.frame) {
            Some(attach_request::Frame::Hello(hello)) => parse_name(&hello.coordinator)?,
            _ => return Err(refused("frame", "the first frame of an attachment is `hello`")),
        };
        self.supervisor.presence.known().await;
        let (outbox, payloads) = mpsc::channel(OUTBOX_LEN);
        let (outgoing, stream) = mpsc::channel(1);
        let peer = Peer::new(outbox, Intake::attached(self.supervisor.clone(), coordinator.clone()));
        self.supervisor.coordinators.arrived(&coordinator, &peer);
        let (supervisor, stop) = (self.supervisor.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = receive(requests, &peer) => {}
                () = send(payloads, outgoing) => {}
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
        Ok(Response::new(GetSupervisorResponse {
            supervisor: presence.supervisor,
            version: presence.version,
            queued: presence.queued,
            attached,
        }))
    }

    async fn list_instances(
        &self,
        _: Request<ListInstancesRequest>,
    ) -> Result<Response<ListInstancesResponse>, Status> {
        let instances = self.supervisor.presence.now().instances.iter().map(instance_to_wire).collect();
        Ok(Response::new(ListInstancesResponse { instances }))
    }
}

/// A coordinator's name is 32 hex digits, so that it cannot pose as one on the bus.
fn parse_name(text: &str) -> Result<String, Status> {
    let name: Uid = text.parse().map_err(|error| refused("hello.coordinator", error))?;
    Ok(name.to_string())
}

fn refused(field: &str, why: impl std::fmt::Display) -> Status {
    let mut violations = model::Violations::new();
    violations.add(field, why);
    Error::invalid(violations).into()
}

async fn receive(mut requests: Streaming<AttachRequest>, peer: &Peer) {
    loop {
        match requests.message().await {
            Ok(Some(AttachRequest { frame: Some(attach_request::Frame::Envelope(envelope)) })) => {
                peer.receive(&envelope.payload);
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

async fn send(mut payloads: mpsc::Receiver<Bytes>, outgoing: mpsc::Sender<Result<AttachResponse, Status>>) {
    while let Some(payload) = payloads.recv().await {
        let envelope = Envelope { payload_type: PAYLOAD_TYPE.to_owned(), payload, signatures: Vec::new() };
        if outgoing.send(Ok(AttachResponse { envelope: Some(envelope) })).await.is_err() {
            return;
        }
    }
}
