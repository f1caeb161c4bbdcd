//! Methods about definitions: validate, apply, retire, get, list.

use ::rpc::{Error, ErrorKind, PageRequest, RpcReason};
use model::{BlobHash, SagaName, TenantId, Violations};
use proto::convert::saga::{name, tenant};
use proto::internal::v1::SagaPermission;
use proto::pages;
use proto::required;
use proto::v1;
use proto::v1::{
    ApplySagaRequest, ApplySagaResponse, GetSagaDefinitionRequest, GetSagaDefinitionResponse,
    ListSagaDefinitionsRequest, ListSagaDefinitionsResponse, ManifestFile, RetireSagaRequest,
    RetireSagaResponse, ValidateSagaRequest, ValidateSagaResponse,
};
use tonic::Status;
use workflow::manifest::MANIFEST_BYTES_MAX;

use super::access::{SagaChangeRequest, SagaIdempotencyKey, hash_of};
use super::owner_client::store_unavailable;
use super::wire::{self, problems};
use super::{SagaApi, SagaCaller};
use crate::definitions::{ApplyError, DefinitionError, ScopedIdempotencyKey as Kept, TenantDefinition};

/// Seal that page tokens are bound to, beside their caller and filter.
const SEAL: &str = "definitions";
/// Length of a file's name, in bytes at most.
const FILE_NAME_BYTES_MAX: usize = 255;
/// Name given to a file that has none.
const UNNAMED: &str = "manifest";

/// Checks a manifest and stores nothing.
pub(super) async fn validate(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ValidateSagaRequest,
) -> Result<ValidateSagaResponse, Status> {
    let mut violations = required::missing(&request);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let file = file(request.file, &mut violations);
    let (tenant, file) = violations.into_result(tenant.zip(file)).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    Ok(match api.app.definitions().validate(&tenant, &file.name, &file.text) {
        Ok(found) => {
            let definitions = found.iter().map(definition).collect();
            ValidateSagaResponse { problems: Vec::new(), definitions }
        }
        Err(found) => ValidateSagaResponse { problems: problems(&found), definitions: Vec::new() },
    })
}

/// Puts the sagas of a manifest in force for one tenant.
pub(super) async fn apply(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: ApplySagaRequest,
) -> Result<ApplySagaResponse, Status> {
    let mut violations = required::missing(&request);
    let id = std::mem::take(&mut request.request_id);
    let repeatable = SagaIdempotencyKey::parse(&id, hash_of("ApplySaga", &request), &mut violations);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let file = file(request.file, &mut violations);
    let (tenant, file) = violations.into_result(tenant.zip(file)).map_err(Error::from)?;
    let change = define("ApplySaga", &file.name, repeatable.as_ref());
    let actor = api.authorize(caller, &tenant, change).await?.0;
    let kept = kept(&tenant, actor, repeatable);
    let applied = api.app.definitions().apply(&tenant, &file.name, &file.text, kept.as_ref()).await;
    let applied = applied.map_err(|error| refused(&error))?;
    Ok(ApplySagaResponse { definitions: applied.iter().map(definition).collect() })
}

/// Takes a saga of the tenant out of force.
pub(super) async fn retire(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: RetireSagaRequest,
) -> Result<RetireSagaResponse, Status> {
    let mut violations = required::missing(&request);
    let id = std::mem::take(&mut request.request_id);
    let repeatable = SagaIdempotencyKey::parse(&id, hash_of("RetireSaga", &request), &mut violations);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let saga = name::<SagaName>("saga", &request.saga, &mut violations);
    let (tenant, saga) = violations.into_result(tenant.zip(saga)).map_err(Error::from)?;
    let change = define("RetireSaga", saga.as_str(), repeatable.as_ref());
    let actor = api.authorize(caller, &tenant, change).await?.0;
    let kept = kept(&tenant, actor, repeatable);
    let definitions = api.app.definitions();
    let retired = definitions.retire(&tenant, &saga, request.expected_version, kept.as_ref()).await;
    let retired = retired.map_err(|error| refused(&error))?;
    Ok(RetireSagaResponse { definition: Some(definition(&retired)) })
}

/// Reads a definition.
pub(super) async fn get(
    api: &SagaApi,
    caller: &SagaCaller,
    request: GetSagaDefinitionRequest,
) -> Result<GetSagaDefinitionResponse, Status> {
    let mut violations = required::missing(&request);
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let saga = name::<SagaName>("saga", &request.saga, &mut violations);
    let hash = name::<BlobHash>("definition_hash", &request.definition_hash, &mut violations);
    let (tenant, saga) = violations.into_result(tenant.zip(saga)).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let definitions = api.app.definitions();
    let found = definitions.in_force().definitions_named(&tenant, &saga);
    let wanted = |found: &TenantDefinition| hash.map_or(found.in_force, |hash| found.saga.hash == hash);
    let found = found.into_iter().find(wanted);
    let found = found.ok_or_else(|| Error::not_found(format!("definition of saga {saga}")))?;
    let text = definitions.text(found.saga.hash).await.map_err(|error| unavailable(&error))?;
    let manifest = text.to_string();
    Ok(GetSagaDefinitionResponse { definition: Some(definition(&found)), manifest })
}

/// Lists definitions.
pub(super) async fn list(
    api: &SagaApi,
    caller: &SagaCaller,
    request: ListSagaDefinitionsRequest,
) -> Result<ListSagaDefinitionsResponse, Status> {
    let mut violations = Violations::new();
    let tenant = tenant(&request.tenant_id, api.has_tenants(), &mut violations);
    let saga = name::<SagaName>("saga", &request.saga, &mut violations);
    let page = PageRequest::parse(request.page_size, &request.page_token, &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    let (_, actor) = api.read(caller, &tenant).await?;
    let filter = format!("{tenant} {saga:?} {}", request.in_force);
    let behind = page.place(SEAL, actor.0, &filter).map_err(Error::from)?;
    let in_force = api.app.definitions().in_force();
    let mut found = match &saga {
        Some(saga) => in_force.definitions_named(&tenant, saga),
        None => in_force.definitions_of(&tenant),
    };
    found.retain(|found| {
        (found.in_force || !request.in_force) && behind.as_ref().is_none_or(|behind| place(found) > *behind)
    });
    let wire = found.iter().take(page.size).map(|found| Ok::<_, Status>(definition(found)));
    let definitions = pages::first(wire)?;
    let has_more = definitions.len() < found.len();
    let last = definitions.len().checked_sub(1).and_then(|last| found.get(last)).filter(|_| has_more);
    let next_page_token = page.token_at(SEAL, actor.0, &filter, last.map(place).as_deref());
    Ok(ListSagaDefinitionsResponse { definitions, next_page_token })
}

/// Place of a definition in lists: by name, the newest version first.
fn place(found: &TenantDefinition) -> String {
    format!("{} {:010}", found.saga.name, u32::MAX - found.saga.version)
}

/// Reads a file of a request.
fn file(file: Option<ManifestFile>, violations: &mut Violations) -> Option<ManifestFile> {
    let mut file = file?;
    if file.text.len() > MANIFEST_BYTES_MAX {
        let (most, found) = (MANIFEST_BYTES_MAX, file.text.len());
        violations.add("file.text", format!("a manifest has at most {most} bytes, this one has {found}"));
    }
    if file.name.len() > FILE_NAME_BYTES_MAX || file.name.chars().any(char::is_control) {
        let message = format!("has at most {FILE_NAME_BYTES_MAX} bytes, none of them a control character");
        violations.add("file.name", message);
    }
    if file.name.is_empty() {
        UNNAMED.clone_into(&mut file.name);
    }
    Some(file)
}

fn define<'a>(
    method: &'static str,
    resource: &'a str,
    request: Option<&'a SagaIdempotencyKey>,
) -> SagaChangeRequest<'a> {
    SagaChangeRequest { permission: SagaPermission::Define, method, resource, request, dry_run: false }
}

/// The idempotency key as it is stored with the answer: scoped to one actor.
fn kept(tenant: &TenantId, actor: u32, request: Option<SagaIdempotencyKey>) -> Option<Kept> {
    request
        .map(|SagaIdempotencyKey { id, hash }| Kept { id: format!("define\n{tenant}\n{actor}\n{id}"), hash })
}

/// Converts a definition to what callers see.
pub(super) fn definition(found: &TenantDefinition) -> v1::SagaDefinition {
    let TenantDefinition { saga, in_force, is_applied } = found;
    v1::SagaDefinition { in_force: *in_force, applied_by_tenant: *is_applied, ..wire::definition(saga) }
}

pub(super) fn unavailable(error: &DefinitionError) -> Status {
    match error {
        DefinitionError::Store(error) => store_unavailable(error),
        DefinitionError::Unreadable { .. } => Error::internal(error.clone()).into(),
    }
}

fn refused(error: &ApplyError) -> Status {
    let message = error.to_string();
    match error {
        ApplyError::Definitions(error) => unavailable(error),
        ApplyError::Problems(found) => {
            let mut violations = Violations::new();
            for v1::ManifestProblem { file, line, column, message } in problems(found) {
                let field = if line == 0 { file } else { format!("{file}:{line}:{column}") };
                violations.add(field, message);
            }
            Error::from(violations).into()
        }
        ApplyError::NotFound(saga) => Error::not_found(format!("saga {saga}")).into(),
        ApplyError::Operators(_) => {
            Error::new(ErrorKind::FailedPrecondition, RpcReason::WrongState, message).into()
        }
        ApplyError::OtherVersion { .. } => {
            Error::new(ErrorKind::Aborted, RpcReason::RevisionMismatch, message).into()
        }
        ApplyError::Reused => {
            Error::new(ErrorKind::AlreadyExists, RpcReason::RequestIdReused, message).into()
        }
        ApplyError::Limit { limit, most, found, .. } => {
            let error = Error::new(ErrorKind::ResourceExhausted, RpcReason::LimitExceeded, message);
            error.with("limit", limit).with("max", most).with("asked", found).into()
        }
    }
}
