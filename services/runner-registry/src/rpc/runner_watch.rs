//! Watching the runners of a context: a snapshot, then each change.
//!
//! Storage reports which records change, and where to resume; the view reports which supervisors are alive. The watch
//! subscribes to changes before it reads the records, so no change is missed. It sends a runner only if its view changed.

use std::collections::HashMap;
use std::time::Duration;

use model::limits::{PAGE_SIZE_MAX, WATCH_BUFFER};
use model::{ActorId, ContextId, Runner, RunnerId, RunnerView};
use proto::convert;
use proto::internal::v1::{
    FollowRunnersRequest, FollowRunnersResponse, ReadRunnersRequest, ReadRunnersResponse,
};
use proto::v1;
use proto::v1::watch_runners_response::Event;
use proto::v1::{Heartbeat, RemovedRunner, SnapshotEnd, WatchRunnersResponse};
use rpc::{Error, ErrorKind, Resumable, ResumingStream, RpcReason, forward_status};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codegen::BoxStream;

use crate::clients::RunnerStoreClient;
use crate::hub::{RunnerHub, RunnerSubscription, RunnerViewBatch};

/// How long a watcher may leave [`WATCH_BUFFER`] answers unread before its stream is ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// Capacity of a watcher's channel: its answers, and the final error.
const CHANNEL: usize = WATCH_BUFFER + 1;

/// The answers of a watch.
pub(crate) type RunnerWatchReceiver = mpsc::Receiver<Result<WatchRunnersResponse, Status>>;

/// Scope of a watch: the context, and the actor that watches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunnerWatchScope {
    pub(crate) context: ContextId,
    pub(crate) actor: ActorId,
}

/// Begins a watch, with a snapshot or at a position, and keeps it until the receiver is dropped or `stop`.
///
/// # Errors
/// Storage's error when the actor may not read, or the position is gone.
pub(crate) async fn begin(
    hub: RunnerHub,
    mut store: RunnerStoreClient,
    watched: RunnerWatchScope,
    resume_position: String,
    stop: CancellationToken,
) -> Result<RunnerWatchReceiver, Status> {
    let RunnerWatchScope { context, actor } = watched;
    let resumed = !resume_position.is_empty();
    let request =
        FollowRunnersRequest { context_id: context.0, on_behalf_of: actor.0, position: resume_position };
    let followed = ResumingStream::open(RunnerRecordSource { store: store.clone(), request })
        .await
        .map_err(forward_status)?;
    let changes = hub.watch(Some(context));
    let read = read_all(&mut store, watched).await?;
    let (out, answers) = mpsc::channel(CHANNEL);
    let position = followed.source().request.position.clone();
    let watch = RunnerWatch {
        hub,
        context,
        changes,
        out,
        records: HashMap::new(),
        sent_views: HashMap::new(),
        position,
    };
    tokio::spawn(watch.run(read, followed, resumed, stop));
    Ok(answers)
}

/// Source of record changes in storage, with the position to resume after.
struct RunnerRecordSource {
    store: RunnerStoreClient,
    request: FollowRunnersRequest,
}

impl Resumable for RunnerRecordSource {
    type Answer = FollowRunnersResponse;

    async fn open(&mut self) -> Result<BoxStream<FollowRunnersResponse>, Status> {
        let mut followed = self.store.follow_runners(self.request.clone()).await?.into_inner();
        // The first answer carries the position at which the stream begins.
        self.request.position = rpc::first_answer(&mut followed).await?.position;
        Ok(Box::pin(followed))
    }

    fn note(&mut self, answer: &mut FollowRunnersResponse) {
        self.request.position.clone_from(&answer.position);
    }
}

/// The records of a context, one page after the other.
async fn read_all(
    store: &mut RunnerStoreClient,
    watched: RunnerWatchScope,
) -> Result<Vec<v1::Runner>, Status> {
    let RunnerWatchScope { context, actor } = watched;
    let (context_id, on_behalf_of, page_size) = (context.0, actor.0, PAGE_SIZE_MAX);
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let query = ReadRunnersRequest { context_id, on_behalf_of, page_size, page_token };
        let ReadRunnersResponse { runners, next_page_token } =
            store.read_runners(query).await.map_err(forward_status)?.into_inner();
        all.extend(runners);
        if next_page_token.is_empty() {
            return Ok(all);
        }
        page_token = next_page_token;
    }
}

/// One watcher.
struct RunnerWatch {
    hub: RunnerHub,
    context: ContextId,
    changes: RunnerSubscription,
    out: mpsc::Sender<Result<WatchRunnersResponse, Status>>,
    /// The records, as storage last sent them.
    records: HashMap<RunnerId, Runner>,
    /// Views that were last sent to the watcher.
    sent_views: HashMap<RunnerId, RunnerView>,
    /// Position from which the watcher can resume after the last answer.
    position: String,
}

/// Why a watch ends.
enum RunnerWatchEnd {
    /// The watcher went away.
    Gone,
    /// The watch fails with this status.
    Failed(Box<Status>),
}

impl From<Status> for RunnerWatchEnd {
    fn from(status: Status) -> Self {
        Self::Failed(Box::new(status))
    }
}

impl RunnerWatch {
    async fn run(
        mut self,
        read: Vec<v1::Runner>,
        followed: ResumingStream<RunnerRecordSource>,
        resumed: bool,
        stop: CancellationToken,
    ) {
        let ended = tokio::select! {
            ended = self.watch(read, followed, resumed) => ended,
            () = stop.cancelled() => Err(Status::from(draining()).into()),
        };
        if let Err(RunnerWatchEnd::Failed(status)) = ended {
            // There is room: `send` always leaves one place free. A watcher that is gone does not need the reason.
            let _ = self.out.try_send(Err(*status));
        }
    }

    async fn watch(
        &mut self,
        read: Vec<v1::Runner>,
        mut followed: ResumingStream<RunnerRecordSource>,
        resumed: bool,
    ) -> Result<(), RunnerWatchEnd> {
        let position = self.position.clone();
        for runner in read {
            self.record(runner, if resumed { position.clone() } else { String::new() }).await?;
        }
        if !resumed {
            self.send(Event::SnapshotEnd(SnapshotEnd {}), position).await?;
        }
        loop {
            tokio::select! {
                answer = followed.next() => {
                    let FollowRunnersResponse { runner, position } = answer.map_err(forward_status)?;
                    self.position.clone_from(&position);
                    match runner {
                        Some(runner) => self.record(runner, position).await?,
                        None => self.send(Event::Heartbeat(Heartbeat {}), position).await?,
                    }
                }
                part = self.changes.next() => self.liveness(part).await?,
                () = self.out.closed() => return Err(RunnerWatchEnd::Gone),
            }
        }
    }

    /// Applies a record that storage has sent.
    async fn record(&mut self, record: v1::Runner, position: String) -> Result<(), RunnerWatchEnd> {
        let id = RunnerId(record.id);
        if record.address.is_empty() || record.delete_time.is_some() {
            self.records.remove(&id);
            self.sent_views.remove(&id);
            return self.send(Event::Removed(RemovedRunner { runner_id: id.0 }), position).await;
        }
        let record =
            convert::runner::from_wire(record).map_err(|error| Status::from(Error::internal(error)))?;
        self.records.insert(id, record.runner);
        self.send_view(id, position).await
    }

    /// Applies changes of liveness. Only storage decides which records exist.
    async fn liveness(&mut self, part: RunnerViewBatch) -> Result<(), RunnerWatchEnd> {
        for (_, view) in part.runners {
            self.send_view(view.runner.id, self.position.clone()).await?;
        }
        Ok(())
    }

    /// Sends a runner's current view unless the watcher has it. A new last-seen time alone is no change.
    async fn send_view(&mut self, id: RunnerId, position: String) -> Result<(), RunnerWatchEnd> {
        let Some(record) = self.records.get(&id) else { return Ok(()) };
        let view = self.hub.describe(record.clone());
        let seen = RunnerView { last_seen: None, ..view.clone() };
        if self.sent_views.get(&id) == Some(&seen) {
            return Ok(());
        }
        self.sent_views.insert(id, seen);
        self.send(Event::Runner(convert::runner::to_wire(&view)), position).await
    }

    async fn send(&self, event: Event, resume_position: String) -> Result<(), RunnerWatchEnd> {
        // One place stays free for the error that ends the stream.
        let Ok(places) = tokio::time::timeout(PATIENCE, self.out.reserve_many(2)).await else {
            return Err(too_slow(self.context, &self.position).into());
        };
        let place = places.map_err(|_| RunnerWatchEnd::Gone)?.next().ok_or(RunnerWatchEnd::Gone)?;
        place.send(Ok(WatchRunnersResponse { event: Some(event), resume_position }));
        Ok(())
    }
}

/// UNAVAILABLE, for streams that end with the registry.
pub(super) fn draining() -> Error {
    Error::unavailable(RpcReason::Draining, "the registry is ending; resume elsewhere")
}

/// RESOURCE_EXHAUSTED, with the position to resume from.
fn too_slow(context: ContextId, resume_position: &str) -> Status {
    tracing::info!(%context, "a watcher of runners does not read its answers; its stream is ended");
    let message = format!(
        "{WATCH_BUFFER} answers were not read for {} s; resume after the last answer that was read",
        PATIENCE.as_secs()
    );
    Error::new(ErrorKind::ResourceExhausted, RpcReason::SlowConsumer, message)
        .with("resume_position", resume_position)
        .into()
}
