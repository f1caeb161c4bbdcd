//! Outgoing calls and streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backoff::ExponentialBackoff;
use bytes::Bytes;
use envelope::{Conversation, EnvelopeSigner, OnRefusal, Refusal};
use identity::VerifyingKey;
use model::id::Uid;
use model::limits::GRPC_MESSAGE_BYTES_MAX;
use model::{BlobHash, ContextId, ContextUid, DirectMessage, Timestamp};
use mycelium::json_rpc::{JsonRpcId, JsonRpcMessage, JsonRpcPayload, JsonRpcResponse, parse, request};
use mycelium::{JsonRpcCall, JsonRpcError, JsonRpcPeer, PayloadForm, Receipt};
use proto::convert::envelope as envelope_convert;
use proto::internal::v1 as wire;
use proto::internal::v1::blob_store_service_client::BlobStoreServiceClient;
use proto::internal::v1::message_box_service_client::MessageBoxServiceClient;
use proto::internal::v1::registry_view_service_client::RegistryViewServiceClient;
use proto::v1;
use proto::v1::attach_request::Frame;
use proto::v1::attach_response::Frame as ResponseFrame;
use proto::v1::gateway_service_client::GatewayServiceClient;
use proto::v1::supervisor_service_client::SupervisorServiceClient;
use rpc::RECONNECT_MAX;
use service::ReadinessCondition;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::bus_link::request_info;
use crate::delivery::{cut, refused_text};
use crate::dialing::Dial;
use crate::peers::{SupervisorConnectionSlot, SupervisorPeers};
use crate::presence::SupervisorPresences;
use crate::signing::announce_root_changes;
use crate::supervisor_api::{GatewayState, SupervisorRef};

/// Blobs, as storage keeps them.
pub type BlobStoreClient = BlobStoreServiceClient<rpc::Channel>;
/// Messages and inboxes, as storage keeps them.
pub type MessageBoxClient = MessageBoxServiceClient<rpc::Channel>;
/// Runners, as the registry sees them.
pub type RegistryClient = RegistryViewServiceClient<rpc::Channel>;

/// Maximum pause before a supervisor is called again: there may be many, and some never come back.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Maximum size of another coordinator's answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Payloads that may wait to go out to one supervisor.
const OUTBOX_LEN: usize = 64;

/// Wraps a channel to storage.
#[must_use]
pub fn blob_store(channel: rpc::Channel) -> BlobStoreClient {
    BlobStoreServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Wraps a channel to storage.
#[must_use]
pub fn message_box(channel: rpc::Channel) -> MessageBoxClient {
    MessageBoxServiceClient::new(channel).max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Wraps a channel to the registry.
#[must_use]
pub fn registry(channel: rpc::Channel) -> RegistryClient {
    RegistryViewServiceClient::new(channel).max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Reads a piece of a blob; gives it with the size of the whole.
pub(crate) async fn read_blob(
    store: &BlobStoreClient,
    (context_id, context_uid): (ContextId, ContextUid),
    hash: BlobHash,
    offset: u64,
) -> Result<(Bytes, u64), JsonRpcError> {
    let request = wire::ReadBlobRequest {
        context_uid: context_uid.to_string(),
        context_id: context_id.0,
        sha256: hash.to_string(),
        offset,
    };
    let answer = store.clone().read_blob(request).await.map_err(|status| refusal(&status))?.into_inner();
    Ok((answer.data, answer.size))
}

/// Keeps a piece of a blob.
pub(crate) async fn write_blob(
    store: &BlobStoreClient,
    put: wire::WriteBlobRequest,
) -> Result<(), JsonRpcError> {
    store.clone().write_blob(put).await.map(|_| ()).map_err(|status| refusal(&status))
}

/// Puts a message into its recipient's inbox.
pub(crate) async fn accept_letter(
    storage: &MessageBoxClient,
    message: &DirectMessage,
    verified: bool,
    foreign: bool,
) -> Result<(), JsonRpcError> {
    let letter_json = serde_json::to_vec(message).expect("a letter is JSON").into();
    let response =
        storage.clone().accept_letter(wire::AcceptLetterRequest { letter_json, verified, foreign }).await;
    let answer = response.map_err(|status| match status.code() {
        Code::InvalidArgument => refusal(&status),
        _ => {
            // The answer goes to strangers: it must not show the state of this coordinator.
            tracing::warn!(%status, "an incoming message could not be stored");
            JsonRpcError::refused(
                "UNAVAILABLE",
                false,
                "the message cannot be stored now; send it again later",
            )
        }
    })?;
    let answer = answer.into_inner();
    let wire::AcceptLetterResponse { message_key: _, duplicate, refusal, reason, lasting } = answer;
    if reason.is_empty() && refusal.is_empty() {
        tracing::debug!(duplicate, "an incoming message was accepted");
        return Ok(());
    }
    Err(JsonRpcError::refused(&reason, lasting, refusal))
}

fn refusal(status: &Status) -> JsonRpcError {
    let reason = rpc::ErrorView::from(status).reason;
    // An output for which its context has no room fails its job; a transient refusal would be retried without end.
    let lasting = matches!(
        status.code(),
        Code::NotFound | Code::InvalidArgument | Code::PermissionDenied | Code::OutOfRange
    ) || reason == rpc::RpcReason::LimitExceeded.as_str();
    let reason = if reason.is_empty() { "UNAVAILABLE" } else { &reason };
    JsonRpcError::refused(reason, lasting, status.message())
}

/// Keeps a supervisor attached for ever.
pub(crate) async fn keep_attached(
    channel: rpc::Channel,
    state: GatewayState,
    address: String,
    slot: SupervisorConnectionSlot,
) {
    let client = SupervisorServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let mut backoff = ExponentialBackoff::up_to(RETRY_MAX);
    loop {
        let began = Instant::now();
        let ended = attach(client.clone(), &state, &address, &slot).await;
        let status = ended.err().unwrap_or_else(|| Status::unavailable("the supervisor ended the stream"));
        if slot.is_connected() {
            tracing::info!(address, %status, "a supervisor's stream was lost");
        } else {
            tracing::debug!(address, %status, "a supervisor cannot be attached");
            // The supervisor could not be reached at all: it counts as gone at once, not only after its silence.
            state.presences.gone(&address);
        }
        slot.set_disconnected(status.message());
        backoff.reset_after(began.elapsed());
        backoff.pause().await;
    }
}

/// The whole life of one stream.
async fn attach(
    mut client: SupervisorServiceClient<rpc::Channel>,
    state: &GatewayState,
    address: &str,
    slot: &SupervisorConnectionSlot,
) -> Result<(), Status> {
    let (outgoing, requests) = mpsc::channel(OUTBOX_LEN);
    let root = state.identity.now().root;
    let hello = Frame::Hello(v1::AttachHello { coordinator: root.to_string() });
    // Cannot fail: the receiving end is in scope, and empty.
    outgoing.send(v1::AttachRequest { frame: Some(hello) }).await.ok();
    let mut incoming = client.attach(ReceiverStream::new(requests)).await?.into_inner();
    let key = welcome(&mut incoming).await?;
    admit(state, address, key)?;
    let conversation = state.conversation(key.to_string()).with_root(key);
    let (outbox, mut payloads) = mpsc::channel::<Bytes>(OUTBOX_LEN);
    let peer = JsonRpcPeer::new(outbox, state.supervisor_handler(SupervisorRef::Address(address.to_owned())));
    let writing = async {
        while let Some(payload) = payloads.recv().await {
            let envelope = match conversation.sign(&payload, Timestamp::now()) {
                Ok(envelope) => envelope,
                Err(error) => {
                    tracing::error!(address, %error, "a payload cannot be signed");
                    continue;
                }
            };
            let request =
                v1::AttachRequest { frame: Some(Frame::Envelope(envelope_convert::to_wire(envelope))) };
            if outgoing.send(request).await.is_err() {
                return;
            }
        }
    };
    let introducing = async {
        announce_root_changes(state, &peer, address).await.map_err(Status::failed_precondition)?;
        slot.set_connected(peer.clone());
        let asking = async {
            if let Err(error) = request_info(state, &peer, address).await {
                tracing::warn!(address, error, "a supervisor does not send its information");
            }
            std::future::pending().await
        };
        tokio::select! {
            () = asking => Ok(()),
            () = slot.disconnected() => {
                // Another task ended the conversation, because the records name another key now.
                let complaint = state.peers.complaint(address);
                Err(Status::permission_denied(complaint.map_or_else(String::new, |error| error.to_string())))
            }
        }
    };
    tokio::select! {
        ended = receive(&mut incoming, &peer, &conversation, || admit(state, address, key)) => ended,
        () = writing => Ok(()),
        ended = introducing => ended,
        () = state.identity.other_than(root) => Err(Status::aborted("the coordinator has another root")),
    }
}

/// Checks that the records of an address accept this signing key.
fn admit(state: &GatewayState, address: &str, key: VerifyingKey) -> Result<(), Status> {
    if state.peers.form(address) == PayloadForm::Plain {
        return Err(Status::failed_precondition(
            "its runner records ask for the plain form, which works over a bus only",
        ));
    }
    state.peers.admit(address, key).map_err(|error| Status::permission_denied(error.to_string()))
}

/// Reads the first frame of a supervisor: the key that it signs with.
async fn welcome(incoming: &mut Streaming<v1::AttachResponse>) -> Result<VerifyingKey, Status> {
    match incoming.message().await?.and_then(|first| first.frame) {
        Some(ResponseFrame::Welcome(welcome)) => {
            welcome.key.parse().map_err(|error| Status::failed_precondition(format!("its key: {error}")))
        }
        _ => Err(Status::failed_precondition("its first frame does not name the key that it signs with")),
    }
}

async fn receive(
    incoming: &mut Streaming<v1::AttachResponse>,
    peer: &JsonRpcPeer,
    conversation: &Conversation,
    admit: impl Fn() -> Result<(), Status>,
) -> Result<(), Status> {
    while let Some(v1::AttachResponse { frame }) = incoming.message().await? {
        let Some(ResponseFrame::Envelope(envelope)) = frame else { continue };
        // The records may have changed since the previous frame.
        admit()?;
        peer.receive_opened(
            conversation.open(envelope_convert::from_wire(envelope), Timestamp::now()),
            Receipt::default(),
        );
    }
    Ok(())
}

/// Follows the registry's view for ever. `known` is met while it is complete and is being followed.
pub(crate) async fn follow_registry(
    mut client: RegistryClient,
    peers: SupervisorPeers,
    known: ReadinessCondition,
) {
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    loop {
        let began = Instant::now();
        let reading = async {
            let mut view = client.watch(wire::WatchRequest {}).await?.into_inner();
            peers.begin_view();
            while let Some(part) = view.message().await? {
                let complete = part.snapshot_end;
                peers.update(part);
                if complete {
                    known.met();
                }
            }
            Ok::<_, Status>(())
        };
        match reading.await {
            Ok(()) => {
                known.unmet("the registry ended its view");
                tracing::info!("the registry ended its view");
            }
            Err(status) => {
                known.unmet(status.message());
                tracing::warn!(%status, "the registry's view cannot be followed; retrying");
            }
        }
        backoff.reset_after(began.elapsed());
        backoff.pause().await;
    }
}

/// Reports the presences of supervisors to the registry, for ever. `listens` is met while the stream is open.
pub(crate) async fn report_presence(
    mut client: RegistryClient,
    presences: SupervisorPresences,
    listens: ReadinessCondition,
) {
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    loop {
        let began = Instant::now();
        let telling = async {
            let (outgoing, requests) = mpsc::channel(OUTBOX_LEN);
            let mut incoming = client.report_presence(ReceiverStream::new(requests)).await?.into_inner();
            listens.met();
            presences.begin_anew();
            // The registry sends nothing; reading only notices the end of the stream.
            let reading = async {
                while incoming.message().await?.is_some() {}
                Ok::<_, Status>(())
            };
            let writing = async {
                loop {
                    for presence in presences.next().await {
                        if outgoing.send(presence).await.is_err() {
                            return;
                        }
                    }
                }
            };
            tokio::select! {
                ended = reading => ended,
                () = writing => Ok(()),
            }
        };
        match telling.await {
            Ok(()) => listens.unmet("the registry ended the stream"),
            Err(status) => {
                listens.unmet(status.message());
                tracing::warn!(%status, "presences cannot be reported to the registry; retrying");
            }
        }
        backoff.reset_after(began.elapsed());
        backoff.pause().await;
    }
}

/// Clients of other coordinators that are kept.
const WAYS_MAX: usize = 256;

/// Clients of other coordinators, by where their gateways are reached over gRPC.
///
/// Envelopes to a coordinator are addressed to its root key. A sender that knows only the address asks for the key first, over the
/// same TLS connection, from the holder of a certificate for that host; the envelope is then accepted only by the holder of the
/// key, and an answer only from that holder.
pub(crate) struct CoordinatorClients {
    dial: Dial,
    signer: Arc<EnvelopeSigner>,
    on_refusal: OnRefusal,
    ways: Mutex<HashMap<(String, u16), CoordinatorClient>>,
}

/// Client of one coordinator.
#[derive(Clone)]
struct CoordinatorClient {
    client: GatewayServiceClient<rpc::Channel>,
    /// Root of the coordinator, once known.
    root: Option<VerifyingKey>,
}

/// Why another coordinator gave no answer, or said no.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CoordinatorCallError {
    #[error("{0}")]
    Dial(String),
    #[error("{}", status_text(.0))]
    Status(Box<Status>),
    #[error("the answer's envelope was rejected: {}: {}", .0.code(), .0)]
    Untrusted(Refusal),
    #[error("{0}")]
    NoAnswer(&'static str),
    #[error("{}", refused_text(.0))]
    Refused(JsonRpcError),
}

impl CoordinatorCallError {
    /// Returns true when a retry cannot help. Wrong keys, certificates and clocks do not count: people correct them.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::Refused(refused) => refused.is_lasting(),
            Self::Status(status) => matches!(status.code(), Code::InvalidArgument | Code::Unimplemented),
            Self::Dial(_) | Self::Untrusted(_) | Self::NoAnswer(_) => false,
        }
    }

    /// Returns true when the coordinator has another root than expected.
    fn is_of_another(&self) -> bool {
        let Self::Status(status) = self else { return false };
        let metadata = rpc::ErrorView::from(&**status).metadata;
        metadata.get("refusal").is_some_and(|refusal| refusal == "WRONG_DESTINATION")
    }
}

/// Text of a status, with the name of its reason, or of why an envelope was rejected.
fn status_text(status: &Status) -> String {
    let view = rpc::ErrorView::from(status);
    match view.metadata.get("refusal").unwrap_or(&view.reason).as_str() {
        "" => cut(&view.to_string()),
        name => cut(&format!("{name}: {view}")),
    }
}

impl CoordinatorClients {
    pub(crate) fn new(dial: Dial, signer: Arc<EnvelopeSigner>, on_refusal: OnRefusal) -> Self {
        Self { dial, signer, on_refusal, ways: Mutex::default() }
    }

    /// Calls the coordinator behind an address. After the future is dropped it is unknown whether the call took effect.
    pub(crate) async fn call(
        &self,
        place: (&str, u16),
        call: &JsonRpcCall,
        deadline: Instant,
    ) -> Result<Bytes, CoordinatorCallError> {
        let trying = async {
            match self.try_call(place, call).await {
                Err(error) if error.is_of_another() => {
                    self.ways().remove(&(place.0.to_owned(), place.1));
                    self.try_call(place, call).await
                }
                other => other,
            }
        };
        let tried = tokio::time::timeout_at(deadline, trying).await;
        tried.unwrap_or(Err(CoordinatorCallError::NoAnswer("no answer in time")))
    }

    async fn try_call(&self, place: (&str, u16), call: &JsonRpcCall) -> Result<Bytes, CoordinatorCallError> {
        let (mut client, root) = self.way(place).await?;
        let conversation = Conversation::new(Arc::clone(&self.signer), Arc::clone(&self.on_refusal));
        let conversation = conversation.with_name(root.to_string()).with_root(root);
        let id = u64::try_from(Uid::random().bits() >> 96).expect("32 bits");
        let signed = conversation
            .sign(&request(id, call), Timestamp::now())
            .map_err(CoordinatorCallError::Untrusted)?;
        let deliver_request = v1::DeliverRequest { envelope: Some(envelope_convert::to_wire(signed)) };
        let answer = client
            .deliver(deliver_request)
            .await
            .map_err(|status| CoordinatorCallError::Status(status.into()))?;
        let envelope =
            answer.into_inner().envelope.ok_or(CoordinatorCallError::NoAnswer("its answer is not signed"))?;
        let opened = envelope_convert::from_wire(envelope)
            .and_then(|envelope| conversation.verify(&envelope, Timestamp::now()));
        let body = opened.map_err(|refusal| {
            (self.on_refusal)(&refusal);
            CoordinatorCallError::Untrusted(refusal)
        })?;
        match parse(&body) {
            Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Response(JsonRpcResponse {
                id: Some(JsonRpcId::Number(of)),
                answer,
            }))))
                if of == id =>
            {
                answer
                    .map(|result| Bytes::from(result.get().to_owned()))
                    .map_err(CoordinatorCallError::Refused)
            }
            _ => Err(CoordinatorCallError::NoAnswer("its answer does not match the request")),
        }
    }

    /// Returns the client for an address, with the root of the coordinator there.
    async fn way(
        &self,
        (host, port): (&str, u16),
    ) -> Result<(GatewayServiceClient<rpc::Channel>, VerifyingKey), CoordinatorCallError> {
        let place = (host.to_owned(), port);
        let known = self.ways().get(&place).cloned();
        let mut way = match known {
            Some(CoordinatorClient { client, root: Some(root) }) => return Ok((client, root)),
            Some(way) => way,
            None => {
                let channel = (self.dial)(host, port);
                let channel =
                    channel.map_err(|error| CoordinatorCallError::Dial(service::error_chain(&error)))?;
                let client = GatewayServiceClient::new(channel)
                    .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
                    .max_decoding_message_size(ANSWER_BYTES_MAX);
                self.keep(place.clone(), CoordinatorClient { client: client.clone(), root: None });
                CoordinatorClient { client, root: None }
            }
        };
        let response = way.client.deliver(v1::DeliverRequest { envelope: None }).await;
        let answer = response.map_err(|status| CoordinatorCallError::Status(status.into()))?.into_inner();
        let root = answer
            .coordinator
            .parse()
            .map_err(|_| CoordinatorCallError::NoAnswer("its answer names no root key"))?;
        self.keep(place, CoordinatorClient { client: way.client.clone(), root: Some(root) });
        Ok((way.client, root))
    }

    fn keep(&self, place: (String, u16), way: CoordinatorClient) {
        let mut ways = self.ways();
        if ways.len() >= WAYS_MAX && !ways.contains_key(&place) {
            // Any entry will do: its client is made again for the next message to that address.
            let other = ways.keys().next().cloned();
            other.and_then(|other| ways.remove(&other));
        }
        ways.insert(place, way);
    }

    fn ways(&self) -> MutexGuard<'_, HashMap<(String, u16), CoordinatorClient>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that a gRPC server answers there, in whatever state.
pub(crate) async fn check_grpc_health(channel: rpc::Channel) -> Result<(), String> {
    let ask = HealthCheckRequest { service: String::new() };
    HealthClient::new(channel).check(ask).await.map(drop).map_err(|status| status_text(&status))
}

#[cfg(test)]
mod tests {
    use rpc::{ErrorKind, RpcReason};

    use super::*;

    #[test]
    fn what_its_context_has_no_room_for_is_not_brought_again_and_what_the_store_has_none_for_is() {
        for (reason, lasting) in
            [(RpcReason::LimitExceeded, true), (RpcReason::StoreFull, false), (RpcReason::Overloaded, false)]
        {
            let status = rpc::Error::new(ErrorKind::ResourceExhausted, reason, "no room").into_status();
            assert_eq!(refusal(&status).is_lasting(), lasting, "{reason}");
        }
    }
}
