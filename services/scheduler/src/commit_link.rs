//! The stream of commits to storage.
//!
//! Commits are pipelined: many flows have one under way at the same time. A
//! commit is kept until it was answered; when the stream breaks it is sent
//! again under its own id, and storage answers "already applied" if it was.

use std::collections::HashMap;
use std::time::Duration;

use proto::internal::v1::{CommitRefusal, CommitRequest, CommitResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::clients::FlowStoreClient;

/// Commits that may be under way at once. The driver keeps to it.
pub const COMMITS_IN_FLIGHT_MAX: usize = 256;
const RECONNECT_FIRST: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// Sends commits. Cloneable; the link runs until its token is cancelled.
#[derive(Clone)]
pub struct CommitSender(mpsc::UnboundedSender<CommitRequest>);

impl CommitSender {
    /// Hands a commit to the link; its answer arrives on the channel that the
    /// link was started with. The caller has at most [`COMMITS_IN_FLIGHT_MAX`]
    /// of them without an answer, which bounds the queue.
    pub fn send(&self, commit: CommitRequest) {
        // The link outlives its senders except at shutdown, when nobody waits for the answer.
        let _ = self.0.send(commit);
    }
}

/// Starts the link; answers go to `answers`, one for each commit, in any order.
pub fn start(
    client: FlowStoreClient,
    answers: mpsc::Sender<CommitResponse>,
    stop: CancellationToken,
) -> (CommitSender, impl Future<Output = ()> + Send) {
    let (sender, queue) = mpsc::unbounded_channel();
    let link = Link { client, answers, queue, unanswered: HashMap::new(), order: 0 };
    (CommitSender(sender), async move {
        tokio::select! {
            () = link.run() => {}
            () = stop.cancelled() => {}
        }
    })
}

struct Link {
    client: FlowStoreClient,
    answers: mpsc::Sender<CommitResponse>,
    queue: mpsc::UnboundedReceiver<CommitRequest>,
    /// By commit id, with the place in the order of sending.
    unanswered: HashMap<String, (u64, CommitRequest)>,
    order: u64,
}

impl Link {
    async fn run(mut self) {
        let mut delay = RECONNECT_FIRST;
        loop {
            match self.stream().await {
                Ok(()) => return,
                Err(status) => {
                    tracing::warn!(%status, unanswered = self.unanswered.len(), "the stream of commits broke");
                }
            }
            tokio::time::sleep(delay).await;
            delay = if self.unanswered.is_empty() { RECONNECT_FIRST } else { (delay * 2).min(RECONNECT_MAX) };
        }
    }

    /// Runs one stream until it breaks; `Ok` when there is nobody left to commit.
    async fn stream(&mut self) -> Result<(), tonic::Status> {
        let (requests, outgoing) = mpsc::channel(COMMITS_IN_FLIGHT_MAX);
        let mut again: Vec<_> = self.unanswered.values().cloned().collect();
        again.sort_by_key(|(order, _)| *order);
        let mut incoming = self.client.commit(ReceiverStream::new(outgoing)).await?.into_inner();
        for (_, commit) in again {
            tokio::select! {
                sent = requests.send(commit) => sent.map_err(|_| closed())?,
                answer = incoming.message() => self.answered(answer?.ok_or_else(closed)?).await,
            }
        }
        loop {
            tokio::select! {
                answer = incoming.message() => {
                    let answer = answer?.ok_or_else(closed)?;
                    if answer.refusal() == CommitRefusal::UnknownOutcome {
                        self.resend(&answer, &requests).await?;
                    } else {
                        self.answered(answer).await;
                    }
                }
                commit = self.queue.recv() => {
                    let Some(commit) = commit else { return Ok(()) };
                    self.order += 1;
                    self.unanswered.insert(commit.commit_id.clone(), (self.order, commit.clone()));
                    requests.send(commit).await.map_err(|_| closed())?;
                }
            }
        }
    }

    async fn answered(&mut self, answer: CommitResponse) {
        if self.unanswered.remove(&answer.commit_id).is_some() {
            // The driver ends last; without it nobody cares for the answer.
            let _ = self.answers.send(answer).await;
        }
    }

    async fn resend(
        &mut self,
        answer: &CommitResponse,
        requests: &mpsc::Sender<CommitRequest>,
    ) -> Result<(), tonic::Status> {
        tracing::warn!(
            commit = answer.commit_id,
            detail = answer.detail,
            "a commit's outcome is unknown; asking again"
        );
        let Some((_, commit)) = self.unanswered.get(&answer.commit_id) else { return Ok(()) };
        let commit = commit.clone();
        // The store has just failed to answer: a moment lets it come back.
        tokio::time::sleep(RECONNECT_FIRST).await;
        requests.send(commit).await.map_err(|_| closed())
    }
}

fn closed() -> tonic::Status {
    tonic::Status::unavailable("storage ended the stream")
}
