//! ActorService.

use ::rpc::Caller;
use identity::token::audience;
use identity::{Identity, SpiffeId};
use model::{ActorId, Timestamp, Violations};
use proto::convert;
use proto::v1;
use proto::v1::actor_service_server::ActorService;
use tonic::{Request, Response, Status};

use super::status::checked;
use super::{Rpc, request_of};
use crate::actors::NewActor;
use crate::error::Error;

#[tonic::async_trait]
impl ActorService for Rpc {
    async fn register_actor(
        &self,
        request: Request<v1::RegisterActorRequest>,
    ) -> Result<Response<v1::RegisterActorResponse>, Status> {
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let convert::actor::NewActor { id, pubkey, address } =
            convert::actor::from_register(body).map_err(Error::from)?;
        let repeatable = checked(violations, repeatable)?;
        let new = NewActor { id, pubkey, address };
        let actor = self.hub.store().register_actor(new, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::RegisterActorResponse { actor: Some(convert::actor::to_wire(&actor)) }))
    }

    async fn get_actor(
        &self,
        request: Request<v1::GetActorRequest>,
    ) -> Result<Response<v1::GetActorResponse>, Status> {
        let caller = Caller::of(&request)?;
        let id = ActorId(request.into_inner().id);
        // Others may not even learn that it exists.
        if caller.identity() != Identity::Admin && caller.actor() != Some(id) {
            return Err(Error::not_found("actor", id).into());
        }
        let actor = self.hub.store().actor(id).await?;
        Ok(Response::new(v1::GetActorResponse { actor: Some(convert::actor::to_wire(&actor)) }))
    }

    async fn update_actor(
        &self,
        request: Request<v1::UpdateActorRequest>,
    ) -> Result<Response<v1::UpdateActorResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        // Others may not even learn that it exists.
        if caller.identity() != Identity::Admin && caller.actor() != Some(ActorId(body.id)) {
            return Err(Error::not_found("actor", body.id).into());
        }
        let change = convert::actor::from_update(body).map_err(Error::from)?;
        let repeatable = checked(violations, repeatable)?;
        let store = self.hub.store();
        let actor =
            store.update_actor(&change, caller.actor(), repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::UpdateActorResponse { actor: Some(convert::actor::to_wire(&actor)) }))
    }

    async fn who_am_i(
        &self,
        request: Request<v1::WhoAmIRequest>,
    ) -> Result<Response<v1::WhoAmIResponse>, Status> {
        let caller = Caller::of(&request)?;
        let actor = match caller.actor() {
            None => None,
            Some(id) => match self.hub.store().actor(id).await {
                Ok(actor) => Some(convert::actor::to_wire(&actor)),
                // The certificate names an actor that was never registered: it is told who it is, no more.
                Err(Error::NotFound(_)) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let spiffe_id = SpiffeId::new((*self.trust_domain).clone(), caller.identity()).to_string();
        Ok(Response::new(v1::WhoAmIResponse {
            spiffe_id,
            actor,
            token_audience: audience(&self.trust_domain),
            expire_time: caller.expires_at().map(convert::time::to_wire),
            ..Default::default()
        }))
    }
}
