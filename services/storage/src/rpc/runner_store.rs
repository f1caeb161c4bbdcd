//! RunnerStoreService.

use std::sync::Arc;

use model::{ContextEvent, ContextId, Revision, Runner, RunnerId, RunnerView, Timestamp, Violations, limits};
use proto::convert::runner::RunnerUpdate;
use proto::internal::v1::change_runner_request::Change;
use proto::internal::v1::runner_store_service_server::RunnerStoreService;
use proto::internal::v1::{
    ChangeRunnerRequest, ChangeRunnerResponse, FollowRunnersRequest, FollowRunnersResponse, PutRunnerRequest,
    PutRunnerResponse, ReadRunnerRequest, ReadRunnerResponse, ReadRunnersRequest, ReadRunnersResponse,
    RunnerRecord, WatchRunnersRequest, WatchRunnersResponse,
};
use proto::v1::{self, DeleteRunnerRequest, DrainRunnerRequest};
use proto::{convert, pages, required};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::status::checked;
use super::{StorageResponseStream, StorageRpc, request_of};
use crate::error::{self, Error};
use crate::pages::PageRequest;
use crate::runners::RunnerChange;
use crate::store::{RequestPrincipal, Store, TenantStore};
use crate::watch::event_watch::{EventWatch, WatchedEvent};
use crate::watch::events::WatchSubject;
use crate::watch::runner_watch::RunnerWatchEvent;

/// Converts the record to its wire form, without the supervisor's presence, which storage does not know.
fn to_wire(runner: Runner) -> v1::Runner {
    convert::runner::to_wire(&RunnerView::from(runner))
}

#[tonic::async_trait]
impl RunnerStoreService for StorageRpc {
    async fn put_runner(
        &self,
        request: Request<PutRunnerRequest>,
    ) -> Result<Response<PutRunnerResponse>, Status> {
        let PutRunnerRequest { runner, on_behalf_of } = request.into_inner();
        let mut body = runner.ok_or_else(|| Error::field("runner", "missing"))?;
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let context = ContextId(body.context_id);
        let new = violations.absorb(convert::runner::from_register(body));
        let given = new.as_ref().map(|new| &new.address);
        self.check_address("address", given, &mut violations);
        let new = violations.into_result(new).map_err(Error::from)?;
        let asker = RequestPrincipal::from_wire(on_behalf_of);
        let put = self.hub.store().put_runner(context, &new, asker, repeatable.as_ref(), Timestamp::now());
        Ok(Response::new(PutRunnerResponse { runner: Some(to_wire(put.await?)) }))
    }

    async fn change_runner(
        &self,
        request: Request<ChangeRunnerRequest>,
    ) -> Result<Response<ChangeRunnerResponse>, Status> {
        let ChangeRunnerRequest { mut change, on_behalf_of } = request.into_inner();
        let request_id = match &mut change {
            Some(Change::Update(update)) => std::mem::take(&mut update.request_id),
            Some(Change::Drain(drain)) => std::mem::take(&mut drain.request_id),
            Some(Change::Delete(delete)) => std::mem::take(&mut delete.request_id),
            None => String::new(),
        };
        // The hash covers the kind of change: a drain and a deletion have the same fields.
        let body = ChangeRunnerRequest { change, on_behalf_of: 0 };
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let change = body.change.ok_or_else(|| Error::field("change", "missing"))?;
        let parsed = violations.absorb(parse(change));
        if let Some(ParsedRunnerChange { change: RunnerChange::Update(update), .. }) = &parsed {
            self.check_address("address", Some(&update.address), &mut violations);
        }
        let ParsedRunnerChange { place, expected, change } =
            violations.into_result(parsed).map_err(Error::from)?;
        let asker = RequestPrincipal::from_wire(on_behalf_of);
        let store = self.hub.store();
        let changed =
            store.change_runner(place, expected, &change, asker, repeatable.as_ref(), Timestamp::now());
        Ok(Response::new(ChangeRunnerResponse { runner: Some(to_wire(changed.await?)) }))
    }

    async fn read_runner(
        &self,
        request: Request<ReadRunnerRequest>,
    ) -> Result<Response<ReadRunnerResponse>, Status> {
        let ReadRunnerRequest { context_id, runner_id, on_behalf_of } = request.into_inner();
        let (context, id, asker) =
            (ContextId(context_id), RunnerId(runner_id), RequestPrincipal::from_wire(on_behalf_of));
        let runner = self.hub.store().read_runner(context, id, asker).await?;
        Ok(Response::new(ReadRunnerResponse { runner: Some(to_wire(runner)) }))
    }

    async fn read_runners(
        &self,
        request: Request<ReadRunnersRequest>,
    ) -> Result<Response<ReadRunnersResponse>, Status> {
        let ReadRunnersRequest { context_id, on_behalf_of, page_size, page_token } = request.into_inner();
        let mut violations = Violations::new();
        let page = PageRequest::parse(page_size, &page_token, &mut violations);
        let page = checked(violations, page)?;
        let (context, asker) = (ContextId(context_id), RequestPrincipal::from_wire(on_behalf_of));
        let (runners, next_page_token) = self.hub.store().read_runners(context, asker, &page).await?;
        let runners = runners.into_iter().map(to_wire).collect();
        Ok(Response::new(ReadRunnersResponse { runners, next_page_token }))
    }

    type FollowRunnersStream = StorageResponseStream<FollowRunnersResponse>;

    async fn follow_runners(
        &self,
        request: Request<FollowRunnersRequest>,
    ) -> Result<Response<Self::FollowRunnersStream>, Status> {
        let FollowRunnersRequest { context_id, on_behalf_of, position } = request.into_inner();
        let context = ContextId(context_id);
        let watch = EventWatch {
            context,
            subject: Some(WatchSubject::Runners),
            asker: RequestPrincipal::from_wire(on_behalf_of),
            position: if position.is_empty() { None } else { Some(position.parse()?) },
        };
        let watched = self.hub.watch(watch).await?;
        let store = self.hub.store().clone();
        let tenant = store.tenant_unchecked(context);
        let answers = futures_util::StreamExt::then(watched, move |watched| {
            followed(store.clone(), Arc::clone(&tenant), watched)
        });
        Ok(Response::new(self.until_stop(answers)))
    }

    type WatchRunnersStream = StorageResponseStream<WatchRunnersResponse>;

    async fn watch_runners(
        &self,
        _: Request<WatchRunnersRequest>,
    ) -> Result<Response<Self::WatchRunnersStream>, Status> {
        let parts = ReceiverStream::new(self.hub.watch_runners());
        let answers = parts.map(|part| futures_util::stream::iter(answers_of(part).into_iter().map(Ok)));
        Ok(Response::new(self.until_stop(futures_util::StreamExt::flatten(answers))))
    }
}

/// Requested change of a runner record.
struct ParsedRunnerChange {
    place: (ContextId, RunnerId),
    expected: Option<Revision>,
    change: RunnerChange,
}

fn parse(change: Change) -> Result<ParsedRunnerChange, Violations> {
    let simple = |context_id, runner_id, expected_revision, change| ParsedRunnerChange {
        place: (ContextId(context_id), RunnerId(runner_id)),
        expected: convert::runner::expected(expected_revision),
        change,
    };
    Ok(match change {
        Change::Update(update) => {
            let context = ContextId(update.context_id);
            let RunnerUpdate { id, expected_revision: expected, values } =
                convert::runner::from_update(update)?;
            ParsedRunnerChange {
                place: (context, id),
                expected,
                change: RunnerChange::Update(Box::new(values)),
            }
        }
        Change::Drain(drain) => {
            required::check(&drain)?;
            let DrainRunnerRequest { request_id: _, context_id, runner_id, expected_revision, resume } =
                drain;
            let change = if resume { RunnerChange::Resume } else { RunnerChange::Drain };
            simple(context_id, runner_id, expected_revision, change)
        }
        Change::Delete(delete) => {
            required::check(&delete)?;
            let DeleteRunnerRequest { request_id: _, context_id, runner_id, expected_revision } = delete;
            simple(context_id, runner_id, expected_revision, RunnerChange::Delete)
        }
    })
}

/// Answers a watched event with the present runner record.
async fn followed(
    store: Store,
    tenant: Arc<TenantStore>,
    watched: error::Result<WatchedEvent>,
) -> Result<FollowRunnersResponse, Status> {
    let WatchedEvent { event, position } = watched?;
    let runner = match serde_json::from_slice(&event) {
        Ok(ContextEvent::Runner { runner_id }) => match store.runner(&tenant, runner_id).await {
            Ok(runner) => Some(to_wire(runner)),
            Err(Error::NotFound(_)) => Some(v1::Runner { id: runner_id.0, ..Default::default() }),
            Err(error) => return Err(error.into()),
        },
        // A sign of life.
        _ => None,
    };
    Ok(FollowRunnersResponse { runner, position: position.to_string() })
}

/// Records go in answers that end at the count and at the bytes of a page.
fn answers_of(part: RunnerWatchEvent) -> Vec<WatchRunnersResponse> {
    let (context, runners): (_, Vec<v1::Runner>) = match part {
        RunnerWatchEvent::SnapshotEnd => {
            return vec![WatchRunnersResponse { runners: Vec::new(), snapshot_end: true }];
        }
        RunnerWatchEvent::Gone(context, ids) => {
            let gone = |id: RunnerId| v1::Runner { id: id.0, ..Default::default() };
            (context, ids.into_iter().map(gone).collect())
        }
        RunnerWatchEvent::Runners(context, runners) => (context, runners.into_iter().map(to_wire).collect()),
    };
    let records =
        runners.into_iter().map(|runner| RunnerRecord { context_id: context.0, runner: Some(runner) });
    let parts = pages::parts(records, limits::PAGE_SIZE_MAX as usize);
    parts.into_iter().map(|runners| WatchRunnersResponse { runners, snapshot_end: false }).collect()
}
