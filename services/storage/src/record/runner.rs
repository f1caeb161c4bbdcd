//! `runner:<id>`

use model::{EnvelopeForm, Runner};

use super::{BadRecord, Fields, Written};

/// What is written, but for the revision.
pub(crate) fn write(runner: &Runner) -> Written {
    let Runner {
        id,
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
        created_at,
        updated_at,
        revision: _,
    } = runner;
    let mut written = Written::default();
    written
        .text("id", id)
        .text("pubkey", pubkey)
        .text("address", address)
        .text("topic", topic)
        .text("signing_key", signing_key)
        .json("script_types", script_types)
        .optional("group", group.as_ref())
        .json("labels", labels)
        .text("local", local)
        .text("envelope", envelope.as_str())
        .text("secret_ref", secret_ref)
        .text("created_at", created_at)
        .text("updated_at", updated_at);
    written
}

/// The runner in these fields.
pub(crate) fn read(mut fields: Fields) -> Result<Runner, BadRecord> {
    Ok(Runner {
        id: fields.parse("id")?,
        address: fields.parse("address")?,
        script_types: fields.json("script_types")?,
        group: fields.optional("group")?,
        labels: fields.json("labels")?,
        local: fields.flag("local"),
        created_at: fields.parse("created_at")?,
        updated_at: fields.parse("updated_at")?,
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
