//! Reading flows, nodes and logs.

use std::sync::Arc;

use bytes::Bytes;
use kv::{Cmd, Pipeline, Value};
use model::{Attempt, ContextId, ContextUid, FlowId, FlowStatus, JobId, JobSpec, Revision, limits};

use crate::error::{Error, Result};
use crate::flows::FlowInContext;
use crate::pages::{Page, PageOf};
use crate::record::flow::StoredFlow;
use crate::record::{self, Fields};
use crate::store::{Asker, Store, Tenant};

/// Flows that are looked at for one page, when most of them have another status.
const FLOWS_SCANNED_MAX: usize = 10_000;
/// Nodes that are read at once.
const NODES_READ: u32 = 500;

/// A node with its job, as its flow's owner needs them.
#[derive(Debug, Clone)]
pub(crate) struct LoadedNode {
    /// The job's number.
    pub(crate) job: JobId,
    /// The node's JSON.
    pub(crate) json: Bytes,
    /// What it executes.
    pub(crate) spec: JobSpec,
}

/// What is kept of an attempt's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogTail {
    /// Where the bytes begin.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) data: Vec<u8>,
}

impl Store {
    /// Reads a flow.
    pub(crate) async fn read_flow(
        &self,
        context: ContextId,
        flow: FlowId,
        asker: Asker,
    ) -> Result<FlowInContext> {
        let (_, context, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
            })
            .await?;
        Ok((self.flow_of(flow, answers.pop().unwrap_or(Value::Nil))?, context.uid))
    }

    /// A page of flows, newest first, with the uid of their context.
    pub(crate) async fn read_flows(
        &self,
        context: ContextId,
        asker: Asker,
        status: Option<FlowStatus>,
        page: &Page,
    ) -> Result<(Vec<StoredFlow>, String)> {
        let filter = format!("{context} {asker:?} {status:?}");
        let mut after = page.cursor(self.coordinator(), PageOf::Flows, &filter)?;
        let (tenant, _, _) = self.read(context, asker, |_, _| {}).await?;
        let (mut found, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        loop {
            let ids = flow_ids_before(&tenant, after, page.size).await?;
            let is_last = ids.len() < page.size;
            scanned += ids.len();
            for (stored, revision, size) in self.flows_of(&tenant, &ids).await? {
                if found.len() >= page.size || (!found.is_empty() && bytes + size > limits::PAGE_BYTES_MAX) {
                    return Ok((found, page.token(self.coordinator(), PageOf::Flows, &filter, after)));
                }
                after = Some(revision);
                if let Some(stored) = stored.filter(|stored| status.is_none_or(|s| s == stored.flow.status)) {
                    bytes += size;
                    found.push(stored);
                }
            }
            if is_last {
                return Ok((found, String::new()));
            }
            if found.len() >= page.size || scanned >= FLOWS_SCANNED_MAX {
                return Ok((found, page.token(self.coordinator(), PageOf::Flows, &filter, after)));
            }
        }
    }

    /// Flows by their ids, each with its place in the list and about how many bytes it has; those that are
    /// gone or going are nothing.
    async fn flows_of(
        &self,
        tenant: &Tenant,
        ids: &[(FlowId, u64)],
    ) -> Result<Vec<(Option<StoredFlow>, u64, usize)>> {
        let mut pipeline = Pipeline::new();
        for (id, _) in ids {
            pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(*id)).args(record::flow::READ));
        }
        let answers = tenant.connection.pipeline(&pipeline).await?;
        let mut flows = Vec::with_capacity(ids.len());
        for ((id, revision), answer) in ids.iter().zip(answers) {
            let stored = match self.flow_of(*id, answer?) {
                Ok(stored) => Some(stored),
                Err(Error::NotFound(_)) => None,
                Err(error) => return Err(error),
            };
            let size = stored.as_ref().map_or(0, |stored| {
                let maps = stored.flow.env_vars.iter().chain(&stored.flow.result);
                256 + maps.map(|(key, value)| key.len() + value.len() + 8).sum::<usize>()
            });
            flows.push((stored, *revision, size));
        }
        Ok(flows)
    }

    /// A page of nodes by job id, each as JSON, and the change counter from before they were read.
    pub(crate) async fn read_nodes(
        &self,
        context: ContextId,
        flow: FlowId,
        asker: Asker,
        page: &Page,
    ) -> Result<(Vec<Bytes>, String, Revision)> {
        let (tenant, _, answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HGET").arg(&tenant.ids).arg("revision"));
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
            })
            .await?;
        let [revision, stored] = Value::Array(answers).tuple()?;
        let stored = self.flow_of(flow, stored)?;
        let filter = format!("{context} {flow} {asker:?}");
        let from = page.cursor(self.coordinator(), PageOf::Nodes, &filter)?.unwrap_or_default();
        let from = u32::try_from(from).unwrap_or(u32::MAX);
        let count = u32::try_from(page.size).unwrap_or(u32::MAX);
        let (mut nodes, mut bytes) = (Vec::new(), 0);
        for (place, _, json) in nodes_of(&tenant, &stored, from, count).await? {
            if !nodes.is_empty() && bytes + json.len() > limits::PAGE_BYTES_MAX {
                let token = page.token(self.coordinator(), PageOf::Nodes, &filter, Some(u64::from(place)));
                return Ok((nodes, token, Revision(revision.uint()?)));
            }
            bytes += json.len();
            nodes.push(json);
        }
        let next = from.saturating_add(count);
        let token = if next < stored.node_count {
            page.token(self.coordinator(), PageOf::Nodes, &filter, Some(u64::from(next)))
        } else {
            String::new()
        };
        Ok((nodes, token, Revision(revision.uint()?)))
    }

    /// Reads a flow for its owner, before its nodes.
    pub(crate) async fn load_flow(
        &self,
        context: ContextId,
        flow: FlowId,
    ) -> Result<(Arc<Tenant>, StoredFlow, ContextUid)> {
        let (tenant, context) = self.context(context).await?;
        let stored = self.stored_flow(&tenant, flow).await?;
        Ok((tenant, stored, context.uid))
    }

    /// Reads the nodes from place `from` on, counted from 0, with their jobs; at most a few hundred. Gives the
    /// place to go on from; nothing after the last.
    pub(crate) async fn load_nodes(
        &self,
        tenant: &Tenant,
        stored: &StoredFlow,
        from: u32,
    ) -> Result<(Vec<LoadedNode>, Option<u32>)> {
        let nodes = nodes_of(tenant, stored, from, NODES_READ).await?;
        let mut pipeline = Pipeline::new();
        for (_, job, _) in &nodes {
            let key = tenant.keys.job(stored.flow.caller_id, *job);
            pipeline.cmd(Cmd::new("HMGET").arg(&key).args(record::job::READ));
        }
        let answers = tenant.connection.pipeline(&pipeline).await?;
        let mut loaded = Vec::with_capacity(nodes.len());
        for ((_, job, json), answer) in nodes.into_iter().zip(answers) {
            let fields = Fields::of_some(format_args!("job {job}"), &record::job::READ, answer?)?;
            let fields = fields.ok_or_else(|| Error::not_found("job", job))?;
            loaded.push(LoadedNode { job, json, spec: record::job::read(fields)? });
        }
        let next = from.saturating_add(NODES_READ);
        Ok((loaded, (next < stored.node_count).then_some(next)))
    }

    /// Ids of the flows that run in a context.
    pub(crate) async fn active_flows(&self, tenant: &Tenant) -> Result<Vec<FlowId>> {
        let ids = tenant.connection.cmd(Cmd::new("SMEMBERS").arg(&tenant.flows_active)).await?.texts()?;
        let mut ids: Vec<FlowId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Reads what is kept of an attempt's output, from byte `offset` on.
    pub(crate) async fn read_log(
        &self,
        context: ContextId,
        flow: FlowId,
        (job, attempt): (JobId, Attempt),
        offset: u64,
        asker: Asker,
    ) -> Result<LogTail> {
        let (_, _, answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
                let log = tenant.keys.log(flow, job, attempt);
                pipeline.cmd(Cmd::new("HMGET").arg(&log).arg("data").arg("start"));
            })
            .await?;
        let [stored, log] = Value::Array(answers).tuple()?;
        self.flow_of(flow, stored)?;
        let [data, start] = log.tuple()?;
        if data.is_nil() {
            return Ok(LogTail { offset, data: Vec::new() });
        }
        let (mut data, start) = (data.bytes()?, start.uint()?);
        let skip = usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX).min(data.len());
        data.drain(..skip);
        Ok(LogTail { offset: offset.max(start), data })
    }
}

/// Ids of flows and the revision at which each was created, newest first, from before `before`.
async fn flow_ids_before(tenant: &Tenant, before: Option<u64>, count: usize) -> Result<Vec<(FlowId, u64)>> {
    let max = before.map_or_else(|| "+inf".to_owned(), |revision| format!("({revision}"));
    let ask = Cmd::new("ZREVRANGEBYSCORE").arg(&tenant.flows).arg(&max).arg("-inf").arg("WITHSCORES");
    let answer = tenant.connection.cmd(ask.arg("LIMIT").arg(0).arg(count)).await?;
    let mut ids = Vec::new();
    // RESP2 gives members and scores in turn, RESP3 pairs of them.
    let mut values = Vec::new();
    for value in answer.array()? {
        match value {
            Value::Array(pair) => values.extend(pair),
            single => values.push(single),
        }
    }
    let mut values = values.into_iter();
    while let (Some(id), Some(score)) = (values.next(), values.next()) {
        let id = id.text()?.parse().map_err(|error| kv::Error::Protocol(format!("in `flows`: {error}")))?;
        let score: f64 =
            score.text()?.parse().map_err(|error| kv::Error::Protocol(format!("a score: {error}")))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "revisions are exact in an f64"
        )]
        ids.push((id, score as u64));
    }
    Ok(ids)
}

/// Nodes from place `from` on, each with its place and its job. The jobs of a flow follow one after the other.
pub(crate) async fn nodes_of(
    tenant: &Tenant,
    stored: &StoredFlow,
    from: u32,
    count: u32,
) -> Result<Vec<(u32, JobId, Bytes)>> {
    let till = from.saturating_add(count).min(stored.node_count);
    let places: Vec<(u32, JobId)> =
        (from..till).map(|place| (place, JobId(stored.first_job.0 + place))).collect();
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let ask = Cmd::new("HMGET").arg(&tenant.keys.flow_nodes(stored.flow.id));
    let answer = tenant.connection.cmd(ask.args(places.iter().map(|(_, job)| job.0))).await?;
    let mut nodes = Vec::with_capacity(places.len());
    for ((place, job), value) in places.into_iter().zip(answer.array()?) {
        if !value.is_nil() {
            nodes.push((place, job, Bytes::from(value.bytes()?)));
        }
    }
    Ok(nodes)
}
