//! What the jobs of a flow print: what is kept, and what comes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use model::{
    ActorId, Attempt, ContextId, Event, FlowEvent, FlowId, FlowNode, FlowStatus, JobId, Name, NodeState,
};
use proto::convert::enums::flow_status_from_wire;
use proto::internal::v1::{
    ReadFlowRequest, ReadLogRequest, ReadNodesRequest, WatchEventsRequest, WatchEventsResponse,
};
use proto::v1::StreamFlowLogsResponse;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::clients::FlowStoreClient;
use crate::error::bad_store;

/// Nodes read in one call.
const PAGE: u32 = 500;
/// How long the last pieces may come after the flow's end. A supervisor that
/// died may never send them.
const LAST_PIECES_PATIENCE: Duration = Duration::from_secs(5);

/// One reader of one flow's output.
pub struct LogStream {
    store: FlowStoreClient,
    actor: ActorId,
    context: ContextId,
    flow: FlowId,
    answers: mpsc::Sender<Result<StreamFlowLogsResponse, Status>>,
    names: BTreeMap<JobId, Name>,
    /// How far each attempt's output was sent.
    sent: HashMap<(JobId, Attempt), u64>,
}

impl LogStream {
    /// A reader that is sent its answers through `answers`.
    #[must_use]
    pub fn new(
        store: FlowStoreClient,
        actor: ActorId,
        (context, flow): (ContextId, FlowId),
        answers: mpsc::Sender<Result<StreamFlowLogsResponse, Status>>,
    ) -> Self {
        Self { store, actor, context, flow, answers, names: BTreeMap::new(), sent: HashMap::new() }
    }

    /// Runs until everything was sent (with `follow`: until the flow has ended
    /// and everything was sent), the reader has gone or something failed.
    pub async fn run(mut self, node: String, follow: bool) {
        if let Err(status) = self.stream(&node, follow).await {
            // A reader that has gone does not need the reason.
            let _ = self.answers.send(Err(status)).await;
        }
    }

    async fn stream(&mut self, node: &str, follow: bool) -> Result<(), Status> {
        let mut events = self.open().await?;
        let nodes = self.read_nodes().await?;
        self.names = nodes
            .iter()
            .filter(|known| node.is_empty() || known.name.as_str() == node)
            .map(|known| (known.job_id, known.name.clone()))
            .collect();
        if self.names.is_empty() && !node.is_empty() {
            return Err(rpc::Error::not_found(format!("node `{node}` of flow {}", self.flow)).into());
        }
        for node in nodes.iter().filter(|node| node.state != NodeState::Pending) {
            for attempt in 1..=node.attempt.0 {
                self.send_from(node.job_id, Attempt(attempt)).await?;
            }
        }
        if !follow {
            return Ok(());
        }
        if !self.has_ended().await? {
            self.follow(&mut events).await?;
        }
        // The last pieces and the flow's end take different ways; the end may be faster.
        let rest = tokio::time::timeout(LAST_PIECES_PATIENCE, self.follow_rest(&mut events)).await;
        rest.unwrap_or(Ok(()))
    }

    async fn open(&mut self) -> Result<Streaming<WatchEventsResponse>, Status> {
        let request = WatchEventsRequest {
            context_id: self.context.0,
            flow_id: self.flow.0,
            on_behalf_of: self.actor.0,
            position: String::new(),
        };
        let mut events = self.store.watch_events(request).await?.into_inner();
        // From its first answer on the watch misses nothing.
        events.message().await?;
        Ok(events)
    }

    async fn has_ended(&mut self) -> Result<bool, Status> {
        let request =
            ReadFlowRequest { context_id: self.context.0, flow_id: self.flow.0, on_behalf_of: self.actor.0 };
        let record = self.store.read_flow(request).await?.into_inner().flow;
        let status =
            record.and_then(|record| record.flow).and_then(|flow| flow_status_from_wire(flow.status));
        Ok(status.is_none_or(FlowStatus::is_end))
    }

    /// Sends what comes until the flow has ended.
    async fn follow(&mut self, events: &mut Streaming<WatchEventsResponse>) -> Result<(), Status> {
        loop {
            match next(events).await? {
                Some(Event::Log { job_id, attempt, .. }) => self.send_from(job_id, attempt).await?,
                Some(Event::Flow(FlowEvent { status, .. })) if status.is_none_or(FlowStatus::is_end) => {
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Sends what comes until every attempt's output was sent to its end.
    async fn follow_rest(&mut self, events: &mut Streaming<WatchEventsResponse>) -> Result<(), Status> {
        let nodes = self.read_nodes().await?;
        let mut missing: HashMap<_, _> = nodes
            .iter()
            .filter(|node| self.names.contains_key(&node.job_id))
            .map(|node| ((node.job_id, node.attempt), node.output_bytes))
            .collect();
        loop {
            missing.retain(|attempt, end| self.sent.get(attempt).copied().unwrap_or_default() < *end);
            if missing.is_empty() {
                return Ok(());
            }
            if let Some(Event::Log { job_id, attempt, .. }) = next(events).await? {
                self.send_from(job_id, attempt).await?;
            }
        }
    }

    async fn read_nodes(&mut self) -> Result<Vec<FlowNode>, Status> {
        let mut nodes = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ReadNodesRequest {
                context_id: self.context.0,
                flow_id: self.flow.0,
                on_behalf_of: self.actor.0,
                page_size: PAGE,
                page_token,
            };
            let page = self.store.read_nodes(request).await?.into_inner();
            for json in &page.nodes {
                nodes.push(serde_json::from_slice(json).map_err(bad_store)?);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(nodes);
            }
        }
    }

    /// Sends what is kept of an attempt's output and was not sent yet.
    async fn send_from(&mut self, job: JobId, attempt: Attempt) -> Result<(), Status> {
        let Some(name) = self.names.get(&job) else { return Ok(()) };
        let sent = self.sent.entry((job, attempt)).or_default();
        let request = ReadLogRequest {
            context_id: self.context.0,
            flow_id: self.flow.0,
            job_id: job.0,
            attempt: attempt.0,
            offset: *sent,
            on_behalf_of: self.actor.0,
        };
        let piece = self.store.read_log(request).await?.into_inner();
        if piece.data.is_empty() {
            return Ok(());
        }
        *sent = piece.offset + piece.data.len() as u64;
        let answer = StreamFlowLogsResponse {
            node: name.to_string(),
            attempt: attempt.0,
            offset: piece.offset,
            data: piece.data,
        };
        self.answers.send(Ok(answer)).await.map_err(|_| Status::cancelled("the reader has gone"))
    }
}

async fn next(events: &mut Streaming<WatchEventsResponse>) -> Result<Option<Event>, Status> {
    let answer = events
        .message()
        .await?
        .ok_or_else(|| Status::unavailable("the stream of events ended; ask again"))?;
    if answer.event_json.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&answer.event_json).map(Some).map_err(bad_store)
}
