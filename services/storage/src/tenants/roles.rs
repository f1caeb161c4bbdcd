//! Roles of actors, and which actors may know of each other: read from all contexts, since nothing else would stay true.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt as _};
use kv::{Cmd, Pipeline, Value};
use model::{Actor, ActorId, Context, ContextId, ContextState, Role, limits};
use proto::convert::actor::wire_bytes as actor_bytes;

use crate::error::{Error, Result};
use crate::pages::{PageRequest, PagedCollection};
use crate::record::listed;
use crate::store::{PERMISSION_TRIES, RequestPrincipal, Store, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::contexts::ContextMembers;

/// Contexts that are read at once.
const CONTEXTS_AT_ONCE: usize = 64;
/// Contexts that are looked at for one page, when the caller has no role in most of them.
const CONTEXTS_SCANNED_MAX: usize = 10_000;
/// Actors that are read in one round trip.
pub(crate) const ACTORS_READ: usize = 256;

impl Store {
    /// The contexts after this one, by their numbers, as far as they are there.
    fn contexts_after(
        &self,
        tenants: Vec<Arc<TenantStore>>,
        after: ContextId,
    ) -> impl Stream<Item = (ContextId, Result<Context>)> {
        let reads = tenants.into_iter().filter(move |tenant| tenant.id > after).map(move |tenant| {
            let store = self.clone();
            async move { (tenant.id, store.context(tenant.id).await.map(|(_, context)| context)) }
        });
        // Contexts that were removed meanwhile or cannot be read are skipped.
        let read = stream::iter(reads).buffered(CONTEXTS_AT_ONCE);
        read.filter_map(|(id, context)| {
            let context = match context {
                Err(Error::NotFound(_)) => Ok(None),
                context => listed(context.map(Some)),
            };
            std::future::ready(context.transpose().map(|context| (id, context)))
        })
    }

    /// Every context in which an actor has a role.
    async fn contexts_of(&self, actor: ActorId) -> Result<Vec<(Context, Role)>> {
        let mut found = Vec::new();
        let tenants = self.tenants().await?;
        let mut contexts = std::pin::pin!(self.contexts_after(tenants, ContextId(0)));
        while let Some((_, context)) = contexts.next().await {
            let context = context?;
            if let Some(role) = context.role_of(actor) {
                found.push((context, role));
            }
        }
        Ok(found)
    }

    /// The roles of an actor, by context; the first ones, and whether there are more.
    pub(crate) async fn roles_of(&self, actor: ActorId) -> Result<(Vec<(ContextId, Role)>, bool)> {
        let contexts = self.contexts_of(actor).await?;
        Ok(first_roles(contexts.into_iter().map(|(context, role)| (context.id, role)).collect()))
    }

    /// Contexts that would be left without an admin.
    pub(crate) async fn only_administered_by(&self, actor: ActorId) -> Result<Vec<ContextId>> {
        let contexts = self.contexts_of(actor).await?;
        let only = contexts.into_iter().filter(|(context, _)| {
            context.state == ContextState::Active && context.admins.iter().eq([&actor])
        });
        Ok(only.map(|(context, _)| context.id).collect())
    }

    /// Removes all roles of a removed actor. If it became a context's only admin meanwhile, it stays admin: the bootstrap
    /// identity can name another one. The audit of each context records the action.
    pub(crate) async fn remove_roles(
        &self,
        actor: ActorId,
        audit_record: &AuditRecord,
        now: model::Timestamp,
    ) -> Result<()> {
        for (context, _) in self.contexts_of(actor).await? {
            match self.remove_role(context, actor, audit_record, now).await {
                Err(Error::NoAdmin) => {
                    tracing::warn!(%actor, "an actor that was removed is the only admin of a context");
                }
                Err(Error::NotFound(_) | Error::ContextDeleting) => {}
                result => result?,
            }
        }
        Ok(())
    }

    async fn remove_role(
        &self,
        mut context: Context,
        actor: ActorId,
        audit_record: &AuditRecord,
        now: model::Timestamp,
    ) -> Result<()> {
        let id = context.id;
        for _ in 0..PERMISSION_TRIES {
            let mut members = ContextMembers::of(&context);
            members.remove(actor);
            match self.write_members(&context, &members, audit_record, now).await {
                Err(Error::ContextChanged(_)) => context = self.context(id).await?.1,
                result => return result,
            }
        }
        Err(Error::ContextChanged(id))
    }

    /// Reads a page of the contexts in which an actor has a role, by number; all contexts for the bootstrap identity.
    pub(crate) async fn list_contexts(
        &self,
        actor: Option<ActorId>,
        page: &PageRequest,
    ) -> Result<(Vec<Context>, String)> {
        let bound_to = format!("{actor:?}");
        let after =
            page.cursor(self.coordinator(), PagedCollection::Contexts, &bound_to)?.unwrap_or_default();
        let mut last = ContextId(u32::try_from(after).unwrap_or(u32::MAX));
        let token = |last: ContextId| {
            page.token(self.coordinator(), PagedCollection::Contexts, &bound_to, Some(u64::from(last.0)))
        };
        let (mut found, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        let tenants = self.tenants().await?;
        let mut contexts = std::pin::pin!(self.contexts_after(tenants, last));
        while let Some((id, context)) = contexts.next().await {
            let context = context?;
            if actor.is_none_or(|actor| context.role_of(actor).is_some()) {
                let size = 128 + 5 * (context.admins.len() + context.executors.len() + context.readers.len());
                if found.len() >= page.size || (!found.is_empty() && bytes + size > limits::PAGE_BYTES_MAX) {
                    return Ok((found, token(last)));
                }
                bytes += size;
                found.push(context);
            }
            (last, scanned) = (id, scanned + 1);
            if scanned >= CONTEXTS_SCANNED_MAX {
                return Ok((found, token(last)));
            }
        }
        Ok((found, String::new()))
    }

    /// A page of actors by their numbers: the members of a context, which its members may list, or all that the asker may read.
    pub(crate) async fn list_actors(
        &self,
        asker: Option<ActorId>,
        context: Option<ContextId>,
        page: &PageRequest,
    ) -> Result<(Vec<Actor>, String)> {
        let bound_to = format!("{asker:?} {context:?}");
        let after = page.cursor(self.coordinator(), PagedCollection::Actors, &bound_to)?.unwrap_or_default();
        let known = match context {
            Some(context) => {
                let asker = asker.map_or(RequestPrincipal::Service, RequestPrincipal::Actor);
                members_of(&self.read(context, asker, |_, _| {}).await?.1).collect()
            }
            None => self.known_to(asker).await?,
        };
        let ids: Vec<ActorId> = known.into_iter().filter(|id| u64::from(id.0) > after).collect();
        let (mut actors, mut bytes) = (Vec::new(), 0);
        for ids in ids.chunks(ACTORS_READ) {
            for actor in self.read_actors(ids).await?.into_iter().flatten() {
                if actor.deleted_at.is_some() {
                    continue;
                }
                let size = actor_bytes(&actor);
                let is_full = actors.len() >= page.size || bytes + size > limits::PAGE_BYTES_MAX;
                if let Some(last) = actors.last().filter(|_| is_full).map(|last: &Actor| last.id) {
                    let last = Some(u64::from(last.0));
                    return Ok((
                        actors,
                        page.token(self.coordinator(), PagedCollection::Actors, &bound_to, last),
                    ));
                }
                bytes += size;
                actors.push(actor);
            }
        }
        Ok((actors, String::new()))
    }

    /// Returns the actors that an actor may read: itself and the members of shared contexts; the bootstrap identity may read all.
    async fn known_to(&self, asker: Option<ActorId>) -> Result<BTreeSet<ActorId>> {
        let Some(asker) = asker else { return Ok(self.all_actors().await?.into_iter().collect()) };
        let contexts = self.contexts_of(asker).await?;
        let shared = contexts.iter().flat_map(|(context, _)| members_of(context));
        Ok(shared.chain([asker]).collect())
    }

    /// Reads the ids of all registered actors.
    pub(crate) async fn all_actors(&self) -> Result<Vec<ActorId>> {
        let ids = self.connection().cmd(Cmd::new("SMEMBERS").arg(&self.keys().actors())).await?.texts()?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Returns true if one actor may read another, which takes a shared context.
    pub(crate) async fn knows(&self, asker: ActorId, actor: ActorId) -> Result<bool> {
        let contexts = self.contexts_of(asker).await?;
        Ok(contexts.iter().any(|(context, _)| context.role_of(actor).is_some()))
    }

    /// Reads actors by number, or what is left of removed ones; nothing in place of each one that never existed.
    pub(crate) async fn read_actors(&self, ids: &[ActorId]) -> Result<Vec<Option<Actor>>> {
        let mut pipeline = Pipeline::new();
        for id in ids {
            pipeline.cmd(Cmd::new("HGETALL").arg(&self.keys().actor(*id)));
        }
        let answers = self.connection().pipeline(&pipeline).await?;
        let read = |id: ActorId, answer: kv::Result<Value>| {
            self.actor_of(id, answer.map_err(|error| Error::of_record(error, self.keys().actor(id)))?)
        };
        ids.iter().zip(answers).map(|(id, answer)| listed(read(*id, answer))).collect()
    }
}

fn members_of(context: &Context) -> impl Iterator<Item = ActorId> {
    context.admins.iter().chain(&context.executors).chain(&context.readers).copied()
}

/// Cuts the roles to as many as are reported. Returns true if there were more.
fn first_roles(mut roles: Vec<(ContextId, Role)>) -> (Vec<(ContextId, Role)>, bool) {
    let truncated = roles.len() > limits::ROLES_TOLD_MAX;
    roles.truncate(limits::ROLES_TOLD_MAX);
    (roles, truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_beyond_the_limit_are_left_out_and_the_list_is_marked() {
        let roles = |count: u32| (1..=count).map(|id| (ContextId(id), Role::Reader)).collect::<Vec<_>>();
        assert_eq!(first_roles(roles(1000)), (roles(1000), false));
        assert_eq!(first_roles(roles(1001)), (roles(1000), true));
    }
}
