//! Contexts: created in two places, in an order that can be resumed.
//!
//! First the id is reserved, together with the request id. Then the context is written to its own database.
//! Then its id is added to the set of contexts, which makes it visible.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{ActorId, Context, ContextId, ContextState, ContextUid, Revision, Timestamp, Violations, limits};
use proto::convert::context::{ContextChange, NewContext};

use crate::error::{Error, Result};
use crate::idempotency::{IdempotencyKey, hash_of, was_carried_out};
use crate::record::{self, FieldWriter};
use crate::scripts;
use crate::store::{ID_TRIES, PERMISSION_TRIES, Store};
use crate::tenants::actors::{BOOTSTRAP, check_revision};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::Quota;

/// Members that are looked for in one round trip.
const MEMBERS_CHECKED: usize = 256;
/// A reservation whose maker did not write the context within this time lapses.
const RESERVATION: Duration = Duration::from_secs(60);

/// The number that a context is to have.
struct ContextReservation {
    id: ContextId,
    uid: ContextUid,
    /// No earlier call of the same request has reserved it.
    is_new: bool,
}

/// Members of a context, by role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContextMembers {
    admins: BTreeSet<ActorId>,
    executors: BTreeSet<ActorId>,
    readers: BTreeSet<ActorId>,
}

impl ContextMembers {
    pub(crate) fn of(context: &Context) -> Self {
        let Context { admins, executors, readers, .. } = context;
        Self { admins: admins.clone(), executors: executors.clone(), readers: readers.clone() }
    }

    /// Takes all its roles from an actor.
    pub(crate) fn remove(&mut self, actor: ActorId) {
        for list in [&mut self.admins, &mut self.executors, &mut self.readers] {
            list.remove(&actor);
        }
    }
}

impl Store {
    /// Creates a context, or returns the one that the same request created before. `creator` is `None` for the
    /// bootstrap identity, else becomes one of the admins. `noted` has the violations found so far.
    pub(crate) async fn create_context(
        &self,
        mut new: NewContext,
        noted: Violations,
        creator: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Context> {
        self.reserve_memory(0)?;
        if let Some(creator) = creator {
            self.actor(creator).await.map_err(|error| match error {
                Error::NotFound(_) => Error::NotAllowed(format!("actor {creator} is not registered")),
                error => error,
            })?;
            new.admins.insert(creator);
        }
        if !self.was_carried_out(creator, request).await? {
            self.check_new(&new, noted).await?;
        }
        for _ in 0..ID_TRIES {
            match self.reserve_and_write(&new, creator, request, now).await {
                Err(Error::Store(kv::Error::Refused { code, .. }))
                    if code == "CONTEXT_EXISTS" || code == "CONTEXT_RESERVED" =>
                {
                    if let Some(id) = new.id {
                        return Err(Error::Exists(format!("context {id}")));
                    }
                }
                result => return result,
            }
        }
        Err(Error::no_free_id("context"))
    }

    async fn reserve_and_write(
        &self,
        new: &NewContext,
        creator: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Context> {
        let ContextReservation { id, uid, is_new } =
            self.reserve_context(new.id, creator, request, now).await?;
        let NewContext { id: _, admins, readers, executors, settings } = new.clone();
        let context = Context {
            id,
            uid,
            state: ContextState::Active,
            admins,
            readers,
            executors,
            settings,
            created_at: now,
            updated_at: now,
            revision: Revision(0),
        };
        let tenant = self.tenant_unchecked(id);
        let audit_record =
            AuditRecord::of(creator, ContextAction::CreateContext, format_args!("context {id}"))
                .with_request_id(request);
        let call = tenant
            .begin_by(Some(&audit_record), &scripts::CREATE_CONTEXT, &[], Some(uid), now)
            .named(kv::named![context: id.0])
            .args(record::context::write(&context).args());
        let written = tenant.apply_revision(call).await;
        match written {
            Ok(_) => self.publish_context(id, Some(uid), Some(&audit_record), now).await?,
            Err(error) if error.code() == Some("CONTEXT_EXISTS") => {
                // A context that was written but not published is complete, so it is published now.
                self.publish_context(id, None, None, now).await?;
                // The context that this request created is gone, and another one has its number by now.
                return Err(if is_new {
                    error
                } else {
                    Error::not_found("the context that this request made, context", id)
                });
            }
            Err(error) => return Err(error),
        }
        Ok(self.context(id).await?.1)
    }

    async fn reserve_context(
        &self,
        id: Option<ContextId>,
        creator: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<ContextReservation> {
        let keys = self.keys();
        let mut touched = vec![keys.contexts()];
        let asker = creator.unwrap_or(BOOTSTRAP);
        touched.extend(request.map(|request| keys.request(asker, &request.id)));
        let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
        let lapsed =
            now.as_millis().saturating_sub(u64::try_from(RESERVATION.as_millis()).unwrap_or(u64::MAX));
        let call = self.begin_global(&scripts::RESERVE_CONTEXT, &touched, now).named(kv::named![
            context: &id.map(|id| id.to_string()).unwrap_or_default(),
            context_uid: &ContextUid::random().to_string(),
            request_hash: hash_of(request),
            request_secs: limits::REQUEST_ID_KEEP_SECS,
            reserved_from: &Timestamp::from_millis(lapsed).to_string(),
            greatest: self.greatest_context_id(),
            creator: &creator.map(|creator| creator.to_string()).unwrap_or_default(),
            contexts_max: self.quotas().of(Quota::ActorContexts),
        ]);
        let answer = self.call_global(call).await.map_err(|error| match error.code() {
            Some("REQUEST_ID_REUSED") => Error::RequestIdReused,
            Some("CONTEXT_GONE") => Error::NotFound("the context that this request made".to_owned()),
            Some("CONTEXTS_EXHAUSTED") => {
                Error::contexts_exhausted(self.greatest_context_id(), &self.contexts_end())
            }
            _ => Error::of_global_script(error),
        })?;
        let [id, uid, is_new] = answer.tuple()?;
        let bad = |error: &dyn std::fmt::Display| kv::Error::Protocol(format!("a reservation: {error}"));
        let id = id.text()?.parse().map_err(|error| bad(&error))?;
        let uid = uid.text()?.parse().map_err(|error| bad(&error))?;
        Ok(ContextReservation { id, uid, is_new: is_new.int()? == 1 })
    }

    /// Publishes a written context. `uid` is its uid if this storage has written it.
    pub(crate) async fn publish_context(
        &self,
        id: ContextId,
        uid: Option<ContextUid>,
        audit_record: Option<&AuditRecord>,
        now: Timestamp,
    ) -> Result<()> {
        let contexts = self.keys().contexts();
        let call = self.begin_global_by(audit_record, &scripts::PUBLISH_CONTEXT, &[&contexts], now).named(
            kv::named![
                context: id.0,
                context_uid: &uid.map(|uid| uid.to_string()).unwrap_or_default(),
            ],
        );
        self.apply_global(call).await?;
        Ok(())
    }

    /// Changes members and settings, for one of its admins or for the bootstrap identity, which is `None` here. `noted` has the
    /// violations found so far.
    pub(crate) async fn update_context(
        &self,
        change: &ContextChange,
        noted: &Violations,
        actor: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Context> {
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = self.context(change.id).await?;
            permission::allow_administrator(&context, actor, ContextAction::UpdateContext)?;
            let key = request.map(|request| tenant.keys.request(actor.unwrap_or(BOOTSTRAP), &request.id));
            if was_carried_out(&tenant.connection, key.as_deref(), request).await? {
                return Ok(context);
            }
            check_revision("context", context.id, context.revision, change.expected_revision)?;
            self.check_new_members(change, noted.clone()).await?;
            let audit_record =
                AuditRecord::of(actor, ContextAction::UpdateContext, format_args!("context {}", context.id))
                    .with_request_id(request);
            let call = tenant
                .begin_by(
                    Some(&audit_record),
                    &scripts::UPDATE_CONTEXT,
                    key.as_deref().as_slice(),
                    Some(context.uid),
                    now,
                )
                .named(kv::named![
                    context_revision: context.revision.0,
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    room: if actor.is_none() || is_revocation(change, &context) { "reserve" } else { "" },
                ])
                .args(changed_fields(change, &context).args());
            match tenant.apply_revision(call).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(self.context(change.id).await?.1),
            }
        }
        Err(Error::ContextChanged(change.id))
    }

    /// Writes the members after an actor lost its role, if the context is still as it was read. The context's audit records the action.
    pub(crate) async fn write_members(
        &self,
        context: &Context,
        members: &ContextMembers,
        audit_record: &AuditRecord,
        now: Timestamp,
    ) -> Result<()> {
        if members.admins.is_empty() {
            return Err(Error::NoAdmin);
        }
        let mut fields = FieldWriter::default();
        let ContextMembers { admins, executors, readers } = members;
        fields.json("admins", admins).json("executors", executors).json("readers", readers);
        let tenant = self.tenant_unchecked(context.id);
        let call = tenant
            .begin_by(Some(audit_record), &scripts::UPDATE_CONTEXT, &[], Some(context.uid), now)
            .named(kv::named![
                context_revision: context.revision.0,
                request_hash: "",
                request_secs: 0,
                room: "reserve",
            ])
            .args(fields.args());
        tenant.apply_revision(call).await.map(drop)
    }

    /// Checks that all future members are registered, and that a chosen id can be given.
    async fn check_new(&self, new: &NewContext, mut violations: Violations) -> Result<()> {
        if new.admins.is_empty() {
            violations.add("admins", "a context needs at least one admin");
        }
        if let Some(problem) = new.id.and_then(|id| self.refuses_id(id)) {
            violations.add("id", problem);
        }
        for (field, list) in
            [("admins", &new.admins), ("executors", &new.executors), ("readers", &new.readers)]
        {
            self.check_registered(field, list, &mut violations).await?;
        }
        Ok(violations.into_result(Some(()))?)
    }

    async fn check_new_members(&self, change: &ContextChange, mut violations: Violations) -> Result<()> {
        let of = [
            ("admins.ids", &change.admins),
            ("executors.ids", &change.executors),
            ("readers.ids", &change.readers),
        ];
        for (field, list) in of {
            if let Some(list) = list {
                self.check_registered(field, list, &mut violations).await?;
            }
        }
        violations.into_result(Some(()))?;
        if change.admins.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(Error::NoAdmin);
        }
        Ok(())
    }

    async fn check_registered(
        &self,
        field: &str,
        list: &BTreeSet<ActorId>,
        violations: &mut Violations,
    ) -> Result<()> {
        // The id 0 and ids beyond the maximum have their violations already.
        let ids = list.iter().copied().filter(|id| *id != ActorId(0)).take(limits::CONTEXT_MEMBERS_MAX);
        let ids: Vec<ActorId> = ids.collect();
        for ids in ids.chunks(MEMBERS_CHECKED) {
            for (id, actor) in ids.iter().zip(self.read_actors(ids).await?) {
                if actor.is_none_or(|actor| actor.deleted_at.is_some()) {
                    violations.add(field, format!("actor {id} is not registered"));
                }
            }
        }
        Ok(())
    }
}

/// Returns true if a change only takes roles away: it works where Redis is full, and there is an end to such changes.
fn is_revocation(change: &ContextChange, context: &Context) -> bool {
    let ContextChange { id: _, expected_revision: _, admins, executors, readers, settings } = change;
    let lists = [(admins, &context.admins), (executors, &context.executors), (readers, &context.readers)];
    let named = lists.into_iter().filter_map(|(new, known)| Some((new.as_ref()?, known)));
    let named: Vec<(&BTreeSet<ActorId>, &BTreeSet<ActorId>)> = named.collect();
    let takes_only = named.iter().all(|(new, known)| new.is_subset(known));
    settings.is_none() && takes_only && named.iter().any(|(new, known)| new.len() < known.len())
}

fn changed_fields(change: &ContextChange, context: &Context) -> FieldWriter {
    let ContextChange { id: _, expected_revision: _, admins, executors, readers, settings } = change;
    let mut fields = FieldWriter::default();
    fields
        .json("admins", admins.as_ref().unwrap_or(&context.admins))
        .json("executors", executors.as_ref().unwrap_or(&context.executors))
        .json("readers", readers.as_ref().unwrap_or(&context.readers))
        .json("settings", settings.as_ref().unwrap_or(&context.settings));
    fields
}
