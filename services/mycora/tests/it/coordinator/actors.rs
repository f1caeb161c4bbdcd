//! Actor 1, which we are. There is no actor 3.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use identity::{ActorVerifyingKey, VerifyingKey};
use model::{ActorId, ContextId, Role, Timestamp};
use proto::v1;
use proto::v1::actor_service_server::ActorService;
use rpc::{Directory, DirectoryFeedState, DirectorySubject, KnownActor, Membership};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::ScriptedServices;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Actor 1 has one key, and every token counts once where it is spent.
#[derive(Debug)]
pub(super) struct KnownActors {
    key: ActorVerifyingKey,
    spent: Mutex<HashSet<String>>,
    hearing: watch::Sender<DirectoryFeedState>,
}

impl KnownActors {
    pub(super) fn new(key: VerifyingKey) -> Self {
        let key = ActorVerifyingKey { key, not_before: Timestamp::default(), revoked_at: None };
        Self { key, spent: Mutex::default(), hearing: watch::Sender::new(DirectoryFeedState::Live) }
    }
}

impl Directory for KnownActors {
    fn actor(&self, id: ActorId) -> Answer<'_, Result<Option<Arc<KnownActor>>, Status>> {
        let known = KnownActor { keys: vec![self.key], certificates_not_before: None };
        Box::pin(std::future::ready(Ok((id == ActorId(1)).then(|| Arc::new(known)))))
    }

    fn membership(&self, _: ContextId, _: ActorId) -> Answer<'_, Result<Membership, Status>> {
        let membership = Membership { role: Some(Role::Admin), is_deleting: false };
        Box::pin(std::future::ready(Ok(membership)))
    }

    fn consume_token(&self, _: ActorId, token_id: String, _: Timestamp) -> Answer<'_, Result<bool, Status>> {
        let fresh = self.spent.lock().unwrap_or_else(PoisonError::into_inner).insert(token_id);
        Box::pin(std::future::ready(Ok(fresh)))
    }

    fn changes(&self, _: DirectorySubject) -> watch::Receiver<DirectoryFeedState> {
        self.hearing.subscribe()
    }
}

fn actor() -> v1::Actor {
    v1::Actor {
        id: 1,
        pubkey: "cd".repeat(32),
        address: vec!["grpc://old:1".into()],
        home_context: 1,
        revision: 9,
        ..Default::default()
    }
}

#[tonic::async_trait]
impl ActorService for ScriptedServices {
    async fn register_actor(
        &self,
        request: Request<v1::RegisterActorRequest>,
    ) -> Result<Response<v1::RegisterActorResponse>, Status> {
        let v1::RegisterActorRequest { request_id: _, id, pubkey, address } = request.into_inner();
        self.call(&format!("register {id} {} {}", &pubkey[..8], address.join(",")));
        if id == 1 {
            return Err(Status::already_exists("actor 1 exists already"));
        }
        let actor = Some(v1::Actor { id: 2, pubkey, address, ..Default::default() });
        Ok(Response::new(v1::RegisterActorResponse { actor }))
    }

    /// Two pages.
    async fn list_actors(
        &self,
        request: Request<v1::ListActorsRequest>,
    ) -> Result<Response<v1::ListActorsResponse>, Status> {
        let v1::ListActorsRequest { page_size, page_token, context_id } = request.into_inner();
        self.call(&format!("actors of {context_id}: {page_size} from `{page_token}`"));
        let (actors, next) = match page_token.as_str() {
            "" => (vec![actor()], "second"),
            _ => (vec![v1::Actor { id: 2, ..actor() }], ""),
        };
        Ok(Response::new(v1::ListActorsResponse { actors, next_page_token: next.to_owned() }))
    }

    async fn rotate_actor_key(
        &self,
        request: Request<v1::RotateActorKeyRequest>,
    ) -> Result<Response<v1::RotateActorKeyResponse>, Status> {
        let v1::RotateActorKeyRequest {
            request_id: _,
            id,
            expected_revision,
            pubkey,
            overlap_secs,
            revoke_certificates,
            key_proof: _,
        } = request.into_inner();
        let key = &pubkey[..8];
        self.call(&format!("rotate {id} {expected_revision} {key} {overlap_secs} {revoke_certificates}"));
        let actor = Some(v1::Actor { pubkey, ..actor() });
        Ok(Response::new(v1::RotateActorKeyResponse { actor }))
    }

    async fn delete_actor(
        &self,
        request: Request<v1::DeleteActorRequest>,
    ) -> Result<Response<v1::DeleteActorResponse>, Status> {
        let id = request.into_inner().id;
        self.call(&format!("delete actor {id}"));
        Ok(Response::new(v1::DeleteActorResponse {}))
    }

    async fn get_actor(
        &self,
        request: Request<v1::GetActorRequest>,
    ) -> Result<Response<v1::GetActorResponse>, Status> {
        match request.into_inner().id {
            1 => Ok(Response::new(v1::GetActorResponse { actor: Some(actor()) })),
            id => Err(Status::not_found(format!("actor {id} was not found"))),
        }
    }

    async fn update_actor(
        &self,
        request: Request<v1::UpdateActorRequest>,
    ) -> Result<Response<v1::UpdateActorResponse>, Status> {
        let v1::UpdateActorRequest { request_id: _, id, expected_revision, address, home_context } =
            request.into_inner();
        self.call(&format!("update {id} {expected_revision} {} {home_context}", address.join(",")));
        let actor = Some(v1::Actor { address, home_context, ..actor() });
        Ok(Response::new(v1::UpdateActorResponse { actor }))
    }

    async fn who_am_i(&self, _: Request<v1::WhoAmIRequest>) -> Result<Response<v1::WhoAmIResponse>, Status> {
        let spiffe_id = "spiffe://mycora/actor/1".to_owned();
        let roles = vec![v1::ContextRole { context_id: 1, role: "admin".into() }];
        Ok(Response::new(v1::WhoAmIResponse { spiffe_id, actor: Some(actor()), roles, ..Default::default() }))
    }
}
