//! Flows: filled, started, taken over, and wished to end.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use kv::{Cmd, Value};
use model::flow::EnvVars;
use model::{
    ActorId, BlobHash, Context, ContextId, ContextUid, FlowId, FlowNode, FlowSpec, FlowUid, Generation,
    JobId, JobSpec, MessageId, MessageKey, OwnerId, Rerun, Revision, ScriptSource, Timestamp, TraceParent,
    limits,
};

use crate::error::{Error, Result};
use crate::idempotency::{BatchPart, IdempotencyKey, expected_text, hash_of};
use crate::record::flow::StoredFlow;
use crate::record::{self, FieldWriter, RecordFields};
use crate::scripts;
use crate::store::{PERMISSION_TRIES, RequestPrincipal, Store, StoreChange, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};
use crate::tenants::quotas::Quota;

/// Nodes of one call of [`Store::add_nodes`].
pub(crate) const ADD_NODES_MAX: usize = 500;
/// Message ids of one call of [`Store::reserve_messages`].
pub(crate) const RESERVE_MESSAGES_MAX: u32 = 10_000;
/// Records of the flow and the context that adding nodes touches, and the node that is added itself.
const ADD_RECORDS: usize = 8;
/// Bytes that a node needs for its state and its events, besides its specification.
pub(crate) const NODE_BYTES: u64 = 4096;
/// Where a part of the nodes ends: the next node, whatever it has, still fits into the script.
const PART_BYTES_MAX: usize = limits::COMMIT_BYTES_MAX / 2;

/// A flow to be created.
#[derive(Debug, Clone)]
pub(crate) struct NewFlow {
    /// The wished id.
    pub(crate) id: Option<FlowId>,
    /// The uid that its creator chose.
    pub(crate) uid: Option<FlowUid>,
    /// Actor that the flow will belong to.
    pub(crate) caller: ActorId,
    /// Requested flow, without its nodes.
    pub(crate) spec: FlowSpec,
    /// How many nodes it will have.
    pub(crate) node_count: u32,
    /// Blobs that its nodes will refer to, as far as they are known.
    pub(crate) blobs: BTreeSet<BlobHash>,
    /// Message that the flow is created from.
    pub(crate) message: Option<MessageKey>,
    /// A node of it goes before all others of the context.
    pub(crate) goes_first: bool,
    /// Trace context of its submission.
    pub(crate) trace: Option<TraceParent>,
}

/// How a flow is run again.
#[derive(Debug, Clone)]
pub(crate) struct FlowRestart {
    /// The generation that ended.
    pub(crate) generation: Generation,
    /// Choice of the nodes to run again.
    pub(crate) rerun: Rerun,
    /// Environment variables of the flow from now on.
    pub(crate) env_vars: EnvVars,
    /// New signatures of its jobs.
    pub(crate) signatures: Vec<(JobId, String)>,
    /// The flow that is meant is at this revision.
    pub(crate) expected_revision: Option<Revision>,
    /// Trace context of the new run.
    pub(crate) trace: Option<TraceParent>,
}

/// A node to be added.
#[derive(Debug, Clone)]
pub(crate) struct NewNode {
    /// The node's JSON, as it is to be stored.
    pub(crate) json: Bytes,
    /// The node, parsed from `json`.
    pub(crate) node: FlowNode,
    /// Job that the node executes.
    pub(crate) job: JobSpec,
}

impl NewNode {
    /// Job id of the node: the number in its JSON plus `by`.
    pub(crate) fn job_id(&self, by: u32) -> JobId {
        JobId(self.node.job_id.0.saturating_add(by))
    }

    /// Adds it to the arguments of a script that writes nodes.
    pub(crate) fn write(
        &self,
        change: StoreChange,
        place: record::job::JobScope,
        by: u32,
        now: Timestamp,
    ) -> StoreChange {
        let (mut node, mut json) = (Cow::Borrowed(&self.node), Cow::Borrowed(&self.json[..]));
        if by > 0 {
            node.to_mut().renumber(by);
            json = Cow::Owned(serde_json::to_vec(&*node).expect("what was read as JSON is JSON"));
        }
        let written: FieldWriter = record::job::write(place, &node, &self.job, now);
        change.arg(node.job_id.0).arg(&*json).arg(written.len()).args(written.args())
    }

    /// Approximate bytes that the node adds to a script. Names and the like have limits of their own, far below.
    pub(crate) fn bytes(&self) -> usize {
        let script = match &self.job.script {
            ScriptSource::Inline(text) => text.len(),
            ScriptSource::Blob(_) => 0,
        };
        let env: usize = self.job.env_vars.iter().map(|(name, value)| name.len() + value.len()).sum();
        let files = (self.job.files.len() + self.job.outputs.len()) * limits::NAME_CHARS_MAX;
        self.json.len() + script + env + files
    }
}

/// A flow with the uid of its context.
pub(crate) type FlowInContext = (StoredFlow, ContextUid);

impl Store {
    /// Reads a flow that is not being removed.
    pub(crate) async fn stored_flow(&self, tenant: &TenantStore, id: FlowId) -> Result<StoredFlow> {
        let key = tenant.keys.flow(id);
        let value = tenant.connection.cmd(Cmd::new("HMGET").arg(&key).args(record::flow::READ)).await;
        self.flow_of(id, value.map_err(|error| Error::of_record(error, format_args!("flow {id}")))?)
    }

    /// Parses a flow from the answer to `HMGET` of the fields that are read of flows.
    pub(crate) fn flow_of(&self, id: FlowId, value: Value) -> Result<StoredFlow> {
        let fields = RecordFields::of_some(format_args!("flow {id}"), &record::flow::READ, value)?;
        let stored = fields.map(|mut fields| record::flow::read(&mut fields)).transpose()?.flatten();
        let stored = stored.ok_or_else(|| Error::not_found("flow", id))?;
        record::check_id(format_args!("flow {id}"), stored.flow.id, id)?;
        self.remember_caller(stored.flow.uid, stored.flow.caller_id);
        Ok(stored)
    }

    /// Returns the actor that the flow belongs to.
    pub(crate) async fn caller(&self, tenant: &TenantStore, id: FlowId, uid: FlowUid) -> Result<ActorId> {
        if let Some(caller) = self.caller_of(uid) {
            return Ok(caller);
        }
        let stored = self.stored_flow(tenant, id).await?;
        if stored.flow.uid != uid {
            return Err(Error::not_found("flow", id));
        }
        Ok(stored.flow.caller_id)
    }

    /// Adds nodes to a flow that is being created, replacing nodes at the same positions. A repetition changes
    /// nothing.
    pub(crate) async fn add_nodes(
        &self,
        (context, flow, uid): (ContextId, FlowId, FlowUid),
        nodes: &[NewNode],
        (asker, filling): (RequestPrincipal, Option<&BatchPart>),
        now: Timestamp,
    ) -> Result<()> {
        self.reserve_memory(nodes.iter().map(|node| node.bytes() as u64 + NODE_BYTES).sum())?;
        if nodes.len() > ADD_NODES_MAX {
            let requested = nodes.len() as u64;
            return Err(Error::Limit {
                limit: "nodes of one AddNodes",
                max: ADD_NODES_MAX as u64,
                requested,
            });
        }
        let parts = parts_of(nodes);
        let last = parts.len().saturating_sub(1);
        for (i, part) in parts.into_iter().enumerate() {
            let filling =
                filling.map(|filling| BatchPart { ends: filling.ends && i == last, ..filling.clone() });
            self.add_part((context, flow, uid), part, (asker, filling), now).await?;
        }
        Ok(())
    }

    /// Adds as many nodes as one script can take.
    async fn add_part(
        &self,
        (context, flow, uid): (ContextId, FlowId, FlowUid),
        nodes: &[NewNode],
        (asker, filling): (RequestPrincipal, Option<BatchPart>),
        now: Timestamp,
    ) -> Result<()> {
        if asker == RequestPrincipal::Service {
            let tenant = self.tenant(context).await?;
            let caller = self.caller(&tenant, flow, uid).await?;
            let place = record::job::JobScope { caller, context, flow: Some(flow) };
            let change = add_nodes_change(&tenant, (place, flow, uid), nodes, None, None, now);
            tenant.apply_revision(change).await?;
            return Ok(());
        }
        for _ in 0..PERMISSION_TRIES {
            let (tenant, stored, context) =
                self.changeable_flow(context, flow, asker, ContextAction::AddFlowNodes).await?;
            let caller = stored.flow.caller_id;
            let place = record::job::JobScope { caller, context: context.id, flow: Some(flow) };
            let actor = asker.actor()?;
            if nodes.iter().any(|new| new.node.policy.goes_first()) {
                context.require_first(actor)?;
            }
            let request = filling.as_ref().map(|filling| &filling.request);
            let audit_record =
                AuditRecord::of(Some(actor), ContextAction::AddFlowNodes, format_args!("flow {flow}"))
                    .with_request_id(request);
            let request_key = request.map(|request| tenant.keys.request(actor, &request.id));
            let batch = request_key.as_deref().zip(filling.as_ref());
            let decided_on = Some((&context, &audit_record));
            let change = add_nodes_change(&tenant, (place, flow, uid), nodes, decided_on, batch, now);
            match tenant.apply_revision(change).await {
                Err(Error::ContextChanged(_)) => {}
                result => return result.map(drop),
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// Starts a flow that has all its nodes. Without an owner, the replica that its uid selects is notified.
    pub(crate) async fn start_flow(
        &self,
        (context, flow, uid): (ContextId, FlowId, FlowUid),
        owner: Option<OwnerId>,
        (asker, request): (RequestPrincipal, Option<&IdempotencyKey>),
        now: Timestamp,
    ) -> Result<(FlowInContext, Vec<String>)> {
        for _ in 0..PERMISSION_TRIES {
            let (tenant, stored, context) =
                self.changeable_flow(context, flow, asker, ContextAction::StartFlow).await?;
            let audit_record = AuditRecord::by(asker, ContextAction::StartFlow, format_args!("flow {flow}"))
                .map(|audit_record| audit_record.with_request_id(request));
            let decided_on = match asker {
                RequestPrincipal::Service => String::new(),
                RequestPrincipal::Actor(_) => context.revision.to_string(),
            };
            let keys = &tenant.keys;
            let own = [keys.flow(flow), keys.flow_nodes(flow), keys.flow_signals(flow)];
            let request_key = match (asker, request) {
                (RequestPrincipal::Actor(actor), Some(request)) => Some(keys.request(actor, &request.id)),
                _ => None,
            };
            let mut touched = scripts::START_FLOW
                .keys([
                    ("flow", &own[0]),
                    ("nodes", &own[1]),
                    ("flows_active", &tenant.flows_active),
                    ("signals", &own[2]),
                ])
                .to_vec();
            touched.extend(request_key.as_deref());
            let change = tenant
                .begin_by(audit_record.as_ref(), &scripts::START_FLOW, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: &decided_on,
                    flow: flow.0,
                    flow_uid: &uid.to_string(),
                    owner: &owner.map(|owner| owner.to_string()).unwrap_or_default(),
                    now_millis: now.as_millis(),
                    last_commit: &fresh_commit(),
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    jobs: &json_text(&stored.jobs().collect::<Vec<_>>()),
                ]);
            let read = |value: Value| {
                let [revision, signals] = value.tuple()?;
                let revision = revision.uint()?;
                Ok(((revision > 0).then_some(revision), signals.texts()?))
            };
            match tenant.apply(change, read).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(signals) => {
                    let stored = self.stored_flow(&tenant, flow).await?;
                    return Ok(((stored, context.uid), signals));
                }
            }
        }
        Err(Error::ContextChanged(context))
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
        let record = tenant.keys.flow(flow);
        let touched = scripts::TAKE_FLOW.keys([
            ("flow", &record),
            ("flows_active", &tenant.flows_active),
            ("due", &tenant.due),
        ]);
        let change = tenant.begin(&scripts::TAKE_FLOW, &touched, Some(context.uid), now).named(kv::named![
            flow: flow.0,
            owner: &owner.to_string(),
            last_commit: &fresh_commit(),
        ]);
        match tenant.apply_revision(change).await {
            Ok(_) => Ok((self.stored_flow(&tenant, flow).await?, context.uid)),
            Err(Error::NotFound(what)) => {
                self.forget_flow(&tenant, flow, now).await?;
                Err(Error::NotFound(what))
            }
            Err(error) => Err(error),
        }
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
        let call = tenant
            .begin(&scripts::RESERVE_MESSAGES, &[], None, now)
            .named(kv::named![caller: caller.0, count: count]);
        let first = tenant.call(call).await?.uint()?;
        Ok(MessageId(u32::try_from(first).unwrap_or_default()))
    }

    /// Starts an ended flow again. Returns whether this call did it; otherwise the same request did it before.
    pub(crate) async fn restart_flow(
        &self,
        (context, flow, uid): (ContextId, FlowId, FlowUid),
        restart: &FlowRestart,
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<(FlowInContext, bool)> {
        let actor = asker.actor()?;
        for _ in 0..PERMISSION_TRIES {
            let (tenant, stored, context) =
                self.changeable_flow(context, flow, asker, ContextAction::RetryFlow).await?;
            let audit_record =
                AuditRecord::of(Some(actor), ContextAction::RetryFlow, format_args!("flow {flow}"))
                    .with_request_id(request);
            let mut touched = vec![tenant.keys.flow(flow), tenant.flows_active.clone()];
            touched.extend(request.map(|request| tenant.keys.request(actor, &request.id)));
            let caller = stored.flow.caller_id;
            touched.extend(restart.signatures.iter().map(|(job, _)| tenant.keys.job(caller, *job)));
            let touched: Vec<&str> = touched.iter().map(String::as_str).collect();
            let change = tenant
                .begin_by(Some(&audit_record), &scripts::RESTART_FLOW, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: context.revision.0,
                    flow: flow.0,
                    flow_uid: &uid.to_string(),
                    generation: restart.generation.0,
                    rerun: &json_text(&restart.rerun),
                    environment: &json_text(&restart.env_vars),
                    now_millis: now.as_millis(),
                    last_commit: &fresh_commit(),
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    prefix: tenant.keys.prefix(),
                    expected_revision: &expected_text(restart.expected_revision),
                    flows_open_max: tenant.quotas.of(Quota::ContextFlowsOpen),
                    jobs_open_max: tenant.quotas.of(Quota::ContextJobsOpen),
                    traceparent: &restart.trace.map(|trace| trace.to_string()).unwrap_or_default(),
                ])
                .args(restart.signatures.iter().map(|(_, signature)| signature));
            match tenant.apply_revision(change).await {
                Err(Error::ContextChanged(_)) => {}
                Err(error) => return Err(error),
                Ok(revision) => {
                    let stored = self.stored_flow(&tenant, flow).await?;
                    return Ok(((stored, context.uid), revision > 0));
                }
            }
        }
        Err(Error::ContextChanged(context))
    }

    /// A flow that `asker` may change.
    pub(crate) async fn changeable_flow(
        &self,
        context: ContextId,
        flow: FlowId,
        asker: RequestPrincipal,
        action: ContextAction,
    ) -> Result<(Arc<TenantStore>, StoredFlow, Context)> {
        let (tenant, context, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
            })
            .await?;
        let stored = self.flow_of(flow, answers.pop().unwrap_or(Value::Nil))?;
        permission::allow_asker(&context, asker, action, stored.flow.caller_id)?;
        Ok((tenant, stored, context))
    }
}

fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("maps of texts and plain choices are JSON")
}

/// Fresh commit id for the first commit of a new owner to build on; different each time.
pub(crate) fn fresh_commit() -> String {
    model::id::Uid::random().to_string()
}

/// Parts of which each can be added by one script, as far as records and bytes go.
pub(crate) fn parts_of(mut nodes: &[NewNode]) -> Vec<&[NewNode]> {
    let mut parts = Vec::new();
    while !nodes.is_empty() {
        let (mut blobs, mut bytes, mut count) = (BTreeSet::new(), 0, 0);
        for node in nodes {
            blobs.extend(node.job.blobs().map(|blob| blob.sha256));
            bytes += node.bytes();
            count += 1;
            // The next node still fits, even if it adds as many records as a node can.
            let records = count + blobs.len() + limits::JOB_FILES_MAX + ADD_RECORDS;
            if records >= limits::COMMIT_RECORDS_MAX || bytes >= PART_BYTES_MAX {
                break;
            }
        }
        let (part, rest) = nodes.split_at(count);
        parts.push(part);
        nodes = rest;
    }
    parts
}

fn add_nodes_change(
    tenant: &TenantStore,
    (place, flow, uid): (record::job::JobScope, FlowId, FlowUid),
    nodes: &[NewNode],
    decided_on: Option<(&Context, &AuditRecord)>,
    batch: Option<(&str, &BatchPart)>,
    now: Timestamp,
) -> StoreChange {
    let caller = place.caller;
    let blobs = BlobTable::of(nodes);
    let (record, flow_nodes) = (tenant.keys.flow(flow), tenant.keys.flow_nodes(flow));
    let mut varying: Vec<String> = blobs.keys(tenant).collect();
    varying.extend(nodes.iter().map(|node| tenant.keys.job(caller, node.node.job_id)));
    let mut touched = scripts::ADD_NODES
        .keys([("flow", &record), ("nodes", &flow_nodes), ("blob_idle", &tenant.blob_idle)])
        .to_vec();
    touched.extend(varying.iter().map(String::as_str));
    touched.extend(batch.map(|(key, _)| key));
    let filling = batch.map(|(_, filling)| filling);
    let change = tenant
        .begin_by(
            decided_on.map(|(_, audit_record)| audit_record),
            &scripts::ADD_NODES,
            &touched,
            decided_on.map(|(context, _)| context.uid),
            now,
        )
        .named(kv::named![
            flow: flow.0,
            flow_uid: &uid.to_string(),
            blobs: blobs.hashes.len(),
            nodes: nodes.len(),
            refs: blobs.references.len(),
            context_revision: &decided_on.map(|(context, _)| context.revision.to_string()).unwrap_or_default(),
            prefix: tenant.keys.prefix(),
            request_hash: hash_of(filling.map(|filling| &filling.request)),
            request_secs: limits::REQUEST_ID_KEEP_SECS,
            is_last: filling.is_some_and(|filling| filling.ends),
            first_job: filling.map_or(0, |filling| filling.first_job.0),
        ]);
    nodes.iter().fold(blobs.write(change), |change, node| node.write(change, place, 0, now))
}

/// The blobs that nodes refer to, each once, and who refers to which; both counted from 1.
#[derive(Debug, Default)]
pub(crate) struct BlobTable {
    pub(crate) hashes: Vec<BlobHash>,
    pub(crate) references: Vec<(usize, usize)>,
}

impl BlobTable {
    /// The keys of each blob: itself, and who refers to it.
    pub(crate) fn keys(&self, tenant: &TenantStore) -> impl Iterator<Item = String> {
        self.hashes.iter().flat_map(|hash| [tenant.keys.blob(*hash), tenant.keys.blob_refs(*hash)])
    }

    /// Adds the references to the arguments of a script.
    pub(crate) fn write(&self, change: StoreChange) -> StoreChange {
        self.references.iter().fold(change, |change, (blob, job)| change.arg(*blob).arg(*job))
    }

    pub(crate) fn of(nodes: &[NewNode]) -> Self {
        let mut table = Self::default();
        let mut places: HashMap<BlobHash, usize> = HashMap::new();
        for (job, node) in nodes.iter().enumerate() {
            let mut own = BTreeMap::new();
            for blob in node.job.blobs() {
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
