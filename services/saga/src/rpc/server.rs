//! Methods about the server itself: description and drain.

use std::sync::Arc;
use std::time::Duration;

use ::rpc::{Error, ErrorKind, RpcReason};
use model::{BlobHash, RequestId, Timestamp, Violations};
use proto::convert::time::to_wire;
use proto::v1::{
    GetSagaServerRequest, GetSagaServerResponse, SagaBroker, SagaReplica, SagaServerRole,
    SagaServiceDrainRequest, SagaServiceDrainResponse, SagaStore,
};
use service::InfoScope;
use store::{CommitOutcome, RowCondition, RowOperation};
use tonic::Status;
use workflow::LaneRowKey;
use workflow::instance::{decode, encode};

use super::access::{SagaIdempotencyKey, hash_of};
use super::owner_client::store_unavailable;
use super::{SagaApi, SagaCaller};
use crate::definitions::SharedRows;
use crate::lane::rows::row;

/// Seconds that a drain may take.
const DEADLINE_SECS_MAX: u32 = 3600;
/// How long repeats of a request are recognised.
const REQUEST_KEEP: Duration = Duration::from_secs(model::limits::REQUEST_ID_KEEP_SECS as u64);

/// Describes the server.
pub(super) async fn get_server(
    api: &SagaApi,
    _: &SagaCaller,
    _: GetSagaServerRequest,
) -> Result<GetSagaServerResponse, Status> {
    let app = &api.app;
    let (around, own) = (app.around(), app.role());
    let (caps, catalog, view) = (around.store.capabilities(), app.definitions().catalog(), app.feed().view);
    let waits = app.waits(&InfoScope::AllTenants);
    let problems = app.readiness().problems().into_iter().chain(waits);
    let problems = problems.map(|(name, why)| format!("{name}: {why}"));
    let replicas = view.borrow().members.clone().into_iter().map(|member| SagaReplica {
        name: member.name,
        version: member.version,
        roles: roles(member.sagas, member.effects),
        last_seen_time: None,
    });
    Ok(GetSagaServerResponse {
        replica: around.replica.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        roles: roles(own.sagas, own.effects),
        single_tenant: !around.has_tenants,
        problems: problems.collect(),
        draining: api.shutdown.has_begun(),
        drain_deadline_time: deadline(api),
        lane_count: count(app.lanes()),
        saga_count: u32::try_from(catalog.sagas().count()).unwrap_or(u32::MAX),
        effect_count: u32::try_from(catalog.effects().count()).unwrap_or(u32::MAX),
        store: Some(SagaStore {
            kind: caps.kind.to_owned(),
            version: app.store_version().await,
            shared: caps.shared,
            durability: if caps.is_synced { "synced" } else { "fast" }.to_owned(),
        }),
        broker: Some(SagaBroker {
            version: around.broker.server().map(|server| server.version_text).unwrap_or_default(),
            connected: around.broker.connection().borrow().connected,
        }),
        replicas: replicas.collect(),
    })
}

/// Drains the server, or gives up the lanes of one tenant.
pub(super) async fn drain(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: SagaServiceDrainRequest,
) -> Result<SagaServiceDrainResponse, Status> {
    let id = std::mem::take(&mut request.request_id);
    let mut violations = Violations::new();
    let repeatable = SagaIdempotencyKey::parse(&id, hash_of("Drain", &request), &mut violations);
    let SagaServiceDrainRequest { request_id: _, tenant_id, deadline_secs } = request;
    if deadline_secs.is_some_and(|secs| secs > DEADLINE_SECS_MAX) {
        violations.add("deadline_secs", format!("at most {DEADLINE_SECS_MAX} are allowed"));
    }
    if deadline_secs.is_some() && !tenant_id.is_empty() {
        violations.add("deadline_secs", "a drain of one tenant has no deadline: leave it out");
    }
    violations.into_result(Some(())).map_err(Error::from)?;
    let tenant = api.operators_tenant(caller, &tenant_id)?;
    let is_repeat = match &repeatable {
        Some(repeatable) => was_drained(api, repeatable).await?,
        None => false,
    };
    if !is_repeat {
        match &tenant {
            Some(tenant) => drop(api.app.drain_tenant(tenant)),
            None => match deadline_secs {
                Some(secs) => api.shutdown.begin_within(Duration::from_secs(secs.into())),
                None => api.shutdown.begin(),
            },
        }
    }
    Ok(SagaServiceDrainResponse {
        lane_count: count(api.app.lanes()),
        input_count: count(api.app.around().metrics.inputs_under_way()),
        call_count: count(api.app.around().metrics.effects.under_way()),
        drain_deadline_time: if tenant.is_some() { None } else { deadline(api) },
    })
}

/// Notes a request to drain; returns whether it came before. A noted request that was not carried out belongs to a process that ended.
async fn was_drained(api: &SagaApi, request: &SagaIdempotencyKey) -> Result<bool, Status> {
    let SagaIdempotencyKey { id, hash } = request;
    let (around, key) = (api.app.around(), key_of(api, id));
    let beside = SharedRows::new(Arc::clone(&around.store));
    loop {
        if let Some(found) = beside.get(&key).await.map_err(|error| store_unavailable(&error))? {
            let before: BlobHash = decode(&found.value).map_err(Error::internal)?;
            if before == *hash {
                return Ok(true);
            }
            let message = "this request_id came with another body before";
            return Err(Error::new(ErrorKind::AlreadyExists, RpcReason::RequestIdReused, message).into());
        }
        let now = beside.now().await.map_err(|error| store_unavailable(&error))?;
        let until = (Timestamp::from_millis(now) + REQUEST_KEEP).as_millis();
        let (expect, op) =
            (RowCondition::Absent(row(&key)), RowOperation::PutUntil(row(&key), encode(hash).into(), until));
        let outcome = beside.commit(vec![expect], vec![op]).await;
        if let CommitOutcome::Committed(_) = outcome.map_err(|error| store_unavailable(&error))? {
            return Ok(false);
        }
    }
}

/// Row of a request to drain this replica. A store of a single process has one replica, whatever its name.
fn key_of(api: &SagaApi, id: &RequestId) -> LaneRowKey {
    let around = api.app.around();
    let replica = if around.store.capabilities().shared { &*around.replica } else { "" };
    LaneRowKey::request(&format!("drain\n{replica}\n{id}"))
}

fn deadline(api: &SagaApi) -> Option<prost_types::Timestamp> {
    api.shutdown.deadline().map(|deadline| to_wire(Timestamp::from(deadline)))
}

fn roles(sagas: bool, effects: bool) -> Vec<i32> {
    let saga = sagas.then_some(SagaServerRole::Saga);
    saga.into_iter().chain(effects.then_some(SagaServerRole::Effect)).map(Into::into).collect()
}

fn count(number: i64) -> u32 {
    u32::try_from(number).unwrap_or_default()
}
