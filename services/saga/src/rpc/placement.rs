//! Methods about placement: pause and resume tenants, list and move lanes.

use ::rpc::{Error, ErrorKind, PageRequest, RpcReason};
use model::{ContextId, EffectName, Role, SagaName, TenantId, Timestamp, Violations};
use proto::convert::saga::{name, tenant};
use proto::internal::v1::SagaPermission;
use proto::v1;
use proto::v1::{
    ListLanesRequest, ListLanesResponse, MoveLaneRequest, MoveLaneResponse, PauseTenantRequest,
    PauseTenantResponse, ResumeTenantRequest, ResumeTenantResponse,
};
use proto::{pages, required};
use tonic::Status;
use workflow::WorkflowLane;

use super::access::{SagaChangeRequest, SagaIdempotencyKey, hash_of};
use super::owner_client::store_unavailable;
use super::wire::{moment, tenant as named};
use super::{SagaApi, SagaCaller};
use crate::definitions::ScopedIdempotencyKey as Kept;
use crate::placement::decisions;
use crate::placement::heartbeats::SagaReplicaView;
use crate::placement::listing::{LaneReport, SourceReport, lanes_of, reports};

/// Seal that page tokens are bound to, beside their caller and filter.
const SEAL: &str = "lanes";

/// Pauses a tenant: nothing that comes for it is read.
pub(super) async fn pause_tenant(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: PauseTenantRequest,
) -> Result<PauseTenantResponse, Status> {
    let mut violations = Violations::new();
    let id = std::mem::take(&mut request.request_id);
    let repeatable = SagaIdempotencyKey::parse(&id, hash_of("PauseTenant", &request), &mut violations);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.authorize(caller, &tenant, operate("PauseTenant", repeatable.as_ref())).await?;
    Ok(PauseTenantResponse { tenant: Some(pause(api, &tenant, true).await?) })
}

/// Resumes a tenant.
pub(super) async fn resume_tenant(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: ResumeTenantRequest,
) -> Result<ResumeTenantResponse, Status> {
    let mut violations = Violations::new();
    let id = std::mem::take(&mut request.request_id);
    let repeatable = SagaIdempotencyKey::parse(&id, hash_of("ResumeTenant", &request), &mut violations);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.authorize(caller, &tenant, operate("ResumeTenant", repeatable.as_ref())).await?;
    Ok(ResumeTenantResponse { tenant: Some(pause(api, &tenant, false).await?) })
}

fn operate<'a>(method: &'static str, request: Option<&'a SagaIdempotencyKey>) -> SagaChangeRequest<'a> {
    SagaChangeRequest { permission: SagaPermission::Operate, method, resource: "", request, dry_run: false }
}

/// Pauses or resumes a tenant.
async fn pause(api: &SagaApi, tenant: &TenantId, is_paused: bool) -> Result<v1::SagaTenant, Status> {
    let ContextId(context_id) = api.context_of(tenant)?;
    let since = decisions::pause(&api.app.around().store, tenant, is_paused).await;
    let since = since.map_err(|error| store_unavailable(&error))?;
    api.app.refresh_now();
    let pause_time = since.and_then(moment);
    Ok(v1::SagaTenant { tenant_id: named(tenant), context_id, paused: since.is_some(), pause_time })
}

/// Lists lanes.
pub(super) async fn list(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ListLanesRequest,
) -> Result<ListLanesResponse, Status> {
    let mut violations = Violations::new();
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let saga = name::<SagaName>("saga", &request.saga, &mut violations);
    let effect = name::<EffectName>("effect", &request.effect, &mut violations);
    if saga.is_some() && effect.is_some() {
        violations.add("effect", "a lane is of a saga or of an effect: name one of them");
    }
    let page = PageRequest::parse(request.page_size, &request.page_token, &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    let (_, actor) = api.read_as(caller, &tenant, Role::Admin).await?;
    let filter = format!("{tenant:?} {saga:?} {effect:?}");
    let behind = page.place(SEAL, actor.0, &filter).map_err(Error::from)?;
    let mut lanes = lanes_of(&api.app.definitions(), &tenant);
    lanes.retain(|lane| {
        let is_match = match lane {
            WorkflowLane::Saga { saga: of, .. } => {
                effect.is_none() && saga.as_ref().is_none_or(|saga| saga == of)
            }
            WorkflowLane::Effect { effect: of, .. } => {
                saga.is_none() && effect.as_ref().is_none_or(|effect| effect == of)
            }
        };
        is_match && behind.as_ref().is_none_or(|behind| lane.to_string() > *behind)
    });
    let found = lanes.len();
    lanes.truncate(page.size);
    let reports = described(api, lanes).await?;
    let lanes = pages::first(reports.into_iter().map(Ok::<_, Status>))?;
    let last = lanes.last().filter(|_| lanes.len() < found).map(|lane| lane.name.clone());
    let next_page_token = page.token_at(SEAL, actor.0, &filter, last.as_deref());
    Ok(ListLanesResponse { lanes, next_page_token })
}

/// Moves a lane to another replica.
pub(super) async fn move_lane(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: MoveLaneRequest,
) -> Result<MoveLaneResponse, Status> {
    let mut violations = required::missing(&request);
    let id = std::mem::take(&mut request.request_id);
    let repeatable = SagaIdempotencyKey::parse(&id, hash_of("MoveLane", &request), &mut violations);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.check_header(caller, &tenant)?;
    api.context_of(&tenant)?;
    let lane = lanes_of(&api.app.definitions(), &tenant);
    let lane = lane.into_iter().find(|lane| lane.to_string() == request.lane);
    let lane = lane.ok_or_else(|| Error::not_found("the lane".to_owned()))?;
    let replica = Some(request.replica.as_str()).filter(|name| !name.is_empty());
    may_move(api, &lane, replica)?;
    let kept = repeatable.map(|SagaIdempotencyKey { id, hash }| Kept { id: format!("move\n{id}"), hash });
    let store = &api.app.around().store;
    let moved = decisions::move_lane(store, &lane, replica, kept.as_ref()).await;
    if !moved.map_err(|error| store_unavailable(&error))? {
        let message = "this request_id was used for another request before";
        return Err(Error::new(ErrorKind::AlreadyExists, RpcReason::RequestIdReused, message).into());
    }
    api.app.refresh_now();
    let mut lane = described(api, vec![lane]).await?.pop();
    if let Some(lane) = &mut lane {
        // The view learns of the move only with the next heartbeat.
        lane.wanted_owner = request.replica;
    }
    Ok(MoveLaneResponse { lane })
}

/// Checks that a lane can be moved to a replica.
fn may_move(api: &SagaApi, lane: &WorkflowLane, replica: Option<&str>) -> Result<(), Status> {
    let wrong = |message: String| -> Status {
        Error::new(ErrorKind::FailedPrecondition, RpcReason::WrongState, message).into()
    };
    if !api.app.around().store.capabilities().shared {
        return Err(wrong("the store belongs to this process alone: its lanes do not move".to_owned()));
    }
    let Some(replica) = replica else { return Ok(()) };
    let view = api.app.view();
    let member = view.members.iter().find(|member| member.name == replica);
    let member = member.ok_or_else(|| Error::not_found("a replica of this name that lives".to_owned()))?;
    if member.may_own(lane) {
        return Ok(());
    }
    Err(wrong(format!("the replica `{replica}` does not own lanes of this kind, or is giving them up")))
}

/// Lanes as answers have them.
async fn described(api: &SagaApi, lanes: Vec<WorkflowLane>) -> Result<Vec<v1::SagaLane>, Status> {
    let reports = reports(api.app.around(), &api.app.definitions(), lanes).await;
    let (view, away) = (api.app.view(), api.app.away());
    let reports = reports.map_err(|error| store_unavailable(&error))?;
    let wire = |report: LaneReport| {
        let problem = away.get(&report.lane).copied().unwrap_or_default().to_owned();
        lane(report, &view, problem)
    };
    Ok(reports.into_iter().map(wire).collect())
}

fn lane(report: LaneReport, view: &SagaReplicaView, problem: String) -> v1::SagaLane {
    let LaneReport { lane, owner, sources } = report;
    let (saga, effect, shard) = match &lane {
        WorkflowLane::Saga { saga, shard, .. } => (saga.to_string(), String::new(), u32::from(*shard)),
        WorkflowLane::Effect { effect, .. } => (String::new(), effect.to_string(), 0),
    };
    let epoch = owner.as_ref().map_or(0, |owner| owner.epoch);
    v1::SagaLane {
        name: lane.to_string(),
        tenant_id: named(lane.tenant()),
        saga,
        effect,
        shard,
        // A replica that is gone has not released the lane, but does not own it.
        owner: owner.map(|owner| owner.replica).filter(|name| view.has(name)).unwrap_or_default(),
        epoch,
        wanted_owner: view.decided.moved_to(&lane).unwrap_or_default().to_owned(),
        problem,
        sources: sources.into_iter().map(source).collect(),
    }
}

/// A source of a lane as answers have it.
pub(super) fn source(report: SourceReport) -> v1::SagaLaneSource {
    let SourceReport { source, stream, checkpoint, pending } = report;
    let anchor = checkpoint.as_ref().and_then(|checkpoint| checkpoint.anchor);
    v1::SagaLaneSource {
        name: source.to_string(),
        stream: stream.to_owned(),
        sequence: checkpoint.map_or(0, |checkpoint| checkpoint.position),
        stored_time: anchor.and_then(|anchor| moment(Timestamp::from_millis(anchor.stored))),
        pending_count: pending,
    }
}
