//! `actor:<id>`

use model::{Actor, ActorId};

use super::{BadRecord, Fields, Written};

/// What is written, but for the revision.
pub(crate) fn write(actor: &Actor) -> Written {
    let Actor {
        id,
        pubkey,
        address,
        keys,
        home_context,
        created_at,
        updated_at,
        certificates_not_before,
        deleted_at,
        revision: _,
    } = actor;
    let mut written = Written::default();
    written
        .text("id", id)
        .text("pubkey", pubkey)
        .json("address", address)
        .json("keys", keys)
        .optional("home_context", *home_context)
        .text("created_at", created_at)
        .text("updated_at", updated_at)
        .optional("certificates_not_before", *certificates_not_before)
        .optional("deleted_at", *deleted_at);
    written
}

/// The actor in these fields.
pub(crate) fn read(mut fields: Fields) -> Result<Actor, BadRecord> {
    Ok(Actor {
        id: fields.parse::<ActorId>("id")?,
        address: fields.json("address")?,
        keys: fields.json("keys")?,
        home_context: fields.optional("home_context")?,
        created_at: fields.parse("created_at")?,
        updated_at: fields.parse("updated_at")?,
        certificates_not_before: fields.optional("certificates_not_before")?,
        deleted_at: fields.optional("deleted_at")?,
        revision: fields.parse("revision")?,
        pubkey: fields.text("pubkey"),
    })
}
