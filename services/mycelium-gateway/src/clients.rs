//! Outgoing calls and streams.

use std::time::Duration;

use bytes::Bytes;
use envelope::Conversation;
use identity::VerifyingKey;
use model::limits::GRPC_MESSAGE_BYTES_MAX;
use model::{BlobHash, ContextId, ContextUid, Timestamp};
use mycelium::{Peer, Receipt, RpcError};
use proto::convert::envelope as envelope_convert;
use proto::internal::v1 as wire;
use proto::internal::v1::blob_store_service_client::BlobStoreServiceClient;
use proto::internal::v1::registry_view_service_client::RegistryViewServiceClient;
use proto::v1;
use proto::v1::attach_request::Frame;
use proto::v1::attach_response::Frame as Said;
use proto::v1::supervisor_service_client::SupervisorServiceClient;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::bus_link::ask_who;
use crate::front::{Desk, Who};
use crate::peers::{Peers, Seat};
use crate::presence::Heard;

/// Blobs, as storage keeps them.
pub type BlobStoreClient = BlobStoreServiceClient<rpc::Channel>;
/// Runners, as the registry sees them.
pub type RegistryClient = RegistryViewServiceClient<rpc::Channel>;

/// The first pause before something is tried again; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// What stood this long was good: the next attempt follows at once.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// Payloads that may wait to go out to one supervisor.
const OUTBOX_LEN: usize = 64;

/// Wraps a channel to storage.
#[must_use]
pub fn blob_store(channel: rpc::Channel) -> BlobStoreClient {
    BlobStoreServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Wraps a channel to the registry.
#[must_use]
pub fn registry(channel: rpc::Channel) -> RegistryClient {
    RegistryViewServiceClient::new(channel).max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// The pauses between attempts at something that should not fail.
struct Pauses {
    next: Duration,
    began: Instant,
}

impl Pauses {
    fn new() -> Self {
        Self { next: RETRY_MIN, began: Instant::now() }
    }

    fn begin(&mut self) {
        self.began = Instant::now();
    }

    async fn pause(&mut self) {
        if self.began.elapsed() >= GOOD_AFTER {
            self.next = RETRY_MIN;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(RETRY_MAX);
    }
}

/// Reads a piece of a blob; gives it with the size of the whole.
pub(crate) async fn read_blob(
    store: &BlobStoreClient,
    (context_id, context_uid): (ContextId, ContextUid),
    hash: BlobHash,
    offset: u64,
) -> Result<(Bytes, u64), RpcError> {
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
pub(crate) async fn write_blob(store: &BlobStoreClient, put: wire::WriteBlobRequest) -> Result<(), RpcError> {
    store.clone().write_blob(put).await.map(|_| ()).map_err(|status| refusal(&status))
}

fn refusal(status: &Status) -> RpcError {
    let reason = rpc::ErrorView::from(status).reason;
    let lasting = matches!(
        status.code(),
        Code::NotFound | Code::InvalidArgument | Code::PermissionDenied | Code::OutOfRange
    );
    let reason = if reason.is_empty() { "UNAVAILABLE" } else { &reason };
    RpcError::refused(reason, lasting, status.message())
}

/// Keeps a supervisor attached for ever.
pub(crate) async fn keep_attached(channel: rpc::Channel, desk: Desk, address: String, seat: Seat) {
    let client = SupervisorServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let mut pauses = Pauses::new();
    loop {
        pauses.begin();
        let ended = attach(client.clone(), &desk, &address, &seat).await;
        let status = ended.err().unwrap_or_else(|| Status::unavailable("the supervisor ended the stream"));
        if seat.is_taken() {
            tracing::info!(address, %status, "a supervisor is not attached any more");
        } else {
            tracing::debug!(address, %status, "a supervisor cannot be attached");
            // It could not even be reached: no need to wait until its silence shows it.
            desk.heard.gone(&address);
        }
        seat.leave(status.message());
        pauses.pause().await;
    }
}

/// The whole life of one stream.
async fn attach(
    mut client: SupervisorServiceClient<rpc::Channel>,
    desk: &Desk,
    address: &str,
    seat: &Seat,
) -> Result<(), Status> {
    let (outgoing, requests) = mpsc::channel(OUTBOX_LEN);
    let hello = Frame::Hello(v1::AttachHello { coordinator: desk.voice.root().to_string() });
    // The receiving end is right here, and empty.
    outgoing.send(v1::AttachRequest { frame: Some(hello) }).await.ok();
    let mut incoming = client.attach(ReceiverStream::new(requests)).await?.into_inner();
    let key = welcome(&mut incoming).await?;
    let conversation = desk.conversation(key.to_string()).with_root(key);
    let (outbox, mut payloads) = mpsc::channel::<Bytes>(OUTBOX_LEN);
    let peer = Peer::new(outbox, desk.front(Who::Address(address.to_owned())));
    seat.take(peer.clone());
    let writing = async {
        while let Some(payload) = payloads.recv().await {
            let said = match conversation.say(&payload, Timestamp::now()) {
                Ok(said) => said,
                Err(error) => {
                    tracing::error!(address, %error, "a payload cannot be signed");
                    continue;
                }
            };
            let request = v1::AttachRequest { frame: Some(Frame::Envelope(envelope_convert::to_wire(said))) };
            if outgoing.send(request).await.is_err() {
                return;
            }
        }
    };
    let introducing = async {
        if let Err(error) = ask_who(desk, &peer, address).await {
            tracing::warn!(address, error, "a supervisor does not say who it is");
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = receive(&mut incoming, &peer, &conversation) => ended,
        () = writing => Ok(()),
        () = introducing => Ok(()),
    }
}

/// The key that a supervisor signs with, which it says first.
async fn welcome(incoming: &mut Streaming<v1::AttachResponse>) -> Result<VerifyingKey, Status> {
    match incoming.message().await?.and_then(|first| first.frame) {
        Some(Said::Welcome(welcome)) => {
            welcome.key.parse().map_err(|error| Status::failed_precondition(format!("its key: {error}")))
        }
        _ => Err(Status::failed_precondition("it does not say which key it signs with")),
    }
}

async fn receive(
    incoming: &mut Streaming<v1::AttachResponse>,
    peer: &Peer,
    conversation: &Conversation,
) -> Result<(), Status> {
    while let Some(v1::AttachResponse { frame }) = incoming.message().await? {
        let Some(Said::Envelope(envelope)) = frame else { continue };
        peer.receive_opened(
            conversation.open(envelope_convert::from_wire(envelope), Timestamp::now()),
            Receipt::default(),
        );
    }
    Ok(())
}

/// Follows the registry's view for ever. `ready` is set when it was complete for the first time.
pub(crate) async fn follow_registry(mut client: RegistryClient, peers: Peers, ready: watch::Sender<bool>) {
    let mut pauses = Pauses::new();
    loop {
        pauses.begin();
        let reading = async {
            let mut view = client.watch(wire::WatchRequest {}).await?.into_inner();
            peers.begin_view();
            while let Some(part) = view.message().await? {
                let complete = part.snapshot_end;
                peers.update(part);
                if complete {
                    ready.send_replace(true);
                }
            }
            Ok::<_, Status>(())
        };
        match reading.await {
            Ok(()) => tracing::info!("the registry ended its view"),
            Err(status) => tracing::warn!(%status, "the registry's view cannot be followed"),
        }
        pauses.pause().await;
    }
}

/// Tells the registry what is heard of supervisors, for ever.
pub(crate) async fn tell_registry(mut client: RegistryClient, heard: Heard) {
    let mut pauses = Pauses::new();
    loop {
        pauses.begin();
        let telling = async {
            let (outgoing, requests) = mpsc::channel(OUTBOX_LEN);
            let mut incoming = client.report_presence(ReceiverStream::new(requests)).await?.into_inner();
            heard.begin_anew();
            // Whom to speak to is known from the view; what comes in only shows that the stream stands.
            let reading = async {
                while incoming.message().await?.is_some() {}
                Ok::<_, Status>(())
            };
            let writing = async {
                loop {
                    for word in heard.next().await {
                        if outgoing.send(word).await.is_err() {
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
        if let Err(status) = telling.await {
            tracing::warn!(%status, "the registry cannot be told who is there");
        }
        pauses.pause().await;
    }
}
