//! Pieces of output that are read at supervisors. A caller waits here for the answer that a router brings.
//!
//! A query goes over one router's stream, and over another one when that stream ends. Few are open at once:
//! they share the streams with reports, which must not wait behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{ContextId, JobKey, RunnerId};
use proto::internal::v1::{LogAnswer, LogPiece, LogQuery, LogReading, LogRefusal, log_reading};
use proto::v1::LogGapReason;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::report_streams::ReportStreamId;

/// Queries that are open at once. Others wait for their turn.
pub const READS_AT_ONCE_MAX: usize = 16;
/// How long an answer may take, the wait for the turn included.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A piece that is wanted.
#[derive(Debug, Clone, Copy)]
pub struct LogPieceRequest {
    /// Where the flow runs.
    pub context: ContextId,
    /// The runner record of the supervisor.
    pub runner: RunnerId,
    /// The attempt.
    pub job_key: JobKey,
    /// From this byte of its output on.
    pub offset: u64,
    /// At most this many bytes.
    pub limit: u32,
}

/// Open queries. Clones share them.
#[derive(Debug, Clone)]
pub struct LogReadClient(Arc<LogReadClientInner>);

#[derive(Debug)]
struct LogReadClientInner {
    table: Mutex<LogReadTable>,
    turns: Semaphore,
    unsent: Notify,
}

#[derive(Debug, Default)]
struct LogReadTable {
    last_id: u64,
    open: BTreeMap<u64, LogReadEntry>,
    unsent: BTreeSet<u64>,
}

#[derive(Debug)]
struct LogReadEntry {
    query: LogQuery,
    /// Stream over which the query was sent.
    link: Option<ReportStreamId>,
    answer: oneshot::Sender<Option<LogReading>>,
}

impl Default for LogReadClient {
    fn default() -> Self {
        let turns = Semaphore::new(READS_AT_ONCE_MAX);
        Self(Arc::new(LogReadClientInner { table: Mutex::default(), turns, unsent: Notify::new() }))
    }
}

impl LogReadClient {
    /// Reads a piece at its supervisor. Cancel safe: dropping the future removes the query.
    ///
    /// # Errors
    /// The reason why the piece could not be read.
    pub async fn read(&self, request: LogPieceRequest) -> Result<LogPiece, LogRefusal> {
        let reading = async {
            // Never closed.
            let _turn = self.0.turns.acquire().await.ok()?;
            let (_guard, answer) = self.open(request);
            answer.await.ok().flatten()?.result
        };
        let secs = PATIENCE.as_secs();
        match tokio::time::timeout(PATIENCE, reading).await {
            Ok(Some(log_reading::Result::Piece(piece))) => Ok(piece),
            Ok(Some(log_reading::Result::Refusal(refusal))) => Err(refusal),
            Ok(None) => Err(unreachable("the supervisor's answer is empty".to_owned())),
            Err(_) => Err(unreachable(format!("no answer came from the supervisor within {secs} s"))),
        }
    }

    /// Waits until something is to be sent.
    pub async fn unsent(&self) {
        self.0.unsent.notified().await;
    }

    /// Sends the unsent queries; `send` returns the stream that took one. Queries that no stream takes wait for the
    /// next call.
    pub fn send_unsent(&self, mut send: impl FnMut(LogQuery) -> Option<ReportStreamId>) {
        let mut table = self.table();
        while let Some(id) = table.unsent.first().copied() {
            if let Some(open) = table.open.get_mut(&id) {
                let Some(link) = send(open.query.clone()) else { return };
                open.link = Some(link);
            }
            table.unsent.remove(&id);
        }
    }

    /// Hands an answer of a router to its caller; drops one without a caller.
    pub fn answered(&self, answer: LogAnswer) {
        let LogAnswer { query_id, reading } = answer;
        if let Some(open) = self.table().close(query_id) {
            // The caller may have gone away.
            open.answer.send(reading).ok();
        }
    }

    /// Marks queries that went over an ended stream as unsent: they will not be answered there.
    pub fn stream_lost(&self, link: ReportStreamId) {
        let mut table = self.table();
        let LogReadTable { open, unsent, .. } = &mut *table;
        for (id, open) in open.iter_mut().filter(|(_, open)| open.link == Some(link)) {
            open.link = None;
            unsent.insert(*id);
        }
        if !unsent.is_empty() {
            self.0.unsent.notify_one();
        }
    }

    fn open(&self, request: LogPieceRequest) -> (LogReadGuard, oneshot::Receiver<Option<LogReading>>) {
        let LogPieceRequest { context, runner, job_key, offset, limit } = request;
        let (answer, receiver) = oneshot::channel();
        let mut table = self.table();
        table.last_id += 1;
        let query_id = table.last_id;
        let query = LogQuery {
            query_id,
            context_id: context.0,
            runner_id: runner.0,
            job_key: job_key.to_string(),
            offset,
            limit,
        };
        table.open.insert(query_id, LogReadEntry { query, link: None, answer });
        table.unsent.insert(query_id);
        self.0.unsent.notify_one();
        (LogReadGuard { client: self.clone(), query_id }, receiver)
    }

    fn table(&self) -> MutexGuard<'_, LogReadTable> {
        // No code panics while the lock is held.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogReadTable {
    fn close(&mut self, query_id: u64) -> Option<LogReadEntry> {
        self.unsent.remove(&query_id);
        self.open.remove(&query_id)
    }
}

/// Open query; closed on drop.
struct LogReadGuard {
    client: LogReadClient,
    query_id: u64,
}

impl Drop for LogReadGuard {
    fn drop(&mut self) {
        self.client.table().close(self.query_id);
    }
}

fn unreachable(detail: String) -> LogRefusal {
    LogRefusal { reason: LogGapReason::Unreachable.into(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;
    use model::{Attempt, ContextUid, FlowUid, JobId};

    fn request(offset: u64) -> LogPieceRequest {
        let job_key = JobKey {
            context: ContextUid(Uid::from_bits(1)),
            flow: FlowUid(Uid::from_bits(2)),
            job: JobId(3),
            attempt: Attempt(1),
        };
        LogPieceRequest { context: ContextId(1), runner: RunnerId(4), job_key, offset, limit: 9 }
    }

    /// Returns the queries that would be sent over a link.
    fn sent(client: &LogReadClient, link: u64) -> Vec<LogQuery> {
        let mut queries = Vec::new();
        client.send_unsent(|query| {
            queries.push(query);
            Some(ReportStreamId(link))
        });
        queries
    }

    async fn next_sent(client: &LogReadClient, link: u64) -> LogQuery {
        loop {
            if let Some(query) = sent(client, link).pop() {
                return query;
            }
            client.unsent().await;
        }
    }

    fn piece(query_id: u64) -> LogAnswer {
        let piece = LogPiece { offset: query_id, ..Default::default() };
        let result = Some(log_reading::Result::Piece(piece));
        LogAnswer { query_id, reading: Some(LogReading { result }) }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_reaches_its_reader_also_over_another_stream() {
        let client = LogReadClient::default();
        let reading = tokio::spawn({
            let client = client.clone();
            async move { client.read(request(5)).await }
        });
        client.unsent().await;
        client.send_unsent(|_| None);
        let query = next_sent(&client, 1).await;
        assert_eq!((query.context_id, query.runner_id, query.offset, query.limit), (1, 4, 5, 9));
        assert!(sent(&client, 1).is_empty(), "once");
        client.stream_lost(ReportStreamId(2));
        assert!(sent(&client, 3).is_empty(), "it went over another one");
        client.stream_lost(ReportStreamId(1));
        assert_eq!(next_sent(&client, 2).await, query);
        client.answered(piece(query.query_id + 1));
        client.answered(piece(query.query_id));
        assert_eq!(reading.await.expect("no panic").expect("a piece").offset, query.query_id);
        client.answered(piece(query.query_id));
    }

    #[tokio::test(start_paused = true)]
    async fn no_reader_waits_for_ever_and_few_read_at_once() {
        let client = LogReadClient::default();
        let mut reading = tokio::task::JoinSet::new();
        for offset in 0..READS_AT_ONCE_MAX as u64 + 1 {
            let client = client.clone();
            reading.spawn(async move { client.read(request(offset)).await });
        }
        client.unsent().await;
        let first = next_sent(&client, 1).await;
        assert_eq!(client.table().open.len(), READS_AT_ONCE_MAX);
        client.answered(piece(first.query_id));
        assert!(reading.join_next().await.expect("one").expect("no panic").is_ok());
        next_sent(&client, 1).await;
        for _ in 0..READS_AT_ONCE_MAX {
            let refusal = reading.join_next().await.expect("one").expect("no panic").expect_err("no answer");
            assert_eq!(refusal.reason(), LogGapReason::Unreachable);
            assert_eq!(refusal.detail, "no answer came from the supervisor within 10 s");
        }
        assert!(client.table().open.is_empty() && client.table().unsent.is_empty(), "nothing is left");
    }

    #[tokio::test]
    async fn who_goes_away_leaves_nothing() {
        let client = LogReadClient::default();
        let reading = tokio::spawn({
            let client = client.clone();
            async move { client.read(request(0)).await }
        });
        client.unsent().await;
        reading.abort();
        assert!(reading.await.expect_err("ended").is_cancelled());
        assert!(sent(&client, 1).is_empty());
    }
}
