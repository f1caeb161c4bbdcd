//! The gRPC side: parses, asks, converts.

mod runner_watch;

use std::sync::Arc;

use identity::ServiceName;
use model::{ActorId, ContextId, Presence, Role, limits};
use proto::internal::v1 as internal;
use proto::internal::v1::change_runner_request::Change;
use proto::internal::v1::registry_view_service_server::{RegistryViewService, RegistryViewServiceServer};
use proto::v1;
use proto::v1::runner_service_server::{RunnerService, RunnerServiceServer};
use proto::{convert, pages, required};
use rpc::{
    Allow, Caller, Directory, Error, MethodPolicy, MountBuilder, PolicyTable, forward_status, while_member,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::app::RegistryClock;
use crate::clients::RunnerStoreClient;
use crate::hub::{RunnerHub, RunnerViewBatch};
use runner_watch::{RunnerWatchScope, draining};

/// Methods that actors may call.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[("/mycora.v1.RunnerService/*", &[Allow::AnyActor])];

/// Methods that change where jobs run: each accepts a token only once.
pub const ADMINISTRATIVE: &[&str] = &[
    "/mycora.v1.RunnerService/RegisterRunner",
    "/mycora.v1.RunnerService/UpdateRunner",
    "/mycora.v1.RunnerService/DrainRunner",
    "/mycora.v1.RunnerService/DeleteRunner",
];

/// Methods that only services may call.
pub const INTERNAL_POLICY: PolicyTable<'static> = &[
    (
        "/mycora.internal.v1.RegistryViewService/Watch",
        &[
            Allow::Service(ServiceName::Router),
            Allow::Service(ServiceName::Scheduler),
            Allow::Service(ServiceName::MyceliumGateway),
            Allow::Service(ServiceName::Mycora),
        ],
    ),
    (
        "/mycora.internal.v1.RegistryViewService/ReportPresence",
        &[Allow::Service(ServiceName::MyceliumGateway), Allow::Service(ServiceName::Mycora)],
    ),
];

/// Parts of a stream that may wait for a slow reader.
const STREAM_BUFFER: usize = 4;

/// Policy of all methods of this service.
///
/// # Panics
/// Never: the tables are well-formed, which a test checks.
#[must_use]
pub fn policy() -> MethodPolicy {
    let policy = MethodPolicy::new(&[PUBLIC_POLICY, INTERNAL_POLICY]);
    policy.and_then(|policy| policy.with_administrative(ADMINISTRATIVE)).expect("the tables are well-formed")
}

/// Answers both services.
#[derive(Clone)]
pub(crate) struct RegistryRpc {
    hub: RunnerHub,
    store: RunnerStoreClient,
    clock: RegistryClock,
    directory: Arc<dyn Directory>,
    /// Ends all streams.
    stop: CancellationToken,
}

impl RegistryRpc {
    pub(crate) const fn new(
        hub: RunnerHub,
        store: RunnerStoreClient,
        clock: RegistryClock,
        directory: Arc<dyn Directory>,
        stop: CancellationToken,
    ) -> Self {
        Self { hub, store, clock, directory, stop }
    }

    pub(crate) fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        mount.service(RunnerServiceServer::new(self.clone()))
    }

    pub(crate) fn mount_internal(&self, mount: MountBuilder) -> MountBuilder {
        let server = RegistryViewServiceServer::new(self.clone());
        mount.service(server.max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX))
    }

    /// Has storage change a record, and returns the record with its supervisor's last presence.
    async fn change(&self, context: ContextId, change: Change, actor: ActorId) -> Result<v1::Runner, Status> {
        let request = internal::ChangeRunnerRequest { change: Some(change), on_behalf_of: actor.0 };
        let answer = self.store.clone().change_runner(request).await.map_err(forward_status)?.into_inner();
        self.kept(context, answer.runner)
    }

    /// Takes over a record that storage has just stored. The watch of storage brings it as well, but the caller should
    /// not have to wait for that.
    fn kept(&self, context: ContextId, record: Option<v1::Runner>) -> Result<v1::Runner, Status> {
        let record = record.ok_or_else(|| Error::internal("storage answered without the runner"))?;
        let runner = convert::runner::from_wire(record).map_err(Error::internal)?.runner;
        self.hub.put_records(vec![(context, runner.clone())]);
        Ok(convert::runner::to_wire(&self.hub.describe(runner)))
    }

    /// Returns a record with its supervisor's last presence.
    fn described(&self, record: v1::Runner) -> Result<v1::Runner, Status> {
        let runner = convert::runner::from_wire(record).map_err(Error::internal)?.runner;
        Ok(convert::runner::to_wire(&self.hub.describe(runner)))
    }
}

#[tonic::async_trait]
impl RunnerService for RegistryRpc {
    async fn register_runner(
        &self,
        request: Request<v1::RegisterRunnerRequest>,
    ) -> Result<Response<v1::RegisterRunnerResponse>, Status> {
        let actor = Caller::actor_of(&request)?;
        let request = request.into_inner();
        convert::runner::from_register(request.clone()).map_err(Error::from)?;
        let context = ContextId(request.context_id);
        let put = internal::PutRunnerRequest { runner: Some(request), on_behalf_of: actor.0 };
        let answer = self.store.clone().put_runner(put).await.map_err(forward_status)?.into_inner();
        let runner = self.kept(context, answer.runner)?;
        Ok(Response::new(v1::RegisterRunnerResponse { runner: Some(runner) }))
    }

    async fn update_runner(
        &self,
        request: Request<v1::UpdateRunnerRequest>,
    ) -> Result<Response<v1::UpdateRunnerResponse>, Status> {
        let actor = Caller::actor_of(&request)?;
        let request = request.into_inner();
        convert::runner::from_update(request.clone()).map_err(Error::from)?;
        let runner = self.change(ContextId(request.context_id), Change::Update(request), actor).await?;
        Ok(Response::new(v1::UpdateRunnerResponse { runner: Some(runner) }))
    }

    async fn drain_runner(
        &self,
        request: Request<v1::DrainRunnerRequest>,
    ) -> Result<Response<v1::DrainRunnerResponse>, Status> {
        let actor = Caller::actor_of(&request)?;
        let request = request.into_inner();
        let runner = self.change(ContextId(request.context_id), Change::Drain(request), actor).await?;
        Ok(Response::new(v1::DrainRunnerResponse { runner: Some(runner) }))
    }

    async fn delete_runner(
        &self,
        request: Request<v1::DeleteRunnerRequest>,
    ) -> Result<Response<v1::DeleteRunnerResponse>, Status> {
        let actor = Caller::actor_of(&request)?;
        let request = request.into_inner();
        let runner = self.change(ContextId(request.context_id), Change::Delete(request), actor).await?;
        Ok(Response::new(v1::DeleteRunnerResponse { runner: Some(runner) }))
    }

    type WatchRunnersStream = BoxStream<v1::WatchRunnersResponse>;

    async fn watch_runners(
        &self,
        request: Request<v1::WatchRunnersRequest>,
    ) -> Result<Response<Self::WatchRunnersStream>, Status> {
        let actor = Caller::actor_of(&request)?;
        let request = request.into_inner();
        required::check(&request).map_err(Error::from)?;
        let v1::WatchRunnersRequest { context_id, resume_position } = request;
        let watched = RunnerWatchScope { context: ContextId(context_id), actor };
        let (hub, store, stop) = (self.hub.clone(), self.store.clone(), self.stop.clone());
        let answers = runner_watch::begin(hub, store, watched, resume_position, stop).await?;
        let (answers, directory) = (ReceiverStream::new(answers), Arc::clone(&self.directory));
        Ok(Response::new(while_member(answers, directory, watched.context, actor, Role::Reader)))
    }

    async fn get_runner(
        &self,
        request: Request<v1::GetRunnerRequest>,
    ) -> Result<Response<v1::GetRunnerResponse>, Status> {
        let actor = Caller::actor_of(&request)?;
        let request = request.into_inner();
        required::check(&request).map_err(Error::from)?;
        let v1::GetRunnerRequest { context_id, runner_id } = request;
        let query = internal::ReadRunnerRequest { context_id, runner_id, on_behalf_of: actor.0 };
        let answer = self.store.clone().read_runner(query).await.map_err(forward_status)?.into_inner();
        let record = answer.runner.ok_or_else(|| Error::internal("storage answered without the runner"))?;
        Ok(Response::new(v1::GetRunnerResponse { runner: Some(self.described(record)?) }))
    }

    async fn list_runners(
        &self,
        request: Request<v1::ListRunnersRequest>,
    ) -> Result<Response<v1::ListRunnersResponse>, Status> {
        let actor = Caller::actor_of(&request)?;
        let request = request.into_inner();
        required::check(&request).map_err(Error::from)?;
        let v1::ListRunnersRequest { context_id, page_size, page_token } = request;
        let mut query =
            internal::ReadRunnersRequest { context_id, on_behalf_of: actor.0, page_size, page_token };
        // Presences add to the size of the records, so fewer records may fit into a page.
        loop {
            let answer =
                self.store.clone().read_runners(query.clone()).await.map_err(forward_status)?.into_inner();
            let internal::ReadRunnersResponse { runners, next_page_token } = answer;
            let count = runners.len();
            let runners: Vec<_> = pages::first(runners.into_iter().map(|record| self.described(record)))?;
            if runners.len() == count {
                return Ok(Response::new(v1::ListRunnersResponse { runners, next_page_token }));
            }
            // Reads again, for the page token that continues after the last of these.
            query.page_size = u32::try_from(runners.len()).unwrap_or(limits::PAGE_SIZE_MAX);
        }
    }
}

#[tonic::async_trait]
impl RegistryViewService for RegistryRpc {
    type WatchStream = ReceiverStream<Result<internal::WatchResponse, Status>>;
    type ReportPresenceStream = ReceiverStream<Result<internal::ReportPresenceResponse, Status>>;

    async fn watch(&self, _: Request<internal::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, stream) = mpsc::channel(STREAM_BUFFER);
        let (hub, stop) = (self.hub.clone(), self.stop.clone());
        tokio::spawn(async move {
            let closed = sender.clone();
            tokio::select! {
                () = closed.closed() => {}
                () = send_changes(&hub, &sender) => {}
                () = stop.cancelled() => send_draining(&sender),
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn report_presence(
        &self,
        request: Request<Streaming<internal::ReportPresenceRequest>>,
    ) -> Result<Response<Self::ReportPresenceStream>, Status> {
        let mut incoming = request.into_inner();
        // Carries no responses: the open stream itself is the answer.
        let (sender, stream) = mpsc::channel(1);
        let this = self.clone();
        tokio::spawn(async move {
            let reading = async {
                while let Some(report) = incoming.message().await? {
                    this.note_presence(&report);
                }
                Ok::<_, Status>(())
            };
            tokio::select! {
                ended = reading => if let Err(status) = ended {
                    tracing::info!(%status, "a gateway's stream of presences ended");
                },
                () = sender.closed() => {}
                () = this.stop.cancelled() => send_draining(&sender),
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Tells a service that its stream ends with the registry. A service that does not read does not need the reason.
fn send_draining<T>(sender: &mpsc::Sender<Result<T, Status>>) {
    let _ = sender.try_send(Err(draining().into()));
}

impl RegistryRpc {
    fn note_presence(&self, report: &internal::ReportPresenceRequest) {
        let internal::ReportPresenceRequest { address, presence_json } = report;
        let presence = if presence_json.is_empty() {
            None
        } else {
            let read = serde_json::from_slice::<Presence>(presence_json).map_err(|error| error.to_string());
            // Gateways check it as well; the registry must not depend on any one of them for what it passes on.
            let checked = |presence: &Presence| presence.check().map_err(|error| error.to_string());
            match read.and_then(|presence| checked(&presence).map(|()| presence)) {
                Ok(presence) => Some(presence),
                Err(error) => {
                    tracing::warn!(error, address, "an invalid presence is ignored");
                    return;
                }
            }
        };
        self.hub.put_presence(Instant::now(), (self.clock)(), address, presence);
    }
}

/// Sends the snapshot, then changes, until the receiver is dropped.
async fn send_changes(hub: &RunnerHub, sender: &mpsc::Sender<Result<internal::WatchResponse, Status>>) {
    if hub.loaded().wait_for(|loaded| *loaded).await.is_err() {
        return;
    }
    let changes = hub.watch(None);
    while let Some(part) = changes.try_next() {
        if sender.send(Ok(part_to_wire(&part, false))).await.is_err() {
            return;
        }
    }
    if sender.send(Ok(part_to_wire(&RunnerViewBatch::default(), true))).await.is_err() {
        return;
    }
    while sender.send(Ok(part_to_wire(&changes.next().await, false))).await.is_ok() {}
}

fn part_to_wire(part: &RunnerViewBatch, snapshot_end: bool) -> internal::WatchResponse {
    let RunnerViewBatch { runners, gone } = part;
    let runners = runners.iter().map(|(context, view)| internal::ViewedRunner {
        context_id: context.0,
        runner: Some(convert::runner::to_wire(view)),
    });
    let gone =
        gone.iter().map(|(context, id)| internal::GoneRunner { context_id: context.0, runner_id: id.0 });
    internal::WatchResponse { runners: runners.collect(), snapshot_end, gone: gone.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_make_a_policy() {
        drop(policy());
    }
}
