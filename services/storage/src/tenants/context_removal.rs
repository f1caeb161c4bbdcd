//! Removing a context with everything in it.
//!
//! First the context is marked as being removed: from then on it takes no changes. Then its supervisors drop it;
//! a router repeats the request until each one answers. Then its keys are removed, some hundred per script. Then it is
//! unpublished, so that its id is free. Its own record goes last. Any storage can continue where another one
//! stopped: the remaining work follows from what still exists.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use kv::Cmd;
use model::{ActorId, Context, ContextId, ContextState, ContextUid, Revision, RunnerId, Timestamp, limits};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::idempotency::IdempotencyKey;
use crate::runners::RUNNERS_READ;
use crate::scripts;
use crate::store::{PERMISSION_TRIES, Store, TenantStore, lock};
use crate::tenants::actors::{BOOTSTRAP, check_revision};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};
use crate::watch::events::{EventHub, Hint};

/// Keys that one script removes.
const KEYS_MAX: usize = 900;
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// State of a context that is being imported: nobody sees it yet.
const IMPORTING: &str = "importing";
/// Contexts that are looked at at once.
const CONTEXTS_AT_ONCE: usize = 16;

/// A context that one supervisor must drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingContextDrop {
    /// The context.
    pub(crate) context: ContextId,
    /// Uid of the context.
    pub(crate) uid: ContextUid,
    /// The runner record.
    pub(crate) runner: RunnerId,
    /// Where the supervisor is reached.
    pub(crate) address: String,
    /// The topic its requests travel under.
    pub(crate) topic: String,
}

/// The contexts that are going. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ContextRemovals(Arc<ContextRemovalsInner>);

#[derive(Debug)]
struct ContextRemovalsInner {
    hub: EventHub,
    going: Mutex<BTreeMap<ContextId, ContextUid>>,
    /// Changes with every look at one of them.
    looks: watch::Sender<u64>,
}

impl ContextRemovals {
    pub(crate) fn new(hub: EventHub) -> Self {
        Self(Arc::new(ContextRemovalsInner { hub, going: Mutex::default(), looks: watch::Sender::new(0) }))
    }

    /// Changes whenever there may be something new to know of a context that goes.
    pub(crate) fn looks(&self) -> watch::Receiver<u64> {
        self.0.looks.subscribe()
    }

    /// Removes a context, for one of its admins or for the bootstrap identity, provided that it is at the expected revision, if any.
    /// Returns when nothing is left. The removal continues even if this future is dropped.
    pub(crate) async fn remove(
        &self,
        (id, expected): (ContextId, Option<Revision>),
        actor: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<()> {
        let mut looks = self.looks();
        let begun = self.0.hub.store().begin_context_removal((id, expected), actor, request, now).await?;
        // Without a value, the same request has removed the context before.
        let Some((tenant, uid)) = begun else { return Ok(()) };
        until_gone(&tenant, uid, &mut looks).await
    }

    /// Removes what the unfinished import of a context has written. Returns when nothing is left. The removal continues even if this
    /// future is dropped.
    pub(crate) async fn abandon_import(&self, id: ContextId, now: Timestamp) -> Result<()> {
        let mut looks = self.looks();
        let store = self.0.hub.store();
        let (tenant, uid) = store.abandon_import(id, now).await?;
        until_gone(&tenant, uid, &mut looks).await?;
        store.forget_import(id, uid).await
    }

    /// Returns the contexts that supervisors have yet to forget.
    pub(crate) async fn drops(&self) -> Result<Vec<PendingContextDrop>> {
        let going: Vec<_> = lock(&self.0.going).iter().map(|(id, uid)| (*id, *uid)).collect();
        let mut drops = Vec::new();
        for (context, uid) in going {
            let store = self.0.hub.store();
            let tenant = store.tenant_unchecked(context);
            let pending =
                tenant.connection.cmd(Cmd::new("SMEMBERS").arg(&tenant.keys.drops())).await?.texts()?;
            let pending: Vec<RunnerId> = pending.iter().filter_map(|id| id.parse().ok()).collect();
            for ids in pending.chunks(RUNNERS_READ) {
                let runners = store.runners_at(&tenant, ids).await?;
                let there: Vec<RunnerId> = runners.iter().map(|runner| runner.id).collect();
                let gone: Vec<RunnerId> = ids.iter().filter(|id| !there.contains(id)).copied().collect();
                // The record of a deleted runner is kept only for a while, and without it its supervisor cannot be found.
                if !gone.is_empty() {
                    self.forgotten(&tenant, uid, &gone).await?;
                }
                drops.extend(runners.into_iter().map(|runner| PendingContextDrop {
                    context,
                    uid,
                    runner: runner.id,
                    address: runner.address.to_string(),
                    topic: runner.topic,
                }));
            }
        }
        Ok(drops)
    }

    /// A supervisor has forgotten a context, or is given up.
    pub(crate) async fn dropped(&self, uid: ContextUid, runner: RunnerId) -> Result<()> {
        let found = lock(&self.0.going).iter().find(|(_, known)| **known == uid).map(|(id, _)| *id);
        // A context that is not known here is gone, or its supervisor will be asked again.
        let Some(context) = found else { return Ok(()) };
        self.forgotten(&self.0.hub.store().tenant_unchecked(context), uid, &[runner]).await
    }

    /// Stops waiting for these supervisors to forget the context.
    async fn forgotten(&self, tenant: &TenantStore, uid: ContextUid, runners: &[RunnerId]) -> Result<()> {
        let change = tenant
            .begin(&scripts::CONTEXT_DROPPED, &[&tenant.keys.drops()], Some(uid), Timestamp::now())
            .args(runners.iter().map(|runner| runner.0));
        match tenant.call(change).await {
            Ok(_) | Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Continues every removal until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut hints = self.0.hub.hints();
        let mut complete = self.look_everywhere().await;
        loop {
            let again = async {
                if complete { std::future::pending().await } else { tokio::time::sleep(RETRY).await }
            };
            complete &= tokio::select! {
                () = stop.cancelled() => return,
                () = again => { complete = true; self.look_everywhere().await }
                hint = hints.recv() => match hint {
                    Ok(Hint::Removal(context)) => self.look(self.0.hub.store().tenant_unchecked(context)).await,
                    Ok(Hint::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => self.look_everywhere().await,
                    Ok(Hint::Out(_) | Hint::Runner(_) | Hint::Replicas) => true,
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            };
        }
    }

    /// Looks at all contexts. Returns true if everything that can be done was.
    async fn look_everywhere(&self) -> bool {
        let store = self.0.hub.store();
        let found = async { Ok::<_, Error>((store.tenants().await?, store.removals().await?)) };
        let (tenants, marked) = match found.await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "looking for contexts to remove failed, trying again");
                return false;
            }
        };
        // Includes contexts that are already unpublished.
        let unseen: Vec<_> = marked.iter().map(|(id, _)| store.tenant_unchecked(*id)).collect();
        let going: Vec<_> = lock(&self.0.going).keys().map(|id| store.tenant_unchecked(*id)).collect();
        let all =
            stream::iter(tenants.into_iter().chain(unseen).chain(going)).map(|tenant| self.look(tenant));
        let is_done = all.buffer_unordered(CONTEXTS_AT_ONCE).fold(true, |all, one| async move { all && one });
        is_done.await & self.clear(marked).await
    }

    /// Takes away the marks that a storage left which died at the very end. Whether everything that can be done was.
    async fn clear(&self, marked: Vec<(ContextId, ContextUid)>) -> bool {
        let store = self.0.hub.store();
        for (id, uid) in marked {
            let cleared = async {
                match record_of(&store.tenant_unchecked(id)).await? {
                    Some((known, _)) if known == uid => Ok(()),
                    _ => store.forget_removal(id, uid).await,
                }
            };
            if let Err(error) = cleared.await {
                tracing::warn!(context = %id, %error, "ending the removal of a context failed, trying again");
                return false;
            }
        }
        true
    }

    async fn look(&self, tenant: Arc<TenantStore>) -> bool {
        let result = self.go_on(&tenant).await;
        self.0.looks.send_modify(|looks| *looks += 1);
        match result {
            // Another storage continued the removal as well, and was faster.
            Ok(()) | Err(Error::NotFound(_)) => true,
            Err(error) => {
                tracing::warn!(context = %tenant.id, %error, "removing a context failed, trying again");
                false
            }
        }
    }

    async fn go_on(&self, tenant: &TenantStore) -> Result<()> {
        let (id, store) = (tenant.id, self.0.hub.store());
        match record_of(tenant).await? {
            Some((uid, ContextState::Deleting)) => {
                lock(&self.0.going).insert(id, uid);
                let drops = Cmd::new("EXISTS").arg(&tenant.keys.drops());
                if tenant.connection.cmd(drops).await?.int()? == 0 {
                    store.remove_context(tenant, uid).await?;
                    self.forget(id);
                }
            }
            Some((_, ContextState::Active)) => {
                lock(&self.0.going).remove(&id);
            }
            None => self.forget(id),
        }
        Ok(())
    }

    fn forget(&self, id: ContextId) {
        if lock(&self.0.going).remove(&id).is_some() {
            self.0.hub.store().forget_tenant(id);
        }
    }
}

/// Waits until the record of a context that is being removed is gone.
async fn until_gone(tenant: &TenantStore, uid: ContextUid, looks: &mut watch::Receiver<u64>) -> Result<()> {
    while record_of(tenant).await?.is_some_and(|(known, _)| known == uid) {
        // The sender lives as long as the removals.
        let _ = looks.changed().await;
    }
    Ok(())
}

/// Uid and state of a context; nothing when there is none, or none that is complete.
async fn record_of(tenant: &TenantStore) -> Result<Option<(ContextUid, ContextState)>> {
    let query = Cmd::new("HMGET").arg(&tenant.context).arg("uid").arg("state");
    let [uid, state] = tenant.connection.cmd(query).await?.tuple()?;
    let state = state.optional_text()?;
    if uid.is_nil() || state.as_deref() == Some(IMPORTING) {
        return Ok(None);
    }
    let state = state.unwrap_or_default();
    let bad = |error| kv::Error::Protocol(format!("context {}: {error}", tenant.id));
    Ok(Some((uid.text()?.parse().map_err(bad)?, state.parse().map_err(bad)?)))
}

impl Store {
    /// Marks a context as going, and gives its uid; nothing when the same request had it removed before.
    async fn begin_context_removal(
        &self,
        (id, expected): (ContextId, Option<Revision>),
        actor: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Option<(Arc<TenantStore>, ContextUid)>> {
        let then = self.removal_requested_before(actor, request).await?;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = match self.context(id).await {
                // Perhaps the same request has removed it meanwhile.
                Err(Error::NotFound(_)) if self.removal_requested_before(actor, request).await?.is_some() => {
                    return Ok(None);
                }
                found => found?,
            };
            // Another context has the number by now.
            if then.is_some_and(|then| then != context.uid) {
                return Ok(None);
            }
            permission::allow_administrator(&context, actor, ContextAction::DeleteContext)?;
            // The revision is checked only for an active context: one being removed was checked when its removal began.
            if context.state == ContextState::Active {
                check_revision("context", id, context.revision, expected)?;
            }
            if then.is_none() {
                self.remember_removal(&context, actor, request, now).await?;
            }
            let (runners, drops) = (tenant.keys.runners(), tenant.keys.drops());
            let deleted = tenant.keys.runners_deleted();
            let touched = scripts::BEGIN_CONTEXT_REMOVAL.keys([
                ("runners", &runners),
                ("drops", &drops),
                ("runners_deleted", &deleted),
            ]);
            let audit_record =
                AuditRecord::of(actor, ContextAction::DeleteContext, format_args!("context {id}"))
                    .with_request_id(request);
            let change = tenant
                .begin_by(
                    Some(&audit_record),
                    &scripts::BEGIN_CONTEXT_REMOVAL,
                    &touched,
                    Some(context.uid),
                    now,
                )
                .named(kv::named![context_revision: context.revision.0]);
            match tenant.apply_revision(change).await {
                Err(Error::ContextChanged(_) | Error::NotFound(_)) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(Some((tenant, context.uid))),
            }
        }
        Err(Error::ContextChanged(id))
    }

    /// Which context the same request was for.
    async fn removal_requested_before(
        &self,
        actor: Option<ActorId>,
        request: Option<&IdempotencyKey>,
    ) -> Result<Option<ContextUid>> {
        let Some(request) = request else { return Ok(None) };
        let key = self.keys().request(actor.unwrap_or(BOOTSTRAP), &request.id);
        let query = Cmd::new("HMGET").arg(&key).arg("hash").arg("uid");
        let [hash, uid] = self.connection().cmd(query).await?.tuple()?;
        let Some(hash) = hash.optional_text()? else { return Ok(None) };
        if hash != request.hash {
            return Err(Error::RequestIdReused);
        }
        let bad = |error| kv::Error::Protocol(format!("the context of a request: {error}"));
        Ok(Some(uid.text()?.parse().map_err(bad)?))
    }

    /// Records which context a request removes before the removal begins, since nothing of the context is left at its end.
    async fn remember_removal(
        &self,
        context: &Context,
        actor: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<()> {
        let Some(request) = request else { return Ok(()) };
        let key = self.keys().request(actor.unwrap_or(BOOTSTRAP), &request.id);
        let call = self.begin_global(&scripts::ASK_CONTEXT_REMOVAL, &[&key], now).named(kv::named![
            request_hash: &request.hash,
            request_secs: limits::REQUEST_ID_KEEP_SECS,
            context: context.id.0,
            context_uid: &context.uid.to_string(),
        ]);
        let recorded = self.call_global(call).await.map_err(|error| match error.code() {
            Some("REQUEST_ID_REUSED") => Error::RequestIdReused,
            _ => Error::Store(error),
        });
        recorded.map(drop)
    }

    /// Removes everything left of a context that every supervisor has dropped, its record last.
    async fn remove_context(&self, tenant: &TenantStore, uid: ContextUid) -> Result<()> {
        while self.remove_keys(tenant, uid).await? > 0 {}
        self.record_blob_bytes(tenant.id, 0).await?;
        service::crash_point("storage.context.emptied");
        // The id may be reused as soon as this context is unpublished. The mark keeps a slow storage from then
        // unpublishing the next context, whose publication removes the mark. Until then the mark names what is left.
        let now = Timestamp::now();
        let mark = self
            .begin_global(&scripts::MARK_REMOVAL, &[], now)
            .named(kv::named![context: tenant.id.0, context_uid: &uid.to_string()]);
        self.call_global(mark).await?;
        tenant.call(tenant.begin(&scripts::EMPTY_CONTEXT, &[], Some(uid), now)).await?;
        let contexts = self.keys().contexts();
        let removed_by = Cmd::new("HGET").arg(&tenant.context).arg("removed_by");
        let removed_by = tenant.connection.cmd(removed_by).await?.optional_text()?;
        let audit_record = removed_by.as_deref().and_then(AuditRecord::from_json);
        let change = self
            .begin_global_by(audit_record.as_ref(), &scripts::UNPUBLISH_CONTEXT, &[&contexts], now)
            .named(kv::named![context: tenant.id.0, context_uid: &uid.to_string()]);
        self.apply_global(change).await?;
        service::crash_point("storage.context.unpublished");
        tenant.call(tenant.begin(&scripts::END_CONTEXT_REMOVAL, &[], Some(uid), now)).await?;
        self.forget_removal(tenant.id, uid).await?;
        tracing::info!(context = %tenant.id, %uid, "a context was removed");
        Ok(())
    }

    /// The contexts whose last keys are being removed, or were when a storage died.
    async fn removals(&self) -> Result<Vec<(ContextId, ContextUid)>> {
        let ids = self.connection().cmd(Cmd::new("HGETALL").arg(&self.keys().ids())).await?.hash()?;
        let marked = |(name, uid): (&String, &String)| {
            Some((name.strip_prefix("removing:")?.parse().ok()?, uid.parse().ok()?))
        };
        Ok(ids.iter().filter_map(marked).collect())
    }

    /// Removes the mark of a context of which nothing is left.
    async fn forget_removal(&self, id: ContextId, uid: ContextUid) -> Result<()> {
        let call = self
            .begin_global(&scripts::FORGET_REMOVAL, &[], Timestamp::now())
            .named(kv::named![context: id.0, context_uid: &uid.to_string()]);
        Ok(self.call_global(call).await.map(drop)?)
    }

    /// Goes once through all keys of a context and removes them, except its record. Returns how many there were.
    ///
    /// A cursor is valid only at the server process that issued it. When another process has replaced that one, the scan restarts
    /// there, and this pass may not have seen everything.
    async fn remove_keys(&self, tenant: &TenantStore, uid: ContextUid) -> Result<u64> {
        let pattern = format!("{}*", tenant.keys.prefix());
        let (mut removed, mut server, mut cursor) = (0, String::new(), "0".to_owned());
        loop {
            let change = tenant
                .begin(&scripts::REMOVE_KEYS, &[], Some(uid), Timestamp::now())
                .named(kv::named![server: &server, cursor: &cursor, pattern: &pattern, count: KEYS_MAX]);
            let [now, next, count] = tenant.call(change).await?.tuple()?;
            let now = now.text()?;
            if !server.is_empty() && server != now {
                removed += 1;
            }
            removed += count.uint()?;
            (server, cursor) = (now, next.text()?);
            if cursor == "0" {
                return Ok(removed);
            }
        }
    }
}
