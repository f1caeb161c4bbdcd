//! Answers of a watch, on their way to its watcher.

use std::time::Duration;

use model::limits::WATCH_BUFFER;
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tonic::Status;

use super::heartbeat::StreamHeartbeat;
use crate::error::{Error, ErrorKind, RpcReason};

/// How long a watcher may leave [`WATCH_BUFFER`] answers unread before its stream is ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most answers that wait for one watcher, the last of which says that there are no more.
pub const ANSWERS_MAX: usize = WATCH_BUFFER + 1;

/// Reason why a watch is over.
pub enum WatchEnded {
    /// The watcher went away.
    Gone,
    /// Something failed; the watcher gets the status.
    Failed(Box<Status>),
}

impl From<Status> for WatchEnded {
    fn from(status: Status) -> Self {
        Self::Failed(Box::new(status))
    }
}

/// Sends answers to one watcher, and remembers from where on it can resume.
pub struct AnswerSender<T> {
    answers: mpsc::Sender<Result<T, Status>>,
    /// Counts those that are ended since they do not read.
    slow_watchers: IntCounter,
    /// Where the watcher can go on after what it was sent.
    resume_position: String,
    /// Says when the watcher is due a sign of life.
    pub heartbeat: StreamHeartbeat,
}

impl<T> AnswerSender<T> {
    /// Makes a sender into a channel of [`ANSWERS_MAX`] places.
    #[must_use]
    pub fn new(answers: mpsc::Sender<Result<T, Status>>, slow_watchers: IntCounter) -> Self {
        Self { answers, slow_watchers, resume_position: String::new(), heartbeat: StreamHeartbeat::default() }
    }

    /// Sends the answer after which the watcher can resume at `resume_position`. Cancel-safe: it was sent, or it was not.
    ///
    /// # Errors
    /// The watcher has gone, or does not read.
    pub async fn send(
        &mut self,
        resume_position: String,
        answer: impl FnOnce(String) -> T,
    ) -> Result<(), WatchEnded> {
        // One place stays free, for the reason of an end.
        let Ok(places) = tokio::time::timeout(PATIENCE, self.answers.reserve_many(2)).await else {
            self.slow_watchers.inc();
            return Err(WatchEnded::from(too_slow(&self.resume_position)));
        };
        let place = places.map_err(|_| WatchEnded::Gone)?.next().ok_or(WatchEnded::Gone)?;
        self.resume_position.clone_from(&resume_position);
        place.send(Ok(answer(resume_position)));
        self.heartbeat.sent();
        Ok(())
    }

    /// Ends the stream, with its reason for the watcher.
    pub fn end(&self, ended: WatchEnded) {
        if let WatchEnded::Failed(status) = ended {
            // There is room: no answer takes the last place. A watcher that has gone does not need the reason.
            let _ = self.answers.try_send(Err(*status));
        }
    }
}

/// RESOURCE_EXHAUSTED, with where to go on.
fn too_slow(resume_position: &str) -> Status {
    let message = format!(
        "{WATCH_BUFFER} answers were not read for {} s; resume after the last answer that was read",
        PATIENCE.as_secs()
    );
    Error::new(ErrorKind::ResourceExhausted, RpcReason::SlowConsumer, message)
        .with("resume_position", resume_position)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watcher_that_does_not_read_is_ended_with_a_position_to_resume_at() {
        let slow = IntCounter::new("slow", "slow").expect("a counter");
        let (answers, mut stream) = mpsc::channel(ANSWERS_MAX);
        let mut sender = AnswerSender::new(answers, slow.clone());
        for n in 0..WATCH_BUFFER {
            assert!(sender.send(n.to_string(), |at| at).await.is_ok());
        }
        let ended = sender.send("more".to_owned(), |at| at).await.expect_err("nobody reads");
        assert_eq!(slow.get(), 1);
        sender.end(ended);
        for n in 0..WATCH_BUFFER {
            assert_eq!(stream.recv().await.expect("an answer").expect("no end yet"), n.to_string());
        }
        let status = stream.recv().await.expect("the reason").expect_err("the end");
        let view = crate::ErrorView::from(&status);
        assert_eq!((view.code, view.reason.as_str()), (tonic::Code::ResourceExhausted, "SLOW_CONSUMER"));
        assert_eq!(view.metadata["resume_position"], (WATCH_BUFFER - 1).to_string());
    }

    #[tokio::test]
    async fn nothing_is_sent_to_a_watcher_that_has_gone() {
        let slow = IntCounter::new("slow", "slow").expect("a counter");
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let mut sender = AnswerSender::new(answers, slow.clone());
        drop(stream);
        assert!(matches!(sender.send(String::new(), |at| at).await, Err(WatchEnded::Gone)));
        assert_eq!(slow.get(), 0);
    }
}
