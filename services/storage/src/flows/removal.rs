//! Removing a flow with all that belongs to it: a few hundred keys a script, the flow's own record last.
//!
//! A flow that is being removed is marked so; a repeated request continues where an interrupted one stopped.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kv::{Cmd, Value};
use model::{
    ActorId, Attempt, BlobHash, ContextId, FlowId, FlowNode, JobId, JobKey, Revision, RunnerId, Timestamp,
    limits,
};

use crate::error::{Error, Result};
use crate::flows::reads::nodes_of;
use crate::idempotency::{IdempotencyKey, expected_text, hash_of};
use crate::messages::forgettable_attempts::{ForgettableAttempts, forgettable_by_runner};
use crate::record::flow::StoredFlow;
use crate::record::{self, RecordFields};
use crate::scripts;
use crate::store::{PERMISSION_TRIES, RequestPrincipal, Store, TenantStore};
use crate::tenants::audit::AuditRecord;
use crate::tenants::permission::{self, ContextAction};

/// Approximate number of keys that one script removes: the last job may add as many as it has files.
const KEYS_MAX: usize = 700;
/// Entries that one step of a scan looks at.
const SCAN_COUNT: usize = 1000;
/// Nodes that are looked at together.
const NODES_READ: u32 = 200;

/// Attempts by the runner records that they were sent to.
type AttemptsByRunner = BTreeMap<RunnerId, Vec<JobKey>>;

/// Keys that one script removes.
#[derive(Debug, Default)]
struct RemovalBatch {
    jobs: Vec<(JobId, String)>,
    logs: Vec<String>,
    messages: Vec<String>,
    refs: Vec<String>,
    /// Number of an entry of `refs` and of one of `jobs`, both from 1 on.
    references: Vec<(usize, usize)>,
    places: HashMap<BlobHash, usize>,
}

impl RemovalBatch {
    fn len(&self) -> usize {
        self.jobs.len() + self.logs.len() + self.messages.len() + self.refs.len()
    }
}

impl Store {
    /// Removes a flow that has ended or was never started, provided that it is at the expected revision, if any. Returns the attempts
    /// that supervisors need not keep.
    pub(crate) async fn remove_flow(
        &self,
        context: ContextId,
        (flow, expected): (FlowId, Option<Revision>),
        asker: RequestPrincipal,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Vec<ForgettableAttempts>> {
        let actor = asker.actor()?;
        self.remove_flow_by(context, (flow, expected), Some(actor), request, now).await
    }

    /// Removes a flow that is over for `actor`, or for storage itself, which needs no permission.
    pub(crate) async fn remove_flow_by(
        &self,
        context: ContextId,
        (flow, expected): (FlowId, Option<Revision>),
        actor: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Vec<ForgettableAttempts>> {
        // Without a value, the same request has removed the flow before.
        let begun = self.begin_removal(context, (flow, expected), actor, request, now).await?;
        let Some((tenant, stored)) = begun else { return Ok(Vec::new()) };
        let mut attempts = BTreeMap::new();
        match self.remove_begun(&tenant, &stored, &mut attempts, now).await {
            // A concurrent removal was faster.
            Err(Error::NotFound(_)) => {}
            result => result?,
        }
        Ok(forgettable_by_runner(context, attempts))
    }

    /// Removes everything left of a flow that is marked, and notes its attempts by the runner records that they were sent to.
    async fn remove_begun(
        &self,
        tenant: &TenantStore,
        stored: &StoredFlow,
        attempts: &mut AttemptsByRunner,
        now: Timestamp,
    ) -> Result<()> {
        self.remove_messages(tenant, stored, attempts, now).await?;
        self.remove_nodes(tenant, stored, now).await?;
        let (keys, flow) = (&tenant.keys, stored.flow.id);
        let own = [keys.flow(flow), keys.flow_nodes(flow), keys.flow_messages(flow)];
        let given = [keys.flow_signals(flow), keys.flow_inputs(flow), keys.flow_waiters(flow)];
        let touched = scripts::END_REMOVAL.keys([
            ("flow", &own[0]),
            ("nodes", &own[1]),
            ("carriers", &own[2]),
            ("signals", &given[0]),
            ("flows", &tenant.flows),
            ("inputs", &given[1]),
            ("waiters", &given[2]),
            ("flows_active", &tenant.flows_active),
        ]);
        let call = tenant
            .begin(&scripts::END_REMOVAL, &touched, None, now)
            .named(kv::named![flow: flow.0, flow_uid: &stored.flow.uid.to_string()]);
        tenant.call(call).await?;
        Ok(())
    }

    async fn begin_removal(
        &self,
        context: ContextId,
        (flow, expected): (FlowId, Option<Revision>),
        actor: Option<ActorId>,
        request: Option<&IdempotencyKey>,
        now: Timestamp,
    ) -> Result<Option<(Arc<TenantStore>, StoredFlow)>> {
        let asker = actor.map_or(RequestPrincipal::Service, RequestPrincipal::Actor);
        let request = actor.zip(request);
        for _ in 0..PERMISSION_TRIES {
            let (tenant, context, mut answers) = self
                .read(context, asker, |tenant, pipeline| {
                    pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
                    // Read after the flow, since a removal records the request first.
                    if let Some((actor, request)) = request {
                        let key = tenant.keys.request(actor, &request.id);
                        pipeline.cmd(Cmd::new("HMGET").arg(&key).arg("hash").arg("flow_uid"));
                    }
                })
                .await?;
            let stored_request = request.and_then(|_| answers.pop());
            let then = stored_request
                .map(|stored_request| removed_then(stored_request, request.map(|(_, request)| request)))
                .transpose()?
                .flatten();
            let value = answers.pop().unwrap_or(Value::Nil);
            let fields = RecordFields::of_some(format_args!("flow {flow}"), &record::flow::READ, value)?;
            if fields.is_none() && then.is_some() {
                return Ok(None);
            }
            let mut fields = fields.ok_or_else(|| Error::not_found("flow", flow))?;
            let stored = record::flow::read_any(&mut fields)?;
            // Another flow has the number by now.
            if then.is_some_and(|then| then != stored.flow.uid.to_string()) {
                return Ok(None);
            }
            if let Some(actor) = actor {
                permission::allow_for(&context, actor, ContextAction::DeleteFlow, stored.flow.caller_id)?;
            }
            let record = tenant.keys.flow(flow);
            let request_key = request.map(|(actor, request)| tenant.keys.request(actor, &request.id));
            let mut touched = scripts::BEGIN_REMOVAL
                .keys([("flow", &record), ("flows_active", &tenant.flows_active), ("due", &tenant.due)])
                .to_vec();
            touched.extend(request_key.as_deref());
            let request = request.map(|(_, request)| request);
            let audit_record = actor.map(|actor| {
                AuditRecord::of(Some(actor), ContextAction::DeleteFlow, format_args!("flow {flow}"))
                    .with_request_id(request)
            });
            let permitted_at = actor.map(|_| context.revision.to_string()).unwrap_or_default();
            let call = tenant
                .begin_by(audit_record.as_ref(), &scripts::BEGIN_REMOVAL, &touched, Some(context.uid), now)
                .named(kv::named![
                    context_revision: &permitted_at,
                    flow: flow.0,
                    flow_uid: &stored.flow.uid.to_string(),
                    request_hash: hash_of(request),
                    request_secs: limits::REQUEST_ID_KEEP_SECS,
                    expected_revision: &expected_text(expected),
                ]);
            match tenant.call(call).await {
                Err(Error::ContextChanged(_)) => {}
                // A concurrent removal was faster, perhaps for the same request.
                Err(Error::NotFound(_)) if request.is_some() => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(Some((tenant, stored))),
            }
        }
        Err(Error::ContextChanged(context))
    }

    async fn remove_messages(
        &self,
        tenant: &TenantStore,
        stored: &StoredFlow,
        attempts: &mut AttemptsByRunner,
        now: Timestamp,
    ) -> Result<()> {
        let index = tenant.keys.flow_messages(stored.flow.id);
        loop {
            let query = Cmd::new("SRANDMEMBER").arg(&index).arg(KEYS_MAX);
            let messages = tenant.connection.cmd(query).await?.texts()?;
            if messages.is_empty() {
                return Ok(());
            }
            note_attempts(tenant, stored, &messages, attempts).await?;
            remove(tenant, stored, RemovalBatch { messages, ..RemovalBatch::default() }, now).await?;
        }
    }

    async fn remove_nodes(&self, tenant: &TenantStore, stored: &StoredFlow, now: Timestamp) -> Result<()> {
        let mut from = 0;
        while from < stored.node_count {
            let (mut jobs, mut attempts) = (Vec::new(), Vec::new());
            for (_, job, json) in nodes_of(tenant, stored, from, NODES_READ).await? {
                // For a node that cannot be read, at least the first attempt is removed.
                attempts.push(serde_json::from_slice::<FlowNode>(&json).map_or(1, |node| node.attempt.0));
                jobs.push(job);
            }
            self.remove_jobs(tenant, stored, &jobs, &attempts, now).await?;
            from = from.saturating_add(NODES_READ);
        }
        Ok(())
    }

    async fn remove_jobs(
        &self,
        tenant: &TenantStore,
        stored: &StoredFlow,
        jobs: &[JobId],
        attempts: &[u32],
        now: Timestamp,
    ) -> Result<()> {
        let mut batch = RemovalBatch::default();
        for ((job, attempts), blobs) in jobs.iter().zip(attempts).zip(blobs_of(tenant, stored, jobs).await?) {
            for attempt in 1..=*attempts {
                batch.logs.push(tenant.keys.log(stored.flow.id, *job, Attempt(attempt)));
                if batch.len() >= KEYS_MAX {
                    remove(tenant, stored, std::mem::take(&mut batch), now).await?;
                }
            }
            batch.jobs.push((*job, tenant.keys.job(stored.flow.caller_id, *job)));
            for hash in blobs {
                let refs = &mut batch.refs;
                let place = *batch.places.entry(hash).or_insert_with(|| {
                    refs.push(tenant.keys.blob_refs(hash));
                    refs.len()
                });
                batch.references.push((place, batch.jobs.len()));
            }
            if batch.len() >= KEYS_MAX {
                remove(tenant, stored, std::mem::take(&mut batch), now).await?;
            }
        }
        remove(tenant, stored, batch, now).await
    }

    /// Removes entries of a flow that is gone from the sets of flows that have something to do: a flow that it
    /// waited for may have added it.
    pub(crate) async fn forget_flow(&self, tenant: &TenantStore, flow: FlowId, now: Timestamp) -> Result<()> {
        let pattern = format!("{flow}-*");
        let mut entries = Vec::new();
        for (scan, key, width) in [("SSCAN", &tenant.flows_active, 1), ("ZSCAN", &tenant.due, 2)] {
            let found = scan_all(&tenant.connection, scan, key, Some(&pattern)).await?;
            entries.extend(found.into_iter().step_by(width));
        }
        if entries.is_empty() {
            return Ok(());
        }
        let record = tenant.keys.flow(flow);
        let touched = scripts::FORGET_FLOW.keys([
            ("flow", &record),
            ("flows_active", &tenant.flows_active),
            ("due", &tenant.due),
        ]);
        let change = tenant.begin(&scripts::FORGET_FLOW, &touched, None, now).args(&entries);
        tenant.call(change).await?;
        Ok(())
    }
}

/// Notes which attempts these messages carried, and to whom.
async fn note_attempts(
    tenant: &TenantStore,
    stored: &StoredFlow,
    messages: &[String],
    attempts: &mut AttemptsByRunner,
) -> Result<()> {
    let mut pipeline = kv::Pipeline::new();
    for message in messages {
        pipeline.cmd(Cmd::new("HMGET").arg(message).arg("to").arg("job_keys"));
    }
    for answer in tenant.connection.pipeline(&pipeline).await? {
        // A value that a program has put under the key names no attempts.
        let Ok([runner, keys]) = answer.and_then(Value::tuple) else { continue };
        let (Ok(runner), Ok(keys)) = (runner.text(), keys.text()) else { continue };
        let Ok(runner) = runner.parse::<RunnerId>() else { continue };
        let keys = keys.split(' ').filter_map(|key| key.parse::<JobKey>().ok());
        attempts.entry(runner).or_default().extend(keys.filter(|key| key.flow == stored.flow.uid));
    }
    Ok(())
}

/// Collects everything that a scan of one key returns.
async fn scan_all(
    connection: &kv::KvConnection,
    scan: &str,
    key: &str,
    pattern: Option<&str>,
) -> Result<Vec<String>> {
    let (mut found, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let query = Cmd::new(scan).arg(key).arg(&cursor).arg("COUNT").arg(SCAN_COUNT);
        let query = pattern.into_iter().fold(query, |query, pattern| query.arg("MATCH").arg(pattern));
        let [next, page] = connection.cmd(query).await?.tuple()?;
        found.extend(page.texts()?);
        cursor = next.text()?;
        if cursor == "0" {
            return Ok(found);
        }
    }
}

/// The uid of the flow that the same request had removed before.
fn removed_then(stored_request: Value, request: Option<&IdempotencyKey>) -> Result<Option<String>> {
    let [hash, uid] = stored_request.tuple()?;
    match hash.optional_text()? {
        None => Ok(None),
        Some(hash) if hash != hash_of(request) => Err(Error::RequestIdReused),
        Some(_) => Ok(Some(uid.optional_text()?.unwrap_or_default())),
    }
}

/// Collects the blobs that each job refers to: its script, its files, and its outputs.
async fn blobs_of(tenant: &TenantStore, stored: &StoredFlow, jobs: &[JobId]) -> Result<Vec<Vec<BlobHash>>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = kv::Pipeline::new();
    for job in jobs {
        let key = tenant.keys.job(stored.flow.caller_id, *job);
        pipeline.cmd(Cmd::new("HMGET").arg(&key).args(record::job::READ));
    }
    let nodes =
        Cmd::new("HMGET").arg(&tenant.keys.flow_nodes(stored.flow.id)).args(jobs.iter().map(|job| job.0));
    pipeline.cmd(nodes);
    let mut answers = tenant.connection.pipeline(&pipeline).await?;
    let nodes = answers.pop().unwrap_or(Ok(Value::Nil))?.array()?;
    let mut all = Vec::with_capacity(jobs.len());
    for (answer, node) in answers.into_iter().zip(nodes) {
        let fields = RecordFields::of_some("job", &record::job::READ, answer?)?;
        // A job that cannot be read is removed as well; the blobs it refers to stay, which costs only space.
        let spec = fields.and_then(|fields| record::job::read(fields).ok());
        let mut hashes: Vec<BlobHash> =
            spec.iter().flat_map(model::JobSpec::blobs).map(|blob| blob.sha256).collect();
        if let Ok(node) = serde_json::from_slice::<FlowNode>(&node.bytes().unwrap_or_default()) {
            hashes.extend(node.outputs.values().map(|blob| blob.sha256));
        }
        hashes.sort_unstable();
        hashes.dedup();
        all.push(hashes);
    }
    Ok(all)
}

async fn remove(
    tenant: &TenantStore,
    stored: &StoredFlow,
    batch: RemovalBatch,
    now: Timestamp,
) -> Result<()> {
    if batch.len() == 0 {
        return Ok(());
    }
    let RemovalBatch { jobs, logs, messages, refs, references, places: _ } = batch;
    let id = stored.flow.id;
    let own = [tenant.keys.flow(id), tenant.keys.flow_nodes(id), tenant.keys.flow_messages(id)];
    let mut touched = scripts::REMOVE_RECORDS
        .keys([
            ("flow", &own[0]),
            ("nodes", &own[1]),
            ("carriers", &own[2]),
            ("held", &tenant.held),
            ("blob_idle", &tenant.blob_idle),
            ("dead_letters", &tenant.dead_letters),
        ])
        .to_vec();
    touched.extend(jobs.iter().map(|(_, key)| key.as_str()));
    touched.extend(logs.iter().chain(&messages).chain(&refs).map(String::as_str));
    let call = tenant
        .begin(&scripts::REMOVE_RECORDS, &touched, None, now)
        .named(kv::named![
            flow_uid: &stored.flow.uid.to_string(),
            jobs: jobs.len(),
            logs: logs.len(),
            messages: messages.len(),
            refs: references.len(),
        ])
        .args(jobs.iter().map(|(job, _)| job.0))
        .args(references.into_iter().flat_map(|(blob, job)| [blob, job]));
    tenant.call(call).await?;
    Ok(())
}
