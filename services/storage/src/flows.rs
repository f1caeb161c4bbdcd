//! Flows: created, filled, started, taken over, and wished to end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use kv::{Cmd, Value};
use model::flow::{EnvVars, ResultMap};
use model::{
    ActorId, BlobHash, Context, ContextId, ContextUid, Epoch, Event, Flow, FlowId, FlowNode, FlowStatus,
    FlowUid, Generation, JobId, JobSpec, MessageId, Name, OwnerId, Revision, Timestamp, limits,
};

use crate::error::{Error, Result};
use crate::record::flow::StoredFlow;
use crate::record::{self, Fields, Written};
use crate::requests::{Request, hash_of};
use crate::scripts;
use crate::store::{Asker, ID_TRIES, PERMISSION_TRIES, Store, Tenant};

/// Nodes of one call of [`Store::add_nodes`].
pub(crate) const ADD_NODES_MAX: usize = 500;
/// Message ids of one call of [`Store::reserve_messages`].
pub(crate) const RESERVE_MESSAGES_MAX: u32 = 10_000;

/// A flow to be created.
#[derive(Debug, Clone)]
pub(crate) struct NewFlow {
    /// The wished id.
    pub(crate) id: Option<FlowId>,
    /// Whose it is to be.
    pub(crate) caller: ActorId,
    /// What people call it.
    pub(crate) name: Name,
    /// Variables for every job.
    pub(crate) env_vars: EnvVars,
    /// Whether the first failure ends it.
    pub(crate) fail_fast: bool,
    /// Seconds from the start on after which it fails.
    pub(crate) deadline_secs: Option<u32>,
    /// Seconds until a cancelled attempt is closed.
    pub(crate) cancel_timeout_secs: u32,
    /// How many nodes it will have.
    pub(crate) node_count: u32,
}

/// A node to be added.
#[derive(Debug, Clone)]
pub(crate) struct NewNode {
    /// The node's JSON, as it is to be kept.
    pub(crate) json: Bytes,
    /// The same, read.
    pub(crate) node: FlowNode,
    /// What it executes.
    pub(crate) job: JobSpec,
}

/// A flow with the uid of its context.
pub(crate) type FlowInContext = (StoredFlow, ContextUid);

impl Store {
    /// Creates a flow, or gives the one that the same request made before.
    pub(crate) async fn create_flow(
        &self,
        context: ContextId,
        asker: Asker,
        new: &NewFlow,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<FlowInContext> {
        let actor = asker.actor()?;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context) = self.context(context).await?;
            context.require_create(actor, new.caller)?;
            match self.create_flow_in(&tenant, &context, actor, new, request, now).await {
                Err(Error::ContextChanged(_)) => {}
                result => return result,
            }
        }
        Err(Error::ContextChanged(context))
    }

    async fn create_flow_in(
        &self,
        tenant: &Arc<Tenant>,
        context: &Context,
        actor: ActorId,
        new: &NewFlow,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<FlowInContext> {
        let request_key = request.map(|request| tenant.keys.request(actor, &request.id));
        for _ in 0..ID_TRIES {
            let id = match new.id {
                Some(id) => id,
                None => FlowId(tenant.next_flow_id().await?),
            };
            let flow = fresh_flow(id, context.id, new, now);
            match write_flow(tenant, context, flow, new, (request_key.as_deref(), hash_of(request)), now)
                .await
            {
                Ok(Outcome::Made(stored)) => {
                    self.remember_caller(stored.flow.uid, stored.flow.caller_id);
                    return Ok((*stored, context.uid));
                }
                Ok(Outcome::Before(id, uid)) => {
                    let stored = self.stored_flow(tenant, id).await?;
                    if stored.flow.uid.to_string() != uid {
                        return Err(Error::not_found("the flow that this request made, flow", id));
                    }
                    return Ok((stored, context.uid));
                }
                Err(Error::Store(kv::Error::Refused { code, message })) if code == "FLOW_EXISTS" => {
                    if new.id.is_some() {
                        return Err(Error::Exists(format!("flow {id}")));
                    }
                    tenant.skip_flow_ids(message.parse().unwrap_or_default());
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Exhausted("no free flow id was found; name one".to_owned()))
    }

    /// Reads a flow that is not being removed.
    pub(crate) async fn stored_flow(&self, tenant: &Tenant, id: FlowId) -> Result<StoredFlow> {
        let key = tenant.keys.flow(id);
        let value = tenant.connection.cmd(Cmd::new("HMGET").arg(&key).args(record::flow::READ)).await?;
        self.flow_of(id, value)
    }

    /// The flow in the answer to `HMGET` of what is read of flows.
    pub(crate) fn flow_of(&self, id: FlowId, value: Value) -> Result<StoredFlow> {
        let fields = Fields::of_some(format_args!("flow {id}"), &record::flow::READ, value)?;
        let stored = fields.map(|fields| record::flow::read(&fields)).transpose()?.flatten();
        let stored = stored.ok_or_else(|| Error::not_found("flow", id))?;
        self.remember_caller(stored.flow.uid, stored.flow.caller_id);
        Ok(stored)
    }

    /// Whose flow it is.
    pub(crate) async fn caller(&self, tenant: &Tenant, id: FlowId, uid: FlowUid) -> Result<ActorId> {
        if let Some(caller) = self.caller_of(uid) {
            return Ok(caller);
        }
        let stored = self.stored_flow(tenant, id).await?;
        if stored.flow.uid != uid {
            return Err(Error::not_found("flow", id));
        }
        Ok(stored.flow.caller_id)
    }

    /// Adds nodes to a flow that is being created. Doing it again changes nothing.
    pub(crate) async fn add_nodes(
        &self,
        context: ContextId,
        flow: FlowId,
        uid: FlowUid,
        nodes: &[NewNode],
        now: Timestamp,
    ) -> Result<()> {
        if nodes.len() > ADD_NODES_MAX {
            let asked = nodes.len() as u64;
            return Err(Error::Limit { limit: "nodes of one AddNodes", max: ADD_NODES_MAX as u64, asked });
        }
        if nodes.is_empty() {
            return Ok(());
        }
        let tenant = self.tenant(context).await?;
        let caller = self.caller(&tenant, flow, uid).await?;
        let place = record::job::Place { caller, context, flow };
        let blobs = BlobTable::of(nodes);
        let mut touched =
            vec![tenant.keys.flow(flow), tenant.keys.flow_nodes(flow), tenant.blob_idle.clone()];
        for hash in &blobs.hashes {
            touched.extend([tenant.keys.blob(*hash), tenant.keys.blob_refs(*hash)]);
        }
        touched.extend(nodes.iter().map(|node| tenant.keys.job(caller, node.node.job_id)));
        let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
        let mut call = tenant
            .begin(&scripts::ADD_NODES, &touched, None, now)
            .arg(flow.0)
            .arg(&uid.to_string())
            .arg(blobs.hashes.len())
            .arg(nodes.len())
            .arg(blobs.references.len());
        for (blob, job) in &blobs.references {
            call = call.arg(*blob).arg(*job);
        }
        for node in nodes {
            let written: Written = record::job::write(place, &node.node, &node.job, now);
            call = call.arg(node.node.job_id.0).arg(&node.json[..]).arg(written.len()).args(written.args());
        }
        tenant.call(call).await?;
        Ok(())
    }

    /// Starts a flow that has all its nodes.
    pub(crate) async fn start_flow(
        &self,
        context: ContextId,
        flow: FlowId,
        uid: FlowUid,
        owner: OwnerId,
        now: Timestamp,
    ) -> Result<FlowInContext> {
        let (tenant, context) = self.context(context).await?;
        let touched = [tenant.keys.flow(flow), tenant.keys.flow_nodes(flow), tenant.flows_active.clone()];
        let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
        let call = tenant
            .begin(&scripts::START_FLOW, &touched, Some(context.uid), now)
            .arg(flow.0)
            .arg(&uid.to_string())
            .arg(&owner.to_string())
            .arg(now.as_millis());
        tenant.call(call).await?;
        Ok((self.stored_flow(&tenant, flow).await?, context.uid))
    }

    /// Makes `owner` the owner of a flow that runs.
    pub(crate) async fn take_flow(
        &self,
        context: ContextId,
        flow: FlowId,
        owner: OwnerId,
        now: Timestamp,
    ) -> Result<FlowInContext> {
        let (tenant, context) = self.context(context).await?;
        let key = tenant.keys.flow(flow);
        let call = tenant
            .begin(&scripts::TAKE_FLOW, &[&key], Some(context.uid), now)
            .arg(flow.0)
            .arg(&owner.to_string());
        tenant.call(call).await?;
        Ok((self.stored_flow(&tenant, flow).await?, context.uid))
    }

    /// Reserves `count` message ids of `caller` and gives the first of them.
    pub(crate) async fn reserve_messages(
        &self,
        context: ContextId,
        caller: ActorId,
        count: u32,
        now: Timestamp,
    ) -> Result<MessageId> {
        if count == 0 || count > RESERVE_MESSAGES_MAX {
            return Err(Error::field("count", format!("1 to {RESERVE_MESSAGES_MAX}, not {count}")));
        }
        let tenant = self.tenant(context).await?;
        let call = tenant.begin(&scripts::RESERVE_MESSAGES, &[], None, now).arg(caller.0).arg(count);
        let first = tenant.call(call).await?.uint()?;
        Ok(MessageId(u32::try_from(first).unwrap_or_default()))
    }

    /// Keeps the wish to cancel a flow. One that has ended, or was wished to end before, stays as it is.
    pub(crate) async fn request_cancel(
        &self,
        context: ContextId,
        flow: FlowId,
        asker: Asker,
        request: Option<&Request>,
        now: Timestamp,
    ) -> Result<FlowInContext> {
        let actor = asker.actor()?;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, stored, context) = self.changeable_flow(context, flow, actor).await?;
            let mut touched = vec![tenant.keys.flow(flow)];
            touched.extend(request.map(|request| tenant.keys.request(actor, &request.id)));
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let event = Event::CancelRequested { flow_id: flow, actor, time: now };
            let event = serde_json::to_string(&event).expect("events are JSON");
            let call = tenant
                .begin(&scripts::REQUEST_CANCEL, &touched, Some(context.uid), now)
                .arg(context.revision.0)
                .arg(flow.0)
                .arg(&stored.flow.uid.to_string())
                .arg(&event)
                .arg(hash_of(request))
                .arg(limits::REQUEST_ID_KEEP_SECS);
            match tenant.call(call).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok((self.stored_flow(&tenant, flow).await?, context.uid)),
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// A flow that `actor` may change.
    async fn changeable_flow(
        &self,
        context: ContextId,
        flow: FlowId,
        actor: ActorId,
    ) -> Result<(Arc<Tenant>, StoredFlow, Context)> {
        let (tenant, context, mut answers) = self
            .read(context, Asker::Actor(actor), |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
            })
            .await?;
        let stored = self.flow_of(flow, answers.pop().unwrap_or(Value::Nil))?;
        context.require_change(actor, stored.flow.caller_id)?;
        Ok((tenant, stored, context))
    }
}

/// What a creation came to.
enum Outcome {
    /// There is a new flow.
    Made(Box<StoredFlow>),
    /// The same request made this one before.
    Before(FlowId, String),
}

fn fresh_flow(id: FlowId, context: ContextId, new: &NewFlow, now: Timestamp) -> Flow {
    Flow {
        id,
        uid: FlowUid::random(),
        name: new.name.clone(),
        caller_id: new.caller,
        context_id: context,
        jobs: Vec::new(),
        env_vars: new.env_vars.clone(),
        result: ResultMap::new(),
        result_truncated: false,
        fail_fast: new.fail_fast,
        deadline: None,
        cancel_requested_time: None,
        cancel_timeout_secs: new.cancel_timeout_secs,
        created_at: now,
        updated_at: now,
        status: FlowStatus::Created,
        generation: Generation(1),
        revision: Revision(0),
        owner: None,
        epoch: Epoch(0),
    }
}

async fn write_flow(
    tenant: &Tenant,
    context: &Context,
    mut flow: Flow,
    new: &NewFlow,
    (request_key, request_hash): (Option<&str>, &str),
    now: Timestamp,
) -> Result<Outcome> {
    let key = tenant.keys.flow(flow.id);
    let mut touched = vec![key.as_str(), &tenant.flows];
    touched.extend(request_key);
    let call = tenant
        .begin(&scripts::CREATE_FLOW, &touched, Some(context.uid), now)
        .arg(context.revision.0)
        .arg(flow.id.0)
        .arg(flow.caller_id.0)
        .arg(new.node_count)
        .arg(request_hash)
        .arg(limits::REQUEST_ID_KEEP_SECS)
        .arg(&flow.uid.to_string())
        .arg(new.id.is_none())
        .args(record::flow::write(&flow, new.node_count, new.deadline_secs).args());
    let mut answer = tenant.call(call).await?.array()?.into_iter();
    let mut next = || answer.next().unwrap_or(Value::Nil);
    if next().int()? == 0 {
        let id = u32::try_from(next().uint()?).unwrap_or_default();
        return Ok(Outcome::Before(FlowId(id), next().text()?));
    }
    flow.revision = Revision(next().uint()?);
    let first_job = JobId(u32::try_from(next().uint()?).unwrap_or_default());
    let stored = StoredFlow { flow, node_count: new.node_count, first_job };
    Ok(Outcome::Made(Box::new(stored)))
}

/// The blobs that nodes refer to, each once, and who refers to which; both counted from 1.
#[derive(Debug, Default)]
struct BlobTable {
    hashes: Vec<BlobHash>,
    references: Vec<(usize, usize)>,
}

impl BlobTable {
    fn of(nodes: &[NewNode]) -> Self {
        let mut table = Self::default();
        let mut places: HashMap<BlobHash, usize> = HashMap::new();
        for (job, node) in nodes.iter().enumerate() {
            let mut own = BTreeMap::new();
            for blob in record::job::blobs(&node.job) {
                let place = *places.entry(blob.sha256).or_insert_with(|| {
                    table.hashes.push(blob.sha256);
                    table.hashes.len()
                });
                own.insert(place, job + 1);
            }
            table.references.extend(own);
        }
        table
    }
}
