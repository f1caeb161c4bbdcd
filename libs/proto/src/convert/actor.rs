//! Actors.

use model::actor::is_key;
use model::{ActorId, Address, ContextId, Revision, Violations, limits};
use prost::Message as _;

use crate::{convert::time, required, v1};

/// To the wire.
#[must_use]
pub fn to_wire(actor: &model::Actor) -> v1::Actor {
    let model::Actor {
        id,
        pubkey,
        address,
        keys,
        home_context,
        created_at,
        updated_at,
        certificates_not_before,
        deleted_at: _,
        revision,
    } = actor;
    v1::Actor {
        id: id.0,
        pubkey: pubkey.clone(),
        address: address.iter().map(ToString::to_string).collect(),
        home_context: home_context.map_or(0, |id| id.0),
        create_time: Some(time::to_wire(*created_at)),
        update_time: Some(time::to_wire(*updated_at)),
        revision: revision.0,
        keys: keys.iter().map(key_to_wire).collect(),
        certificates_not_before_time: certificates_not_before.map(time::to_wire),
    }
}

/// How many bytes it has on the wire.
#[must_use]
pub fn wire_bytes(actor: &model::Actor) -> usize {
    to_wire(actor).encoded_len()
}

fn key_to_wire(key: &model::actor::ActorKey) -> v1::ActorKey {
    let model::actor::ActorKey { key, not_before, revoked_at } = key;
    v1::ActorKey {
        key: key.clone(),
        not_before_time: Some(time::to_wire(*not_before)),
        revoke_time: revoked_at.map(time::to_wire),
    }
}

/// Registration of an actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewActor {
    /// The wished id.
    pub id: Option<ActorId>,
    /// Ed25519 public key, 64 lower-case hex digits.
    pub pubkey: String,
    /// Where messages to it can be delivered.
    pub address: Vec<Address>,
}

/// Parses a registration.
///
/// # Errors
/// Everything that is wrong with it.
pub fn from_register(request: v1::RegisterActorRequest) -> Result<NewActor, Violations> {
    let v1::RegisterActorRequest { request_id: _, id, pubkey, address } = request;
    let mut violations = Violations::new();
    if !is_key(&pubkey) {
        violations.add("pubkey", "an Ed25519 public key is written as 64 lower-case hex digits");
    }
    let address = addresses(&address, &mut violations);
    violations.into_result(Some(NewActor { id: (id != 0).then_some(ActorId(id)), pubkey, address }))
}

/// Change of an actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorChange {
    /// Which one.
    pub id: ActorId,
    /// The revision that the change builds on; nothing for any.
    pub expected_revision: Option<Revision>,
    /// Where messages to it can be delivered from now on.
    pub address: Vec<Address>,
    /// Where chat and mail to it land from now on.
    pub home_context: Option<ContextId>,
}

/// Parses a change.
///
/// # Errors
/// Everything that is wrong with it.
pub fn from_update(request: v1::UpdateActorRequest) -> Result<ActorChange, Violations> {
    let mut violations = required::missing(&request);
    let v1::UpdateActorRequest { request_id: _, id, expected_revision, address, home_context } = request;
    let address = addresses(&address, &mut violations);
    violations.into_result(Some(ActorChange {
        id: ActorId(id),
        expected_revision: (expected_revision != 0).then_some(Revision(expected_revision)),
        address,
        home_context: (home_context != 0).then_some(ContextId(home_context)),
    }))
}

/// Rotation of an actor's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRotation {
    /// Actor whose key is rotated.
    pub id: ActorId,
    /// The revision that the change builds on; nothing for any.
    pub expected_revision: Option<Revision>,
    /// The new Ed25519 public key, 64 lower-case hex digits.
    pub pubkey: String,
    /// How many seconds the former keys count beside it.
    pub overlap_secs: u32,
    /// Revokes the client certificates that were issued until now.
    pub revoke_certificates: bool,
}

/// Parses a rotation.
///
/// # Errors
/// Everything that is wrong with it.
pub fn from_rotate(request: v1::RotateActorKeyRequest) -> Result<KeyRotation, Violations> {
    let mut violations = required::missing(&request);
    let v1::RotateActorKeyRequest {
        request_id: _,
        id,
        expected_revision,
        pubkey,
        overlap_secs,
        revoke_certificates,
        // Checked by the caller, which knows keys.
        key_proof: _,
    } = request;
    if !is_key(&pubkey) {
        violations.add("pubkey", "an Ed25519 public key is written as 64 lower-case hex digits");
    }
    let max = limits::ACTOR_KEY_OVERLAP_SECS_MAX;
    if overlap_secs > max {
        violations.add("overlap_secs", format!("at most {max}, not {overlap_secs}"));
    }
    violations.into_result(Some(KeyRotation {
        id: ActorId(id),
        expected_revision: (expected_revision != 0).then_some(Revision(expected_revision)),
        pubkey,
        overlap_secs,
        revoke_certificates,
    }))
}

fn addresses(texts: &[String], violations: &mut Violations) -> Vec<Address> {
    if texts.len() > limits::ACTOR_ADDRESSES_MAX {
        let (max, count) = (limits::ACTOR_ADDRESSES_MAX, texts.len());
        violations.add("address", format!("an actor has at most {max} addresses, not {count}"));
        return Vec::new();
    }
    texts
        .iter()
        .enumerate()
        .filter_map(|(i, text)| violations.take(&format!("address[{i}]"), Address::from_input(text)))
        .collect()
}
