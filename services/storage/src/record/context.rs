//! `context:<id>`

use model::Context;

use super::{FieldWriter, MalformedRecord, RecordFields};

/// Fields written for a context, but for the revision.
pub(crate) fn write(context: &Context) -> FieldWriter {
    let Context { id, uid, state, admins, readers, executors, settings, created_at, updated_at, revision: _ } =
        context;
    let mut written = FieldWriter::default();
    written
        .text("id", id)
        .text("uid", uid)
        .text("state", state.as_str())
        .json("admins", admins)
        .json("readers", readers)
        .json("executors", executors)
        .json("settings", settings)
        .text("created_at", created_at)
        .text("updated_at", updated_at);
    written
}

/// The context in these fields.
pub(crate) fn read(fields: &RecordFields) -> Result<Context, MalformedRecord> {
    Ok(Context {
        id: fields.parse("id")?,
        uid: fields.parse("uid")?,
        state: fields.parse("state")?,
        admins: fields.json("admins")?,
        readers: fields.json("readers")?,
        executors: fields.json("executors")?,
        settings: fields.json("settings")?,
        created_at: fields.parse("created_at")?,
        updated_at: fields.parse("updated_at")?,
        revision: fields.parse("revision")?,
    })
}
