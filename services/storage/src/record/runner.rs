//! `runner:<id>`

use model::{EnvelopeForm, Runner};

use super::{FieldWriter, MalformedRecord, RecordFields};

/// Fields written for a runner, but for the revision.
pub(crate) fn write(runner: &Runner) -> FieldWriter {
    let Runner { id, created_at, updated_at, drained_at, deleted_at, .. } = runner;
    let mut written = write_values(runner);
    written
        .text("id", id)
        .text("created_at", created_at)
        .text("updated_at", updated_at)
        .optional("drained_at", drained_at.as_ref())
        .optional("deleted_at", deleted_at.as_ref());
    written
}

/// Fields that describe a runner and may be changed.
pub(crate) fn write_values(runner: &Runner) -> FieldWriter {
    let Runner {
        id: _,
        pubkey,
        address,
        topic,
        signing_key,
        script_types,
        group,
        labels,
        local,
        envelope,
        secret_ref,
        created_at: _,
        updated_at: _,
        drained_at: _,
        deleted_at: _,
        revision: _,
    } = runner;
    let mut written = FieldWriter::default();
    written
        .text("pubkey", pubkey)
        .text("address", address)
        .text("topic", topic)
        .text("signing_key", signing_key)
        .json("script_types", script_types)
        .optional("group", group.as_ref())
        .json("labels", labels)
        .text("local", local)
        .text("envelope", envelope.as_str())
        .text("secret_ref", secret_ref);
    written
}

/// The runner in these fields.
pub(crate) fn read(mut fields: RecordFields) -> Result<Runner, MalformedRecord> {
    Ok(Runner {
        id: fields.parse("id")?,
        address: fields.parse("address")?,
        script_types: fields.json("script_types")?,
        group: fields.optional("group")?,
        labels: fields.json("labels")?,
        local: fields.flag("local"),
        created_at: fields.parse("created_at")?,
        updated_at: fields.parse("updated_at")?,
        drained_at: fields.optional("drained_at")?,
        deleted_at: fields.optional("deleted_at")?,
        revision: fields.parse("revision")?,
        pubkey: fields.text("pubkey"),
        topic: fields.text("topic"),
        signing_key: fields.text("signing_key"),
        envelope: match fields.text("envelope").as_str() {
            "" | "signed" => EnvelopeForm::Signed,
            "plain" => EnvelopeForm::Plain,
            other => return Err(fields.bad("envelope", other)),
        },
        secret_ref: fields.text("secret_ref"),
    })
}
