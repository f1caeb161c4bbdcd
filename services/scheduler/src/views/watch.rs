//! Watching a flow: a snapshot, then each change once.
//!
//! The snapshot is read after a position, and changes since that position are sent before the snapshot is
//! closed: nothing falls between them. Changes that the snapshot already shows are left out by comparing revisions.
//!
//! From then on every answer follows from one event alone: watchers from the same position receive the same
//! answers at any time.

use model::{ContextEvent, FlowEvent, FlowStatus, JobId, Revision};
use proto::convert;
use proto::v1::watch_flow_response::Event as Answer;
use proto::v1::{Flow, Heartbeat, SnapshotEnd, WatchFlowResponse};
use tonic::Status;

use crate::views::answers::{AnswerSender, Ended};
use crate::views::node_names::NodeNames;
use crate::views::position::revision_of;
use crate::views::reader::{FlowEventStream, FlowReader, is_end};

/// One watcher of one flow.
pub struct FlowWatch {
    reader: FlowReader,
    answers: AnswerSender<WatchFlowResponse>,
    /// Nodes that the snapshot shows: up to this id, as of this revision.
    shown: Vec<(JobId, Revision)>,
    flow_shown: Revision,
    /// The flow as it was read last; answers to events use only its fields that do not change.
    flow: Flow,
}

impl FlowWatch {
    /// A watcher that is sent its answers through `answers`.
    #[must_use]
    pub fn new(reader: FlowReader, answers: AnswerSender<WatchFlowResponse>) -> Self {
        Self { reader, answers, shown: Vec::new(), flow_shown: Revision(0), flow: Flow::default() }
    }

    /// Runs until the flow has ended, the watcher has gone or something failed;
    /// a failure is the last thing that the watcher is sent.
    pub async fn run(mut self, resume_position: String) {
        if let Err(ended) = self.watch(resume_position).await {
            self.answers.end(ended);
        }
    }

    async fn watch(&mut self, resume_position: String) -> Result<(), Ended> {
        let mut in_snapshot = resume_position.is_empty();
        let mut events = if in_snapshot {
            self.snapshot().await?
        } else {
            // The flow is read before its events are requested: if it ends in between, its end still follows as an event.
            self.flow = self.reader.flow().await?;
            self.reader.events(resume_position).await?
        };
        self.reader.is_patient = true;
        // Revision of a flow that has ended: no event follows the existing ones, unless the flow is run again.
        let mut over = is_end(&self.flow).then_some(Revision(self.flow.revision));
        let mut reached = events.begin.clone();
        loop {
            let Some(next) = self.answers.heartbeat.or_due(events.next()).await else {
                let place = if in_snapshot { String::new() } else { reached.clone() };
                self.send(Answer::Heartbeat(Heartbeat {}), place).await?;
                continue;
            };
            let (event, position) = next?;
            reached.clone_from(&position);
            let Some(event) = event else {
                // The stream has sent everything that existed when it began.
                let is_over = over.take().is_some();
                if std::mem::take(&mut in_snapshot) {
                    self.send_as(Answer::SnapshotEnd(SnapshotEnd {}), position, is_over).await?;
                }
                if is_over {
                    return Ok(());
                }
                continue;
            };
            let revision = revision_of(&position);
            over = over.filter(|ended| !is_run(&event) || revision <= *ended);
            let place = if in_snapshot { String::new() } else { position.clone() };
            if self.change(event, revision, place).await? {
                if in_snapshot {
                    self.send_as(Answer::SnapshotEnd(SnapshotEnd {}), position, true).await?;
                }
                return Ok(());
            }
        }
    }

    /// Sends the flow and its nodes; returns the events since then, some of which they may lack. Everything that arrives while the
    /// pages are read belongs to the snapshot.
    async fn snapshot(&mut self) -> Result<FlowEventStream, Ended> {
        let (flow, page, events) = self.reader.flow_to_watch().await?;
        self.flow = flow;
        self.reader.is_patient = true;
        self.flow_shown = Revision(self.flow.revision);
        self.send(Answer::Flow(self.flow.clone()), String::new()).await?;
        let is_one_page = page.is_last();
        let (mut next, mut names) = (Some(page), NodeNames::default());
        while let Some(page) = next.take() {
            self.shown.extend(page.nodes.last().map(|node| (node.job_id, page.revision)));
            for node in names.resolve_to_wire(&mut self.reader, &page.nodes, page.home).await? {
                self.send(Answer::Node(node), String::new()).await?;
            }
            next = self.reader.nodes(Some(&page)).await?;
        }
        if is_one_page {
            return Ok(events);
        }
        // Changes while the other pages were read belong to the snapshot as well: requested again, its events end behind those changes.
        Ok(self.reader.events(events.begin).await?)
    }

    /// Sends what an event means to the watcher. `true` after the flow's end, with which the stream ends unless the snapshot's end
    /// follows: `place` is empty within the snapshot.
    async fn change(
        &mut self,
        event: ContextEvent,
        revision: Revision,
        place: String,
    ) -> Result<bool, Ended> {
        match event {
            ContextEvent::Node(change) if !self.is_shown(change.job_id, revision) => {
                self.send(Answer::NodeChange(convert::node::change_to_wire(&change)), place).await?;
            }
            ContextEvent::Flow(FlowEvent { status: None, .. }) => {
                return Err(Status::from(rpc::Error::not_found(format!("flow {}", self.reader.flow))).into());
            }
            ContextEvent::Flow(change) if revision > self.flow_shown => {
                let ends = change.status.is_some_and(FlowStatus::is_end);
                if ends && change.result.is_none() {
                    // The flow has its result now, and nothing else about it changes until it is run again.
                    self.flow = self.reader.flow().await?;
                }
                let is_last = ends && !place.is_empty();
                let flow = convert::flow::apply_event(&self.flow, &change, revision);
                self.send_as(Answer::Flow(flow), place, is_last).await?;
                return Ok(ends);
            }
            _ => {}
        }
        Ok(false)
    }

    fn is_shown(&self, job: JobId, revision: Revision) -> bool {
        let place = self.shown.partition_point(|(last, _)| *last < job);
        self.shown.get(place).is_some_and(|(_, shown)| revision <= *shown)
    }

    async fn send(&mut self, event: Answer, resume_position: String) -> Result<(), Ended> {
        self.send_as(event, resume_position, false).await
    }

    async fn send_as(&mut self, event: Answer, resume_position: String, is_last: bool) -> Result<(), Ended> {
        let answer = |resume_position| WatchFlowResponse { event: Some(event), resume_position };
        self.answers.send(resume_position, answer, is_last).await
    }
}

/// Returns true when the flow runs from this event on.
fn is_run(event: &ContextEvent) -> bool {
    matches!(event, ContextEvent::Flow(FlowEvent { status: Some(status), .. }) if !status.is_end())
}
