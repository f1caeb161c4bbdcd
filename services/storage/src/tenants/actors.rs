//! Actors.

use std::collections::BTreeSet;
use std::time::Duration;

use kv::{Cmd, Value};
use model::actor::ActorKey;
use model::{Actor, ActorId, Address, ContextId, Revision, Timestamp, limits};
use proto::convert::actor::{ActorChange, KeyRotation};

use crate::error::{Error, Result};
use crate::idempotency::{IdempotencyKey, hash_of, was_carried_out};
use crate::record::{self, FieldWriter, RecordFields};
use crate::scripts;
use crate::store::{ID_TRIES, PERMISSION_TRIES, Store};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::ContextAction;
use crate::tenants::roles::ACTORS_READ;

/// An actor to be registered.
#[derive(Debug, Clone)]
pub(crate) struct ActorRegistration {
    /// The wished id.
    pub(crate) id: Option<ActorId>,
    /// Ed25519 public key in hex.
    pub(crate) pubkey: String,
    /// Where messages to it can be delivered.
    pub(crate) address: Vec<Address>,
}

/// Actors are registered by the bootstrap identity, which has no id of its own.
pub(crate) const BOOTSTRAP: ActorId = ActorId(0);

/// A change of an actor that is about to be made.
struct ActorRecordUpdate<'a> {
    audit_record: AuditRecord,
    asker: Option<ActorId>,
    request: Option<&'a IdempotencyKey>,
    id: ActorId,
    /// The key in force from now on.
    pubkey: &'a str,
    /// The revision that it builds on; nothing for any.
    expected: Option<Revision>,
    fields: FieldWriter,
    /// Made where Redis is at its `maxmemory` as well: there is a bound to how often.
    may_be_full: bool,
}

impl Store {
    /// Stores a new actor, or returns the one that the same request created before.
    pub(crate) async fn register_actor(
        &self,
        new: ActorRegistration,
        request: Option<&IdempotencyKey>,
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
                certificates_not_before: None,
                deleted_at: None,
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
                    return self.actor_ever(ActorId(u32::try_from(then).unwrap_or_default())).await;
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
        Err(Error::no_free_id("actor"))
    }

    /// Returns true and the revision if the actor was made now, else false and the id of the one made before.
    pub(crate) async fn register(
        &self,
        actor: &Actor,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<(bool, u64)> {
        let keys = self.keys();
        let (record, actors, actor_keys) = (keys.actor(actor.id), keys.actors(), keys.actor_keys());
        let request_key = request.map(|request| keys.request(BOOTSTRAP, &request.id));
        let mut touched = scripts::REGISTER_ACTOR
            .keys([("actor", &record), ("actors", &actors), ("actor_keys", &actor_keys)])
            .to_vec();
        touched.extend(request_key.as_deref());
        let audit_record =
            AuditRecord::of(None, ContextAction::RegisterActor, format_args!("actor {}", actor.id))
                .with_request_id(request);
        let call = self
            .begin_global_by(Some(&audit_record), &scripts::REGISTER_ACTOR, &touched, now)
            .named(kv::named![
                actor: actor.id.0,
                request_hash: hash_of(request),
                request_secs: limits::REQUEST_ID_KEEP_SECS,
                public_key: &actor.pubkey,
            ])
            .args(record::actor::write(actor).args());
        let answer = self.call_global(call).await.map_err(|error| of_actor(error, actor.id))?;
        let [made, value] = answer.tuple()?;
        Ok((made.int()? == 1, value.uint()?))
    }

    /// Changes where messages to an actor are delivered. `asker` is `None` for the bootstrap identity, else the
    /// actor itself.
    pub(crate) async fn update_actor(
        &self,
        change: &ActorChange,
        asker: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Actor> {
        let ActorChange { id, expected_revision, address, home_context } = change;
        if self.was_carried_out(asker, request).await? {
            return self.actor_ever(*id).await;
        }
        if let Some(home) = home_context {
            self.check_home(*id, *home).await?;
        }
        let mut fields = FieldWriter::default();
        fields.json("address", address).optional("home_context", *home_context);
        let audit_record = AuditRecord::of(asker, ContextAction::UpdateActor, format_args!("actor {id}"))
            .with_request_id(request);
        let pubkey = self.actor(*id).await?.pubkey;
        let (pubkey, expected, may_be_full) = (&*pubkey, *expected_revision, asker.is_none());
        let change = ActorRecordUpdate {
            audit_record,
            asker,
            request,
            id: *id,
            pubkey,
            expected,
            fields,
            may_be_full,
        };
        self.change_actor(change, now).await?;
        self.actor_ever(*id).await
    }

    /// Puts another key of an actor in force. `asker` is `None` for the bootstrap identity, else the actor itself.
    pub(crate) async fn rotate_actor_key(
        &self,
        rotation: &KeyRotation,
        asker: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Actor> {
        let KeyRotation { id, expected_revision, pubkey, overlap_secs, revoke_certificates } = rotation;
        for _ in 0..PERMISSION_TRIES {
            let found = self.actor(*id).await;
            // Read after the actor, since a change records the request together with it.
            if self.was_carried_out(asker, request).await? {
                return self.actor_ever(*id).await;
            }
            let mut actor = found?;
            check_revision("actor", *id, actor.revision, *expected_revision)?;
            if asker.is_some() {
                check_pace(&actor, now)?;
            }
            rotate(&mut actor, pubkey, now, Duration::from_secs((*overlap_secs).into()))?;
            if *revoke_certificates {
                actor.certificates_not_before = Some(now);
            }
            let mut fields = FieldWriter::default();
            fields
                .text("pubkey", pubkey)
                .json("keys", &actor.keys)
                .optional("certificates_not_before", actor.certificates_not_before);
            let audit_record =
                AuditRecord::of(asker, ContextAction::RotateActorKey, format_args!("actor {id}"))
                    .with_request_id(request);
            let expected = Some(actor.revision);
            // Actors change their own keys only so often.
            let change = ActorRecordUpdate {
                audit_record,
                asker,
                request,
                id: *id,
                pubkey,
                expected,
                fields,
                may_be_full: true,
            };
            match self.change_actor(change, now).await {
                // The actor was changed concurrently.
                Err(Error::Changed(_)) => {}
                Err(error) => return Err(error),
                Ok(()) => return self.actor_ever(*id).await,
            }
        }
        Err(Error::Changed(format!("actor {id} changes again and again")))
    }

    /// Removes an actor, and then its roles. `asker` is `None` for the bootstrap identity, else the actor itself.
    ///
    /// # Errors
    /// [`Error::LastAdmin`] where it is the only admin of a context.
    pub(crate) async fn delete_actor(
        &self,
        id: ActorId,
        expected_revision: Option<Revision>,
        asker: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<()> {
        let audit_record = AuditRecord::of(asker, ContextAction::DeleteActor, format_args!("actor {id}"))
            .with_request_id(request);
        for _ in 0..PERMISSION_TRIES {
            let found = self.actor(id).await;
            // Read after the actor, since a removal records the request together with it.
            if self.was_carried_out(asker, request).await? {
                // The storage that handled the first request may have died before it removed the roles.
                return self.remove_roles(id, &audit_record, now).await;
            }
            let actor = found?;
            check_revision("actor", id, actor.revision, expected_revision)?;
            let administered = self.only_administered_by(id).await?;
            if !administered.is_empty() {
                return Err(Error::LastAdmin { actor: id, contexts: administered });
            }
            match self.bury(&actor, &audit_record, asker, request, now).await {
                Err(Error::Changed(_) | Error::NotFound(_)) => {}
                Err(error) => return Err(error),
                Ok(()) => return self.remove_roles(id, &audit_record, now).await,
            }
        }
        Err(Error::Changed(format!("actor {id} changes again and again")))
    }

    /// Finds other actors that have a key of this one. This can no longer happen, but earlier versions allowed it; messages to such
    /// a key go to those actors once this one is removed.
    async fn successors(&self, actor: &Actor) -> Result<Vec<(String, ActorId)>> {
        let keys: BTreeSet<&str> = actor.keys.iter().map(|key| key.key.as_str()).collect();
        let mut successors = Vec::new();
        for ids in self.all_actors().await?.chunks(ACTORS_READ) {
            for other in self.read_actors(ids).await?.into_iter().flatten() {
                if other.id != actor.id && other.deleted_at.is_none() && keys.contains(other.pubkey.as_str())
                {
                    successors.push((other.pubkey, other.id));
                }
            }
        }
        Ok(successors)
    }

    async fn bury(
        &self,
        actor: &Actor,
        audit_record: &AuditRecord,
        asker: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<()> {
        let (keys, successors) = (self.keys(), self.successors(actor).await?);
        let successors: Vec<String> =
            successors.into_iter().flat_map(|(key, successor)| [key, successor.to_string()]).collect();
        let (record, actors, actor_keys) = (keys.actor(actor.id), keys.actors(), keys.actor_keys());
        let request_key = request.map(|request| keys.request(asker.unwrap_or(BOOTSTRAP), &request.id));
        let mut touched = scripts::DELETE_ACTOR
            .keys([("actor", &record), ("actors", &actors), ("actor_keys", &actor_keys)])
            .to_vec();
        touched.extend(request_key.as_deref());
        let call = self
            .begin_global_by(Some(audit_record), &scripts::DELETE_ACTOR, &touched, now)
            .named(kv::named![
                actor: actor.id.0,
                expected_revision: actor.revision.0,
                request_hash: hash_of(request),
                request_secs: limits::REQUEST_ID_KEEP_SECS,
            ])
            .args(successors.iter().map(String::as_str));
        self.apply_global(call).await.map_err(|error| of_actor(error, actor.id))?;
        Ok(())
    }

    async fn change_actor(&self, change: ActorRecordUpdate<'_>, now: Timestamp) -> Result<()> {
        let ActorRecordUpdate { audit_record, asker, request, id, pubkey, expected, fields, may_be_full } =
            change;
        let keys = self.keys();
        let mut touched = vec![keys.actor(id), keys.actor_keys()];
        touched.extend(request.map(|request| keys.request(asker.unwrap_or(BOOTSTRAP), &request.id)));
        let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
        let call = self
            .begin_global_by(Some(&audit_record), &scripts::CHANGE_ACTOR, &touched, now)
            .named(kv::named![
                actor: id.0,
                expected_revision: &expected.map(|revision| revision.to_string()).unwrap_or_default(),
                request_hash: hash_of(request),
                request_secs: limits::REQUEST_ID_KEEP_SECS,
                public_key: pubkey,
                room: if may_be_full { "reserve" } else { "" },
            ])
            .args(fields.args());
        self.apply_global(call).await.map_err(|error| of_actor(error, id))?;
        Ok(())
    }

    /// Returns true if a request that concerns no context was carried out before. Fails when it had another body then.
    pub(crate) async fn was_carried_out(
        &self,
        asker: Option<ActorId>,
        request: Option<&IdempotencyKey>,
    ) -> Result<bool> {
        let key = request.map(|request| self.keys().request(asker.unwrap_or(BOOTSTRAP), &request.id));
        was_carried_out(self.connection(), key.as_deref(), request).await
    }

    /// Checks a home context: messages are delivered only where their recipient may read them.
    async fn check_home(&self, actor: ActorId, home: ContextId) -> Result<()> {
        let role = match self.context(home).await {
            Ok((_, context)) => context.role_of(actor),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let no_role = || Error::field("home_context", format!("actor {actor} has no role in context {home}"));
        role.map(drop).ok_or_else(no_role)
    }

    /// Reads an actor that was not removed.
    pub(crate) async fn actor(&self, id: ActorId) -> Result<Actor> {
        let actor = self.actor_ever(id).await?;
        if actor.deleted_at.is_some() { Err(Error::not_found("actor", id)) } else { Ok(actor) }
    }

    /// Reads an actor, or what is left of one that was removed.
    pub(crate) async fn actor_ever(&self, id: ActorId) -> Result<Actor> {
        let key = self.keys().actor(id);
        let value = self.connection().cmd(Cmd::new("HGETALL").arg(&key)).await;
        self.actor_of(id, value.map_err(|error| Error::of_record(error, key))?)?
            .ok_or_else(|| Error::not_found("actor", id))
    }

    /// The actor in the answer to `HGETALL`.
    pub(crate) fn actor_of(&self, id: ActorId, value: Value) -> Result<Option<Actor>> {
        let key = self.keys().actor(id);
        let Some(fields) = RecordFields::of_hash(&key, value)? else { return Ok(None) };
        let actor = record::actor::read(fields)?;
        record::check_id(key, actor.id, id)?;
        Ok(Some(actor))
    }
}

fn of_actor(error: kv::Error, id: ActorId) -> Error {
    match (error.code(), &error) {
        (Some("REQUEST_ID_REUSED"), _) => Error::RequestIdReused,
        (Some("ACTOR_GONE"), _) => Error::not_found("actor", id),
        (Some("ACTOR_CHANGED"), kv::Error::Refused { message, .. }) => Error::Changed(message.clone()),
        (Some("KEY_TAKEN"), kv::Error::Refused { message, .. }) => Error::field("pubkey", message),
        _ => Error::Store(error),
    }
}

/// Fails when a record is not at the revision that its change expects.
pub(crate) fn check_revision(
    kind: &str,
    id: impl std::fmt::Display,
    revision: Revision,
    expected: Option<Revision>,
) -> Result<()> {
    match expected {
        Some(expected) if expected != revision => {
            Err(Error::Changed(format!("{kind} {id} is at revision {revision}")))
        }
        _ => Ok(()),
    }
}

/// Bounds the keys that an actor gives itself in a period: past keys are never forgotten, and new keys are free.
fn check_pace(actor: &Actor, now: Timestamp) -> Result<()> {
    let span = Duration::from_secs(limits::ACTOR_KEYS_SPAN_SECS.into());
    // The recent keys are all remembered: keys that expired longest ago are forgotten first.
    let recent = actor.keys.iter().filter(|key| key.not_before + span > now).count();
    if recent >= limits::ACTOR_KEYS_KEPT_MAX {
        let (max, requested) = (limits::ACTOR_KEYS_KEPT_MAX as u64, recent as u64 + 1);
        return Err(Error::Limit { limit: "keys that an actor gives itself within 30 days", max, requested });
    }
    Ok(())
}

/// Puts another key in force, unless the actor ever had it: a revoked key never becomes valid again.
fn rotate(actor: &mut Actor, key: &str, now: Timestamp, overlap: Duration) -> Result<()> {
    if actor.keys.iter().any(|known| known.key == key) {
        return Err(Error::field(
            "pubkey",
            format!("actor {} has, or had, this key: make a new one", actor.id),
        ));
    }
    actor.rotate(key.to_owned(), now, now + overlap);
    let living = actor.keys.iter().filter(|key| !key.is_over(now)).count();
    if living > limits::ACTOR_KEYS_MAX {
        let (max, requested) = (limits::ACTOR_KEYS_MAX as u64, living as u64);
        return Err(Error::Limit { limit: "keys of an actor that are in force", max, requested });
    }
    // Keys that expired longest ago are forgotten first.
    while actor.keys.len() > limits::ACTOR_KEYS_KEPT_MAX {
        let Some(oldest) = actor.keys.iter().position(|key| key.is_over(now)) else { break };
        actor.keys.remove(oldest);
    }
    Ok(())
}
