//! Access control: tenants, contexts and roles.
//!
//! A tenant belongs to a context, whose roles apply. Reads are checked against the roles known here; storage decides about changes, and
//! records them in the same step. An unknown tenant, and one in whose context the caller has no role, both give NOT_FOUND with the
//! same text.

use ::rpc::{Caller, Error, ErrorKind, RpcReason, forward_status};
use identity::Identity;
use model::context::AccessDenied;
use model::{ActorId, BlobHash, ContextId, RequestId, Role, TenantId, Violations};
use prost::Message;
use proto::internal::v1::{AuthorizeRequest, SagaPermission};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use super::SagaApi;

/// Metadata that may name the tenant of a call, in addition to the request.
const TENANT_HEADER: &str = "x-tenant-id";
/// Size of an audit record's resource, in bytes at most.
const RESOURCE_BYTES_MAX: usize = 512;

/// Caller, and the tenant that its metadata name.
#[derive(Debug)]
pub(crate) struct SagaCaller {
    identity: Identity,
    /// Tenants that the metadata name.
    named: Vec<String>,
}

impl SagaCaller {
    /// Reads the caller of a request.
    ///
    /// # Errors
    /// As [`Caller::of`].
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let identity = Caller::of(request)?.identity();
        Ok(Self { identity, named: named(request.metadata()) })
    }

    /// The actor that calls.
    ///
    /// # Errors
    /// PERMISSION_DENIED for a service and the bootstrap identity, which have no roles.
    pub(crate) fn actor(&self) -> Result<ActorId, Status> {
        match self.identity {
            Identity::Actor(actor) => Ok(actor),
            Identity::Service(_) | Identity::Admin => {
                Err(Status::permission_denied("only actors have roles in a context"))
            }
        }
    }

    /// Returns true if the metadata name this tenant or none.
    fn agrees(&self, tenant: &TenantId) -> bool {
        self.named.iter().all(|named| named == tenant.as_str())
    }
}

fn named(metadata: &MetadataMap) -> Vec<String> {
    // A value that is no text names no tenant.
    let text = |value: &tonic::metadata::MetadataValue<_>| value.to_str().unwrap_or("\u{fffd}").to_owned();
    metadata.get_all(TENANT_HEADER).iter().map(text).collect()
}

/// Requested change, as storage decides about it and records it.
#[derive(Debug)]
pub(crate) struct SagaChangeRequest<'a> {
    /// Permission that the caller needs.
    pub(crate) permission: SagaPermission,
    /// The method, as in `CancelSaga`.
    pub(crate) method: &'static str,
    /// Resource that the method is called for, as in `order/o-1`.
    pub(crate) resource: &'a str,
    /// Idempotency key of the request; `None` where it has none.
    pub(crate) request: Option<&'a SagaIdempotencyKey>,
    /// True if nothing may be changed.
    pub(crate) dry_run: bool,
}

/// Idempotency key of a request: its id, and the hash of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SagaIdempotencyKey {
    /// The id.
    pub(crate) id: RequestId,
    /// Hash of method and body.
    pub(crate) hash: BlobHash,
}

impl SagaIdempotencyKey {
    /// Parses the id of a request, and notes what is wrong with it; `None` where it is empty. `hash` is that of the request without its
    /// id.
    pub(crate) fn parse(id: &str, hash: BlobHash, violations: &mut Violations) -> Option<Self> {
        Some(Self { id: RequestId::parse(id, violations)?, hash })
    }
}

/// Hash of a method and the body that it is called with, without the id of the request.
pub(crate) fn hash_of<M: Message>(method: &str, body: &M) -> BlobHash {
    BlobHash::of(&[method.as_bytes(), &[0], &body.encode_to_vec()].concat())
}

/// NOT_FOUND of a tenant, with the same text whether it is unknown or foreign.
pub(crate) fn no_tenant(tenant: &TenantId) -> Status {
    Error::not_found(if tenant.is_single() { "the tenant".to_owned() } else { format!("tenant {tenant}") })
        .into()
}

impl SagaApi {
    /// Returns true if requests name tenants.
    pub(crate) fn has_tenants(&self) -> bool {
        self.app.around().has_tenants
    }

    /// Checks that the metadata name no other tenant than the request, and counts those that do.
    ///
    /// # Errors
    /// INVALID_ARGUMENT (`TENANT_MISMATCH`).
    pub(crate) fn check_header(&self, principal: &SagaCaller, tenant: &TenantId) -> Result<(), Status> {
        if principal.agrees(tenant) {
            return Ok(());
        }
        self.app.around().metrics.tenant_mismatches.inc();
        let message = format!("the metadata `{TENANT_HEADER}` name another tenant than the request does");
        let mut violations = Violations::new();
        violations.add("tenant_id", &*message);
        let kind = ErrorKind::InvalidArgument(violations);
        Err(Error::new(kind, RpcReason::TenantMismatch, message).into())
    }

    /// Context that a tenant belongs to.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown tenant.
    pub(crate) fn context_of(&self, tenant: &TenantId) -> Result<ContextId, Status> {
        self.app.context_of(tenant).ok_or_else(|| no_tenant(tenant))
    }

    /// Checks that the caller may read. Returns the context and the actor, for streams that end with the role.
    ///
    /// # Errors
    /// INVALID_ARGUMENT (`TENANT_MISMATCH`), NOT_FOUND for a tenant that is unknown or foreign, UNAVAILABLE.
    pub(crate) async fn read(
        &self,
        principal: &SagaCaller,
        tenant: &TenantId,
    ) -> Result<(ContextId, ActorId), Status> {
        self.read_as(principal, tenant, Role::Reader).await
    }

    /// Checks that the caller has at least this role.
    ///
    /// # Errors
    /// As [`SagaApi::read`]; PERMISSION_DENIED (`ROLE_INSUFFICIENT`) for a reader whose role is less.
    pub(crate) async fn read_as(
        &self,
        principal: &SagaCaller,
        tenant: &TenantId,
        needed: Role,
    ) -> Result<(ContextId, ActorId), Status> {
        self.check_header(principal, tenant)?;
        let (actor, context) = (principal.actor()?, self.context_of(tenant)?);
        let membership = self.access()?.directory.membership(context, actor).await?;
        match membership.role {
            Some(role) if role >= needed => Ok((context, actor)),
            Some(role) if role >= Role::Reader => {
                let message = AccessDenied::RoleTooSmall { actor, context, needed }.to_string();
                Err(Error::new(ErrorKind::PermissionDenied, RpcReason::RoleInsufficient, message).into())
            }
            Some(_) | None => Err(no_tenant(tenant)),
        }
    }

    /// Has storage decide about a change and record it. Returns the actor.
    ///
    /// # Errors
    /// As [`SagaApi::read`]; PERMISSION_DENIED (`ROLE_INSUFFICIENT`), FAILED_PRECONDITION (`CONTEXT_DELETING`), ALREADY_EXISTS
    /// (`REQUEST_ID_REUSED`).
    pub(crate) async fn authorize(
        &self,
        principal: &SagaCaller,
        tenant: &TenantId,
        change: SagaChangeRequest<'_>,
    ) -> Result<ActorId, Status> {
        self.check_header(principal, tenant)?;
        let (actor, context) = (principal.actor()?, self.context_of(tenant)?);
        let SagaChangeRequest { permission, method, resource, request, dry_run } = change;
        let authorize = AuthorizeRequest {
            context_id: context.0,
            on_behalf_of: actor.0,
            permission: permission.into(),
            method: method.to_owned(),
            resource: resource_of(tenant, resource),
            request_id: request.map(|request| request.id.to_string()).unwrap_or_default(),
            request_hash: request.map(|request| request.hash.to_string()).unwrap_or_default(),
            dry_run,
        };
        match self.access()?.identities.clone().authorize(authorize).await {
            Ok(_) => Ok(actor),
            Err(status) if status.code() == Code::NotFound => Err(no_tenant(tenant)),
            Err(status) => Err(forward_status(status)),
        }
    }

    /// Checks that the tenant is not paused, so that owners take in its messages.
    ///
    /// # Errors
    /// FAILED_PRECONDITION (`TENANT_PAUSED`).
    pub(crate) fn check_running(&self, tenant: &TenantId) -> Result<(), Status> {
        if !self.app.is_paused(tenant) {
            return Ok(());
        }
        let message = "the tenant is paused, so that nothing is taken in for it: resume it first";
        Err(Error::new(ErrorKind::FailedPrecondition, RpcReason::TenantPaused, message).into())
    }

    /// Checks that the tenant named by the operator exists; `None` where the request names none.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, NOT_FOUND.
    pub(crate) fn operators_tenant(
        &self,
        principal: &SagaCaller,
        tenant_id: &str,
    ) -> Result<Option<TenantId>, Status> {
        if tenant_id.is_empty() {
            self.check_header(principal, &TenantId::single())?;
            return Ok(None);
        }
        let mut violations = Violations::new();
        let tenant = proto::convert::saga::tenant(tenant_id, self.has_tenants(), &mut violations);
        let tenant = violations.into_result(tenant).map_err(Error::from)?;
        self.check_header(principal, &tenant)?;
        self.context_of(&tenant)?;
        Ok(Some(tenant))
    }

    /// Returns the directory of actors' roles, for streams that end with the role.
    ///
    /// # Errors
    /// UNAVAILABLE without storage.
    pub(crate) fn directory(&self) -> Result<std::sync::Arc<dyn ::rpc::Directory>, Status> {
        Ok(std::sync::Arc::clone(&self.access()?.directory))
    }

    fn access(&self) -> Result<&crate::app::ActorAccess, Status> {
        // Without storage the gate refuses every actor, so no caller gets here.
        self.app.access().ok_or_else(|| {
            Error::unavailable(
                RpcReason::PeerUnavailable,
                "this server knows no actors: it runs without storage",
            )
            .into()
        })
    }
}

/// Returns the resource of an audit record for a change: no control characters, and not too long.
fn resource_of(tenant: &TenantId, resource: &str) -> String {
    let tenant = if tenant.is_single() { "" } else { tenant.as_str() };
    let mut text = String::new();
    let separator = if tenant.is_empty() || resource.is_empty() { "" } else { "/" };
    for c in tenant.chars().chain(separator.chars()).chain(resource.chars()) {
        let shown = if c.is_control() { '\u{fffd}' } else { c };
        if text.len() + shown.len_utf8() > RESOURCE_BYTES_MAX {
            break;
        }
        text.push(shown);
    }
    if text.is_empty() { "server".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audited_resource_names_are_short_and_printable() {
        let acme: TenantId = "acme".parse().expect("a tenant");
        assert_eq!(resource_of(&acme, "order/o\n1"), "acme/order/o\u{fffd}1");
        assert_eq!(resource_of(&TenantId::single(), "order/o-1"), "order/o-1");
        assert_eq!(
            (resource_of(&acme, "").as_str(), resource_of(&TenantId::single(), "").as_str()),
            ("acme", "server")
        );
        let long = resource_of(&acme, &"é".repeat(400));
        assert!(long.len() <= RESOURCE_BYTES_MAX && long.len() > RESOURCE_BYTES_MAX - 3, "{}", long.len());
    }
}
