//! Methods about calls of effects: get, list, complete, resolve, retry, cancel.

use std::collections::BTreeSet;
use std::sync::Arc;

use ::rpc::{Error, ErrorKind, PageRequest, RpcReason};
use futures_util::StreamExt as _;
use model::{BlobHash, CommandId, CorrelationId, EffectName, EffectState, SagaName, TenantId, Violations};
use proto::convert::saga::{name, states, tenant};
use proto::internal::v1::SagaPermission;
use proto::required::missing;
use proto::v1::{
    CancelEffectRequest, CancelEffectResponse, CompleteEffectRequest, CompleteEffectResponse, EffectCall,
    GetEffectRequest, GetEffectResponse, ListEffectsRequest, ListEffectsResponse, ResolveEffectRequest,
    ResolveEffectResponse, RetryEffectRequest, RetryEffectResponse,
};
use store::VersionedValue;
use tonic::Status;
use workflow::catalog::Catalog;
use workflow::key::StoreTable;
use workflow::lane_request::{CallCompletion, EffectCallRequest, EffectLaneRequest};
use workflow::ledger::CallRow;
use workflow::{Json, LaneRowKey, MessageSubject, WorkflowLane};

use super::access::{SagaChangeRequest, SagaIdempotencyKey, hash_of};
use super::lists::{LaneRange, PageListing, SagaPageKind, SagaPageRequest, failed, page};
use super::owner_requests::OperatorRequest;
use super::verbs::json_of;
use super::wire;
use super::wire::effect::Declared;
use super::{SagaApi, SagaCaller};
use crate::reads::{RowReadError, RowReader, read};

/// The code of a failure, in characters.
const CODE_CHARS_MAX: usize = 64;
/// Lanes that are read at a time to find a call whose effect is not given.
const LANES_AT_ONCE: usize = 8;

/// NOT_FOUND of a call.
pub(super) fn no_call(command: CommandId) -> Status {
    Error::not_found(format!("the call of the command {command}")).into()
}

impl SagaApi {
    /// Finds the call of a command, in the lane of one effect or in all of the tenant's.
    ///
    /// # Errors
    /// NOT_FOUND, and as the store.
    pub(super) async fn call(
        &self,
        tenant: &TenantId,
        effect: Option<&EffectName>,
        command: CommandId,
    ) -> Result<(EffectName, CallRow), Status> {
        let reads = self.reads();
        let lanes = reads.effect_lanes(tenant, effect);
        let reads = &reads;
        let find = lanes.into_iter().map(|lane| async move {
            let found = reads.call(&lane, command).await;
            found.map(|found| found.map(|row| (lane, row)))
        });
        let mut found = futures_util::stream::iter(find).buffered(LANES_AT_ONCE);
        while let Some(one) = found.next().await {
            if let Some((WorkflowLane::Effect { effect, .. }, row)) = one.map_err(failed)? {
                return Ok((effect, row));
            }
        }
        Err(no_call(command))
    }
}

/// Reads a call.
pub(super) async fn get(
    api: &SagaApi,
    caller: &SagaCaller,
    request: GetEffectRequest,
) -> Result<GetEffectResponse, Status> {
    let mut violations = missing(&request);
    let GetEffectRequest { tenant_id, effect, command_id } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    let effect: Option<EffectName> = name("effect", &effect, &mut violations);
    let command: Option<CommandId> = name("command_id", &command_id, &mut violations);
    let (tenant, command) = violations.into_result(tenant.zip(command)).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let (effect, row) = api.call(&tenant, effect.as_ref(), command).await?;
    let catalog = api.app.definitions().catalog();
    let call = wire::effect::detailed(&tenant, &effect, &row, declared(&catalog, &effect, &tenant));
    Ok(GetEffectResponse { call: Some(call) })
}

/// Returns the effect in force, with its provider.
fn declared<'a>(catalog: &'a Catalog, effect: &EffectName, tenant: &TenantId) -> Declared<'a> {
    catalog.effect(effect, tenant).map(|(provider, effect)| (provider.name.as_str(), &**effect))
}

/// Filter of the calls that are listed.
#[derive(Debug)]
struct EffectFilter {
    effect: Option<EffectName>,
    /// Empty for all.
    states: BTreeSet<EffectState>,
    saga: Option<SagaName>,
    correlation: Option<CorrelationId>,
}

impl EffectFilter {
    /// Ranges of rows that have the matching calls.
    fn stretches(&self, lanes: Vec<WorkflowLane>) -> Vec<LaneRange> {
        let is_wanted = |state: &EffectState| self.states.is_empty() || self.states.contains(state);
        let ranges: Vec<_> = if self.states.is_empty() && self.saga.is_none() {
            vec![StoreTable::EffectBy.range()]
        } else {
            let of = |state: EffectState| {
                LaneRowKey::effects_by(state.as_str(), self.saga.as_ref(), self.correlation.as_ref())
            };
            EffectState::ALL.into_iter().filter(is_wanted).map(of).collect()
        };
        let of_lane = |lane: WorkflowLane| {
            ranges.iter().map(move |range| LaneRange { lane: lane.clone(), range: range.clone() })
        };
        lanes.into_iter().flat_map(of_lane).collect()
    }

    fn matches(&self, row: &CallRow) -> bool {
        (self.states.is_empty() || self.states.contains(&row.state))
            && self.saga.as_ref().is_none_or(|saga| *saga == row.reply_to.saga)
            && self.correlation.as_ref().is_none_or(|wanted| *wanted == row.reply_to.correlation)
    }
}

/// Calls in lists.
struct EffectListing<'a> {
    reads: &'a RowReader,
    tenant: &'a TenantId,
    filter: &'a EffectFilter,
    catalog: Arc<Catalog>,
}

impl PageListing for EffectListing<'_> {
    type Entry = EffectCall;

    async fn entries(
        &self,
        lane: &WorkflowLane,
        rows: &[(LaneRowKey, VersionedValue)],
    ) -> Result<Vec<Option<EffectCall>>, RowReadError> {
        let WorkflowLane::Effect { effect, .. } = lane else {
            return Ok(rows.iter().map(|_| None).collect());
        };
        let commands: Vec<CommandId> =
            rows.iter().map(|(key, row)| read(lane, key, row)).collect::<Result<_, RowReadError>>()?;
        let keys: Vec<_> = commands.into_iter().map(LaneRowKey::effect).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let found: Vec<Option<CallRow>> = self.reads.rows(lane, &keys).await?;
        let declared = declared(&self.catalog, effect, self.tenant);
        let shown = |row: Option<CallRow>| {
            let row = row.filter(|row| self.filter.matches(row))?;
            Some(wire::effect::call(self.tenant, effect, &row, declared))
        };
        Ok(found.into_iter().map(shown).collect())
    }
}

/// Lists calls.
pub(super) async fn list(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ListEffectsRequest,
) -> Result<ListEffectsResponse, Status> {
    let mut violations = Violations::new();
    let ListEffectsRequest { tenant_id, effect, states: wanted, saga, correlation_id, page_size, page_token } =
        request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    if saga.is_empty() && !correlation_id.is_empty() {
        violations.add("saga", "is missing: a correlation is one within a saga");
    }
    let filter = EffectFilter {
        effect: name("effect", &effect, &mut violations),
        states: states("states", &wanted, &mut violations),
        saga: name("saga", &saga, &mut violations),
        correlation: name("correlation_id", &correlation_id, &mut violations),
    };
    let page_request = PageRequest::parse(page_size, &page_token, &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let reads = api.reads();
    let page_request = SagaPageRequest::new(page_request, SagaPageKind::Effects, caller, &tenant, &filter)?;
    let stretches = filter.stretches(reads.effect_lanes(&tenant, filter.effect.as_ref()));
    let catalog = reads.definitions().catalog();
    let listed = EffectListing { reads: &reads, tenant: &tenant, filter: &filter, catalog };
    let (calls, next_page_token) = page(&reads, &page_request, &stretches, &listed).await?;
    Ok(ListEffectsResponse { calls, next_page_token })
}

/// Operation on a call, and the request that asks for it.
struct EffectCallOperation<'a> {
    method: &'static str,
    permission: SagaPermission,
    tenant_id: &'a str,
    effect: &'a str,
    command_id: &'a str,
    request_id: &'a str,
    /// Hash of the request without its id.
    hash: BlobHash,
    call_request: Option<EffectCallRequest>,
}

/// Sends an operation to the owner of a call's lane, and returns the call as it is afterwards.
async fn ask(
    api: &SagaApi,
    caller: &SagaCaller,
    operation: EffectCallOperation<'_>,
    mut violations: Violations,
) -> Result<EffectCall, Status> {
    let EffectCallOperation {
        method,
        permission,
        tenant_id,
        effect,
        command_id,
        request_id,
        hash,
        call_request,
    } = operation;
    let request = SagaIdempotencyKey::parse(request_id, hash, &mut violations);
    let tenant = tenant(tenant_id, api.has_tenants(), &mut violations);
    let effect: Option<EffectName> = name("effect", effect, &mut violations);
    let command: Option<CommandId> = name("command_id", command_id, &mut violations);
    let parsed = tenant.zip(command).zip(call_request);
    let ((tenant, command), mut call_request) = violations.into_result(parsed).map_err(Error::from)?;
    let resource = format!("call {command}");
    let change = SagaChangeRequest {
        permission,
        method,
        resource: &resource,
        request: request.as_ref(),
        dry_run: false,
    };
    let actor = api.authorize(caller, &tenant, change).await?;
    let (effect, _) = api.call(&tenant, effect.as_ref(), command).await?;
    redact(&api.app.definitions().catalog(), &effect, &tenant, &mut call_request)?;
    let lane = WorkflowLane::Effect { tenant: tenant.clone(), effect: effect.clone() };
    let subject = MessageSubject::Effect { effect: effect.clone(), command };
    let operator_request = OperatorRequest::new(actor, &tenant, request.as_ref(), hash);
    api.send_request(
        &operator_request,
        "",
        (&lane, subject),
        EffectLaneRequest::Call { command, asked: call_request },
    )
    .await?;
    let (effect, row) = api.call(&tenant, Some(&effect), command).await?;
    let catalog = api.app.definitions().catalog();
    Ok(wire::effect::call(&tenant, &effect, &row, declared(&catalog, &effect, &tenant)))
}

/// Redacts a result before a message carries it. For an effect that no provider has any more, it is unknown what has to be redacted.
fn redact(
    catalog: &Catalog,
    effect: &EffectName,
    tenant: &TenantId,
    call_request: &mut EffectCallRequest,
) -> Result<(), Status> {
    match (catalog.effect(effect, tenant), call_request.result_mut()) {
        (Some((_, effect)), _) => call_request.redact(effect),
        (None, Some(result)) if !matches!(result, Json::Null) => {
            let message = format!(
                "no provider in force has the effect `{effect}`, which says what of its result is kept; put one in force first"
            );
            return Err(Error::new(ErrorKind::FailedPrecondition, RpcReason::WrongState, message).into());
        }
        (None, _) => {}
    }
    Ok(())
}

/// Declares the methods that operate on calls, with the conversion of each request.
macro_rules! call_operations {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident = $method:literal $permission:ident $convert:expr;)+) => {
        $($(#[$doc])*
        pub(super) async fn $name(
            api: &SagaApi,
            caller: &SagaCaller,
            mut request: $request,
        ) -> Result<$response, Status> {
            let mut violations = missing(&request);
            let request_id = std::mem::take(&mut request.request_id);
            let call_request: fn(&$request, &mut Violations) -> Option<EffectCallRequest> = $convert;
            let operation = EffectCallOperation {
                method: $method,
                permission: SagaPermission::$permission,
                hash: hash_of($method, &request),
                call_request: call_request(&request, &mut violations),
                tenant_id: &request.tenant_id,
                effect: &request.effect,
                command_id: &request.command_id,
                request_id: &request_id,
            };
            let call = Some(ask(api, caller, operation, violations).await?);
            Ok($response { call })
        })+
    };
}

call_operations! {
    /// Ends a call that waits for its answer.
    complete(CompleteEffectRequest) -> CompleteEffectResponse = "CompleteEffect" Start completion;
    /// Records whether a call happened.
    resolve(ResolveEffectRequest) -> ResolveEffectResponse = "ResolveEffect" Operate resolution;
    /// Makes a call again.
    retry(RetryEffectRequest) -> RetryEffectResponse = "RetryEffect" Operate |_, _| Some(EffectCallRequest::Retry);
    /// Cancels a call.
    cancel(CancelEffectRequest) -> CancelEffectResponse = "CancelEffect" Operate |_, _| Some(EffectCallRequest::Cancel);
}

fn completion(request: &CompleteEffectRequest, violations: &mut Violations) -> Option<EffectCallRequest> {
    use proto::v1::complete_effect_request::Outcome;
    let end = match request.outcome.as_ref()? {
        Outcome::Succeeded(success) => {
            let result = json_of("succeeded.result_json", &success.result_json, violations)?;
            CallCompletion::Succeeded { result }
        }
        Outcome::Failed(failure) => {
            let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
            let code = failure.code.clone();
            if !(1..=CODE_CHARS_MAX).contains(&code.len()) || !code.chars().all(is_safe) {
                violations.add("failed.code", format!("1 to {CODE_CHARS_MAX} characters of [A-Za-z0-9_.-]"));
            }
            let result = json_of("failed.result_json", &failure.result_json, violations)?;
            if !matches!(result, Json::Map(_) | Json::Null) {
                violations.add("failed.result_json", format!("an object, not {}", result.kind()));
            }
            CallCompletion::Failed { code, result }
        }
    };
    Some(EffectCallRequest::Complete { token: BlobHash::of(request.token.as_bytes()), end })
}

fn resolution(request: &ResolveEffectRequest, violations: &mut Violations) -> Option<EffectCallRequest> {
    use proto::v1::resolve_effect_request::Outcome;
    Some(match request.outcome.as_ref()? {
        Outcome::Succeeded(success) => {
            let result = json_of("succeeded.result_json", &success.result_json, violations)?;
            EffectCallRequest::Happened { result }
        }
        Outcome::NotDone(_) => EffectCallRequest::NotDone,
    })
}
