//! ActorService.

use ::rpc::Caller;
use identity::token::audience;
use identity::{SpiffeId, TrustDomain, VerifyingKey, key_proof};
use model::actor::is_key;
use model::{ActorId, ContextId, Revision, Timestamp, Violations};
use proto::convert;
use proto::v1::actor_service_server::ActorService;
use proto::{required, v1};
use tonic::{Request, Response, Status};

use super::status::checked;
use super::{StorageRpc, request_of, who};
use crate::error::Error;
use crate::pages::PageRequest;
use crate::tenants::actors::ActorRegistration;
use crate::tenants::permission;

/// Checks that a well-formed key is not a weak one, for which anyone could sign.
fn check_key(key: &str, violations: &mut Violations) {
    if is_key(key) {
        violations.take("pubkey", key.parse::<VerifyingKey>());
    }
}

/// Checks that an actor that sets its key holds that key, which identifies the actor from then on. The bootstrap
/// identity, which is no actor here, may name a key that it does not hold.
fn check_proof(
    proof: &str,
    asker: Option<ActorId>,
    body: &v1::RotateActorKeyRequest,
    trust_domain: &TrustDomain,
    violations: &mut Violations,
) {
    // The key has its violation already.
    let Ok(key) = body.pubkey.parse::<VerifyingKey>() else { return };
    if !proof.is_empty() {
        let proven = key_proof::check(proof, key, trust_domain, ActorId(body.id), Timestamp::now());
        violations.take("key_proof", proven);
    } else if asker.is_some() {
        let message = "prove that you hold the new key: `mycora actor rotate-key --new-key` adds the proof";
        violations.add("key_proof", message);
    }
}

/// Returns the actor that requests the change; `None` for the bootstrap identity. Others do not learn that the actor exists.
fn changer(caller: Caller, id: u32) -> Result<Option<ActorId>, Error> {
    if id == 0 {
        // The permission cannot be checked without an id.
        return Err(Error::field("id", "is missing: it has to be given"));
    }
    let asker = who(caller).map_err(|_| Error::not_found("actor", id))?;
    if permission::may_change_actor(asker, ActorId(id)) {
        Ok(asker)
    } else {
        Err(Error::not_found("actor", id))
    }
}

#[tonic::async_trait]
impl ActorService for StorageRpc {
    async fn register_actor(
        &self,
        request: Request<v1::RegisterActorRequest>,
    ) -> Result<Response<v1::RegisterActorResponse>, Status> {
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        check_key(&body.pubkey, &mut violations);
        let new = violations.absorb(convert::actor::from_register(body));
        self.check_addresses(new.iter().flat_map(|new| &new.address), &mut violations);
        let convert::actor::NewActor { id, pubkey, address } =
            violations.into_result(new).map_err(Error::from)?;
        let new = ActorRegistration { id, pubkey, address };
        let actor = self.hub.store().register_actor(new, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::RegisterActorResponse { actor: Some(convert::actor::to_wire(&actor)) }))
    }

    async fn get_actor(
        &self,
        request: Request<v1::GetActorRequest>,
    ) -> Result<Response<v1::GetActorResponse>, Status> {
        let caller = Caller::of(&request)?;
        let body = request.into_inner();
        required::check(&body).map_err(Error::from)?;
        let id = ActorId(body.id);
        let store = self.hub.store();
        // An actor that shares no context with it must not even learn that it exists.
        let is_known = match who(caller)? {
            Some(asker) if asker != id => store.knows(asker, id).await?,
            _ => true,
        };
        if !is_known {
            return Err(Error::not_found("actor", id).into());
        }
        let actor = store.actor(id).await?;
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
        let asker = changer(caller, body.id)?;
        let change = violations.absorb(convert::actor::from_update(body));
        self.check_addresses(change.iter().flat_map(|change| &change.address), &mut violations);
        let change = violations.into_result(change).map_err(Error::from)?;
        let store = self.hub.store();
        let actor = store.update_actor(&change, asker, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::UpdateActorResponse { actor: Some(convert::actor::to_wire(&actor)) }))
    }

    async fn rotate_actor_key(
        &self,
        request: Request<v1::RotateActorKeyRequest>,
    ) -> Result<Response<v1::RotateActorKeyResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let proof = std::mem::take(&mut body.key_proof);
        let mut violations = Violations::new();
        let repeatable = request_of(&request_id, &body, &mut violations);
        let asker = changer(caller, body.id)?;
        let store = self.hub.store();
        check_key(&body.pubkey, &mut violations);
        // A repeated request needs no proof again; by now its proof may be too old.
        if !store.was_carried_out(asker, repeatable.as_ref()).await? {
            check_proof(&proof, asker, &body, &self.trust_domain, &mut violations);
        }
        let rotation = violations.absorb(convert::actor::from_rotate(body));
        let rotation = violations.into_result(rotation).map_err(Error::from)?;
        let actor = store.rotate_actor_key(&rotation, asker, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::RotateActorKeyResponse { actor: Some(convert::actor::to_wire(&actor)) }))
    }

    async fn delete_actor(
        &self,
        request: Request<v1::DeleteActorRequest>,
    ) -> Result<Response<v1::DeleteActorResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut body = request.into_inner();
        let request_id = std::mem::take(&mut body.request_id);
        let mut violations = required::missing(&body);
        let repeatable = request_of(&request_id, &body, &mut violations);
        let v1::DeleteActorRequest { request_id: _, id, expected_revision } = body;
        let asker = changer(caller, id)?;
        violations.into_result(Some(())).map_err(Error::from)?;
        let expected = (expected_revision != 0).then_some(Revision(expected_revision));
        let store = self.hub.store();
        store.delete_actor(ActorId(id), expected, asker, repeatable.as_ref(), Timestamp::now()).await?;
        Ok(Response::new(v1::DeleteActorResponse {}))
    }

    async fn list_actors(
        &self,
        request: Request<v1::ListActorsRequest>,
    ) -> Result<Response<v1::ListActorsResponse>, Status> {
        let asker = who(Caller::of(&request)?)?;
        let v1::ListActorsRequest { page_size, page_token, context_id } = request.into_inner();
        let mut violations = Violations::new();
        let page = PageRequest::parse(page_size, &page_token, &mut violations);
        let page = checked(violations, page)?;
        let context = (context_id != 0).then_some(ContextId(context_id));
        let (actors, next_page_token) = self.hub.store().list_actors(asker, context, &page).await?;
        let actors = actors.iter().map(convert::actor::to_wire).collect();
        Ok(Response::new(v1::ListActorsResponse { actors, next_page_token }))
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
                // The certificate names an actor that was never registered: the answer has its identity only.
                Err(Error::NotFound(_)) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let (roles, roles_truncated) = match caller.actor() {
            Some(id) => self.hub.store().roles_of(id).await?,
            None => (Vec::new(), false),
        };
        let roles = roles
            .into_iter()
            .map(|(context, role)| v1::ContextRole { context_id: context.0, role: role.to_string() });
        let spiffe_id = SpiffeId::new((*self.trust_domain).clone(), caller.identity()).to_string();
        Ok(Response::new(v1::WhoAmIResponse {
            spiffe_id,
            actor,
            roles: roles.collect(),
            roles_truncated,
            token_audience: audience(&self.trust_domain),
            expire_time: caller.expires_at().map(convert::time::to_wire),
        }))
    }
}
