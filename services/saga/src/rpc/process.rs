//! Reload of the operator's files.

use ::rpc::{Error, ErrorKind, RpcReason};
use model::Violations;
use proto::v1::{SagaReloadChange, SagaReloadKind, SagaServiceReloadRequest, SagaServiceReloadResponse};
use tonic::Status;

use super::access::{SagaIdempotencyKey, hash_of};
use super::definitions::unavailable;
use super::wire::problems;
use super::{SagaApi, SagaCaller};
use crate::app::{self, ReloadChange, ReloadKind};
use crate::definitions::ScopedIdempotencyKey as Kept;
use crate::manifests::BadManifests;

/// Problems that the message of a refused reload has.
const PROBLEMS_SHOWN: usize = 5;

/// Reads the operator's files again.
pub(super) async fn reload(
    api: &SagaApi,
    caller: &SagaCaller,
    mut request: SagaServiceReloadRequest,
) -> Result<SagaServiceReloadResponse, Status> {
    let id = std::mem::take(&mut request.request_id);
    let mut violations = Violations::new();
    let repeatable = SagaIdempotencyKey::parse(&id, hash_of("Reload", &request), &mut violations);
    violations.into_result(Some(())).map_err(Error::from)?;
    let tenant = api.operators_tenant(caller, &request.tenant_id)?;
    let of = tenant.as_ref();
    let reloaded = match (request.dry_run, repeatable) {
        (true, _) => api.app.check_reload(of).await.map(Some),
        (false, Some(SagaIdempotencyKey { id, hash })) => {
            let request = Kept { id: format!("reload\n{id}"), hash };
            api.app.reload_once(of, &request).await
        }
        (false, None) => match of {
            Some(tenant) => api.app.reload_tenant(tenant).await.map(Some),
            None => api.app.reload().await.map(Some),
        },
    };
    match reloaded {
        Ok(Some(changes)) => {
            let changes = changes.iter().map(change).collect();
            Ok(SagaServiceReloadResponse { changes, problems: Vec::new() })
        }
        Ok(None) => {
            let message = "the id of the request was used with another body";
            Err(Error::new(ErrorKind::AlreadyExists, RpcReason::RequestIdReused, message).into())
        }
        Err(app::Error::Manifests(BadManifests(found))) if request.dry_run => {
            let problems = found.iter().flat_map(problems).collect();
            Ok(SagaServiceReloadResponse { changes: Vec::new(), problems })
        }
        Err(app::Error::Manifests(found)) => {
            let text = found.to_string();
            let first: Vec<_> = text.lines().take(PROBLEMS_SHOWN).collect();
            let message = format!("nothing was changed: {}", first.join("; "));
            Err(Error::new(ErrorKind::FailedPrecondition, RpcReason::ManifestsRefused, message).into())
        }
        Err(app::Error::Definitions(error)) => Err(unavailable(&error)),
        Err(error @ app::Error::Metrics(_)) => Err(Error::internal(error).into()),
    }
}

/// Converts a change of a reload to its message.
fn change(change: &ReloadChange) -> SagaReloadChange {
    let kind = match change.kind {
        ReloadKind::Saga => SagaReloadKind::Saga,
        ReloadKind::Provider => SagaReloadKind::Provider,
        ReloadKind::Tenant => SagaReloadKind::Tenant,
    };
    SagaReloadChange {
        kind: kind.into(),
        name: change.name.clone(),
        was_in_force: change.before.is_some(),
        in_force: change.after.is_some(),
        old_version: change.before.unwrap_or(0),
        new_version: change.after.unwrap_or(0),
    }
}
