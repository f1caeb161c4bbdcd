//! IdentityStoreService, and the directory that this service itself uses.

use std::time::Duration;

use ::rpc::{KnownActor, Membership, RpcReason};
use directory::{DirectoryInvalidation, DirectorySource, DirectoryView};
use futures_util::stream;
use identity::ActorVerifyingKey;
use identity::token::TOKEN_SKEW;
use model::{ActorId, ContextId, Timestamp, Violations};
use proto::convert;
use proto::internal::v1::identity_store_service_server::IdentityStoreService;
use proto::internal::v1::watch_identities_response::Changed;
use proto::internal::v1::{
    AuthorizeRequest, AuthorizeResponse, ReadActorRequest, ReadActorResponse, ReadRoleRequest,
    ReadRoleResponse, SagaPermission, SpendTokenRequest, SpendTokenResponse, WatchIdentitiesRequest,
    WatchIdentitiesResponse,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{StorageResponseStream, StorageRpc, request_of};
use crate::error::Error;
use crate::store::Store;
use crate::tenants::authorization::Intent;
use crate::tenants::identities::IdentityChangeFeed;
use crate::tenants::permission::ContextAction;

/// How often an idle watch gives a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A token that lasts longer is none of ours.
const SPENT_SECS_MAX: u64 = 600;
/// Characters of a token's id.
const TOKEN_ID_CHARS_MAX: usize = 64;
/// Characters of the name of a method of another service.
const METHOD_CHARS_MAX: usize = 64;
/// Bytes of what the audit calls a resource of another service.
const RESOURCE_BYTES_MAX: usize = 512;

/// View of actors and roles, kept current by the hints of Redis.
pub(crate) type Identities = DirectoryView<Store>;

impl DirectorySource for Store {
    async fn read_actor(&self, id: ActorId) -> Result<Option<KnownActor>, Status> {
        Ok(self.known_actor(id).await?)
    }

    async fn read_membership(&self, context: ContextId, actor: ActorId) -> Result<Membership, Status> {
        Ok(self.membership(context, actor).await?)
    }

    async fn consume_token(
        &self,
        actor: ActorId,
        token_id: String,
        until: Timestamp,
    ) -> Result<bool, Status> {
        Ok(self.spend_token(actor, &token_id, kept_secs(until, Timestamp::now())).await?)
    }
}

/// How long the id of a token that is valid until a given time is remembered. The clock of the service that accepts the token may be
/// behind this one.
fn kept_secs(until: Timestamp, now: Timestamp) -> u64 {
    (until + TOKEN_SKEW).since(now).as_secs() + 1
}

#[tonic::async_trait]
impl IdentityStoreService for StorageRpc {
    async fn read_actor(
        &self,
        request: Request<ReadActorRequest>,
    ) -> Result<Response<ReadActorResponse>, Status> {
        let id = ActorId(request.into_inner().actor_id);
        let known = self.hub.store().known_actor(id).await?;
        let KnownActor { keys, certificates_not_before } =
            known.ok_or_else(|| Error::not_found("actor", id))?;
        Ok(Response::new(ReadActorResponse {
            keys: keys.iter().map(key_to_wire).collect(),
            certificates_not_before_time: certificates_not_before.map(convert::time::to_wire),
        }))
    }

    async fn read_role(
        &self,
        request: Request<ReadRoleRequest>,
    ) -> Result<Response<ReadRoleResponse>, Status> {
        let ReadRoleRequest { context_id, actor_id } = request.into_inner();
        let membership = self.hub.store().membership(ContextId(context_id), ActorId(actor_id)).await?;
        let Membership { role, is_deleting } = membership;
        let role = role.map(|role| role.to_string()).unwrap_or_default();
        Ok(Response::new(ReadRoleResponse { role, deleting: is_deleting }))
    }

    async fn spend_token(
        &self,
        request: Request<SpendTokenRequest>,
    ) -> Result<Response<SpendTokenResponse>, Status> {
        let SpendTokenRequest { actor_id, token_id, expire_time } = request.into_inner();
        let is_id = (1..=TOKEN_ID_CHARS_MAX).contains(&token_id.len())
            && token_id.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_id {
            return Err(Error::field("token_id", "1 to 64 visible ASCII characters").into());
        }
        let until = expire_time.map(convert::time::from_wire).unwrap_or_default();
        let left = until.since(Timestamp::now()).as_secs();
        if left > SPENT_SECS_MAX {
            return Err(Error::field("expire_time", "at most 10 minutes from now").into());
        }
        let fresh = self.hub.store().consume_token(ActorId(actor_id), token_id, until).await?;
        Ok(Response::new(SpendTokenResponse { fresh }))
    }

    async fn authorize(
        &self,
        request: Request<AuthorizeRequest>,
    ) -> Result<Response<AuthorizeResponse>, Status> {
        let intent = intent(request.into_inner())?;
        let audited = self.hub.store().authorize(&intent, Timestamp::now()).await?;
        Ok(Response::new(AuthorizeResponse { audited }))
    }

    type WatchIdentitiesStream = StorageResponseStream<WatchIdentitiesResponse>;

    async fn watch_identities(
        &self,
        _: Request<WatchIdentitiesRequest>,
    ) -> Result<Response<Self::WatchIdentitiesStream>, Status> {
        let changes = self.hub.identity_changes();
        if !self.hub.receives_all() {
            return Err(missed());
        }
        Ok(Response::new(self.until_stop(watch(changes))))
    }
}

/// Parses the saga operation that an actor requests.
fn intent(mut request: AuthorizeRequest) -> Result<Intent, Error> {
    let mut violations = Violations::new();
    let (permission, request_id) = (request.permission(), std::mem::take(&mut request.request_id));
    // A request id that was allowed for one operation does not cover another one.
    let repeatable = request_of(&request_id, &request, &mut violations);
    let AuthorizeRequest {
        context_id,
        on_behalf_of,
        permission: _,
        method,
        resource,
        request_id: _,
        request_hash: _,
        dry_run,
    } = request;
    if context_id == 0 {
        violations.add("context_id", "is missing: it has to be given");
    }
    if on_behalf_of == 0 {
        violations.add("on_behalf_of", "this is decided for actors only");
    }
    let action = violations.take("permission", action_of(permission).ok_or("no permission that there is"));
    let is_alphanumeric = method.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_alphanumeric || !(1..=METHOD_CHARS_MAX).contains(&method.len()) {
        violations.add("method", format!("1 to {METHOD_CHARS_MAX} letters and digits"));
    }
    if resource.chars().any(char::is_control) || !(1..=RESOURCE_BYTES_MAX).contains(&resource.len()) {
        violations.add("resource", format!("1 to {RESOURCE_BYTES_MAX} bytes without control characters"));
    }
    let action = violations.into_result(action)?;
    Ok(Intent {
        context: ContextId(context_id),
        actor: ActorId(on_behalf_of),
        action,
        object: format!("{method} {resource}"),
        request: repeatable,
        is_read: dry_run || permission == SagaPermission::Read,
    })
}

/// The row of the table of permissions.
const fn action_of(permission: SagaPermission) -> Option<ContextAction> {
    Some(match permission {
        SagaPermission::Unspecified => return None,
        SagaPermission::Read => ContextAction::ReadSagas,
        SagaPermission::Start => ContextAction::StartSaga,
        SagaPermission::Define => ContextAction::DefineSagas,
        SagaPermission::Operate => ContextAction::OperateSagas,
        SagaPermission::Replay => ContextAction::ReplaySagas,
    })
}

/// Watches changes of identities: begins with all of them, and ends when one may be missed.
fn watch(
    changes: IdentityChangeFeed,
) -> impl futures_util::Stream<Item = Result<WatchIdentitiesResponse, Status>> + Send + 'static {
    let first = Some(Changed::Everything(true));
    stream::unfold(Some((changes, first)), |watch| async move {
        let (mut changes, first) = watch?;
        if first.is_some() {
            return Some((Ok(WatchIdentitiesResponse { changed: first }), Some((changes, None))));
        }
        let changed = match tokio::time::timeout(HEARTBEAT, changes.next()).await {
            Err(_) => None,
            Ok(Some(DirectoryInvalidation::FeedRestored)) => Some(Changed::Everything(true)),
            Ok(Some(DirectoryInvalidation::Actor(id))) => Some(Changed::ActorId(id.0)),
            Ok(Some(DirectoryInvalidation::Context(id))) => Some(Changed::ContextId(id.0)),
            Ok(Some(DirectoryInvalidation::FeedLost) | None) => return Some((Err(missed()), None)),
        };
        Some((Ok(WatchIdentitiesResponse { changed }), Some((changes, None))))
    })
}

fn missed() -> Status {
    ::rpc::Error::unavailable(RpcReason::StoreUnavailable, "changes of actors and contexts may be missed")
        .into()
}

fn key_to_wire(key: &ActorVerifyingKey) -> proto::v1::ActorKey {
    let ActorVerifyingKey { key, not_before, revoked_at } = key;
    proto::v1::ActorKey {
        key: key.to_string(),
        not_before_time: Some(convert::time::to_wire(*not_before)),
        revoke_time: revoked_at.map(convert::time::to_wire),
    }
}

/// Invalidates changed identities, until `stop`.
pub(crate) async fn invalidate_identities(
    identities: Identities,
    mut changes: IdentityChangeFeed,
    stop: CancellationToken,
) {
    while let Some(Some(changed)) = stop.run_until_cancelled(changes.next()).await {
        identities.invalidate(changed);
    }
    identities.invalidate(DirectoryInvalidation::FeedLost);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_remembered_for_longer_than_any_of_our_clocks_takes_it() {
        let now = Timestamp::from_millis(1_763_690_000_500);
        let secs = |secs| Duration::from_secs(secs);
        assert_eq!(kept_secs(now + secs(90), now), 121);
        // The clock of the accepting service is 29 seconds behind.
        assert!(secs(kept_secs(now, now + secs(29))) > secs(1));
    }
}
