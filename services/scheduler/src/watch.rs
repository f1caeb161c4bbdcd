//! Watching a flow: a snapshot, then each change once.
//!
//! The events are asked for first and the snapshot is read after that, so
//! nothing falls between them. What the snapshot already shows is left out of
//! the changes by comparing revisions.

use model::{ActorId, ContextId, Event, FlowEvent, FlowId, FlowNode, JobId, Revision};
use proto::convert;
use proto::internal::v1::{ReadFlowRequest, ReadNodesRequest, WatchEventsRequest, WatchEventsResponse};
use proto::v1::watch_flow_response::Event as Answer;
use proto::v1::{Flow, FlowStatus, Heartbeat, SnapshotEnd, WatchFlowResponse};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::clients::FlowStoreClient;
use crate::error::bad_store;
use crate::position::revision_of;

/// Nodes read in one call while a snapshot is made.
const SNAPSHOT_PAGE: u32 = 500;

/// One watcher of one flow.
pub struct Watch {
    store: FlowStoreClient,
    actor: ActorId,
    context: ContextId,
    flow: FlowId,
    answers: mpsc::Sender<Result<WatchFlowResponse, Status>>,
    /// What the snapshot shows: nodes up to this id, as of this revision.
    shown: Vec<(JobId, Revision)>,
    flow_shown: Revision,
}

/// The watcher went away.
struct Gone;

enum Ended {
    Gone,
    Failed(Box<Status>),
}

impl From<Gone> for Ended {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::Failed(Box::new(status))
    }
}

impl Watch {
    /// A watcher that is sent its answers through `answers`.
    #[must_use]
    pub fn new(
        store: FlowStoreClient,
        actor: ActorId,
        (context, flow): (ContextId, FlowId),
        answers: mpsc::Sender<Result<WatchFlowResponse, Status>>,
    ) -> Self {
        Self { store, actor, context, flow, answers, shown: Vec::new(), flow_shown: Revision(0) }
    }

    /// Runs until the flow has ended, the watcher has gone or something failed;
    /// a failure is the last thing that the watcher is sent.
    pub async fn run(mut self, resume_position: String) {
        if let Err(Ended::Failed(status)) = self.watch(resume_position).await {
            // A watcher that has gone does not need the reason.
            let _ = self.answers.send(Err(*status)).await;
        }
    }

    async fn watch(&mut self, resume_position: String) -> Result<(), Ended> {
        let resumed = !resume_position.is_empty();
        let mut events = self.open(resume_position.clone()).await?;
        let first = next(&mut events).await?;
        let flow = self.read_flow().await?;
        let ended = is_end(&flow);
        if resumed {
            // The end may lie before the position: then there is nothing more to come.
            if ended && Revision(flow.revision) <= revision_of(&resume_position) {
                return Ok(self.send(Answer::Flow(flow), resume_position).await?);
            }
        } else {
            self.snapshot(flow, &first.position).await?;
            if ended {
                return Ok(());
            }
        }
        loop {
            let event = next(&mut events).await?;
            if self.change(event).await? {
                return Ok(());
            }
        }
    }

    async fn open(&mut self, position: String) -> Result<Streaming<WatchEventsResponse>, Status> {
        let request = WatchEventsRequest {
            context_id: self.context.0,
            flow_id: self.flow.0,
            on_behalf_of: self.actor.0,
            position,
        };
        Ok(self.store.watch_events(request).await?.into_inner())
    }

    async fn read_flow(&mut self) -> Result<Flow, Status> {
        let request =
            ReadFlowRequest { context_id: self.context.0, flow_id: self.flow.0, on_behalf_of: self.actor.0 };
        let record = self.store.read_flow(request).await?.into_inner().flow;
        record.and_then(|record| record.flow).ok_or_else(|| bad_store("a flow without its record"))
    }

    async fn snapshot(&mut self, flow: Flow, position: &str) -> Result<(), Ended> {
        self.flow_shown = Revision(flow.revision);
        self.send(Answer::Flow(flow), String::new()).await?;
        let mut page_token = String::new();
        loop {
            let request = ReadNodesRequest {
                context_id: self.context.0,
                flow_id: self.flow.0,
                on_behalf_of: self.actor.0,
                page_size: SNAPSHOT_PAGE,
                page_token,
            };
            let page = self.store.read_nodes(request).await?.into_inner();
            for json in &page.nodes {
                let node: FlowNode = serde_json::from_slice(json).map_err(bad_store)?;
                self.shown.push((node.job_id, Revision(page.revision)));
                self.send(Answer::Node(convert::node::to_wire(&node)), String::new()).await?;
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        // All nodes of a page share its revision; only the last of each run is needed.
        self.shown.dedup_by(|later, earlier| {
            let same = later.1 == earlier.1;
            if same {
                earlier.0 = later.0;
            }
            same
        });
        Ok(self.send(Answer::SnapshotEnd(SnapshotEnd {}), position.to_owned()).await?)
    }

    /// Sends what an event means to the watcher. `true` after the flow's end.
    async fn change(&mut self, event: WatchEventsResponse) -> Result<bool, Ended> {
        if event.event_json.is_empty() {
            self.send(Answer::Heartbeat(Heartbeat {}), event.position).await?;
            return Ok(false);
        }
        let revision = revision_of(&event.position);
        match serde_json::from_slice(&event.event_json).map_err(bad_store)? {
            Event::Node(change) if !self.is_shown(change.job_id, revision) => {
                self.send(Answer::NodeChange(convert::node::change_to_wire(&change)), event.position).await?;
            }
            Event::Flow(FlowEvent { status: None, .. }) => {
                return Err(Status::not_found("the flow was deleted while it was watched").into());
            }
            Event::Flow(_) | Event::CancelRequested { .. } if revision > self.flow_shown => {
                let flow = self.read_flow().await?;
                self.flow_shown = Revision(flow.revision);
                let ended = is_end(&flow);
                self.send(Answer::Flow(flow), event.position).await?;
                return Ok(ended);
            }
            _ => {}
        }
        Ok(false)
    }

    fn is_shown(&self, job: JobId, revision: Revision) -> bool {
        let place = self.shown.partition_point(|(last, _)| *last < job);
        self.shown.get(place).is_some_and(|(_, shown)| revision <= *shown)
    }

    async fn send(&self, event: Answer, resume_position: String) -> Result<(), Gone> {
        let answer = WatchFlowResponse { event: Some(event), resume_position };
        self.answers.send(Ok(answer)).await.map_err(|_| Gone)
    }
}

async fn next(events: &mut Streaming<WatchEventsResponse>) -> Result<WatchEventsResponse, Status> {
    events.message().await?.ok_or_else(|| Status::unavailable("the stream of events ended; resume the watch"))
}

fn is_end(flow: &Flow) -> bool {
    matches!(flow.status(), FlowStatus::Finished | FlowStatus::Error | FlowStatus::Cancelled)
}
