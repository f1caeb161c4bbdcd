//! Creation of flows: with all their nodes and started, by one change, or empty, to be filled later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kv::{Cmd, KvConnection, Value};
use model::{
    ActorId, Context, ContextId, ContextUid, Epoch, Flow, FlowId, FlowStatus, FlowUid, JobId, MessageKey,
    OwnerId, Revision, Timestamp, limits,
};

use crate::error::{Error, Result};
use crate::flows::first_step::{FirstStep, FlowNumbering, NumberedStep};
use crate::flows::lifecycle::{
    ADD_NODES_MAX, BlobTable, NODE_BYTES, NewFlow, NewNode, fresh_commit, parts_of,
};
use crate::idempotency::{CreationRequest, IdempotencyKey, hash_of};
use crate::messages::message_holds::HOLD;
use crate::messages::routers::StorageRouters;
use crate::record;
use crate::record::flow::StoredFlow;
use crate::scripts;
use crate::store::{ID_TRIES, PERMISSION_TRIES, RequestPrincipal, Store, TenantStore, lock};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::Quota;

/// How often, a second apart, the owner is notified of a flow that may have been created.
const NOTIFY_TRIES: u32 = 60;

/// Initial nodes, owner and first step of a flow that is started by the change that creates it.
#[derive(Debug, Clone)]
pub(crate) struct FlowStartSpec {
    /// All its nodes, whose jobs are numbered from 1 on.
    pub(crate) nodes: Vec<NewNode>,
    /// Scheduler replica that owns the flow.
    pub(crate) owner: OwnerId,
    /// The step that its owner has made already; the nodes are as that has left them.
    pub(crate) step: Option<FirstStep>,
}

impl FlowStartSpec {
    /// Returns true if one script can write everything.
    fn fits(&self) -> bool {
        let step_bytes = self.step.as_ref().map_or(0, FirstStep::script_bytes);
        let step_records = self.step.as_ref().map_or(0, FirstStep::records);
        parts_of(&self.nodes).len() == 1
            && step_bytes <= limits::COMMIT_BYTES_MAX / 2
            && step_records <= self.nodes.len()
    }
}

/// A flow that was created, or that was before.
#[derive(Debug)]
pub(crate) struct CreatedFlow {
    /// The flow.
    pub(crate) flow: StoredFlow,
    /// The uid of its context.
    pub(crate) context_uid: ContextUid,
    /// The flow was created by this call.
    pub(crate) is_new: bool,
}

/// Outcome of the creation script.
enum CreateFlowOutcome {
    /// There is a new flow.
    Made(Box<StoredFlow>),
    /// An earlier call of the same request created this flow.
    Before(FlowId, String),
}

impl Store {
    /// Creates a flow, or gives the one that the same request made before.
    pub(crate) async fn create_flow(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        (new, beginning): (&NewFlow, Option<&FlowStartSpec>),
        request: Option<&IdempotencyKey>,
        (routers, now): (&StorageRouters, Timestamp),
    ) -> Result<CreatedFlow> {
        // Nodes beyond the limit of one script are added in parts, and the first step is then made again.
        let beginning = beginning.filter(|beginning| beginning.fits());
        let nodes = beginning.map(|beginning| beginning.nodes.as_slice()).unwrap_or_default();
        if nodes.len() > ADD_NODES_MAX {
            let requested = nodes.len() as u64;
            return Err(Error::Limit {
                limit: "nodes of one CreateFlow",
                max: ADD_NODES_MAX as u64,
                requested,
            });
        }
        let step = beginning.and_then(|beginning| beginning.step.as_ref());
        let step_bytes = step.map_or(0, FirstStep::script_bytes) as u64;
        self.reserve_memory(
            nodes.iter().map(|node| node.bytes() as u64 + NODE_BYTES).sum::<u64>() + step_bytes,
        )?;
        let actor = asker.actor()?;
        let tenant = self.tenant(context).await?;
        if let Some(context) = tenant.last_context.get() {
            let creating = FlowCreation {
                store: self,
                tenant: &tenant,
                context: &context,
                new,
                beginning,
                routers,
                now,
            };
            match self.create_flow_in(&creating, actor, request).await {
                Err(error) if may_be_over(&error) => {}
                result => return result,
            }
        }
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = self.context(context).await?;
            let context = Arc::new(context);
            let creating = FlowCreation {
                store: self,
                tenant: &tenant,
                context: &context,
                new,
                beginning,
                routers,
                now,
            };
            match self.create_flow_in(&creating, actor, request).await {
                Err(Error::ContextChanged(_)) => {}
                result => {
                    // Not after a refusal: it may rest on a record that the store has lost.
                    if result.is_ok() {
                        tenant.last_context.set(context);
                    }
                    return result;
                }
            }
        }
        Err(Error::ContextChanged(context))
    }

    async fn create_flow_in(
        &self,
        creating: &FlowCreation<'_>,
        actor: ActorId,
        request: Option<&IdempotencyKey>,
    ) -> Result<CreatedFlow> {
        let FlowCreation { tenant, context, new, .. } = *creating;
        permission::allow_for(context, actor, ContextAction::CreateFlow, new.caller)?;
        if new.goes_first {
            context.require_first(actor)?;
        }
        tenant.count_creation()?;
        tenant.check_blobs(&new.blobs).await?;
        let request_key = request.map(|request| tenant.keys.request(actor, &request.id));
        let mut drawn = None;
        for _ in 0..ID_TRIES {
            let id = match new.id.or(drawn.take()) {
                Some(id) => id,
                None => FlowId(tenant.next_flow_id().await?),
            };
            let audit_record =
                AuditRecord::of(Some(actor), ContextAction::CreateFlow, format_args!("flow {id}"))
                    .with_request_id(request);
            let creation_request =
                CreationRequest { audit_record: &audit_record, key: request_key.as_deref(), request };
            match creating.write(id, creation_request).await {
                Ok(CreateFlowOutcome::Made(flow)) => {
                    self.remember_caller(flow.flow.uid, flow.flow.caller_id);
                    return Ok(CreatedFlow { flow: *flow, context_uid: context.uid, is_new: true });
                }
                Ok(CreateFlowOutcome::Before(id, uid)) => {
                    let flow = self.stored_flow(tenant, id).await?;
                    if flow.flow.uid.to_string() != uid {
                        return Err(Error::not_found("the flow that this request made, flow", id));
                    }
                    return Ok(CreatedFlow { flow, context_uid: context.uid, is_new: false });
                }
                Err(Error::Store(kv::Error::Refused { code, message })) if code == "FLOW_EXISTS" => {
                    if new.id.is_some() {
                        return Err(Error::Exists(format!("flow {id}")));
                    }
                    tenant.skip_flow_ids(message.parse().unwrap_or_default());
                }
                Err(Error::Store(kv::Error::Refused { code, message })) if code == "JOB_IDS_GIVEN" => {
                    tenant.job_ids.skip(new.caller, message.parse().unwrap_or_default());
                    // The chosen flow id is still free.
                    drawn = Some(id);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::no_free_id("flow"))
    }
}

/// Returns true if the error may come from an outdated read of the context, so that a new read may decide differently.
const fn may_be_over(error: &Error) -> bool {
    matches!(
        error,
        Error::ContextChanged(_)
            | Error::ContextDeleting
            | Error::NotFound(_)
            | Error::Denied(_)
            | Error::NotAllowed(_)
    )
}

/// A flow on its way into the store.
#[derive(Clone, Copy)]
struct FlowCreation<'a> {
    store: &'a Store,
    tenant: &'a Arc<TenantStore>,
    context: &'a Context,
    new: &'a NewFlow,
    beginning: Option<&'a FlowStartSpec>,
    routers: &'a StorageRouters,
    now: Timestamp,
}

/// Records that are written besides the flow itself.
#[derive(Clone, Copy)]
struct FlowStartRecords<'a> {
    first: JobId,
    nodes: &'a [NewNode],
    step: &'a NumberedStep,
    due: Option<Timestamp>,
    router: &'a str,
    last_commit: &'a str,
}

impl FlowCreation<'_> {
    async fn write(&self, id: FlowId, request: CreationRequest<'_>) -> Result<CreateFlowOutcome> {
        let Self { tenant, new, .. } = *self;
        let mut flow = self.fresh(id);
        let Some(FlowStartSpec { nodes, owner, step }) = self.beginning else {
            let step = NumberedStep::default();
            let part = FlowStartRecords {
                first: JobId(1),
                nodes: &[],
                step: &step,
                due: None,
                router: "",
                last_commit: "",
            };
            return self.call(flow, part, request).await;
        };
        let mut reserved = tenant.job_ids.reserve(tenant, new.caller, new.node_count).await?;
        let first = reserved.first;
        (flow.status, flow.owner, flow.epoch) = (FlowStatus::Started, Some(*owner), Epoch(1));
        match step {
            // No event of the flow may precede its creation, although the scheduler's clock differs from ours.
            Some(step) => (flow.created_at, flow.deadline) = (step.made.min(self.now), step.deadline),
            None => {
                let secs = new.spec.deadline_secs;
                flow.deadline = secs.map(|secs| self.now + Duration::from_secs(secs.into()));
            }
        }
        flow.jobs = (first.0..).take(nodes.len()).map(JobId).collect();
        let uid = flow.uid;
        let (context, context_uid) = (self.context.id, self.context.uid);
        let numbers = FlowNumbering { context, context_uid, flow: id, by: first.0 - 1 };
        let numbered = step.as_ref().map(|step| step.numbered(numbers)).unwrap_or_default();
        let router = if numbered.messages.is_empty() { None } else { self.routers.pick() };
        let name = router.as_ref().map(|router| router.name()).unwrap_or_default();
        let due = step.as_ref().and_then(|step| step.due);
        let part = FlowStartRecords {
            first,
            nodes,
            step: &numbered,
            due,
            router: name,
            last_commit: &fresh_commit(),
        };
        let mut recovery = CreationRecoveryGuard(Some(CreationRecovery {
            store: self.store.clone(),
            tenant: Arc::clone(tenant),
            routers: self.routers.clone(),
            flow: (id, uid),
            messages: numbered.messages.iter().map(|message| message.key).collect(),
        }));
        service::crash_point("storage.create.before");
        let result = self.call(flow, part, request).await;
        if !matches!(result, Err(Error::Store(kv::Error::UnknownOutcome { .. }))) {
            recovery.0 = None;
        }
        if matches!(result, Ok(CreateFlowOutcome::Made(_))) {
            reserved.given = true;
            service::crash_point("storage.create.stored");
            for message in numbered.messages {
                if let Some(router) = &router {
                    self.routers.hand(router, message.into_held(id, context, context_uid));
                }
            }
        }
        result
    }

    fn fresh(&self, id: FlowId) -> Flow {
        let new = self.new;
        let uid = new.uid.unwrap_or_else(FlowUid::random);
        Flow { trace: new.trace, ..Flow::of(&new.spec, id, uid, self.context.id, new.caller, self.now) }
    }

    async fn call(
        &self,
        mut flow: Flow,
        part: FlowStartRecords<'_>,
        request: CreationRequest<'_>,
    ) -> Result<CreateFlowOutcome> {
        let Self { tenant, context, new, now, .. } = *self;
        let FlowStartRecords { first, nodes, step, due, router, last_commit } = part;
        let message = new.message.map(crate::messages::message_holds::message_key).unwrap_or_default();
        let blobs = BlobTable::of(nodes);
        let (record, flow_nodes) = (tenant.keys.flow(flow.id), tenant.keys.flow_nodes(flow.id));
        let carriers = tenant.keys.flow_messages(flow.id);
        let by = first.0 - 1;
        let mut varying: Vec<String> = blobs.keys(tenant).collect();
        varying.extend(nodes.iter().map(|node| tenant.keys.job(flow.caller_id, node.job_id(by))));
        let messages = step.messages.iter().map(|message| message.key);
        varying.extend(messages.map(|key| tenant.keys.message(key.caller, key.id)));
        varying.extend(request.key.map(str::to_owned));
        let mut touched = scripts::CREATE_FLOW
            .keys([
                ("flow", record.as_str()),
                ("flows", &tenant.flows),
                ("nodes", &flow_nodes),
                ("flows_active", &tenant.flows_active),
                ("blob_idle", &tenant.blob_idle),
                ("carriers", &carriers),
                ("out", &tenant.msg_out),
                ("held", &tenant.held),
                ("due", &tenant.due),
            ])
            .to_vec();
        touched.extend(varying.iter().map(String::as_str));
        let audit_record = Some(request.audit_record);
        let begun = tenant.begin_by(audit_record, &scripts::CREATE_FLOW, &touched, Some(context.uid), now);
        let change = begun.named(kv::named![
            context_revision: context.revision.0,
            flow: flow.id.0,
            caller: flow.caller_id.0,
            node_count: new.node_count,
            request_hash: hash_of(request.request),
            request_secs: limits::REQUEST_ID_KEEP_SECS,
            flow_uid: &flow.uid.to_string(),
            is_our_id: new.id.is_none(),
            message: &message,
            taken_revision: request.taken_revision(&message),
            flows_open_max: tenant.quotas.of(Quota::ContextFlowsOpen),
            jobs_open_max: tenant.quotas.of(Quota::ContextJobsOpen),
            flows_max: tenant.quotas.of(Quota::ContextFlows),
            first_job: first.0,
            context: context.id.0,
            due: &due.map(|due| due.to_string()).unwrap_or_default(),
            router: router,
            hold_end: &(now + HOLD).to_string(),
            blobs: blobs.hashes.len(),
            nodes: nodes.len(),
            messages: step.messages.len(),
            events: step.events.len(),
            refs: blobs.references.len(),
        ]);
        let place =
            record::job::JobScope { caller: flow.caller_id, context: context.id, flow: Some(flow.id) };
        let change = blobs.write(change);
        let change = nodes.iter().fold(change, |change, node| node.write(change, place, by, now));
        let change = step.messages.iter().fold(change, |change, message| message.write(change));
        let change = change.args(step.events.iter().map(|event| &event[..]));
        let change = change.args(record::flow::write(&flow, new, last_commit).args());
        let mut answer = tenant.apply_and_report(change, made).await?.into_iter();
        let mut next = || answer.next().unwrap_or(Value::Nil);
        if next().int()? == 0 {
            let id = u32::try_from(next().uint()?).unwrap_or_default();
            return Ok(CreateFlowOutcome::Before(FlowId(id), next().text()?));
        }
        flow.revision = Revision(next().uint()?);
        flow.jobs.clear();
        let first_job = JobId(u32::try_from(next().uint()?).unwrap_or_default());
        let last_commit = last_commit.to_owned();
        let stored = StoredFlow { flow, node_count: new.node_count, first_job, last_commit };
        Ok(CreateFlowOutcome::Made(Box::new(stored)))
    }
}

/// Splits the answer into the revision of a created flow, the events it wrote to the stream, and the rest.
fn made(value: Value) -> kv::Result<(Option<u64>, Value, Vec<Value>)> {
    let mut answer = value.array()?;
    match answer.as_slice() {
        [made, revision, _, _] if made.int()? == 1 => {
            let revision = revision.uint()?;
            Ok((Some(revision), answer.pop().unwrap_or(Value::Nil), answer))
        }
        _ => Ok((None, Value::Nil, answer)),
    }
}

/// Guard for a creation that may have taken effect unnoticed: its answer was lost, or its caller has gone away. Dropping the guard
/// starts the recovery, unless that was taken out before.
struct CreationRecoveryGuard(Option<CreationRecovery>);

/// Recovery of a flow that may have been created: sends its messages and notifies its owner.
struct CreationRecovery {
    store: Store,
    tenant: Arc<TenantStore>,
    routers: StorageRouters,
    flow: (FlowId, FlowUid),
    messages: Vec<MessageKey>,
}

impl CreationRecovery {
    async fn run(self) {
        let (id, uid) = self.flow;
        for _ in 0..NOTIFY_TRIES {
            let notified = async {
                self.store.send_held(&self.tenant, &self.routers, &self.messages, Timestamp::now()).await?;
                self.tenant.touch(id, uid).await
            };
            match notified.await {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(
                        flow = id.0, %error,
                        "the owner of a flow that may be new could not be notified, trying again"
                    )
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // Nothing is lost: replicas list their flows once Redis is back, and the holds of messages end.
    }
}

impl Drop for CreationRecoveryGuard {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and routers connect to its next start.
        if let Some(rescue) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(rescue.run());
        }
    }
}

/// A context's record as it was read last for a flow to be created.
#[derive(Debug, Default)]
pub(crate) struct LastContext(Mutex<Option<Arc<Context>>>);

impl LastContext {
    fn get(&self) -> Option<Arc<Context>> {
        lock(&self.0).clone()
    }

    fn set(&self, context: Arc<Context>) {
        *lock(&self.0) = Some(context);
    }

    /// Forgets it: the store may have lost it.
    pub(crate) fn forget(&self) {
        *lock(&self.0) = None;
    }
}

/// Per caller, the next job id to try as the first of a flow; the script decides.
#[derive(Debug, Default)]
pub(crate) struct JobIdAllocator(Mutex<HashMap<ActorId, JobIdCounter>>);

/// The ids of one caller.
#[derive(Debug, Clone, Copy, Default)]
struct JobIdCounter {
    /// Last id that is known to be issued.
    given: u32,
    /// Last id that is being tried.
    tried: u32,
    /// How many flows are being created with reserved ids.
    open: u32,
}

/// Reservation of ids that are being tried; ends on drop. Once no reservation is open, ids that were not issued are tried again.
struct JobIdReservation<'a> {
    ids: &'a JobIdAllocator,
    caller: ActorId,
    first: JobId,
    count: u32,
    given: bool,
}

impl JobIdAllocator {
    /// Reserves `count` consecutive ids that have not been issued.
    async fn reserve(
        &self,
        tenant: &TenantStore,
        caller: ActorId,
        count: u32,
    ) -> Result<JobIdReservation<'_>> {
        let known = self.ids().get(&caller).map(|ids| ids.given);
        let given = match known {
            Some(given) => given,
            None => last_given(&tenant.connection, &tenant.ids, caller).await?,
        };
        let reserved = self.try_next(caller, count, given);
        reserved.ok_or_else(|| Error::no_ids_left("the caller has no job ids left".to_owned()))
    }

    /// Reserves `count` ids in a row; `given` is the last issued id unless a greater one is known.
    fn try_next(&self, caller: ActorId, count: u32, given: u32) -> Option<JobIdReservation<'_>> {
        let mut ids = self.ids();
        let ids = ids.entry(caller).or_insert(JobIdCounter { given, tried: given, open: 0 });
        let first = JobId(ids.tried.checked_add(1)?);
        ids.tried = ids.tried.checked_add(count)?;
        ids.open += 1;
        Some(JobIdReservation { ids: self, caller, first, count, given: false })
    }

    /// Notes that ids up to `last` are given.
    fn skip(&self, caller: ActorId, last: u32) {
        let mut ids = self.ids();
        let ids = ids.entry(caller).or_default();
        ids.given = ids.given.max(last);
        ids.tried = ids.tried.max(last);
    }

    fn ids(&self) -> MutexGuard<'_, HashMap<ActorId, JobIdCounter>> {
        lock(&self.0)
    }
}

impl Drop for JobIdReservation<'_> {
    fn drop(&mut self) {
        let mut ids = self.ids.ids();
        let ids = ids.entry(self.caller).or_default();
        ids.open = ids.open.saturating_sub(1);
        if self.given {
            ids.given = ids.given.max(self.first.0 + self.count - 1);
        }
        if ids.open == 0 {
            ids.tried = ids.given;
        }
    }
}

async fn last_given(connection: &KvConnection, ids: &str, caller: ActorId) -> Result<u32> {
    let last = connection.cmd(Cmd::new("HGET").arg(ids).arg(&format!("job:{caller}"))).await?;
    let last = if last.is_nil() { 0 } else { last.uint()? };
    Ok(u32::try_from(last).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_were_not_given_are_tried_again() {
        let ids = JobIdAllocator::default();
        let caller = ActorId(7);
        let reserve = |count| ids.try_next(caller, count, 10).expect("there are some left");
        let (refused, mut made) = (reserve(3), reserve(2));
        assert_eq!((refused.first, made.first), (JobId(11), JobId(14)));
        drop(refused);
        let second = reserve(1);
        assert_eq!(second.first, JobId(16), "others are on their way");
        made.given = true;
        drop((made, second));
        assert_eq!(reserve(1).first, JobId(16));
        assert_eq!(reserve(1).first, JobId(16));
        ids.skip(caller, 20);
        assert_eq!(reserve(1).first, JobId(21), "others were given them meanwhile");
        ids.skip(caller, u32::MAX - 1);
        assert!(ids.try_next(caller, 2, 0).is_none());
    }
}
