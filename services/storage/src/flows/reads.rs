//! Reading flows, nodes and logs.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use keys::FlowRef;
use kv::{Cmd, Pipeline, Value};
use model::{
    ActorId, Attempt, ContextId, ContextState, ContextUid, Flow, FlowId, FlowStatus, FlowUid, JobId, JobSpec,
    MessageKey, NodeState, Revision, RunnerId, Timestamp, limits,
};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::flows::lifecycle::FlowInContext;
use crate::logs::{PrintTime, times_from};
use crate::messages::message_holds::message_key;
use crate::pages::{PageRequest, PagedCollection};
use crate::record::flow::StoredFlow;
use crate::record::{self, RecordFields};
use crate::store::{RequestPrincipal, Store, TenantStore};
use crate::tenants::permission::{ContextAction, allow_asker};
use crate::watch::events::{EventPosition, newest};

/// Flows that are looked at for one page, when most of them have another status.
const FLOWS_SCANNED_MAX: usize = 10_000;
/// Nodes that are read at once.
const NODES_READ: u32 = 500;
/// Nodes that are looked at for one page, when most of them are in another state.
const NODES_SCANNED_MAX: usize = 10_000;
/// Entries that one step of a scan of active flows looks at.
const ACTIVE_READ: usize = 1000;

/// A node with its job, as its flow's owner needs them.
#[derive(Debug, Clone)]
pub(crate) struct LoadedNode {
    /// The job's number.
    pub(crate) job: JobId,
    /// The node's JSON.
    pub(crate) json: Bytes,
    /// Job that the node executes.
    pub(crate) spec: JobSpec,
}

/// Stored part of an attempt's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogTail {
    /// Where the bytes begin.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) data: Vec<u8>,
    /// Runner record of the supervisor that sent the last piece.
    pub(crate) runner: Option<RunnerId>,
    /// Print times, from the requested byte on.
    pub(crate) times: Vec<PrintTime>,
}

/// A page of nodes.
#[derive(Debug)]
pub(crate) struct NodePage {
    /// Each as JSON.
    pub(crate) nodes: Vec<Bytes>,
    /// Position of the next page; empty after the last one.
    pub(crate) next: String,
    /// The context's change counter when it was read.
    pub(crate) revision: Revision,
    /// Uid of the context.
    pub(crate) context_uid: ContextUid,
    /// Uid of the flow.
    pub(crate) flow_uid: FlowUid,
    /// The flow and the newest position before it was read, for a caller that is going to watch it.
    pub(crate) to_watch: Option<(StoredFlow, Option<EventPosition>)>,
}

/// A page of flows.
#[derive(Debug)]
pub(crate) struct FlowPage {
    /// The newest first.
    pub(crate) flows: Vec<StoredFlow>,
    /// Position of the next page; empty after the last one.
    pub(crate) next: String,
    /// For watchers: a position such that these nodes and the events after it together miss nothing.
    pub(crate) position: Option<EventPosition>,
}

/// Which flows are listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlowFilter {
    /// Only of this status.
    pub(crate) status: Option<FlowStatus>,
    /// Only of this actor.
    pub(crate) caller: Option<ActorId>,
    /// Only flows whose name begins with this.
    pub(crate) name_prefix: String,
    /// Only flows created at this time or later.
    pub(crate) created_from: Option<Timestamp>,
    /// Only flows created before this time.
    pub(crate) created_before: Option<Timestamp>,
}

impl FlowFilter {
    fn matches(&self, flow: &Flow) -> bool {
        let Self { status, caller, name_prefix, created_from, created_before } = self;
        status.is_none_or(|status| flow.status == status)
            && caller.is_none_or(|caller| flow.caller_id == caller)
            && flow.name.as_str().starts_with(name_prefix)
            && created_from.is_none_or(|from| flow.created_at >= from)
            && created_before.is_none_or(|before| flow.created_at < before)
    }
}

/// Which nodes are listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeFilter {
    /// Only those in one of these states; empty: all.
    pub(crate) states: BTreeSet<NodeState>,
    /// Only these; empty: all.
    pub(crate) jobs: BTreeSet<JobId>,
}

impl NodeFilter {
    /// The places to look at, from `from` on.
    fn places<'a>(&'a self, stored: &StoredFlow, from: u32) -> Box<dyn Iterator<Item = u32> + Send + 'a> {
        let (first, count) = (stored.first_job.0, stored.node_count);
        if self.jobs.is_empty() {
            return Box::new(from..count);
        }
        let place = move |job: &JobId| job.0.checked_sub(first);
        Box::new(self.jobs.iter().filter_map(place).filter(move |place| (from..count).contains(place)))
    }

    fn matches(&self, json: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct NodeStateField {
            state: NodeState,
        }
        self.states.is_empty()
            || serde_json::from_slice(json).is_ok_and(|NodeStateField { state }| self.states.contains(&state))
    }
}

/// Where a listing of the flows that have something to do continues.
#[derive(Debug, Clone)]
pub(crate) enum ActiveCursor {
    /// Among flows that have something to do now.
    Now(String),
    /// Among flows that are due at a time.
    Due(String),
}

/// Stored delivery state of a message.
#[derive(Debug, Clone)]
pub(crate) struct MessageState {
    /// `dispatched`, `acknowledged`, `processed` or `error`.
    pub(crate) status: String,
    /// `queued`, `sent`, `delivered`, `read` or `failed`.
    pub(crate) transport_status: String,
    /// The router that holds it, or did last.
    pub(crate) router: String,
    /// Why it will not arrive.
    pub(crate) error: String,
    /// When it was made.
    pub(crate) created_at: Timestamp,
}

impl Store {
    /// Reads a flow; for watchers, with a position such that the flow and the events after it together miss nothing.
    pub(crate) async fn read_flow(
        &self,
        context: ContextId,
        flow: FlowId,
        asker: RequestPrincipal,
        action: ContextAction,
    ) -> Result<FlowInContext> {
        let (_, context, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
            })
            .await
            .map_err(|error| error.at_record(format_args!("flow {flow}")))?;
        let stored = self.flow_of(flow, answers.pop().unwrap_or(Value::Nil))?;
        allow_asker(&context, asker, action, stored.flow.caller_id)?;
        Ok((stored, context.uid))
    }

    /// Reads a page of flows, newest first; for watchers, without variables and results, and with a position.
    pub(crate) async fn read_flows(
        &self,
        context: ContextId,
        asker: RequestPrincipal,
        filter: &FlowFilter,
        page: &PageRequest,
        to_watch: bool,
    ) -> Result<FlowPage> {
        let bound_to = format!("{context} {asker:?} {filter:?}");
        let mut after = page.cursor(self.coordinator(), PagedCollection::Flows, &bound_to)?;
        let (tenant, _, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                // The position is read before the flows: changes between the two are in the flows and are sent again as events.
                if to_watch {
                    pipeline.cmd(newest(&tenant.events, 1));
                }
            })
            .await?;
        let position = answers.pop().map(EventPosition::first_of).transpose()?.flatten();
        let page_of = |flows, next| FlowPage { flows, next, position };
        let token = |after| page.token(self.coordinator(), PagedCollection::Flows, &bound_to, after);
        let list = match filter.status {
            Some(status) if tenant.has_lists().await? => tenant.keys.flows_of(status),
            _ => tenant.flows.clone(),
        };
        let (mut found, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        loop {
            let ids = flow_ids_before(&tenant, &list, after, page.size).await?;
            let is_last = ids.len() < page.size;
            scanned += ids.len();
            for (stored, revision, size) in self.flows_of(&tenant, &ids, !to_watch).await? {
                if found.len() >= page.size || (!found.is_empty() && bytes + size > limits::PAGE_BYTES_MAX) {
                    return Ok(page_of(found, token(after)));
                }
                after = Some(revision);
                if let Some(stored) = stored.filter(|stored| filter.matches(&stored.flow)) {
                    bytes += size;
                    found.push(stored);
                }
            }
            if is_last {
                return Ok(page_of(found, String::new()));
            }
            if found.len() >= page.size || scanned >= FLOWS_SCANNED_MAX {
                return Ok(page_of(found, token(after)));
            }
        }
    }

    /// Reads flows by id, each with its position in the list and its approximate size in bytes; nothing for a flow
    /// that is gone or being removed.
    async fn flows_of(
        &self,
        tenant: &TenantStore,
        ids: &[(FlowId, u64)],
        with_values: bool,
    ) -> Result<Vec<(Option<StoredFlow>, u64, usize)>> {
        let mut pipeline = Pipeline::new();
        let count = if with_values { record::flow::READ.len() } else { record::flow::READ_IN_SHORT };
        for (id, _) in ids {
            let fields = record::flow::READ.into_iter().take(count);
            pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(*id)).args(fields));
        }
        let answers = tenant.connection.pipeline(&pipeline).await?;
        let mut flows = Vec::with_capacity(ids.len());
        for ((id, revision), answer) in ids.iter().zip(answers) {
            let answer = answer.map_err(|error| Error::of_record(error, format_args!("flow {id}")));
            let stored = match answer.and_then(|answer| self.flow_of(*id, answer)) {
                Err(Error::NotFound(_)) => None,
                read => record::listed(read.map(Some))?,
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
        asker: RequestPrincipal,
        filter: &NodeFilter,
        page: &PageRequest,
        to_watch: bool,
    ) -> Result<NodePage> {
        let (tenant, seen, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                // The position is read first: changes after it are in what is read next, and are sent again as events.
                if to_watch {
                    pipeline.cmd(newest(&tenant.events, 1));
                }
                pipeline.cmd(Cmd::new("HGET").arg(&tenant.ids).arg("revision"));
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
            })
            .await
            .map_err(|error| error.at_record(format_args!("flow {flow}")))?;
        if to_watch && seen.state == ContextState::Deleting {
            return Err(Error::ContextDeleting);
        }
        let [revision, stored] = Value::Array(answers.split_off(usize::from(to_watch))).tuple()?;
        let position = answers.pop().map(EventPosition::first_of).transpose()?.flatten();
        let revision = Revision(revision.uint()?);
        let stored = self.flow_of(flow, stored)?;
        let bound_to = format!("{context} {flow} {asker:?} {filter:?}");
        let from = page.cursor(self.coordinator(), PagedCollection::Nodes, &bound_to)?.unwrap_or_default();
        let token = |place: u32| {
            page.token(self.coordinator(), PagedCollection::Nodes, &bound_to, Some(u64::from(place)))
        };
        // A caller that names nodes receives all of them, as far as they fit.
        let size = if filter.jobs.is_empty() { page.size } else { filter.jobs.len() };
        let mut places = filter.places(&stored, u32::try_from(from).unwrap_or(u32::MAX)).peekable();
        let (context_uid, flow_uid) = (seen.uid, stored.flow.uid);
        let page_of = |nodes, next, stored: StoredFlow| {
            let to_watch = to_watch.then_some((stored, position));
            NodePage { nodes, next, revision, context_uid, flow_uid, to_watch }
        };
        let (mut nodes, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        while let Some(next) = places.peek().copied() {
            if nodes.len() >= size || scanned >= NODES_SCANNED_MAX {
                return Ok(page_of(nodes, token(next), stored));
            }
            let count = if filter.states.is_empty() { size - nodes.len() } else { NODES_READ as usize };
            let batch: Vec<u32> = places.by_ref().take(count.min(NODES_READ as usize)).collect();
            scanned += batch.len();
            for (place, _, json) in nodes_at(&tenant, &stored, batch).await? {
                if !filter.matches(&json) {
                    continue;
                }
                if nodes.len() >= size || (!nodes.is_empty() && bytes + json.len() > limits::PAGE_BYTES_MAX) {
                    return Ok(page_of(nodes, token(place), stored));
                }
                bytes += json.len();
                nodes.push(json);
            }
        }
        Ok(page_of(nodes, String::new(), stored))
    }

    /// Reads a flow for its owner, before its nodes.
    pub(crate) async fn load_flow(
        &self,
        context: ContextId,
        flow: FlowId,
        asker: RequestPrincipal,
    ) -> Result<(Arc<TenantStore>, StoredFlow, ContextUid)> {
        let (tenant, context, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
            })
            .await
            .map_err(|error| error.at_record(format_args!("flow {flow}")))?;
        let stored = self.flow_of(flow, answers.pop().unwrap_or(Value::Nil))?;
        // The flow's owner builds on this state, even when another storage has written it.
        tenant.note_last(context.uid).await?;
        Ok((tenant, stored, context.uid))
    }

    /// Reads the nodes from place `from` on, counted from 0, with their jobs; at most a few hundred. Gives the
    /// place to go on from; nothing after the last.
    pub(crate) async fn load_nodes(
        &self,
        tenant: &TenantStore,
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
            let fields = RecordFields::of_some(format_args!("job {job}"), &record::job::READ, answer?)?;
            let fields = fields.ok_or_else(|| Error::not_found("job", job))?;
            loaded.push(LoadedNode { job, json, spec: record::job::read(fields)? });
        }
        let next = from.saturating_add(NODES_READ);
        Ok((loaded, (next < stored.node_count).then_some(next)))
    }

    /// Lists some flows of a context that have something to do, each with its due time, and the cursor to continue;
    /// nothing after the last. A flow may be listed twice.
    pub(crate) async fn active_flows(
        &self,
        tenant: &TenantStore,
        from: ActiveCursor,
    ) -> Result<(Vec<(FlowRef, Option<Timestamp>)>, Option<ActiveCursor>)> {
        let (scan, key, cursor) = match &from {
            ActiveCursor::Now(cursor) => ("SSCAN", &tenant.flows_active, cursor),
            ActiveCursor::Due(cursor) => ("ZSCAN", &tenant.due, cursor),
        };
        let query = Cmd::new(scan).arg(key).arg(cursor).arg("COUNT").arg(ACTIVE_READ);
        let [next, page] = tenant.connection.cmd(query).await?.tuple()?;
        let mut entries = page.texts()?.into_iter();
        let mut flows = Vec::new();
        while let Some(entry) = entries.next() {
            let due = match &from {
                ActiveCursor::Now(_) => None,
                ActiveCursor::Due(_) => Some(score_millis(&entries.next().unwrap_or_default())?),
            };
            match entry.parse() {
                Ok(flow) => flows.push((flow, due)),
                Err(error) => tracing::warn!(context = %tenant.id, %error, "an entry of a set is no flow"),
            }
        }
        let next = next.text()?;
        let next = match (next.as_str(), from) {
            ("0", ActiveCursor::Now(_)) => Some(ActiveCursor::Due("0".to_owned())),
            ("0", ActiveCursor::Due(_)) => None,
            (_, ActiveCursor::Now(_)) => Some(ActiveCursor::Now(next)),
            (_, ActiveCursor::Due(_)) => Some(ActiveCursor::Due(next)),
        };
        Ok((flows, next))
    }

    /// Where a message stands.
    pub(crate) async fn read_message(
        &self,
        context: ContextId,
        key: MessageKey,
        asker: RequestPrincipal,
    ) -> Result<MessageState> {
        let (_, _, mut answers) = self
            .read(context, asker, |tenant, pipeline| {
                let fields = ["status", "transport_status", "router", "error", "created_at"];
                let query = Cmd::new("HMGET").arg(&tenant.keys.message(key.caller, key.id)).args(fields);
                pipeline.cmd(query);
            })
            .await
            .map_err(|error| error.at_record(message_key(key)))?;
        let [status, transport, router, error, created] = answers.pop().unwrap_or(Value::Nil).tuple()?;
        let text = |value: Value| value.optional_text().map(Option::unwrap_or_default);
        let status = text(status)?;
        if status.is_empty() {
            return Err(Error::not_found("message", message_key(key)));
        }
        let bad = |error| kv::Error::Protocol(format!("a message's time: {error}"));
        Ok(MessageState {
            status,
            transport_status: text(transport)?,
            router: text(router)?,
            error: text(error)?,
            created_at: text(created)?.parse().map_err(bad)?,
        })
    }

    /// Reads the stored part of an attempt's output, from byte `offset` on.
    pub(crate) async fn read_log(
        &self,
        context: ContextId,
        flow: FlowId,
        (job, attempt): (JobId, Attempt),
        offset: u64,
        asker: RequestPrincipal,
    ) -> Result<LogTail> {
        let (_, _, answers) = self
            .read(context, asker, |tenant, pipeline| {
                pipeline.cmd(Cmd::new("HMGET").arg(&tenant.keys.flow(flow)).args(record::flow::READ));
                let log = tenant.keys.log(flow, job, attempt);
                pipeline.cmd(Cmd::new("HMGET").arg(&log).arg("data").arg("start").arg("runner").arg("times"));
            })
            .await
            .map_err(|error| error.at_record(format_args!("flow {flow}")))?;
        let [stored, log] = Value::Array(answers).tuple()?;
        self.flow_of(flow, stored)?;
        let [data, start, runner, times] = log.tuple()?;
        if data.is_nil() {
            return Ok(LogTail { offset, data: Vec::new(), runner: None, times: Vec::new() });
        }
        let times = times_from(&times.optional_text()?.unwrap_or_default(), offset);
        // Output that was stored before runners were noted has none.
        let runner = if runner.is_nil() { 0 } else { runner.uint()? };
        let runner = u32::try_from(runner).ok().filter(|runner| *runner > 0).map(RunnerId);
        let (mut data, start) = (data.bytes()?, start.uint()?);
        let skip = usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX).min(data.len());
        data.drain(..skip);
        Ok(LogTail { offset: offset.max(start), data, runner, times })
    }
}

/// Ids of the flows of a list and the revision at which each was created, newest first, from before `before`.
async fn flow_ids_before(
    tenant: &TenantStore,
    list: &str,
    before: Option<u64>,
    count: usize,
) -> Result<Vec<(FlowId, u64)>> {
    let max = before.map_or_else(|| "+inf".to_owned(), |revision| format!("({revision}"));
    let query = Cmd::new("ZREVRANGEBYSCORE").arg(list).arg(&max).arg("-inf").arg("WITHSCORES");
    let answer = tenant.connection.cmd(query.arg("LIMIT").arg(0).arg(count)).await?;
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

/// Reads nodes from position `from` on, each with its position and its job. The job ids of a flow are consecutive.
pub(crate) async fn nodes_of(
    tenant: &TenantStore,
    stored: &StoredFlow,
    from: u32,
    count: u32,
) -> Result<Vec<(u32, JobId, Bytes)>> {
    let till = from.saturating_add(count).min(stored.node_count);
    nodes_at(tenant, stored, (from..till).collect()).await
}

/// Nodes at these places.
async fn nodes_at(
    tenant: &TenantStore,
    stored: &StoredFlow,
    places: Vec<u32>,
) -> Result<Vec<(u32, JobId, Bytes)>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let job = |place: &u32| JobId(stored.first_job.0 + place);
    let query = Cmd::new("HMGET").arg(&tenant.keys.flow_nodes(stored.flow.id));
    let answer = tenant.connection.cmd(query.args(places.iter().map(|place| job(place).0))).await?;
    let mut nodes = Vec::with_capacity(places.len());
    for (place, value) in places.into_iter().zip(answer.array()?) {
        if !value.is_nil() {
            nodes.push((place, job(&place), Bytes::from(value.bytes()?)));
        }
    }
    Ok(nodes)
}

/// A score in Unix seconds.
fn score_millis(score: &str) -> Result<Timestamp> {
    let bad = |error| kv::Error::Protocol(format!("the score `{score}`: {error}"));
    let secs: f64 = score.parse().map_err(bad)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "moments in milliseconds are exact in an f64, and saturate"
    )]
    Ok(Timestamp::from_millis((secs * 1000.0).round() as u64))
}
