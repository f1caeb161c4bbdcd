//! Watching a flow: a snapshot, then each change once.
//!
//! The events are asked for first and the snapshot is read after that, so
//! nothing falls between them. What the snapshot already shows is left out of
//! the changes by comparing revisions.

use std::time::Duration;

use model::limits::WATCH_BUFFER;
use model::{Event, FlowEvent, Generation, JobId, Revision};
use prometheus::IntCounter;
use proto::convert;
use proto::v1::watch_flow_response::Event as Answer;
use proto::v1::{Flow, Heartbeat, SnapshotEnd, WatchFlowResponse};
use rpc::Pulse;
use tokio::sync::mpsc;
use tonic::Status;

use crate::views::names::Names;
use crate::views::position::revision_of;
use crate::views::reader::{FlowReader, is_end};

/// How long a watcher may leave [`WATCH_BUFFER`] answers unread before its stream is ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// What may wait for a watcher: its answers, and the news that there are no more.
pub const CHANNEL: usize = WATCH_BUFFER + 1;

/// One watcher of one flow.
pub struct Watch {
    reader: FlowReader,
    answers: mpsc::Sender<Result<WatchFlowResponse, Status>>,
    /// Counts those that are ended since they do not read.
    slow_watchers: IntCounter,
    /// What the snapshot shows: nodes up to this id, as of this revision.
    shown: Vec<(JobId, Revision)>,
    flow_shown: Revision,
    /// Where the watcher can go on after what it was sent.
    resume_position: String,
    pulse: Pulse,
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
    /// A watcher that is sent its answers through `answers`, a channel of [`CHANNEL`] places.
    #[must_use]
    pub fn new(
        reader: FlowReader,
        answers: mpsc::Sender<Result<WatchFlowResponse, Status>>,
        slow_watchers: IntCounter,
    ) -> Self {
        Self {
            reader,
            answers,
            slow_watchers,
            shown: Vec::new(),
            flow_shown: Revision(0),
            resume_position: String::new(),
            pulse: Pulse::default(),
        }
    }

    /// Runs until the flow has ended, the watcher has gone or something failed;
    /// a failure is the last thing that the watcher is sent.
    pub async fn run(mut self, resume_position: String) {
        if let Err(Ended::Failed(status)) = self.watch(resume_position).await {
            // There is room: no answer takes the last place. A watcher that has gone does not need the reason.
            let _ = self.answers.try_send(Err(*status));
        }
    }

    async fn watch(&mut self, resume_position: String) -> Result<(), Ended> {
        let resumed = !resume_position.is_empty();
        let mut events = self.reader.events(resume_position.clone()).await?;
        self.reader.is_patient = true;
        let flow = self.reader.flow().await?;
        let is_over = is_end(&flow);
        // Of one that resumes, the flow when it had ended: its end may lie before the position.
        let mut ended = None;
        if resumed {
            ended = is_over.then_some(flow);
        } else {
            self.snapshot(flow, &events.begin).await?;
            if is_over {
                return Ok(());
            }
        }
        let mut reached = if resumed { resume_position } else { events.begin.clone() };
        loop {
            let Some(next) = self.pulse.or_due(events.next()).await else {
                self.send(Answer::Heartbeat(Heartbeat {}), reached.clone()).await?;
                continue;
            };
            let (event, position) = next?;
            reached.clone_from(&position);
            let Some(event) = event else {
                // All that was there has come, and its end was not in it.
                let Some(flow) = ended.take() else { continue };
                return self.send(Answer::Flow(flow), position).await;
            };
            // Where it was run again since, another end is to come.
            let revision = revision_of(&position);
            ended = ended.filter(|flow| !is_run(&event) || revision <= Revision(flow.revision));
            if self.change(event, position).await? {
                return Ok(());
            }
        }
    }

    async fn snapshot(&mut self, flow: Flow, position: &str) -> Result<(), Ended> {
        self.flow_shown = Revision(flow.revision);
        self.send(Answer::Flow(flow), String::new()).await?;
        let (mut last, mut names) = (None, Names::default());
        while let Some(page) = self.reader.nodes(last.as_ref()).await? {
            self.shown.extend(page.nodes.last().map(|node| (node.job_id, page.revision)));
            for node in names.tell(&mut self.reader, &page.nodes, page.home).await? {
                self.send(Answer::Node(node), String::new()).await?;
            }
            last = Some(page);
        }
        self.send(Answer::SnapshotEnd(SnapshotEnd {}), position.to_owned()).await
    }

    /// Sends what an event means to the watcher. `true` after the flow's end.
    async fn change(&mut self, event: Event, position: String) -> Result<bool, Ended> {
        let revision = revision_of(&position);
        match event {
            Event::Node(change) if !self.is_shown(change.job_id, revision) => {
                self.send(Answer::NodeChange(convert::node::change_to_wire(&change)), position).await?;
            }
            Event::Flow(FlowEvent { status: None, .. }) => {
                return Err(Status::from(rpc::Error::not_found(format!("flow {}", self.reader.flow))).into());
            }
            Event::Flow(FlowEvent { status: Some(status), generation, .. }) if status.is_end() => {
                return self.end(generation, position).await;
            }
            Event::Flow(_) | Event::CancelRequested { .. } if revision > self.flow_shown => {
                let flow = self.reader.flow().await?;
                // One that has ended by now is told with its end, after the changes that led to it.
                if !is_end(&flow) {
                    self.flow_shown = Revision(flow.revision);
                    self.send(Answer::Flow(flow), position).await?;
                }
            }
            _ => {}
        }
        Ok(false)
    }

    /// Takes up the end of a generation. `true` unless the flow was run again since.
    async fn end(&mut self, generation: Generation, position: String) -> Result<bool, Ended> {
        let flow = self.reader.flow().await?;
        let ended = is_end(&flow) && flow.generation == generation.0;
        if ended || revision_of(&position) > self.flow_shown {
            self.flow_shown = Revision(flow.revision);
            self.send(Answer::Flow(flow), position).await?;
        }
        Ok(ended)
    }

    fn is_shown(&self, job: JobId, revision: Revision) -> bool {
        let place = self.shown.partition_point(|(last, _)| *last < job);
        self.shown.get(place).is_some_and(|(_, shown)| revision <= *shown)
    }

    async fn send(&mut self, event: Answer, resume_position: String) -> Result<(), Ended> {
        // One place stays free, for the reason of an end.
        let Ok(places) = tokio::time::timeout(PATIENCE, self.answers.reserve_many(2)).await else {
            self.slow_watchers.inc();
            return Err(Ended::from(too_slow(&self.resume_position)));
        };
        let place = places.map_err(|_| Gone)?.next().ok_or(Gone)?;
        self.resume_position.clone_from(&resume_position);
        place.send(Ok(WatchFlowResponse { event: Some(event), resume_position }));
        self.pulse.sent();
        Ok(())
    }
}

/// Whether a flow runs from there on.
fn is_run(event: &Event) -> bool {
    matches!(event, Event::Flow(FlowEvent { status: Some(status), .. }) if !status.is_end())
}

/// RESOURCE_EXHAUSTED, with where to go on.
fn too_slow(resume_position: &str) -> Status {
    let message = format!(
        "{WATCH_BUFFER} answers were not read for {} s; resume from the last one that was",
        PATIENCE.as_secs()
    );
    rpc::Error::new(rpc::ErrorKind::ResourceExhausted, rpc::Reason::SlowConsumer, message)
        .with("resume_position", resume_position)
        .into()
}
