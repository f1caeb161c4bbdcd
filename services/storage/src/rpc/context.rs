//! ContextService.

use ::rpc::Caller;
use identity::Identity;
use model::{ContextId, Role, Timestamp, Violations};
use proto::convert;
use proto::v1;
use proto::v1::context_service_server::ContextService;
use tonic::{Request, Response, Status};

use super::status::checked;
use super::{Rpc, request_of};
use crate::error::Error;

#[tonic::async_trait]
impl ContextService for Rpc {
    async fn create_context(
        &self,
        request: Request<v1::CreateContextRequest>,
    ) -> Result<Response<v1::CreateContextResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let new = convert::context::from_create(body).map_err(Error::from)?;
        let repeatable = checked(violations, repeatable)?;
        let store = self.hub.store();
        let context =
            store.create_context(new, caller.actor(), repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::CreateContextResponse { context: Some(convert::context::to_wire(&context)) }))
    }

    async fn get_context(
        &self,
        request: Request<v1::GetContextRequest>,
    ) -> Result<Response<v1::GetContextResponse>, Status> {
        let caller = Caller::of(&request)?;
        let id = ContextId(request.into_inner().id);
        let (_, context) = self.hub.store().context(id).await?;
        if caller.identity() != Identity::Admin {
            let actor = caller.actor().ok_or_else(|| Error::not_found("context", id))?;
            context.require(actor, Role::Reader).map_err(Error::from)?;
        }
        Ok(Response::new(v1::GetContextResponse { context: Some(convert::context::to_wire(&context)) }))
    }

    async fn delete_context(
        &self,
        request: Request<v1::DeleteContextRequest>,
    ) -> Result<Response<v1::DeleteContextResponse>, Status> {
        let caller = Caller::of(&request)?;
        let v1::DeleteContextRequest { context_id, .. } = request.into_inner();
        let id = ContextId(context_id);
        let actor = match caller.identity() {
            Identity::Admin => None,
            _ => Some(caller.actor().ok_or_else(|| Error::not_found("context", id))?),
        };
        tokio::select! {
            () = self.stop.cancelled() => {
                let message = "storage is ending; the removal goes on: ask again";
                Err(::rpc::Error::unavailable(::rpc::Reason::Draining, message).into())
            }
            removed = self.removals.remove(id, actor, Timestamp::now()) => {
                removed?;
                Ok(Response::new(v1::DeleteContextResponse {}))
            }
        }
    }
}
