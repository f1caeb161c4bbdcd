//! The coordinator's Redis: global records and contexts.

mod change;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use ::rpc::Rates;
use keys::{ContextKeys, GlobalKeys, Layout};
use kv::{BlockingConnection, Cmd, Confirmation, Kv, KvConnection, Pipeline, Value};
use model::{ActorId, Context, ContextId, FlowId, FlowUid};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::Instant;

pub(crate) use self::change::StoreChange;
use crate::error::{Error, Result};
use crate::flows::creation::{JobIdAllocator, LastContext};
use crate::metrics::StorageMetrics;
use crate::record::{self, RecordFields};
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::{Quota, StorageQuotas};
use crate::watch::change_feed::ChangeFeed;
use crate::watch::events::EventPosition;
use crate::watch::positions::LastSeenPosition;

/// Number of flows whose callers are cached, so that a commit need not read them.
const CALLERS_MAX: usize = 65_536;
/// How far the creation of flows in a context may be ahead of its rate.
const CREATIONS_AHEAD: Duration = Duration::from_secs(2);
/// Number of databases assumed for a Redis that does not report it.
const DATABASES_DEFAULT: u32 = 16;
/// How often a change is retried when its permission changed concurrently.
pub(crate) const PERMISSION_TRIES: u32 = 8;
/// How often another id is tried when the chosen one was taken concurrently.
pub(crate) const ID_TRIES: u32 = 64;

/// Everything that storage keeps. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Store(Arc<StoreInner>);

#[derive(Debug)]
struct StoreInner {
    kv: Kv,
    layout: Layout,
    confirmation: Confirmation,
    quotas: StorageQuotas,
    /// How many bytes Redis has left for anything new, as far as is known.
    room: AtomicU64,
    /// By how many bytes Redis is fuller than it should be with ended flows; 0 while it is not.
    excess: AtomicU64,
    /// Flows have ended, or Redis is too full of ended ones.
    has_ended_flows: Notify,
    metrics: Arc<StorageMetrics>,
    databases: u32,
    keys: GlobalKeys,
    connection: KvConnection,
    /// Last position seen in the global stream.
    seen: LastSeenPosition,
    /// How often Redis was found to have lost changes.
    went_back: watch::Sender<u64>,
    tenants: RwLock<HashMap<ContextId, Arc<TenantStore>>>,
    callers: Mutex<HashMap<FlowUid, ActorId>>,
    coordinator: String,
    actor_ids: OnceCell<AtomicU32>,
}

/// Principal on whose behalf a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestPrincipal {
    /// A service, for itself: its identity was checked by the method policy.
    Service,
    /// An actor.
    Actor(ActorId),
}

impl RequestPrincipal {
    /// From the field `on_behalf_of`.
    pub(crate) fn from_wire(on_behalf_of: u32) -> Self {
        NonZeroU32::new(on_behalf_of).map_or(Self::Service, |id| Self::Actor(ActorId(id.get())))
    }

    /// The actor, where only actors may ask.
    pub(crate) fn actor(self) -> Result<ActorId> {
        match self {
            Self::Actor(id) => Ok(id),
            Self::Service => Err(Error::field("on_behalf_of", "this is done for actors only")),
        }
    }
}

/// Connection of a context, with those of its keys that are needed often.
#[derive(Debug)]
pub(crate) struct TenantStore {
    pub(crate) id: ContextId,
    pub(crate) keys: ContextKeys,
    pub(crate) connection: KvConnection,
    pub(crate) context: String,
    pub(crate) ids: String,
    pub(crate) events: String,
    pub(crate) msg_out: String,
    pub(crate) held: String,
    pub(crate) letters: String,
    pub(crate) dead_letters: String,
    pub(crate) blob_idle: String,
    pub(crate) flows: String,
    pub(crate) flows_active: String,
    pub(crate) due: String,
    pub(crate) seen: LastSeenPosition,
    /// Changes that are reported to the reader of the context's stream, so that it need not read them.
    pub(crate) feed: ChangeFeed,
    pub(crate) quotas: StorageQuotas,
    /// Everything in the context is counted, including records made by earlier versions.
    pub(crate) counted: AtomicBool,
    /// Every flow stands in the list of its status.
    pub(crate) listed: AtomicBool,
    /// How far the creation of flows is ahead of its rate.
    flow_rate: Mutex<Rates<()>>,
    /// Flows have ended through this storage since ended flows were last looked at.
    pub(crate) has_ended_flows: AtomicBool,
    metrics: Arc<StorageMetrics>,
    went_back: watch::Sender<u64>,
    confirmation: Confirmation,
    hint: String,
    flow_ids: OnceCell<AtomicU32>,
    runner_ids: OnceCell<AtomicU32>,
    pub(crate) job_ids: JobIdAllocator,
    pub(crate) last_context: LastContext,
}

impl Store {
    /// Asks Redis how many databases it has and who this coordinator is.
    pub(crate) async fn open(
        kv: Kv,
        layout: Layout,
        confirmation: Confirmation,
        quotas: StorageQuotas,
    ) -> Result<Self> {
        let keys = GlobalKeys::new(layout);
        let connection = kv.at(keys.database(), &keys.tag());
        let databases = databases_of(&connection, layout).await?;
        let coordinator = coordinator_of(&connection, &keys).await?;
        let seen = LastSeenPosition::default();
        if let Some(last) = EventPosition::last(&connection, &keys.events()).await? {
            seen.note(None, last);
        }
        Ok(Self(Arc::new(StoreInner {
            kv,
            layout,
            confirmation,
            quotas,
            room: AtomicU64::new(u64::MAX),
            excess: AtomicU64::new(0),
            has_ended_flows: Notify::new(),
            metrics: Arc::new(StorageMetrics::new()),
            databases,
            keys,
            connection,
            seen,
            went_back: watch::Sender::new(0),
            tenants: RwLock::default(),
            callers: Mutex::default(),
            coordinator,
            actor_ids: OnceCell::new(),
        })))
    }

    pub(crate) fn kv(&self) -> &Kv {
        &self.0.kv
    }

    pub(crate) fn layout(&self) -> Layout {
        self.0.layout
    }

    /// How much an actor and a context may have.
    pub(crate) fn quotas(&self) -> StorageQuotas {
        self.0.quotas
    }

    /// How many bytes Redis has left for anything new.
    pub(crate) fn room(&self) -> &AtomicU64 {
        &self.0.room
    }

    /// By how many bytes Redis is fuller than it should be with ended flows.
    pub(crate) fn excess_bytes(&self) -> &AtomicU64 {
        &self.0.excess
    }

    /// Notified when flows have ended, or Redis is too full of ended ones.
    pub(crate) fn has_ended_flows(&self) -> &Notify {
        &self.0.has_ended_flows
    }

    pub(crate) fn metrics(&self) -> &StorageMetrics {
        &self.0.metrics
    }

    /// The keys of what belongs to no context.
    pub(crate) fn keys(&self) -> &GlobalKeys {
        &self.0.keys
    }

    /// The connection for what belongs to no context.
    pub(crate) fn connection(&self) -> &KvConnection {
        &self.0.connection
    }

    /// A connection of its own, for a command that waits in a context's database.
    pub(crate) fn blocking(&self, tenant: &TenantStore) -> BlockingConnection {
        self.0.kv.blocking_at(tenant.keys.database(), &tenant.keys.tag())
    }

    /// 32 hex digits, made at the first start.
    pub(crate) fn coordinator(&self) -> &str {
        &self.0.coordinator
    }

    /// Returns the next actor id that was not issued yet.
    pub(crate) async fn next_actor_id(&self) -> Result<u32> {
        next_id(&self.0.actor_ids, &self.0.connection, &self.0.keys.ids(), "actor").await
    }

    /// Notes that ids of actors up to `last` are given.
    pub(crate) fn skip_actor_ids(&self, last: u32) {
        skip_ids(&self.0.actor_ids, last);
    }

    /// Changes whenever the store was found to have lost changes.
    pub(crate) fn went_back(&self) -> &watch::Sender<u64> {
        &self.0.went_back
    }

    /// Position of the global stream when it was last written or read.
    pub(crate) fn seen(&self) -> &LastSeenPosition {
        &self.0.seen
    }

    /// The contexts that were looked at since the start.
    pub(crate) fn known_tenants(&self) -> Vec<Arc<TenantStore>> {
        self.0.tenants.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Forgets a context that is gone, so that a new one with its id starts from nothing.
    pub(crate) fn forget_tenant(&self, id: ContextId) {
        let known = self.0.tenants.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        // Remaining watchers must not mistake the next context of this id for it.
        if let Some(known) = known {
            known.feed.doubt();
        }
    }

    /// Returns why a context of this id cannot be stored here; nothing when it can.
    pub(crate) fn refuses_id(&self, id: ContextId) -> Option<String> {
        if id.0 == 0 {
            return Some("context ids begin with 1".to_owned());
        }
        (id.0 > self.greatest_context_id()).then(|| self.contexts_end())
    }

    /// The greatest id that a context can have here.
    pub(crate) fn greatest_context_id(&self) -> u32 {
        match self.0.layout {
            Layout::Database => self.0.databases.saturating_sub(2),
            Layout::HashTag => u32::MAX,
        }
    }

    /// Describes why no more contexts are possible, and what helps.
    pub(crate) fn contexts_end(&self) -> String {
        format!(
            "this Redis has `databases {}`, of which 0 and the last are no contexts, so ids go up to {}: raise \
             `databases` in redis.conf, or use the layout `hash-tag`",
            self.0.databases,
            self.greatest_context_id()
        )
    }

    /// The place of a context that may not exist (yet).
    pub(crate) fn tenant_unchecked(&self, id: ContextId) -> Arc<TenantStore> {
        let known = self.0.tenants.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        known.unwrap_or_else(|| {
            let mut tenants = self.0.tenants.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(tenants.entry(id).or_insert_with(|| Arc::new(TenantStore::new(self, id))))
        })
    }

    /// Returns a context that exists, or did a moment ago: every script checks again.
    pub(crate) async fn tenant(&self, id: ContextId) -> Result<Arc<TenantStore>> {
        let known = self.0.tenants.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        // No request may open a connection for a context that does not exist.
        let query = Cmd::new("SISMEMBER").arg(&self.0.keys.contexts()).arg(id.0);
        if self.refuses_id(id).is_some() || self.0.connection.cmd(query).await?.int()? == 0 {
            return Err(Error::not_found("context", id));
        }
        Ok(self.tenant_unchecked(id))
    }

    /// Every context there is.
    pub(crate) async fn tenants(&self) -> Result<Vec<Arc<TenantStore>>> {
        let ids = self.0.connection.cmd(Cmd::new("SMEMBERS").arg(&self.0.keys.contexts())).await?.texts()?;
        let mut ids: Vec<ContextId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids.into_iter().map(|id| self.tenant_unchecked(id)).collect())
    }

    /// A context and what is in its record.
    pub(crate) async fn context(&self, id: ContextId) -> Result<(Arc<TenantStore>, Context)> {
        let tenant = self.tenant(id).await?;
        let value = tenant.connection.cmd(Cmd::new("HGETALL").arg(&tenant.context)).await;
        let context =
            tenant.read_context(value.map_err(|error| Error::of_record(error, &tenant.context))?)?;
        Ok((tenant, context))
    }

    /// Reads a context in which `asker` may read, with the answers to `questions` from the same round trip.
    pub(crate) async fn read(
        &self,
        id: ContextId,
        asker: RequestPrincipal,
        questions: impl FnOnce(&TenantStore, &mut Pipeline),
    ) -> Result<(Arc<TenantStore>, Context, Vec<Value>)> {
        let tenant = self.tenant(id).await?;
        let mut pipeline = Pipeline::new();
        // The context is read last: a watch that continues from these answers receives each later change of it.
        questions(&tenant, &mut pipeline);
        pipeline.cmd(Cmd::new("HGETALL").arg(&tenant.context));
        let mut answers = tenant.connection.pipeline(&pipeline).await?;
        let context = answers.pop().unwrap_or(Ok(Value::Nil));
        let context =
            tenant.read_context(context.map_err(|error| Error::of_record(error, &tenant.context))?)?;
        if let RequestPrincipal::Actor(actor) = asker {
            permission::allow(&context, actor, ContextAction::Read)?;
        }
        let answers = answers.into_iter().collect::<kv::Result<Vec<_>>>()?;
        Ok((tenant, context, answers))
    }

    /// Returns the actor that a flow belongs to, if that was remembered.
    pub(crate) fn caller_of(&self, flow: FlowUid) -> Option<ActorId> {
        lock(&self.0.callers).get(&flow).copied()
    }

    /// Remembers the actor that a flow belongs to; that never changes.
    pub(crate) fn remember_caller(&self, flow: FlowUid, caller: ActorId) {
        let mut callers = lock(&self.0.callers);
        if callers.len() >= CALLERS_MAX {
            callers.clear();
        }
        callers.insert(flow, caller);
    }
}

impl TenantStore {
    fn new(store: &Store, id: ContextId) -> Self {
        let keys = ContextKeys::new(store.0.layout, id);
        Self {
            id,
            connection: store.0.kv.at(keys.database(), &keys.tag()),
            context: keys.context(),
            ids: keys.ids(),
            events: keys.events(),
            msg_out: keys.msg_out(),
            held: keys.msg_out_coordinator(),
            letters: keys.letters(),
            dead_letters: keys.dead_letters(),
            blob_idle: keys.blob_idle(),
            flows: keys.flows(),
            flows_active: keys.flows_active(),
            due: keys.due(),
            seen: LastSeenPosition::default(),
            feed: ChangeFeed::default(),
            quotas: store.0.quotas,
            counted: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            flow_rate: Mutex::default(),
            has_ended_flows: AtomicBool::new(false),
            metrics: Arc::clone(&store.0.metrics),
            went_back: store.0.went_back.clone(),
            confirmation: store.0.confirmation,
            hint: keys.hint_channel(),
            keys,
            flow_ids: OnceCell::new(),
            runner_ids: OnceCell::new(),
            job_ids: JobIdAllocator::default(),
            last_context: LastContext::default(),
        }
    }

    /// The context in the answer to `HGETALL`.
    pub(crate) fn read_context(&self, value: Value) -> Result<Context> {
        let fields = RecordFields::of_hash(&self.context, value)?
            .ok_or_else(|| Error::not_found("context", self.id))?;
        Ok(record::context::read(&fields)?)
    }

    /// Counts a flow that is about to be created; fails when the context creates too many each second.
    pub(crate) fn count_creation(&self) -> Result<()> {
        let max = self.quotas.of(Quota::ContextFlowsPerSec);
        let interval = Duration::from_secs(1) / u32::try_from(max.max(1)).unwrap_or(u32::MAX);
        let taken = lock(&self.flow_rate).take((), interval, CREATIONS_AHEAD, Instant::now());
        taken.map_err(|_| Error::Quota { quota: Quota::ContextFlowsPerSec, max, requested: max + 1 })
    }

    /// Returns the next flow id that was not issued yet.
    pub(crate) async fn next_flow_id(&self) -> Result<u32> {
        next_id(&self.flow_ids, &self.connection, &self.ids, "flow").await
    }

    /// Notifies the owner of a flow that there is something new for it.
    pub(crate) async fn touch(&self, flow: FlowId, uid: FlowUid) -> Result<()> {
        let notice = Cmd::new("PUBLISH").arg(&self.hint).arg(&format!("flow:{flow}-{uid}"));
        self.connection.cmd(notice).await?;
        Ok(())
    }

    /// Has everybody look again who waits for this kind of hint.
    pub(crate) async fn announce(&self, kind: &str) -> Result<()> {
        self.connection.cmd(Cmd::new("PUBLISH").arg(&self.hint).arg(kind)).await?;
        Ok(())
    }

    /// Returns the next runner id that was not issued yet.
    pub(crate) async fn next_runner_id(&self) -> Result<u32> {
        next_id(&self.runner_ids, &self.connection, &self.ids, "runner").await
    }

    /// Notes that ids of flows up to `last` are given.
    pub(crate) fn skip_flow_ids(&self, last: u32) {
        skip_ids(&self.flow_ids, last);
    }

    /// Notes that ids of runners up to `last` are given.
    pub(crate) fn skip_runner_ids(&self, last: u32) {
        skip_ids(&self.runner_ids, last);
    }
}

/// Returns the next id to try. The ids are counted here so that the script can be told its keys; the script decides.
async fn next_id(
    cell: &OnceCell<AtomicU32>,
    connection: &KvConnection,
    ids: &str,
    kind: &str,
) -> Result<u32> {
    let counter = cell
        .get_or_try_init(|| async {
            let last = connection.cmd(Cmd::new("HGET").arg(ids).arg(kind)).await?;
            let last = if last.is_nil() { 0 } else { last.uint()? };
            Ok::<_, Error>(AtomicU32::new(u32::try_from(last).unwrap_or(u32::MAX)))
        })
        .await?;
    let given = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| last.checked_add(1));
    given.map(|last| last + 1).map_err(|_| Error::no_ids_left(format!("there are no {kind} ids left")))
}

fn skip_ids(cell: &OnceCell<AtomicU32>, last: u32) {
    if let Some(counter) = cell.get() {
        counter.fetch_max(last, Ordering::Relaxed);
    }
}

async fn databases_of(connection: &KvConnection, layout: Layout) -> Result<u32> {
    if layout == Layout::HashTag {
        return Ok(1);
    }
    let answer = connection.cmd(Cmd::new("CONFIG").arg("GET").arg("databases")).await;
    match answer {
        Ok(value) => {
            let count = value.pairs()?.into_iter().next().map(|(_, count)| count.uint()).transpose()?;
            Ok(count.and_then(|count| u32::try_from(count).ok()).unwrap_or(DATABASES_DEFAULT))
        }
        Err(kv::Error::Refused { code, message }) => {
            tracing::warn!(
                code,
                message,
                "CONFIG GET is not allowed; taking `databases {DATABASES_DEFAULT}`"
            );
            Ok(DATABASES_DEFAULT)
        }
        Err(error) => Err(error.into()),
    }
}

async fn coordinator_of(connection: &KvConnection, keys: &GlobalKeys) -> Result<String> {
    let key = keys.coordinator();
    let fresh = model::id::Uid::random().to_string();
    // The first storage sets the id; all storages then read the same one.
    connection.cmd(Cmd::new("HSETNX").arg(&key).arg("id").arg(&fresh)).await?;
    Ok(connection.cmd(Cmd::new("HGET").arg(&key).arg("id")).await?.text()?)
}

/// Locks a mutex. No code here panics while it holds a lock, so a poisoned one is still consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
