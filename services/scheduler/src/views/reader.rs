//! Reads one flow on behalf of one actor; watches and log streams build on it.

use model::{ActorId, Attempt, ContextEvent, ContextId, FlowId, FlowNode, JobId, Name, Revision, limits};
use proto::convert::node::JobKeyPrefix;
use proto::internal::v1::{
    FlowPurpose, FlowRecord, ReadFlowRequest, ReadLogRequest, ReadLogResponse, ReadMessageRequest,
    ReadMessageResponse, ReadNodesRequest, ReadNodesResponse, WatchEventsRequest, WatchEventsResponse,
};
use proto::v1::{Flow, FlowStatus};
use rpc::{Resumable, ResumingStream, StreamReconnectBackoff};
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use crate::clients::FlowStoreClient;
use crate::error::bad_store;

/// Nodes read in one call.
const PAGE: u32 = 500;

/// A flow, seen by an actor. Every method fails as storage does: NOT_FOUND where the actor has no role.
#[derive(Debug, Clone)]
pub struct FlowReader {
    /// Flows, as storage keeps them.
    pub store: FlowStoreClient,
    /// Actor that reads.
    pub actor: ActorId,
    /// Context of the flow.
    pub context: ContextId,
    /// Id of the flow.
    pub flow: FlowId,
    /// Reads wait while storage is away.
    pub is_patient: bool,
}

/// Some nodes, and as of which change of the context.
#[derive(Debug)]
pub struct FlowNodePage {
    /// By job id.
    pub nodes: Vec<FlowNode>,
    /// The context's change counter when they were read.
    pub revision: Revision,
    /// Where they are.
    pub home: JobKeyPrefix,
    next: String,
}

impl FlowNodePage {
    /// Returns true for the last page.
    pub(crate) const fn is_last(&self) -> bool {
        self.next.is_empty()
    }

    fn read(page: ReadNodesResponse) -> Result<Self, Status> {
        let home = home(&page)?;
        let nodes = page.nodes.iter().map(|json| serde_json::from_slice(json));
        let nodes = nodes.collect::<Result<_, _>>().map_err(bad_store)?;
        Ok(Self { nodes, revision: Revision(page.revision), home, next: page.next_page_token })
    }
}

impl FlowReader {
    /// A reader of the flow of this number.
    #[must_use]
    pub const fn new(store: FlowStoreClient, actor: ActorId, context_id: u32, flow_id: u32) -> Self {
        let (context, flow) = (ContextId(context_id), FlowId(flow_id));
        Self { store, actor, context, flow, is_patient: false }
    }

    /// Queries storage, and queries it again as long as a patient reader waits.
    async fn query<T, F>(&self, query_once: impl FnMut(FlowStoreClient) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        query(&self.store, self.is_patient, query_once).await
    }

    /// The flow without its nodes.
    ///
    /// # Errors
    /// As storage's.
    pub async fn flow(&mut self) -> Result<Flow, Status> {
        self.record().await?.flow.ok_or_else(|| bad_store("a flow without its record"))
    }

    /// The flow with what only its owner needs.
    ///
    /// # Errors
    /// As storage's.
    pub async fn record(&mut self) -> Result<FlowRecord, Status> {
        self.record_for(FlowPurpose::Unspecified).await
    }

    /// Reads the flow's record for an actor with this purpose.
    ///
    /// # Errors
    /// As storage's: PERMISSION_DENIED when it may not do that.
    pub async fn record_for(&mut self, purpose: FlowPurpose) -> Result<FlowRecord, Status> {
        let request = ReadFlowRequest {
            context_id: self.context.0,
            flow_id: self.flow.0,
            on_behalf_of: self.actor.0,
            purpose: purpose.into(),
        };
        let read = self.query(|mut store| async move { store.read_flow(request).await }).await?;
        read.flow.ok_or_else(|| bad_store("a flow without its record"))
    }

    /// The flow with its first nodes, and its events from there on: no change falls between them.
    ///
    /// # Errors
    /// As storage's.
    pub async fn flow_to_watch(&mut self) -> Result<(Flow, FlowNodePage, FlowEventStream), Status> {
        let request = WatchEventsRequest { first_nodes: PAGE, ..self.events_request(String::new()) };
        let mut events = FlowEventStream::open(&self.store, request, self.is_patient).await?;
        let (flow, nodes) = events.first.take().ok_or_else(|| bad_store("a watch without its flow"))?;
        let flow = flow.flow.ok_or_else(|| bad_store("a flow without its record"))?;
        Ok((flow, FlowNodePage::read(nodes)?, events))
    }

    /// The node of this name.
    ///
    /// # Errors
    /// NOT_FOUND when there is none, with the one that may be meant; else as storage's.
    pub async fn node(&mut self, name: &str) -> Result<FlowNode, Status> {
        let (mut last, mut others) = (None, Vec::new());
        while let Some(mut page) = self.nodes(last.as_ref()).await? {
            if let Some(at) = page.nodes.iter().position(|node| node.name.as_str() == name) {
                return Ok(page.nodes.swap_remove(at));
            }
            others.extend(page.nodes.iter().map(|node| node.name.clone()));
            last = Some(page);
        }
        Err(self.no_job(name, others.iter().map(Name::as_str)))
    }

    /// NOT_FOUND for a name that none of these has, with the one that may be meant.
    pub fn no_job<'a>(&self, name: &str, names: impl Iterator<Item = &'a str>) -> Status {
        let shown: String = name.chars().take(limits::NAME_CHARS_MAX).collect();
        let hint = flow::suggestion(&shown, names);
        let resource = format!("job `{shown}` of flow {}", self.flow);
        let message = format!("flow {} has no job `{shown}`{hint}", self.flow);
        let kind = rpc::ErrorKind::NotFound { resource };
        rpc::Error::new(kind, rpc::RpcReason::NotFound, message).with("job", shown).into()
    }

    /// Some nodes, by job id; nodes that do not exist are left out.
    ///
    /// # Errors
    /// As storage's.
    pub async fn nodes_of(&mut self, jobs: &[JobId]) -> Result<Vec<FlowNode>, Status> {
        let mut nodes = Vec::with_capacity(jobs.len());
        for part in jobs.chunks(PAGE as usize) {
            let job_ids = part.iter().map(|job| job.0).collect();
            let request = ReadNodesRequest { job_ids, ..self.nodes_request(String::new()) };
            let page = self.read_nodes(request).await?;
            let part: Result<Vec<_>, _> =
                page.nodes.iter().map(|json| serde_json::from_slice(json)).collect();
            nodes.extend(part.map_err(bad_store)?);
        }
        Ok(nodes)
    }

    /// Delivery status of the message that carried an attempt.
    ///
    /// # Errors
    /// As storage's.
    pub async fn message(&mut self, message_key: String) -> Result<ReadMessageResponse, Status> {
        let request =
            ReadMessageRequest { context_id: self.context.0, message_key, on_behalf_of: self.actor.0 };
        Ok(self.store.read_message(request).await?.into_inner())
    }

    async fn read_nodes(&self, request: ReadNodesRequest) -> Result<ReadNodesResponse, Status> {
        self.query(|mut store| {
            let request = request.clone();
            async move { store.read_nodes(request).await }
        })
        .await
    }

    fn nodes_request(&self, page_token: String) -> ReadNodesRequest {
        ReadNodesRequest {
            context_id: self.context.0,
            flow_id: self.flow.0,
            on_behalf_of: self.actor.0,
            page_size: PAGE,
            page_token,
            states: Vec::new(),
            job_ids: Vec::new(),
        }
    }

    /// The page of nodes after another one; the first one after none. Nothing after the last.
    ///
    /// # Errors
    /// As storage's.
    pub async fn nodes(&mut self, after: Option<&FlowNodePage>) -> Result<Option<FlowNodePage>, Status> {
        if after.is_some_and(|page| page.next.is_empty()) {
            return Ok(None);
        }
        let request = self.nodes_request(after.map(|page| page.next.clone()).unwrap_or_default());
        FlowNodePage::read(self.read_nodes(request).await?).map(Some)
    }

    /// All nodes, as one page.
    ///
    /// # Errors
    /// As storage's.
    pub async fn all_nodes(&mut self) -> Result<FlowNodePage, Status> {
        let mut nodes = Vec::new();
        let mut last = None;
        while let Some(mut page) = self.nodes(last.as_ref()).await? {
            nodes.append(&mut page.nodes);
            last = Some(page);
        }
        let last = last.ok_or_else(|| bad_store("a list of nodes without a page"))?;
        Ok(FlowNodePage { nodes, ..last })
    }

    /// Reads the kept output of an attempt, from a byte on.
    ///
    /// # Errors
    /// As storage's.
    pub async fn log(
        &mut self,
        job: JobId,
        attempt: Attempt,
        offset: u64,
    ) -> Result<ReadLogResponse, Status> {
        let request = ReadLogRequest {
            context_id: self.context.0,
            flow_id: self.flow.0,
            job_id: job.0,
            attempt: attempt.0,
            offset,
            on_behalf_of: self.actor.0,
        };
        self.query(|mut store| async move { store.read_log(request).await }).await
    }

    /// The flow's events after a position, from now on when it is empty. Returns once the first answer has arrived:
    /// from it on no event is missed, even if storage is away for a while.
    ///
    /// # Errors
    /// As storage's; OUT_OF_RANGE when the position is gone.
    pub async fn events(&mut self, position: String) -> Result<FlowEventStream, Status> {
        FlowEventStream::open(&self.store, self.events_request(position), self.is_patient).await
    }

    fn events_request(&self, position: String) -> WatchEventsRequest {
        WatchEventsRequest {
            context_id: self.context.0,
            flow_id: self.flow.0,
            on_behalf_of: self.actor.0,
            position,
            only_flows: false,
            first_nodes: 0,
        }
    }
}

/// Queries storage, and queries it again as long as a patient reader waits.
///
/// # Errors
/// As storage's; UNAVAILABLE when it is away for too long.
pub(super) async fn query<T, F>(
    store: &FlowStoreClient,
    is_patient: bool,
    mut query_once: impl FnMut(FlowStoreClient) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut patience = StreamReconnectBackoff::default();
    loop {
        match query_once(store.clone()).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if is_patient => patience.after(status).await?,
            Err(status) => return Err(status),
        }
    }
}

/// Source of events: the store, and the position after which to read.
#[derive(Debug)]
struct FlowEventSource {
    store: FlowStoreClient,
    request: WatchEventsRequest,
    /// Record and nodes of the first answer, until they are taken.
    first: Option<(FlowRecord, ReadNodesResponse)>,
}

impl Resumable for FlowEventSource {
    type Answer = WatchEventsResponse;

    async fn open(&mut self) -> Result<BoxStream<WatchEventsResponse>, Status> {
        let mut answers = self.store.watch_events(self.request.clone()).await?.into_inner();
        // The first answer says where the stream begins.
        let first = rpc::first_answer(&mut answers).await?;
        self.request.position = first.position;
        // A further stream resumes from there and needs no nodes.
        self.request.first_nodes = 0;
        self.first = first.flow.zip(first.first_nodes);
        Ok(Box::pin(answers))
    }

    fn note(&mut self, answer: &mut WatchEventsResponse) {
        self.request.position.clone_from(&answer.position);
    }
}

/// Events of a flow, or of the flows of a context, over as many streams as it takes.
#[derive(Debug)]
pub struct FlowEventStream {
    kept: ResumingStream<FlowEventSource>,
    /// The position before the first of them.
    pub begin: String,
    /// The flow and its first nodes, where they were asked for.
    first: Option<(FlowRecord, ReadNodesResponse)>,
}

impl FlowEventStream {
    /// Opens the first stream; a patient reader waits for storage.
    pub(super) async fn open(
        store: &FlowStoreClient,
        request: WatchEventsRequest,
        is_patient: bool,
    ) -> Result<Self, Status> {
        let mut patience = StreamReconnectBackoff::default();
        let mut kept = loop {
            let source = FlowEventSource { store: store.clone(), request: request.clone(), first: None };
            match ResumingStream::open(source).await {
                Ok(kept) => break kept,
                Err(status) if is_patient => patience.after(status).await?,
                Err(status) => return Err(status),
            }
        };
        let begin = kept.source().request.position.clone();
        let first = kept.source_mut().first.take();
        Ok(Self { kept, begin, first })
    }

    /// The next event, nothing for a sign of life; with the position after it. Cancel safe.
    ///
    /// # Errors
    /// UNAVAILABLE when storage is away for too long, else as storage's.
    pub async fn next(&mut self) -> Result<(Option<ContextEvent>, String), Status> {
        let answer = self.kept.next().await?;
        if answer.event_json.is_empty() {
            return Ok((None, answer.position));
        }
        let event = serde_json::from_slice(&answer.event_json).map_err(bad_store)?;
        Ok((Some(event), answer.position))
    }
}

/// Where the nodes of a page are.
///
/// # Errors
/// When the page does not say it.
pub fn home(page: &ReadNodesResponse) -> Result<JobKeyPrefix, Status> {
    let context = page.context_uid.parse().map_err(bad_store)?;
    let flow = page.flow_uid.parse().map_err(bad_store)?;
    Ok(JobKeyPrefix { context, flow })
}

/// Returns true when a flow has ended.
#[must_use]
pub fn is_end(flow: &Flow) -> bool {
    matches!(flow.status(), FlowStatus::Finished | FlowStatus::Error | FlowStatus::Cancelled)
}
