//! Answers of a watch, on their way to its watcher.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
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

/// An answer on its way to its watcher.
#[derive(Debug)]
pub struct WatchAnswer<T> {
    answer: T,
    /// True for the last one of the watch: its stream ends together with it.
    is_last: bool,
}

/// The answers of one watch, as its watcher gets them.
///
/// The end of the stream travels with the last answer: told separately, it costs both sides another wake-up and another write.
#[derive(Debug)]
pub struct AnswerStream<T> {
    /// Nothing once the watch is over.
    answers: Option<mpsc::Receiver<Result<WatchAnswer<T>, Status>>>,
}

impl<T> AnswerStream<T> {
    /// Makes the stream of what an [`AnswerSender`] sends.
    #[must_use]
    pub const fn new(answers: mpsc::Receiver<Result<WatchAnswer<T>, Status>>) -> Self {
        Self { answers: Some(answers) }
    }
}

impl<T> Stream for AnswerStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(answers) = &mut self.answers else { return Poll::Ready(None) };
        let next = std::task::ready!(answers.poll_recv(context));
        if !matches!(&next, Some(Ok(sent)) if !sent.is_last) {
            self.answers = None;
        }
        Poll::Ready(next.map(|next| next.map(|sent| sent.answer)))
    }
}

/// Sends answers to one watcher, and remembers from where on it can resume.
pub struct AnswerSender<T> {
    answers: mpsc::Sender<Result<WatchAnswer<T>, Status>>,
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
    pub fn new(answers: mpsc::Sender<Result<WatchAnswer<T>, Status>>, slow_watchers: IntCounter) -> Self {
        Self { answers, slow_watchers, resume_position: String::new(), heartbeat: StreamHeartbeat::default() }
    }

    /// Sends the answer after which the watcher can resume at `resume_position`. The stream ends with one that `is_last`. Cancel-safe:
    /// it was sent, or it was not.
    ///
    /// # Errors
    /// The watcher has gone, or does not read.
    pub async fn send(
        &mut self,
        resume_position: String,
        answer: impl FnOnce(String) -> T,
        is_last: bool,
    ) -> Result<(), WatchEnded> {
        // One place stays free, for the reason of an end.
        let Ok(places) = tokio::time::timeout(PATIENCE, self.answers.reserve_many(2)).await else {
            self.slow_watchers.inc();
            return Err(WatchEnded::from(too_slow(&self.resume_position)));
        };
        let place = places.map_err(|_| WatchEnded::Gone)?.next().ok_or(WatchEnded::Gone)?;
        self.resume_position.clone_from(&resume_position);
        place.send(Ok(WatchAnswer { answer: answer(resume_position), is_last }));
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
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watcher_that_does_not_read_is_ended_with_a_position_to_resume_at() {
        let slow = IntCounter::new("slow", "slow").expect("a counter");
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let mut stream = AnswerStream::new(stream);
        let mut sender = AnswerSender::new(answers, slow.clone());
        for n in 0..WATCH_BUFFER {
            assert!(sender.send(n.to_string(), |at| at, false).await.is_ok());
        }
        let ended = sender.send("more".to_owned(), |at| at, false).await.expect_err("nobody reads");
        assert_eq!(slow.get(), 1);
        sender.end(ended);
        for n in 0..WATCH_BUFFER {
            assert_eq!(stream.next().await.expect("an answer").expect("no end yet"), n.to_string());
        }
        let status = stream.next().await.expect("the reason").expect_err("the end");
        let view = crate::ErrorView::from(&status);
        assert_eq!((view.code, view.reason.as_str()), (tonic::Code::ResourceExhausted, "SLOW_CONSUMER"));
        assert_eq!(view.metadata["resume_position"], (WATCH_BUFFER - 1).to_string());
    }

    #[tokio::test]
    async fn the_stream_ends_with_the_last_answer_before_its_sender_does() {
        let slow = IntCounter::new("slow", "slow").expect("a counter");
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let mut stream = AnswerStream::new(stream);
        let mut sender = AnswerSender::new(answers, slow);
        assert!(sender.send("a".to_owned(), |at| at, false).await.is_ok());
        assert!(sender.send("b".to_owned(), |at| at, true).await.is_ok());
        let mut answer =
            async || stream.next().now_or_never().expect("it is known").transpose().expect("no failure");
        assert_eq!(
            [answer().await, answer().await, answer().await],
            [Some("a".into()), Some("b".into()), None]
        );
        assert!(matches!(sender.send("c".to_owned(), |at| at, false).await, Err(WatchEnded::Gone)));
    }

    #[tokio::test]
    async fn nothing_is_sent_to_a_watcher_that_has_gone() {
        let slow = IntCounter::new("slow", "slow").expect("a counter");
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let mut sender = AnswerSender::new(answers, slow.clone());
        drop(stream);
        assert!(matches!(sender.send(String::new(), |at| at, false).await, Err(WatchEnded::Gone)));
        assert_eq!(slow.get(), 0);
    }
}
