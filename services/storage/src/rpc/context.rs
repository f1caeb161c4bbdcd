//! ContextService.

use ::rpc::Caller;
use model::{ActorId, ContextId, Revision, Timestamp, Violations};
use proto::convert;
use proto::v1::context_service_server::ContextService;
use proto::{required, v1};
use tonic::{Request, Response, Status, Streaming};

use super::status::checked;
use super::{StorageResponseStream, StorageRpc, request_of, who};
use crate::error::Error;
use crate::pages::PageRequest;
use crate::tenants::audit;
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::usage::{UsageEntry, UsageKind};

#[tonic::async_trait]
impl ContextService for StorageRpc {
    async fn create_context(
        &self,
        request: Request<v1::CreateContextRequest>,
    ) -> Result<Response<v1::CreateContextResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let new = convert::context::from_create(body, &mut violations);
        let store = self.hub.store();
        let context = store
            .create_context(new, violations, caller.actor(), repeatable.as_ref(), Timestamp::now())
            .await?;
        Ok(Response::new(v1::CreateContextResponse { context: Some(convert::context::to_wire(&context)) }))
    }

    async fn get_context(
        &self,
        request: Request<v1::GetContextRequest>,
    ) -> Result<Response<v1::GetContextResponse>, Status> {
        let caller = Caller::of(&request)?;
        let body = request.into_inner();
        required::check(&body).map_err(Error::from)?;
        let id = ContextId(body.id);
        let (_, context) = self.hub.store().context(id).await?;
        permission::allow_administrator(&context, who(caller)?, ContextAction::Read)?;
        Ok(Response::new(v1::GetContextResponse { context: Some(convert::context::to_wire(&context)) }))
    }

    async fn update_context(
        &self,
        request: Request<v1::UpdateContextRequest>,
    ) -> Result<Response<v1::UpdateContextResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let change = convert::context::from_update(body, &mut violations);
        if change.id == ContextId(0) {
            // There is nothing to look the rest up in.
            return Err(Error::from(violations).into());
        }
        let store = self.hub.store();
        let context = store
            .update_context(&change, &violations, who(caller)?, repeatable.as_ref(), Timestamp::now())
            .await?;
        Ok(Response::new(v1::UpdateContextResponse { context: Some(convert::context::to_wire(&context)) }))
    }

    async fn list_contexts(
        &self,
        request: Request<v1::ListContextsRequest>,
    ) -> Result<Response<v1::ListContextsResponse>, Status> {
        let actor = who(Caller::of(&request)?)?;
        let v1::ListContextsRequest { page_size, page_token } = request.into_inner();
        let mut violations = Violations::new();
        let page = PageRequest::parse(page_size, &page_token, &mut violations);
        let page = checked(violations, page)?;
        let (contexts, next_page_token) = self.hub.store().list_contexts(actor, &page).await?;
        let contexts = contexts.iter().map(convert::context::to_wire).collect();
        Ok(Response::new(v1::ListContextsResponse { contexts, next_page_token }))
    }

    async fn list_audit_entries(
        &self,
        request: Request<v1::ListAuditEntriesRequest>,
    ) -> Result<Response<v1::ListAuditEntriesResponse>, Status> {
        let asker = who(Caller::of(&request)?)?;
        let v1::ListAuditEntriesRequest {
            context_id,
            page_size,
            page_token,
            actor_id,
            action_prefix,
            since_time,
        } = request.into_inner();
        let context = (context_id != 0).then_some(ContextId(context_id));
        if context.is_none() && asker.is_some() {
            // An actor may not read the audit of other actors and contexts, nor learn whether it has entries.
            return Err(Error::not_found("context", context_id).into());
        }
        let mut violations = Violations::new();
        let page = PageRequest::parse(page_size, &page_token, &mut violations);
        let page = checked(violations, page)?;
        let filter = audit::AuditFilter {
            actor: (actor_id != 0).then_some(ActorId(actor_id)),
            action_prefix,
            since: since_time.map(convert::time::from_wire),
        };
        let (entries, next_page_token) = self.hub.store().list_audit(context, asker, &filter, &page).await?;
        let entries = entries.into_iter().map(entry_to_wire).collect();
        Ok(Response::new(v1::ListAuditEntriesResponse { entries, next_page_token }))
    }

    async fn get_context_usage(
        &self,
        request: Request<v1::GetContextUsageRequest>,
    ) -> Result<Response<v1::GetContextUsageResponse>, Status> {
        let caller = Caller::of(&request)?;
        let body = request.into_inner();
        required::check(&body).map_err(Error::from)?;
        let usage = self.hub.store().context_usage(ContextId(body.context_id), who(caller)?).await?;
        Ok(Response::new(v1::GetContextUsageResponse {
            bytes: usage.bytes(),
            bytes_max: usage.bytes_max(),
            retention: Some(convert::context::retention_to_wire(usage.retention)),
            entries: usage.entries.into_iter().map(usage_to_wire).collect(),
        }))
    }

    type ExportContextStream = StorageResponseStream<v1::ExportContextResponse>;

    async fn export_context(
        &self,
        request: Request<v1::ExportContextRequest>,
    ) -> Result<Response<Self::ExportContextStream>, Status> {
        let actor = who(Caller::of(&request)?)?;
        Ok(Response::new(self.begin_export(actor, request.into_inner()).await?))
    }

    type ImportContextStream = StorageResponseStream<v1::ImportContextResponse>;

    async fn import_context(
        &self,
        request: Request<Streaming<v1::ImportContextRequest>>,
    ) -> Result<Response<Self::ImportContextStream>, Status> {
        // The policy lets nobody else in.
        if who(Caller::of(&request)?)?.is_some() {
            return Err(Error::NotAllowed("actors do not import contexts".to_owned()).into());
        }
        Ok(Response::new(self.begin_import(request.into_inner())))
    }

    type CheckContextStream = StorageResponseStream<v1::CheckContextResponse>;

    async fn check_context(
        &self,
        request: Request<v1::CheckContextRequest>,
    ) -> Result<Response<Self::CheckContextStream>, Status> {
        // The policy lets nobody else in.
        if who(Caller::of(&request)?)?.is_some() {
            return Err(Error::NotAllowed("actors do not check contexts".to_owned()).into());
        }
        Ok(Response::new(self.begin_check(request.into_inner()).await?))
    }

    async fn delete_context(
        &self,
        request: Request<v1::DeleteContextRequest>,
    ) -> Result<Response<v1::DeleteContextResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = required::missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        violations.into_result(Some(())).map_err(Error::from)?;
        let v1::DeleteContextRequest { request_id: _, context_id, expected_revision } = body;
        let expected = (expected_revision != 0).then_some(Revision(expected_revision));
        let (id, actor) = ((ContextId(context_id), expected), who(caller)?);
        tokio::select! {
            () = self.stop.cancelled() => {
                let message = "storage is ending; the removal goes on: ask again";
                Err(::rpc::Error::unavailable(::rpc::RpcReason::Draining, message).into())
            }
            removed = self.removals.remove(id, actor, repeatable.as_ref(), Timestamp::now()) => {
                removed?;
                Ok(Response::new(v1::DeleteContextResponse {}))
            }
        }
    }
}

fn usage_to_wire(entry: UsageEntry) -> v1::ContextUsageEntry {
    let UsageEntry { kind, count, count_max, bytes, bytes_max, is_estimated } = entry;
    let kind = match kind {
        UsageKind::FlowsOpen => v1::ContextUsageKind::FlowsOpen,
        UsageKind::JobsOpen => v1::ContextUsageKind::JobsOpen,
        UsageKind::FlowsEnded => v1::ContextUsageKind::FlowsEnded,
        UsageKind::JobsStored => v1::ContextUsageKind::JobsStored,
        UsageKind::Messages => v1::ContextUsageKind::Messages,
        UsageKind::Events => v1::ContextUsageKind::Events,
        UsageKind::Audit => v1::ContextUsageKind::Audit,
        UsageKind::Blobs => v1::ContextUsageKind::Blobs,
        UsageKind::Runners => v1::ContextUsageKind::Runners,
        UsageKind::Requests => v1::ContextUsageKind::Requests,
    };
    v1::ContextUsageEntry { kind: kind.into(), count, count_max, bytes, bytes_max, is_estimated }
}

fn entry_to_wire(entry: audit::StoredAuditEntry) -> v1::AuditEntry {
    let audit::StoredAuditEntry { time, identity, action, object, revision, request_id } = entry;
    let time = Some(convert::time::to_wire(time));
    v1::AuditEntry { time, identity, action, object, revision, request_id }
}
