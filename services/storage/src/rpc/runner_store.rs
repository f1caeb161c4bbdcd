//! RunnerStoreService.

use model::{ContextId, Runner, RunnerId, RunnerView, Timestamp, Violations, limits};
use proto::convert;
use proto::internal::v1::runner_store_service_server::RunnerStoreService;
use proto::internal::v1::{
    PutRunnerRequest, PutRunnerResponse, ReadRunnersRequest, ReadRunnersResponse, RunnerRecord,
    WatchRunnersRequest, WatchRunnersResponse,
};
use proto::v1;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::status::checked;
use super::{Answers, Rpc, request_of};
use crate::error::Error;
use crate::runner_watch::RunnerPart;
use crate::store::Asker;

/// The record to the wire; what is known of the supervisor is not our business.
fn to_wire(runner: Runner) -> v1::Runner {
    convert::runner::to_wire(&RunnerView { runner, presence: None, last_seen: None, live: false })
}

#[tonic::async_trait]
impl RunnerStoreService for Rpc {
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
        let new = convert::runner::from_register(body).map_err(Error::from)?;
        let repeatable = checked(violations, repeatable)?;
        let asker = Asker::from_wire(on_behalf_of);
        let put = self.hub.store().put_runner(context, &new, asker, repeatable.as_ref(), Timestamp::now());
        Ok(Response::new(PutRunnerResponse { runner: Some(to_wire(put.await?)) }))
    }

    async fn read_runners(
        &self,
        request: Request<ReadRunnersRequest>,
    ) -> Result<Response<ReadRunnersResponse>, Status> {
        let ReadRunnersRequest { context_id, on_behalf_of } = request.into_inner();
        let read = self.hub.store().read_runners(ContextId(context_id), Asker::from_wire(on_behalf_of));
        let runners = read.await?.into_iter().map(to_wire).collect();
        Ok(Response::new(ReadRunnersResponse { runners }))
    }

    type WatchRunnersStream = Answers<WatchRunnersResponse>;

    async fn watch_runners(
        &self,
        _: Request<WatchRunnersRequest>,
    ) -> Result<Response<Self::WatchRunnersStream>, Status> {
        let parts = ReceiverStream::new(self.hub.watch_runners());
        let answers = parts.map(|part| futures_util::stream::iter(answers_of(part).into_iter().map(Ok)));
        Ok(Response::new(self.until_stop(futures_util::StreamExt::flatten(answers))))
    }
}

/// Records go in answers of a page each.
fn answers_of(part: RunnerPart) -> Vec<WatchRunnersResponse> {
    match part {
        RunnerPart::SnapshotEnd => vec![WatchRunnersResponse { runners: Vec::new(), snapshot_end: true }],
        RunnerPart::Gone(context, runners) => {
            let record = |id: RunnerId| RunnerRecord {
                context_id: context.0,
                runner: Some(v1::Runner { id: id.0, ..Default::default() }),
            };
            let runners = runners.into_iter().map(record).collect();
            vec![WatchRunnersResponse { runners, snapshot_end: false }]
        }
        RunnerPart::Runners(context, runners) => {
            let records: Vec<_> = runners
                .into_iter()
                .map(|runner| RunnerRecord { context_id: context.0, runner: Some(to_wire(runner)) })
                .collect();
            // A record has at most some ten kilobytes.
            let size = (limits::PAGE_BYTES_MAX / (16 * 1024)).max(1);
            records
                .chunks(size)
                .map(|part| WatchRunnersResponse { runners: part.to_vec(), snapshot_end: false })
                .collect()
        }
    }
}
