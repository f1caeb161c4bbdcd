//! MessageStoreService.

use std::collections::BTreeMap;

use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use model::{ContextId, FlowId, JobKey, RunnerId, Timestamp, limits};
use proto::internal::v1 as wire;
use proto::internal::v1::held_message::Kind;
use proto::internal::v1::message_store_service_server::MessageStoreService;
use proto::internal::v1::take_request::Frame;
use proto::internal::v1::{
    AppendLogsRequest, AppendLogsResponse, ContextDrop, ContextDropped, HeldLetter, HeldMessage,
    SchedulerReplica, Settle, TakeHello, TakeRequest, TakeResponse, WatchSchedulersRequest,
    WatchSchedulersResponse,
};
use tokio::sync::oneshot;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

use super::status::field;
use super::{NAME_BYTES_MAX, StorageResponseStream, StorageRpc, raw_jobs};
use crate::error::Error;
use crate::flows::replicas::ReplicaIncarnation;
use crate::logs::AttemptLogChunk;
use crate::messages::forgettable_attempts::{ForgettableAttempts, next_forgets};
use crate::messages::message_holds::{RouterHeldMessage, Settlement, message_key, parse_message_key};
use crate::messages::router_session::{RouterMessageSession, RouterSessionQueues, next_batch};
use crate::record::routed_message;
use crate::tenants::context_removal::PendingContextDrop;

/// The last millisecond of the year 9999: later moments cannot be written as dates.
const MILLIS_MAX: u64 = 253_402_300_799_999;

/// Contexts to forget in one answer.
const DROPS_MAX: usize = 1000;

#[tonic::async_trait]
impl MessageStoreService for StorageRpc {
    type TakeStream = StorageResponseStream<TakeResponse>;

    async fn take(
        &self,
        request: Request<Streaming<TakeRequest>>,
    ) -> Result<Response<Self::TakeStream>, Status> {
        let mut frames = request.into_inner();
        let (begun, queues) = oneshot::channel();
        let rpc = self.clone();
        // When the answers end, another stream has taken the router's name: serving ends and gives the final status.
        let over = CancellationToken::new();
        let last = over.clone();
        let answers = answers(queues).chain(stream::once(async move {
            last.cancel();
            std::future::pending().await
        }));
        // A separate task: settlements are handled even while the router does not read.
        let serving = tokio::spawn(async move {
            let stop = rpc.stop.clone();
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                () = over.cancelled() => Ok(()),
                ended = serve(&rpc, &mut frames, begun) => ended,
            }
        });
        let serving = AbortOnDropHandle::new(serving).map(|ended| ended.map_err(::rpc::Error::internal)?);
        Ok(Response::new(self.until_stop(::rpc::bidirectional(answers, serving))))
    }

    type WatchSchedulersStream = StorageResponseStream<WatchSchedulersResponse>;

    async fn watch_schedulers(
        &self,
        _: Request<WatchSchedulersRequest>,
    ) -> Result<Response<Self::WatchSchedulersStream>, Status> {
        // The list may be empty only because it was not read yet.
        self.replicas.read().await?;
        let answers = WatchStream::new(self.replicas.live()).map(|live| {
            let replica = |(name, replica): (&String, &ReplicaIncarnation)| SchedulerReplica {
                name: name.clone(),
                address: replica.address.clone(),
            };
            Ok(WatchSchedulersResponse { replicas: live.iter().map(replica).collect() })
        });
        Ok(Response::new(self.until_stop(answers)))
    }

    async fn append_logs(
        &self,
        request: Request<AppendLogsRequest>,
    ) -> Result<Response<AppendLogsResponse>, Status> {
        let chunks = request.into_inner().chunks.into_iter().enumerate().map(|(i, chunk)| {
            let key: JobKey = chunk
                .job_key
                .parse()
                .map_err(|error| Error::field(&format!("chunks[{i}].job_key"), error))?;
            let (context, flow) = (ContextId(chunk.context_id), FlowId(chunk.flow_id));
            let runner = (chunk.runner_id > 0).then_some(RunnerId(chunk.runner_id));
            // The clock of a machine may be arbitrarily wrong.
            let millis = Some(chunk.print_millis).filter(|millis| (1..=MILLIS_MAX).contains(millis));
            let time = millis.map(Timestamp::from_millis);
            Ok(AttemptLogChunk { key, context, flow, offset: chunk.offset, data: chunk.data, runner, time })
        });
        let chunks = chunks.collect::<Result<Vec<_>, Error>>()?;
        self.hub.store().append_logs(chunks, Timestamp::now()).await?;
        Ok(Response::new(AppendLogsResponse {}))
    }
}

/// Stream of answers to a router; empty before there are `queues`.
fn answers(queues: oneshot::Receiver<RouterSessionQueues>) -> impl Stream<Item = TakeResponse> {
    let queues = stream::once(queues).filter_map(|queues| std::future::ready(queues.ok()));
    queues.flat_map(|queues| stream::unfold(queues, next_answers).flatten())
}

async fn next_answers(
    mut queues: RouterSessionQueues,
) -> Option<(stream::Iter<std::vec::IntoIter<TakeResponse>>, RouterSessionQueues)> {
    let answers = tokio::select! {
        batch = next_batch(&mut queues.messages, limits::PAGE_BYTES_MAX) => answers_of(batch?),
        Some(drops) = queues.drops.recv() => drops.chunks(DROPS_MAX).map(drops_to_wire).collect(),
        Some(forgets) = next_forgets(&mut queues.forgets) => vec![forgets_to_wire(&forgets)],
    };
    Some((stream::iter(answers), queues))
}

async fn serve(
    rpc: &StorageRpc,
    frames: &mut Streaming<TakeRequest>,
    begun: oneshot::Sender<RouterSessionQueues>,
) -> Result<(), Status> {
    let hello = frames.message().await?.and_then(|request| request.frame);
    let Some(Frame::Hello(TakeHello { router })) = hello else {
        return Err(Error::field("hello", "comes first").into());
    };
    if router.is_empty() || router.len() > NAME_BYTES_MAX {
        return Err(Error::field("hello.router", format!("1 to {NAME_BYTES_MAX} bytes")).into());
    }
    let (hub, routers, removals) = (rpc.hub.clone(), rpc.routers.clone(), rpc.removals.clone());
    let (taking, queues) = RouterMessageSession::begin(hub, routers, removals, &router);
    // The reader of the queues may have left.
    let _ = begun.send(queues);
    tokio::select! {
        () = taking.run() => Ok(()),
        ended = settling(&taking, frames) => ended,
    }
}

async fn settling(taking: &RouterMessageSession, frames: &mut Streaming<TakeRequest>) -> Result<(), Status> {
    while let Some(request) = frames.message().await? {
        match request.frame {
            Some(Frame::Settle(settle)) => taking.settle(parse_settle(settle)?).await,
            Some(Frame::Dropped(ContextDropped { context_uid, runner_id })) => {
                let uid = field("context_uid", context_uid.parse())?;
                taking.dropped(uid, RunnerId(runner_id)).await;
            }
            Some(Frame::Hello(_)) => return Err(Error::field("hello", "comes once").into()),
            None => {}
        }
    }
    Ok(())
}

fn parse_settle(settle: Settle) -> Result<Vec<(ContextId, Vec<Settlement>)>, Error> {
    let mut contexts: BTreeMap<ContextId, Vec<Settlement>> = BTreeMap::new();
    for (i, one) in settle.settlements.into_iter().enumerate() {
        let key = parse_message_key(&one.message_key)
            .ok_or_else(|| Error::field(&format!("settlements[{i}].message_key"), "message:<caller>:<id>"))?;
        let flow = (one.flow_id != 0).then_some(FlowId(one.flow_id));
        let settlement = Settlement { key, error: one.error, flow };
        contexts.entry(ContextId(one.context_id)).or_default().push(settlement);
    }
    Ok(contexts.into_iter().collect())
}

/// Splits a batch so that no answer is beyond the size of a page, unless a single message is.
fn answers_of(batch: Vec<RouterHeldMessage>) -> Vec<TakeResponse> {
    let mut answers = Vec::with_capacity(1);
    let (mut messages, mut bytes) = (Vec::with_capacity(batch.len()), 0);
    for message in batch {
        let size = message.body.bytes();
        if !messages.is_empty() && bytes + size > limits::PAGE_BYTES_MAX {
            answers.push(TakeResponse { messages: std::mem::take(&mut messages), ..TakeResponse::default() });
            bytes = 0;
        }
        bytes += size;
        messages.push(to_wire(message));
    }
    answers.push(TakeResponse { messages, ..TakeResponse::default() });
    answers
}

fn drops_to_wire(drops: &[PendingContextDrop]) -> TakeResponse {
    let drop = |drop: &PendingContextDrop| ContextDrop {
        context_id: drop.context.0,
        context_uid: drop.uid.to_string(),
        runner_id: drop.runner.0,
        address: drop.address.clone(),
        topic: drop.topic.clone(),
    };
    TakeResponse { drops: drops.iter().map(drop).collect(), ..TakeResponse::default() }
}

fn forgets_to_wire(forgets: &[ForgettableAttempts]) -> TakeResponse {
    let forget = |forget: &ForgettableAttempts| wire::AttemptsForget {
        context_id: forget.context.0,
        runner_id: forget.runner.0,
        job_keys: forget.keys.iter().map(ToString::to_string).collect(),
    };
    TakeResponse { forgets: forgets.iter().map(forget).collect(), ..TakeResponse::default() }
}

fn to_wire(message: RouterHeldMessage) -> HeldMessage {
    let RouterHeldMessage { context, context_uid, key, body } = message;
    let held = HeldMessage {
        context_id: context.0,
        context_uid: context_uid.to_string(),
        message_key: message_key(key),
        timeout_ack_secs: body.timeout_ack_secs,
        created_millis: body.created_at.as_millis(),
        ..HeldMessage::default()
    };
    match body.kind {
        routed_message::RoutedMessagePayload::Nodes { flow, runner, nodes } => {
            HeldMessage { flow_id: flow.0, runner_id: runner.0, nodes, ..held }
        }
        routed_message::RoutedMessagePayload::DirectMessage { json, addresses } => {
            HeldMessage { kind: Some(Kind::Letter(HeldLetter { letter_json: json, addresses })), ..held }
        }
        routed_message::RoutedMessagePayload::Jobs(jobs) => {
            let jobs = raw_jobs::to_wire(*jobs, context, &held.message_key);
            HeldMessage { kind: Some(Kind::RawJobs(jobs)), ..held }
        }
    }
}
