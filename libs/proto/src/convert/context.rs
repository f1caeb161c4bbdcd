//! Contexts.

use std::collections::BTreeSet;

use model::context::ContextSettings;
use model::{ActorId, ContextId, Violations};

use crate::convert::{enums, time};
use crate::v1;

/// To the wire.
#[must_use]
pub fn to_wire(context: &model::Context) -> v1::Context {
    let model::Context {
        id,
        uid,
        state,
        admins,
        readers,
        executors,
        settings,
        created_at,
        updated_at,
        revision,
    } = context;
    let numbers = |set: &BTreeSet<ActorId>| set.iter().map(|id| id.0).collect();
    v1::Context {
        id: id.0,
        uid: uid.to_string(),
        state: enums::context_state_to_wire(*state).into(),
        admins: numbers(admins),
        readers: numbers(readers),
        executors: numbers(executors),
        settings: Some(v1::ContextSettings {
            executors_may_submit: settings.executors_may_submit,
            raw_publish: settings.raw_publish,
            require_signed_messages: settings.require_signed_messages,
        }),
        create_time: Some(time::to_wire(*created_at)),
        update_time: Some(time::to_wire(*updated_at)),
        revision: revision.0,
    }
}

/// What a creation asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewContext {
    /// The wished id.
    pub id: Option<ContextId>,
    /// May do everything, besides whoever creates it.
    pub admins: BTreeSet<ActorId>,
    /// May look.
    pub readers: BTreeSet<ActorId>,
    /// May run.
    pub executors: BTreeSet<ActorId>,
    /// Its switches.
    pub settings: ContextSettings,
}

/// Parses a creation.
///
/// # Errors
/// Everything that is wrong with it.
pub fn from_create(request: v1::CreateContextRequest) -> Result<NewContext, Violations> {
    let v1::CreateContextRequest { request_id: _, id, admins, readers, executors, settings } = request;
    let mut violations = Violations::new();
    let mut members = |field: &str, numbers: Vec<u32>| {
        if numbers.contains(&0) {
            violations.add(field, "actor ids begin with 1");
        }
        numbers.into_iter().map(ActorId).collect()
    };
    let admins = members("admins", admins);
    let readers = members("readers", readers);
    let executors = members("executors", executors);
    let settings = settings.map_or_else(ContextSettings::default, |settings| ContextSettings {
        executors_may_submit: settings.executors_may_submit,
        raw_publish: settings.raw_publish,
        require_signed_messages: settings.require_signed_messages,
    });
    let id = (id != 0).then_some(ContextId(id));
    violations.into_result(Some(NewContext { id, admins, readers, executors, settings }))
}
