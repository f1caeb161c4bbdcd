//! Replay of lanes.

mod source_replay;
mod verify;

use std::sync::Arc;

use ::rpc::{
    ANSWERS_MAX, AnswerSender, AnswerStream, Error, RpcReason, WatchAnswer, WatchEnded, while_member,
};
use model::{CorrelationId, Role, TenantId, Violations};
use proto::convert::saga::{name, tenant};
use proto::convert::time;
use proto::internal::v1::SagaPermission;
use proto::required::missing;
use proto::v1::replay_lane_request::Replay;
use proto::v1::replay_lane_response::Event;
use proto::v1::saga_replay_from::Position;
use proto::v1::{ReplayLaneRequest, ReplayLaneResponse, SagaReplayFrom, SagaReplayProgress};
use tokio::sync::mpsc;
use tonic::codegen::BoxStream;
use tonic::{Code, Status};
use workflow::WorkflowLane;
use workflow::lane_request::RewindTarget;

use super::access::{SagaChangeRequest, SagaIdempotencyKey, hash_of, no_tenant};
use super::owner_requests::OperatorRequest;
use super::{SagaApi, SagaCaller};
use crate::placement::listing::lanes_of;

/// Name of the method in audit records and hashes.
const METHOD: &str = "ReplayLane";

/// Mode of a replay.
enum LaneReplayMode {
    /// Journals are run again: that of one correlation, or all.
    Verify(Option<CorrelationId>),
    /// Sources are read again: the one of this name, or all.
    From { source: String, to: RewindTarget },
}

/// Processes a lane again.
pub(super) async fn replay(
    api: &Arc<SagaApi>,
    caller: &SagaCaller,
    mut request: ReplayLaneRequest,
) -> Result<BoxStream<ReplayLaneResponse>, Status> {
    let mut violations = missing(&request);
    let request_id = std::mem::take(&mut request.request_id);
    let hash = hash_of(METHOD, &request);
    let repeatable = SagaIdempotencyKey::parse(&request_id, hash, &mut violations);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    if request.confirm != request.lane {
        violations.add("confirm", "has to repeat the name of the lane");
    }
    let mode = request.replay.take().and_then(|replay| parse_mode(replay, &mut violations));
    let (tenant, mode) = violations.into_result(tenant.zip(mode)).map_err(Error::from)?;
    let change = SagaChangeRequest {
        permission: SagaPermission::Replay,
        method: METHOD,
        resource: &request.lane,
        request: repeatable.as_ref(),
        dry_run: false,
    };
    let actor = api.authorize(caller, &tenant, change).await?;
    let context = api.context_of(&tenant)?;
    let lane = lane_of(api, &tenant, &request.lane)?;
    let (sender, receiver) = mpsc::channel(ANSWERS_MAX);
    let answers = LaneReplayAnswers {
        sender: AnswerSender::new(sender.clone(), api.app.around().metrics.slow_watchers.clone()),
        compared: 0,
    };
    match mode {
        LaneReplayMode::Verify(only) => {
            let verify = verify::LaneVerification::begin(api, lane, only, answers).await?;
            spawn(api, sender, verify.run());
        }
        LaneReplayMode::From { source, to } => {
            // Only this mode needs a running tenant: a comparison needs no owner.
            api.check_running(&tenant)?;
            let operator_request = OperatorRequest::new(actor, &tenant, repeatable.as_ref(), hash);
            let again = source_replay::SourceReplay::begin(api, lane, &source, to, operator_request).await?;
            spawn(api, sender, again.run(answers));
        }
    }
    let directory = api.directory()?;
    let stream = while_member(AnswerStream::new(receiver), directory, context, actor, Role::Admin);
    // A caller that loses its role gets the same answer as a stranger.
    let status_of =
        move |status: Status| if status.code() == Code::NotFound { no_tenant(&tenant) } else { status };
    Ok(Box::pin(tokio_stream::StreamExt::map(stream, move |answer| answer.map_err(&status_of))))
}

/// Parses the mode of a replay, and notes what is wrong with it.
fn parse_mode(replay: Replay, violations: &mut Violations) -> Option<LaneReplayMode> {
    match replay {
        Replay::Verify(verify) => {
            Some(LaneReplayMode::Verify(name("verify.correlation_id", &verify.correlation_id, violations)))
        }
        Replay::FromPosition(SagaReplayFrom { source, position }) => {
            let to = match position {
                None => {
                    violations.add("from_position.position", "is missing: give a sequence or a time");
                    return None;
                }
                Some(Position::Sequence(sequence)) => {
                    if source.is_empty() {
                        violations
                            .add("from_position.source", "is missing: a sequence is that of one source");
                    }
                    if sequence == 0 {
                        violations.add("from_position.sequence", "1 at least");
                    }
                    RewindTarget::Sequence(sequence)
                }
                Some(Position::Time(moment)) => RewindTarget::Time(time::from_wire(moment).as_millis()),
            };
            Some(LaneReplayMode::From { source, to })
        }
    }
}

/// Finds a lane of a tenant by its name.
fn lane_of(api: &SagaApi, tenant: &TenantId, name: &str) -> Result<WorkflowLane, Status> {
    let lanes = lanes_of(&api.app.definitions(), tenant);
    let lane = lanes.into_iter().find(|lane| lane.to_string() == name);
    lane.ok_or_else(|| Error::not_found("the lane".to_owned()).into())
}

/// Runs a replay until its receiver is gone or the server ends.
fn spawn(
    api: &SagaApi,
    answers: mpsc::Sender<Result<WatchAnswer<ReplayLaneResponse>, Status>>,
    replay: impl Future<Output = ()> + Send + 'static,
) {
    let stop = api.shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = replay => {}
            () = answers.closed() => {}
            () = stop.begun() => {
                let ending = Error::unavailable(RpcReason::Draining, "the server is ending; ask another one");
                // A caller that does not read does not need the reason.
                let _ = answers.try_send(Err(ending.into()));
            }
        }
    });
}

/// Answers of one replay.
struct LaneReplayAnswers {
    sender: AnswerSender<ReplayLaneResponse>,
    /// Instances that were compared.
    compared: u64,
}

impl LaneReplayAnswers {
    async fn send(&mut self, event: Event) -> Result<(), WatchEnded> {
        let is_last = matches!(event, Event::Done(_));
        self.sender.send(String::new(), |_| ReplayLaneResponse { event: Some(event) }, is_last).await
    }

    /// Waits for a piece of work, and sends the progress whenever a heartbeat is due.
    async fn with_progress<T>(&mut self, work: impl Future<Output = T>) -> Result<T, WatchEnded> {
        tokio::pin!(work);
        loop {
            if let Some(done) = self.sender.heartbeat.or_due(work.as_mut()).await {
                return Ok(done);
            }
            self.send(Event::Progress(SagaReplayProgress { compared_count: self.compared })).await?;
        }
    }
}
