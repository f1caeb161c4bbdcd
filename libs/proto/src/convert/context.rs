//! Contexts.

use std::collections::BTreeSet;

use model::context::ContextSettings;
use model::{ActorId, ContextId, ContextRetention, Revision, Violations, limits};

use crate::convert::{enums, time};
use crate::required::Required as _;
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
            retention: Some(retention_to_wire(settings.retention)),
        }),
        create_time: Some(time::to_wire(*created_at)),
        update_time: Some(time::to_wire(*updated_at)),
        revision: revision.0,
    }
}

/// Creation of a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewContext {
    /// The wished id.
    pub id: Option<ContextId>,
    /// May do everything, besides its creator.
    pub admins: BTreeSet<ActorId>,
    /// May look.
    pub readers: BTreeSet<ActorId>,
    /// May run.
    pub executors: BTreeSet<ActorId>,
    /// Settings of the context.
    pub settings: ContextSettings,
}

/// Change of a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextChange {
    /// Which one.
    pub id: ContextId,
    /// The revision that the change builds on; nothing for any.
    pub expected_revision: Option<Revision>,
    /// May do everything from now on; nothing: as before.
    pub admins: Option<BTreeSet<ActorId>>,
    /// May look.
    pub readers: Option<BTreeSet<ActorId>>,
    /// May run.
    pub executors: Option<BTreeSet<ActorId>>,
    /// Settings of the context.
    pub settings: Option<ContextSettings>,
}

/// Parses a change, and notes everything that is wrong with it.
pub fn from_update(request: v1::UpdateContextRequest, violations: &mut Violations) -> ContextChange {
    request.note_missing(violations);
    let v1::UpdateContextRequest {
        request_id: _,
        context_id,
        expected_revision,
        admins,
        readers,
        executors,
        settings,
    } = request;
    let mut list = |field: &str, list: Option<v1::ActorList>| {
        list.map(|v1::ActorList { ids }| members(&format!("{field}.ids"), ids, violations))
    };
    let admins = list("admins", admins);
    let readers = list("readers", readers);
    let executors = list("executors", executors);
    ContextChange {
        id: ContextId(context_id),
        expected_revision: (expected_revision != 0).then_some(Revision(expected_revision)),
        admins,
        readers,
        executors,
        settings: settings.map(settings_of),
    }
}

fn members(field: &str, numbers: Vec<u32>, violations: &mut Violations) -> BTreeSet<ActorId> {
    if numbers.contains(&0) {
        violations.add(field, "actor ids begin with 1");
    }
    let (max, count) = (limits::CONTEXT_MEMBERS_MAX, numbers.len());
    if count > max {
        violations.add(field, format!("at most {max} actors, not {count}"));
    }
    numbers.into_iter().map(ActorId).collect()
}

fn settings_of(settings: v1::ContextSettings) -> ContextSettings {
    let v1::ContextSettings { executors_may_submit, raw_publish, require_signed_messages, retention } =
        settings;
    let retention = retention.map(retention_of).unwrap_or_default();
    ContextSettings { executors_may_submit, raw_publish, require_signed_messages, retention }
}

fn retention_of(retention: v1::ContextRetention) -> ContextRetention {
    let v1::ContextRetention {
        ended_flow_keep_secs,
        ended_flows_max,
        ended_flow_bytes_max,
        message_keep_secs,
        messages_done_max,
        events_keep_secs,
    } = retention;
    ContextRetention {
        ended_flow_keep_secs,
        ended_flows_max,
        ended_flow_bytes_max,
        message_keep_secs,
        messages_done_max,
        events_keep_secs,
    }
}

/// Bounds of what is kept, for an answer.
#[must_use]
pub fn retention_to_wire(retention: ContextRetention) -> v1::ContextRetention {
    let ContextRetention {
        ended_flow_keep_secs,
        ended_flows_max,
        ended_flow_bytes_max,
        message_keep_secs,
        messages_done_max,
        events_keep_secs,
    } = retention;
    v1::ContextRetention {
        ended_flow_keep_secs,
        ended_flows_max,
        ended_flow_bytes_max,
        message_keep_secs,
        messages_done_max,
        events_keep_secs,
    }
}

/// Parses a creation, and notes everything that is wrong with it.
pub fn from_create(request: v1::CreateContextRequest, violations: &mut Violations) -> NewContext {
    let v1::CreateContextRequest { request_id: _, id, admins, readers, executors, settings } = request;
    let admins = members("admins", admins, violations);
    let readers = members("readers", readers, violations);
    let executors = members("executors", executors, violations);
    let settings = settings.map_or_else(ContextSettings::default, settings_of);
    let id = (id != 0).then_some(ContextId(id));
    NewContext { id, admins, readers, executors, settings }
}
