//! The stubs of the services that the router calls, and the streams to them, each opened again when
//! lost.

use std::time::Duration;

use backoff::ExponentialBackoff;
use model::limits::{GRPC_MESSAGE_BYTES_MAX, PAGE_BYTES_MAX};
use prometheus::IntCounter;
use proto::internal::v1::gateway_link_service_client::GatewayLinkServiceClient;
use proto::internal::v1::message_store_service_client::MessageStoreServiceClient;
use proto::internal::v1::registry_view_service_client::RegistryViewServiceClient;
use proto::internal::v1::report_intake_service_client::ReportIntakeServiceClient;
use proto::internal::v1::take_request::Frame;
use proto::internal::v1::{AppendLogsRequest, LogChunk, NumberedLog, TakeHello, TakeRequest, WatchRequest};
use rpc::RECONNECT_MAX;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Response, Status, Streaming};

use crate::driver::RouterEvent;
use delivery::core::Input;
use delivery::reports::GatewayEpoch;

/// Messages, as storage keeps them.
pub type MessageStoreClient = MessageStoreServiceClient<rpc::Channel>;
/// The gateway.
pub type GatewayClient = GatewayLinkServiceClient<rpc::Channel>;
/// The scheduler's intake of reports.
pub type SchedulerClient = ReportIntakeServiceClient<rpc::Channel>;
/// Runners, as the registry sees them.
pub type RouterRegistryClient = RegistryViewServiceClient<rpc::Channel>;

/// Wraps a channel to storage.
#[must_use]
pub fn message_store(channel: rpc::Channel) -> MessageStoreClient {
    MessageStoreServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Wraps a channel to the gateway.
#[must_use]
pub fn gateway(channel: rpc::Channel) -> GatewayClient {
    GatewayLinkServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Wraps a channel to a scheduler.
#[must_use]
pub fn scheduler(channel: rpc::Channel) -> SchedulerClient {
    ReportIntakeServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Wraps a channel to the registry.
#[must_use]
pub fn registry(channel: rpc::Channel) -> RouterRegistryClient {
    RegistryViewServiceClient::new(channel).max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Pieces of output in one batch, at most.
const LOGS_BATCH_MAX: usize = 500;

/// Number of streams in a row that end soon after they open, by which the router concludes that another one has its name.
const EVICTIONS_MAX: u32 = 3;
/// Pause before a router claims its name again from another router that has it.
const EVICTED_PAUSE: Duration = Duration::from_secs(60);

/// Maps something that was received to an event.
type StreamEventMapper<T> = Box<dyn Fn(T) -> RouterEvent + Send + Sync>;

/// Event mappers of a stream: opened, message received, lost.
pub(crate) struct StreamCallbacks<Req, Resp> {
    /// Maps an open stream; messages sent here go out on it, in order.
    pub(crate) up: StreamEventMapper<mpsc::UnboundedSender<Req>>,
    /// Maps a received message.
    pub(crate) item: StreamEventMapper<Resp>,
    /// Maps the loss of the stream.
    pub(crate) down: StreamEventMapper<()>,
}

/// Name that only one stream at a time may use: a new stream ends the previous one.
pub(crate) struct ExclusiveRouterName {
    /// Name of the router.
    pub(crate) name: String,
    /// Counts how often another router had the name.
    pub(crate) conflicts: IntCounter,
}

/// Keeps a stream open for ever, and reports its events to the driver. `first` goes out first each time.
///
/// Outgoing messages are not bounded here: the windows of the receivers bound what the driver sends.
pub(crate) async fn keep_stream_open<Req, Resp, Open, Opened>(
    name: &'static str,
    mut open: Open,
    first: Option<Req>,
    sole: Option<ExclusiveRouterName>,
    callbacks: StreamCallbacks<Req, Resp>,
    events: mpsc::Sender<RouterEvent>,
) where
    Req: Clone,
    Open: FnMut(UnboundedReceiverStream<Req>) -> Opened,
    Opened: Future<Output = Result<Response<Streaming<Resp>>, Status>>,
{
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    let mut evictions = 0;
    loop {
        let began = Instant::now();
        let (sender, outgoing) = mpsc::unbounded_channel();
        if let Some(first) = first.clone() {
            // Cannot fail: `outgoing` is still in scope.
            sender.send(first).ok();
        }
        let ended = match open(UnboundedReceiverStream::new(outgoing)).await {
            Err(status) => Err(status),
            Ok(incoming) => {
                tracing::debug!(name, "a stream is open");
                if events.send((callbacks.up)(sender)).await.is_err() {
                    return;
                }
                let ended = read(incoming.into_inner(), &callbacks.item, &events).await;
                if events.send((callbacks.down)(())).await.is_err() {
                    return;
                }
                ended
            }
        };
        match &ended {
            Ok(()) => tracing::info!(name, "the other side ended a stream"),
            Err(status) => tracing::warn!(name, %status, "a stream was lost"),
        }
        backoff.reset_after(began.elapsed());
        // A restart is no eviction: the service ends a stream once, and then cannot be reached for a while.
        evictions =
            if ended.is_ok() && began.elapsed() < ExponentialBackoff::GOOD_AFTER { evictions + 1 } else { 0 };
        if let Some(ExclusiveRouterName { name: router, conflicts }) = &sole
            && evictions >= EVICTIONS_MAX
        {
            tracing::error!(
                router,
                "another router seems to have the same name: give each router its own name"
            );
            conflicts.inc();
            evictions = 0;
            tokio::time::sleep(EVICTED_PAUSE).await;
            continue;
        }
        backoff.pause().await;
    }
}

async fn read<Resp>(
    mut incoming: Streaming<Resp>,
    item: &StreamEventMapper<Resp>,
    events: &mpsc::Sender<RouterEvent>,
) -> Result<(), Status> {
    while let Some(message) = incoming.message().await? {
        if events.send(item(message)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Takes messages from storage for ever, as the only router of its name.
pub(crate) async fn run_storage_stream(
    client: MessageStoreClient,
    sole: ExclusiveRouterName,
    events: mpsc::Sender<RouterEvent>,
) {
    let hello = Frame::Hello(TakeHello { router: sole.name.clone() });
    let open = |outgoing| {
        let mut client = client.clone();
        async move { client.take(outgoing).await }
    };
    let callbacks = StreamCallbacks {
        up: Box::new(RouterEvent::StorageUp),
        item: Box::new(|taken| RouterEvent::Input(Input::Taken(taken))),
        down: Box::new(|()| RouterEvent::StorageDown),
    };
    let hello = TakeRequest { frame: Some(hello) };
    keep_stream_open("storage", open, Some(hello), Some(sole), callbacks, events).await;
}

/// Speaks with the gateway for ever.
pub(crate) async fn run_gateway_stream(client: GatewayClient, events: mpsc::Sender<RouterEvent>) {
    let open = |outgoing| {
        let mut client = client.clone();
        async move { client.exchange(outgoing).await }
    };
    let callbacks = StreamCallbacks {
        up: Box::new(RouterEvent::GatewayUp),
        item: Box::new(|message| RouterEvent::Input(Input::Gateway(message))),
        down: Box::new(|()| RouterEvent::GatewayDown),
    };
    keep_stream_open("mycelium-gateway", open, None, None, callbacks, events).await;
}

/// Follows the registry's view for ever.
pub(crate) async fn run_registry_stream(client: RouterRegistryClient, events: mpsc::Sender<RouterEvent>) {
    let open = |_: UnboundedReceiverStream<()>| {
        let mut client = client.clone();
        async move { client.watch(WatchRequest {}).await }
    };
    let callbacks = StreamCallbacks {
        up: Box::new(|_| RouterEvent::RegistryUp),
        item: Box::new(|part| RouterEvent::Input(Input::Runners(part))),
        down: Box::new(|()| RouterEvent::RegistryDown),
    };
    keep_stream_open("runner-registry", open, None, None, callbacks, events).await;
}

/// Hands pieces of output to storage, in order, one batch after the other; retries a batch that failed.
/// Ends when the sender is gone.
pub(crate) async fn keep_logs(
    mut client: MessageStoreClient,
    mut logs: mpsc::UnboundedReceiver<(GatewayEpoch, NumberedLog)>,
    events: mpsc::Sender<RouterEvent>,
) {
    let mut batch = Vec::new();
    while logs.recv_many(&mut batch, LOGS_BATCH_MAX).await > 0 {
        let mut rest = std::mem::take(&mut batch).into_iter().peekable();
        while rest.peek().is_some() {
            let mut kept = Vec::new();
            let mut chunks = Vec::new();
            let mut bytes = 0;
            while let Some((_, log)) = rest.peek()
                && (chunks.is_empty() || bytes + log.data.len() <= PAGE_BYTES_MAX)
                && let Some((epoch, log)) = rest.next()
            {
                bytes += log.data.len();
                let NumberedLog {
                    report_id,
                    job_key,
                    context_id,
                    flow_id,
                    offset,
                    data,
                    runner_id,
                    print_millis,
                } = log;
                kept.push((epoch, report_id));
                chunks.push(LogChunk { job_key, context_id, flow_id, offset, data, runner_id, print_millis });
            }
            append(&mut client, AppendLogsRequest { chunks }).await;
            if events.send(RouterEvent::Input(Input::LogsKept(kept))).await.is_err() {
                return;
            }
        }
    }
}

/// Stores pieces of output; returns once storage has kept them, or has rejected them permanently.
async fn append(client: &mut MessageStoreClient, request: AppendLogsRequest) {
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    while let Err(status) = client.append_logs(request.clone()).await {
        let lasting =
            matches!(status.code(), Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition);
        if lasting {
            tracing::warn!(%status, pieces = request.chunks.len(), "storage rejected output; it is dropped");
            return;
        }
        tracing::debug!(%status, "output could not be stored; retrying");
        backoff.pause().await;
    }
}
