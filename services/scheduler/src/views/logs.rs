//! Output of a flow's jobs, both kept and new. [`supervisor_logs`]: output before the tails that
//! storage keeps; [`print_times`]: when it was printed.

pub mod print_times;
pub mod supervisor_logs;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use model::{Attempt, ContextEvent, FlowEvent, FlowStatus, JobId, Name, NodeState, RunnerId, Timestamp};
use proto::convert::node::JobKeyPrefix;
use proto::internal::v1::ReadLogResponse;
use proto::v1::{LogGap, LogGapReason, StreamFlowLogsResponse};
use rpc::StreamHeartbeat;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use self::print_times::PrintTimes;
use self::supervisor_logs::{LogSegment, SupervisorLogReader, gap};
use crate::log_reads::LogReadClient;
use crate::views::reader::{FlowEventStream, FlowNodePage, FlowReader, is_end};

/// Answers that may wait for a reader: of at most 128 KiB each.
pub const CHANNEL: usize = 8;

/// How long each of the last pieces may take after the flow's end. A supervisor that
/// died may never send them.
const LAST_PIECES_PATIENCE: Duration = Duration::from_secs(5);

/// One reader of one flow's output.
pub struct FlowLogStream {
    reader: FlowReader,
    before: SupervisorLogReader,
    answers: mpsc::Sender<Result<StreamFlowLogsResponse, Status>>,
    nodes: BTreeMap<JobId, LogStreamNode>,
    /// How far each attempt's output was sent.
    sent: HashMap<(JobId, Attempt), u64>,
    /// The only attempt that is wanted.
    only: Option<Attempt>,
    /// Supervisors are not asked.
    tail: bool,
    /// Output printed before this time is not wanted.
    since: Option<Timestamp>,
    pulse: StreamHeartbeat,
}

/// State of a node when the stream began.
struct LogStreamNode {
    name: Name,
    attempt: Attempt,
    /// Runner that the attempt was sent to.
    runner: Option<RunnerId>,
}

/// Selection of a flow's output.
#[derive(Debug, Clone, Default)]
pub struct FlowLogSelection {
    /// Only this node, by name; empty: all.
    pub node: String,
    /// Only this attempt of it.
    pub attempt: Option<Attempt>,
    /// From this byte of that attempt's output on.
    pub offset: u64,
    /// Also output that is still to come, until the flow has ended.
    pub follow: bool,
    /// Only what storage keeps.
    pub tail: bool,
    /// Only what was printed at this moment or later.
    pub since: Option<Timestamp>,
}

impl FlowLogStream {
    /// A reader that is sent its answers through `answers`, a channel of [`CHANNEL`] places.
    #[must_use]
    pub fn new(
        reader: FlowReader,
        log_reads: LogReadClient,
        answers: mpsc::Sender<Result<StreamFlowLogsResponse, Status>>,
    ) -> Self {
        let before = SupervisorLogReader::new(log_reads, reader.context);
        Self {
            reader,
            before,
            answers,
            nodes: BTreeMap::new(),
            sent: HashMap::new(),
            only: None,
            tail: false,
            since: None,
            pulse: StreamHeartbeat::default(),
        }
    }

    /// Runs until everything was sent (with `follow`: until the flow has ended
    /// and everything was sent), the reader has gone or something failed.
    pub async fn run(mut self, wanted: FlowLogSelection) {
        if let Err(status) = self.stream(&wanted).await {
            // A reader that has gone does not need the reason.
            let _ = self.answers.send(Err(status)).await;
        }
    }

    async fn stream(&mut self, wanted: &FlowLogSelection) -> Result<(), Status> {
        let node = wanted.node.as_str();
        let mut events = self.reader.events(String::new()).await?;
        self.reader.is_patient = true;
        let FlowNodePage { nodes, home, .. } = self.reader.all_nodes().await?;
        self.nodes = nodes
            .iter()
            .filter(|known| node.is_empty() || known.name.as_str() == node)
            .map(|node| {
                let known =
                    LogStreamNode { name: node.name.clone(), attempt: node.attempt, runner: node.runner };
                (node.job_id, known)
            })
            .collect();
        if self.nodes.is_empty() && !node.is_empty() {
            return Err(self.reader.no_job(node, nodes.iter().map(|node| node.name.as_str())));
        }
        (self.only, self.tail, self.since) = (wanted.attempt, wanted.tail, wanted.since);
        if let Some(attempt) = wanted.attempt {
            self.sent.extend(self.nodes.keys().map(|job| ((*job, attempt), wanted.offset)));
        }
        for node in nodes.iter().filter(|node| node.attempt.0 > 1 || node.state != NodeState::Pending) {
            for attempt in 1..=node.attempt.0 {
                self.send_from(home, node.job_id, Attempt(attempt)).await?;
            }
        }
        drop(nodes);
        if !wanted.follow {
            return Ok(());
        }
        if !is_end(&self.reader.flow().await?) {
            self.follow(home, &mut events).await?;
        }
        // The last pieces and the flow's end take different ways; the end may be faster.
        self.follow_rest(home, &mut events).await
    }

    /// Sends new output until the flow has ended.
    async fn follow(&mut self, home: JobKeyPrefix, events: &mut FlowEventStream) -> Result<(), Status> {
        loop {
            let Some(next) = self.pulse.or_due(events.next()).await else {
                self.answer(StreamFlowLogsResponse::default()).await?;
                continue;
            };
            match next?.0 {
                Some(ContextEvent::Log { job_id, attempt, .. }) => {
                    self.send_from(home, job_id, attempt).await?
                }
                Some(ContextEvent::Flow(FlowEvent { status, .. }))
                    if status.is_none_or(FlowStatus::is_end) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Sends new output until every attempt's output was sent to its end, or no more has arrived for too long.
    async fn follow_rest(&mut self, home: JobKeyPrefix, events: &mut FlowEventStream) -> Result<(), Status> {
        let nodes = self.reader.all_nodes().await?.nodes;
        let mut missing: HashMap<_, _> = nodes
            .iter()
            .filter(|node| self.nodes.contains_key(&node.job_id))
            .filter(|node| self.only.is_none_or(|only| only == node.attempt))
            .map(|node| ((node.job_id, node.attempt), node.output_bytes))
            .collect();
        let mut until = Instant::now() + LAST_PIECES_PATIENCE;
        loop {
            missing.retain(|attempt, end| self.sent.get(attempt).copied().unwrap_or_default() < *end);
            if missing.is_empty() {
                return Ok(());
            }
            let Ok(next) = tokio::time::timeout_at(until, events.next()).await else { return Ok(()) };
            if let Some(ContextEvent::Log { job_id, attempt, .. }) = next?.0 {
                self.send_from(home, job_id, attempt).await?;
                // Sending may have taken long, which must not cut off the output that follows.
                until = Instant::now() + LAST_PIECES_PATIENCE;
            }
        }
    }

    /// Sends the available output of an attempt that was not sent yet.
    async fn send_from(&mut self, home: JobKeyPrefix, job: JobId, attempt: Attempt) -> Result<(), Status> {
        let wanted = self.only.is_none_or(|only| only == attempt);
        if !wanted || !self.nodes.contains_key(&job) {
            return Ok(());
        }
        let sent = self.sent.get(&(job, attempt)).copied().unwrap_or_default();
        let ReadLogResponse { mut offset, mut data, runner_id, times } =
            self.reader.log(job, attempt, sent).await?;
        if data.is_empty() {
            return Ok(());
        }
        let (times, end) = (PrintTimes::new(times), offset + data.len() as u64);
        let first = self.since.map_or(Some(0), |since| times.first_since(since));
        let from = first.unwrap_or(end).max(sent);
        if from >= end {
            self.sent.insert((job, attempt), end);
            return Ok(());
        }
        data.advance(usize::try_from(from.saturating_sub(offset)).unwrap_or(usize::MAX).min(data.len()));
        offset = offset.max(from);
        let stored_runner = (runner_id > 0).then_some(RunnerId(runner_id));
        self.send_before(home, (job, attempt), from..offset, (stored_runner, &times)).await?;
        self.send(job, attempt, (offset, LogSegment::Data(data)), &times).await
    }

    /// Sends output that storage no longer keeps, or the reason why it is not available.
    async fn send_before(
        &mut self,
        home: JobKeyPrefix,
        (job, attempt): (JobId, Attempt),
        mut wanted: Range<u64>,
        (stored_runner, times): (Option<RunnerId>, &PrintTimes),
    ) -> Result<(), Status> {
        let sent_to = || self.nodes.get(&job).filter(|known| known.attempt == attempt)?.runner;
        let runner = stored_runner.or_else(sent_to);
        while !wanted.is_empty() {
            let segment = if self.tail {
                LogSegment::Gap(gap(&wanted, LogGapReason::TailOnly, "only the tail was asked for"))
            } else {
                self.before.read(runner, home.job_key(job, attempt), &wanted).await
            };
            let offset = wanted.start;
            wanted.start = match &segment {
                LogSegment::Data(data) => offset + data.len() as u64,
                LogSegment::Gap(gap) => gap.end,
            };
            self.send(job, attempt, (offset, segment), times).await?;
        }
        Ok(())
    }

    async fn send(
        &mut self,
        job: JobId,
        attempt: Attempt,
        (offset, segment): (u64, LogSegment),
        times: &PrintTimes,
    ) -> Result<(), Status> {
        let Some(LogStreamNode { name, .. }) = self.nodes.get(&job) else { return Ok(()) };
        let (data, gap) = match segment {
            LogSegment::Data(data) => (data, None),
            LogSegment::Gap(gap) => (Bytes::new(), Some(gap)),
        };
        let end = gap.as_ref().map_or(offset + data.len() as u64, |gap: &LogGap| gap.end);
        let times = if gap.is_none() { times.within(&(offset..end)) } else { Vec::new() };
        let (node, attempt_number) = (name.to_string(), attempt.0);
        let answer = StreamFlowLogsResponse { node, attempt: attempt_number, offset, data, gap, times };
        self.answer(answer).await?;
        self.sent.insert((job, attempt), end);
        Ok(())
    }

    async fn answer(&mut self, answer: StreamFlowLogsResponse) -> Result<(), Status> {
        self.answers.send(Ok(answer)).await.map_err(|_| Status::cancelled("the reader has gone"))?;
        self.pulse.sent();
        Ok(())
    }
}
