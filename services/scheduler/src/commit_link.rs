//! The stream of commits to storage.
//!
//! Commits are pipelined: many flows have one under way at the same time. A
//! commit is kept until it was answered; when the stream breaks it is sent
//! again under its own id, and storage answers "already applied" if it was.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoff;
use proto::internal::v1::{CommitRefusal, CommitRequest, CommitResponse};
use rpc::RECONNECT_MAX;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::clients::FlowStoreClient;

/// Commits that may be under way at once. The driver keeps to it.
pub const COMMITS_IN_FLIGHT_MAX: usize = 256;
/// Longest pause before a commit of unknown outcome is resent. It is short, so that the commit is stored soon after the store has room.
const RESEND_MAX: Duration = Duration::from_secs(1);

/// Sends commits. Cloneable; the link runs until its future is dropped.
#[derive(Clone)]
pub struct CommitSender(mpsc::UnboundedSender<CommitRequest>);

impl CommitSender {
    /// Hands a commit to the link; its answer arrives on the channel that the
    /// link was started with. The caller has at most [`COMMITS_IN_FLIGHT_MAX`]
    /// of them without an answer, which bounds the queue.
    pub fn send(&self, commit: CommitRequest) {
        // The link outlives its senders except at shutdown, when no caller waits for the answer.
        let _ = self.0.send(commit);
    }
}

/// Starts the link; answers go to `answers`, one for each commit, in any order. `back` is notified whenever
/// the stream is open again after it was lost: storage may have carried out requests in between whose responses were lost.
pub fn start(
    client: FlowStoreClient,
    answers: mpsc::Sender<CommitResponse>,
    back: Arc<Notify>,
) -> (CommitSender, impl Future<Output = ()> + Send) {
    let (sender, queue) = mpsc::unbounded_channel();
    let link = CommitLink {
        client,
        answers,
        queue,
        unanswered: HashMap::new(),
        order: 0,
        answered: 0,
        stood_before: false,
        back,
    };
    (CommitSender(sender), link.run())
}

struct CommitLink {
    client: FlowStoreClient,
    answers: mpsc::Sender<CommitResponse>,
    queue: mpsc::UnboundedReceiver<CommitRequest>,
    /// By commit id.
    unanswered: HashMap<String, InFlightCommit>,
    order: u64,
    /// How many answers came, over all streams.
    answered: u64,
    /// A stream was open before.
    stood_before: bool,
    /// Notified when a stream is open again.
    back: Arc<Notify>,
}

/// A commit that was not answered yet.
#[derive(Clone)]
struct InFlightCommit {
    /// Place of the commit in the order of sending.
    order: u64,
    commit: CommitRequest,
    /// Pauses before it is sent again while its outcome is unknown.
    backoff: ExponentialBackoff,
}

impl CommitLink {
    async fn run(mut self) {
        let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
        loop {
            let answered = self.answered;
            match self.stream().await {
                Ok(()) => return,
                Err(status) => {
                    tracing::warn!(%status, unanswered = self.unanswered.len(), "the stream of commits broke");
                }
            }
            if self.answered > answered {
                backoff.reset();
            }
            backoff.pause().await;
        }
    }

    /// Runs one stream until it breaks; `Ok` when no sender of commits is left.
    async fn stream(&mut self) -> Result<(), tonic::Status> {
        let mut again: Vec<_> = self.unanswered.values().cloned().collect();
        // The channel is not read before the call is open. It must hold the commits from before the driver's memory
        // was void, and as many new ones.
        let (requests, outgoing) = mpsc::channel(again.len() + COMMITS_IN_FLIGHT_MAX);
        again.sort_by_key(|unanswered| unanswered.order);
        for InFlightCommit { commit, .. } in again {
            requests.send(commit).await.map_err(|_| closed())?;
        }
        let mut incoming = self.client.commit(ReceiverStream::new(outgoing)).await?.into_inner();
        if std::mem::replace(&mut self.stood_before, true) {
            self.back.notify_one();
        }
        loop {
            tokio::select! {
                answer = incoming.message() => {
                    let answer = answer?.ok_or_else(closed)?;
                    if answer.refusal() == CommitRefusal::UnknownOutcome {
                        self.resend(&answer, &requests);
                    } else {
                        self.answered(answer).await;
                    }
                }
                commit = self.queue.recv() => {
                    let Some(commit) = commit else { return Ok(()) };
                    self.order += 1;
                    let unanswered =
                        InFlightCommit { order: self.order, commit: commit.clone(), backoff: ExponentialBackoff::up_to(RESEND_MAX) };
                    self.unanswered.insert(commit.commit_id.clone(), unanswered);
                    requests.send(commit).await.map_err(|_| closed())?;
                }
            }
        }
    }

    async fn answered(&mut self, answer: CommitResponse) {
        if self.unanswered.remove(&answer.commit_id).is_some() {
            self.answered += 1;
            // The driver ends last; without it, the answer has no reader.
            let _ = self.answers.send(answer).await;
        }
    }

    /// Resends a commit after a pause, which grows while its outcome stays unknown: the store does not answer, or has
    /// no room.
    fn resend(&mut self, answer: &CommitResponse, requests: &mpsc::Sender<CommitRequest>) {
        let Some(InFlightCommit { commit, backoff, .. }) = self.unanswered.get_mut(&answer.commit_id) else {
            return;
        };
        let is_first = backoff.is_reset();
        let (commit, requests, wait) = (commit.clone(), requests.clone(), backoff.next_pause());
        if is_first {
            let (commit, detail) = (&answer.commit_id, &answer.detail);
            tracing::warn!(commit, detail, "a commit's outcome is unknown; resending it until it is known");
        }
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // If this stream is gone, the next one begins with all unanswered commits.
            let _ = requests.send(commit).await;
        });
    }
}

fn closed() -> tonic::Status {
    tonic::Status::unavailable("storage ended the stream")
}
