//! Actors.

use kv::Cmd;
use model::actor::ActorKey;
use model::{Actor, ActorId, Address, ContextId, Revision, Timestamp, limits};
use proto::convert::actor::ActorChange;

use crate::error::{Error, Result};
use crate::record::{self, Fields};
use crate::requests::{Request, hash_of};
use crate::scripts;
use crate::store::{ID_TRIES, Store};

/// An actor to be registered.
#[derive(Debug, Clone)]
pub(crate) struct NewActor {
    /// The wished id.
    pub(crate) id: Option<ActorId>,
    /// Ed25519 public key in hex.
    pub(crate) pubkey: String,
    /// Where messages to it can be delivered.
    pub(crate) address: Vec<Address>,
}

/// Actors are registered by the bootstrap identity, which has no id of its own.
const BOOTSTRAP: ActorId = ActorId(0);

impl Store {
    /// Keeps a new actor, or gives the one that the same request made before.
    pub(crate) async fn register_actor(
        &self,
        new: NewActor,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<Actor> {
        for _ in 0..ID_TRIES {
            let id = match new.id {
                Some(id) => id,
                None => ActorId(self.next_actor_id().await?),
            };
            let mut actor = Actor {
                id,
                pubkey: new.pubkey.clone(),
                address: new.address.clone(),
                keys: vec![ActorKey { key: new.pubkey.clone(), not_before: now, revoked_at: None }],
                home_context: None,
                created_at: now,
                updated_at: now,
                revision: Revision(0),
            };
            match self.register(&actor, request, now).await {
                Ok((true, revision)) => {
                    actor.revision = Revision(revision);
                    return Ok(actor);
                }
                Ok((false, then)) => {
                    return self.actor(ActorId(u32::try_from(then).unwrap_or_default())).await;
                }
                Err(Error::Store(kv::Error::Refused { code, message })) if code == "ACTOR_EXISTS" => {
                    if new.id.is_some() {
                        return Err(Error::Exists(format!("actor {id}")));
                    }
                    self.skip_actor_ids(message.parse().unwrap_or_default());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Exhausted("no free actor id was found; name one".to_owned()))
    }

    /// Whether it was made now, and its revision; else the id of the one made before.
    async fn register(
        &self,
        actor: &Actor,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<(bool, u64)> {
        let keys = self.keys();
        let mut touched = vec![keys.actor(actor.id), keys.actors(), keys.actor_keys()];
        touched.extend(request.map(|request| keys.request(BOOTSTRAP, &request.id)));
        let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
        let call = self
            .begin_global(&scripts::REGISTER_ACTOR, &touched, now)
            .arg(actor.id.0)
            .arg(hash_of(request))
            .arg(limits::REQUEST_ID_KEEP_SECS)
            .arg(&actor.pubkey)
            .args(record::actor::write(actor).args());
        let answer = self.call_global(call).await.map_err(|error| match error.code() {
            Some("REQUEST_ID_REUSED") => Error::RequestIdReused,
            _ => Error::Store(error),
        })?;
        let [made, value] = answer.tuple()?;
        Ok((made.int()? == 1, value.uint()?))
    }

    /// Changes where messages to an actor are delivered. `asker` is nobody for the bootstrap identity, else the
    /// actor itself.
    pub(crate) async fn update_actor(
        &self,
        change: &ActorChange,
        asker: Option<ActorId>,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<Actor> {
        let ActorChange { id, expected_revision, address, home_context } = change;
        if let Some(home) = home_context {
            self.check_home(*id, *home).await?;
        }
        let keys = self.keys();
        let mut touched = vec![keys.actor(*id), keys.actor_keys()];
        touched.extend(request.map(|request| keys.request(asker.unwrap_or(BOOTSTRAP), &request.id)));
        let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
        let change = self
            .begin_global(&scripts::UPDATE_ACTOR, &touched, now)
            .arg(id.0)
            .arg(&expected_revision.map(|revision| revision.to_string()).unwrap_or_default())
            .arg(&serde_json::to_string(address).expect("a list of texts is JSON"))
            .arg(&home_context.map(|home| home.to_string()).unwrap_or_default())
            .arg(hash_of(request))
            .arg(limits::REQUEST_ID_KEEP_SECS);
        let applied = self.apply_global(change).await;
        applied.map_err(|error| match (error.code(), &error) {
            (Some("REQUEST_ID_REUSED"), _) => Error::RequestIdReused,
            (Some("ACTOR_GONE"), _) => Error::not_found("actor", id),
            (Some("ACTOR_CHANGED"), kv::Error::Refused { message, .. }) => Error::Changed(message.clone()),
            _ => Error::Store(error),
        })?;
        self.actor(*id).await
    }

    /// Letters land only where their recipient may read them.
    async fn check_home(&self, actor: ActorId, home: ContextId) -> Result<()> {
        let role = match self.context(home).await {
            Ok((_, context)) => context.role_of(actor),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let no_role = || Error::field("home_context", format!("actor {actor} has no role in context {home}"));
        role.map(drop).ok_or_else(no_role)
    }

    /// Reads an actor.
    pub(crate) async fn actor(&self, id: ActorId) -> Result<Actor> {
        let key = self.keys().actor(id);
        let value = self.connection().cmd(Cmd::new("HGETALL").arg(&key)).await?;
        let fields = Fields::of_hash(&key, value)?.ok_or_else(|| Error::not_found("actor", id))?;
        Ok(record::actor::read(fields)?)
    }
}
