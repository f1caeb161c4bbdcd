//! `actor:<id>`

use model::actor::ActorKey;
use model::{Actor, ActorId, Revision, Timestamp};

use super::{FieldWriter, MalformedRecord, RecordFields};

/// Fields written for an actor, but for the revision.
pub(crate) fn write(actor: &Actor) -> FieldWriter {
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
    let mut written = FieldWriter::default();
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

/// Parses an actor. A record that a program wrote has neither keys nor a revision: the actor then has one key since its creation,
/// and this service has never changed it.
pub(crate) fn read(mut fields: RecordFields) -> Result<Actor, MalformedRecord> {
    Ok(Actor {
        id: fields.parse::<ActorId>("id")?,
        address: fields.json("address")?,
        keys: keys(&fields)?,
        home_context: fields.optional("home_context")?,
        created_at: fields.optional("created_at")?.unwrap_or_default(),
        updated_at: fields.optional("updated_at")?.unwrap_or_default(),
        certificates_not_before: fields.optional("certificates_not_before")?,
        deleted_at: fields.optional("deleted_at")?,
        revision: fields.optional("revision")?.unwrap_or(Revision(0)),
        pubkey: fields.text("pubkey"),
    })
}

/// Every key that the actor in these fields has or had.
pub(crate) fn keys(fields: &RecordFields) -> Result<Vec<ActorKey>, MalformedRecord> {
    if fields.has("keys") {
        return fields.json("keys");
    }
    let Some(key) = fields.optional::<String>("pubkey")? else { return Ok(Vec::new()) };
    let not_before: Option<Timestamp> = fields.optional("created_at")?;
    Ok(vec![ActorKey { key, not_before: not_before.unwrap_or_default(), revoked_at: None }])
}
