//! What the jobs of a flow print: what is kept, and what comes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use model::{Attempt, Event, FlowEvent, FlowStatus, JobId, Name, NodeState};
use proto::v1::StreamFlowLogsResponse;
use tokio::sync::mpsc;
use tonic::Status;

use crate::views::reader::{Events, FlowReader, is_end};

/// How long the last pieces may come after the flow's end. A supervisor that
/// died may never send them.
const LAST_PIECES_PATIENCE: Duration = Duration::from_secs(5);

/// One reader of one flow's output.
pub struct LogStream {
    reader: FlowReader,
    answers: mpsc::Sender<Result<StreamFlowLogsResponse, Status>>,
    names: BTreeMap<JobId, Name>,
    /// How far each attempt's output was sent.
    sent: HashMap<(JobId, Attempt), u64>,
    /// The only attempt that is wanted.
    only: Option<Attempt>,
}

/// What a reader wants.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only this node, by name; empty: all.
    pub node: String,
    /// Only this attempt of it.
    pub attempt: Option<Attempt>,
    /// From this byte of that attempt's output on.
    pub offset: u64,
    /// What comes as well, until the flow has ended.
    pub follow: bool,
}

impl LogStream {
    /// A reader that is sent its answers through `answers`.
    #[must_use]
    pub fn new(reader: FlowReader, answers: mpsc::Sender<Result<StreamFlowLogsResponse, Status>>) -> Self {
        Self { reader, answers, names: BTreeMap::new(), sent: HashMap::new(), only: None }
    }

    /// Runs until everything was sent (with `follow`: until the flow has ended
    /// and everything was sent), the reader has gone or something failed.
    pub async fn run(mut self, wanted: Wanted) {
        if let Err(status) = self.stream(&wanted).await {
            // A reader that has gone does not need the reason.
            let _ = self.answers.send(Err(status)).await;
        }
    }

    async fn stream(&mut self, wanted: &Wanted) -> Result<(), Status> {
        let node = wanted.node.as_str();
        let mut events = self.reader.events(String::new()).await?;
        let nodes = self.reader.all_nodes().await?;
        self.names = nodes
            .iter()
            .filter(|known| node.is_empty() || known.name.as_str() == node)
            .map(|known| (known.job_id, known.name.clone()))
            .collect();
        if self.names.is_empty() && !node.is_empty() {
            return Err(rpc::Error::not_found(format!("node `{node}` of flow {}", self.reader.flow)).into());
        }
        self.only = wanted.attempt;
        if let Some(attempt) = wanted.attempt {
            self.sent.extend(self.names.keys().map(|job| ((*job, attempt), wanted.offset)));
        }
        for node in nodes.iter().filter(|node| node.attempt.0 > 1 || node.state != NodeState::Pending) {
            for attempt in 1..=node.attempt.0 {
                self.send_from(node.job_id, Attempt(attempt)).await?;
            }
        }
        if !wanted.follow {
            return Ok(());
        }
        if !is_end(&self.reader.flow().await?) {
            self.follow(&mut events).await?;
        }
        // The last pieces and the flow's end take different ways; the end may be faster.
        let rest = tokio::time::timeout(LAST_PIECES_PATIENCE, self.follow_rest(&mut events)).await;
        rest.unwrap_or(Ok(()))
    }

    /// Sends what comes until the flow has ended.
    async fn follow(&mut self, events: &mut Events) -> Result<(), Status> {
        loop {
            match events.next().await?.0 {
                Some(Event::Log { job_id, attempt, .. }) => self.send_from(job_id, attempt).await?,
                Some(Event::Flow(FlowEvent { status, .. })) if status.is_none_or(FlowStatus::is_end) => {
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Sends what comes until every attempt's output was sent to its end.
    async fn follow_rest(&mut self, events: &mut Events) -> Result<(), Status> {
        let nodes = self.reader.all_nodes().await?;
        let mut missing: HashMap<_, _> = nodes
            .iter()
            .filter(|node| self.names.contains_key(&node.job_id))
            .filter(|node| self.only.is_none_or(|only| only == node.attempt))
            .map(|node| ((node.job_id, node.attempt), node.output_bytes))
            .collect();
        loop {
            missing.retain(|attempt, end| self.sent.get(attempt).copied().unwrap_or_default() < *end);
            if missing.is_empty() {
                return Ok(());
            }
            if let Some(Event::Log { job_id, attempt, .. }) = events.next().await?.0 {
                self.send_from(job_id, attempt).await?;
            }
        }
    }

    /// Sends what is kept of an attempt's output and was not sent yet.
    async fn send_from(&mut self, job: JobId, attempt: Attempt) -> Result<(), Status> {
        let Some(name) = self.names.get(&job) else { return Ok(()) };
        if self.only.is_some_and(|only| only != attempt) {
            return Ok(());
        }
        let sent = self.sent.entry((job, attempt)).or_default();
        let piece = self.reader.log(job, attempt, *sent).await?;
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
