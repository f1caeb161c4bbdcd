//! Answers that are made where they are read, while a task cares for the rest of their stream.

use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

/// The side of the task. Its end is the stream's.
#[derive(Debug)]
pub struct Served {
    left: CancellationToken,
    end: oneshot::Sender<Status>,
}

impl Served {
    /// Returns when nobody reads the stream any more, or there are no more answers. Cancel safe.
    pub async fn left(&self) {
        self.left.cancelled().await;
    }

    /// Ends the stream with a status, before answers that were not read yet.
    pub fn end(self, status: Status) {
        // The reader of the stream may have left.
        let _ = self.end.send(status);
    }
}

/// A stream of these answers, which passes through no task and no queue, and what the task that serves it holds.
pub fn served<T: Send, S: Stream<Item = T> + Unpin + Send>(
    answers: S,
) -> (impl Stream<Item = Result<T, Status>> + Send + use<T, S>, Served) {
    let left = CancellationToken::new();
    let (end, ended) = oneshot::channel();
    let reading = Reading { answers, ended, cancels_left: left.clone().drop_guard() };
    let stream = stream::unfold(Some(reading), |reading| async move {
        let mut reading = reading?;
        let answer = tokio::select! {
            biased;
            end = &mut reading.ended => return end.ok().map(|status| (Err(status), None)),
            answer = reading.answers.next() => answer,
        };
        if let Some(answer) = answer {
            return Some((Ok(answer), Some(reading)));
        }
        drop(reading.cancels_left);
        reading.ended.await.ok().map(|status| (Err(status), None))
    });
    (stream, Served { left, end })
}

/// The side of whoever reads.
struct Reading<S> {
    answers: S,
    ended: oneshot::Receiver<Status>,
    cancels_left: DropGuard,
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn answers_end_with_their_task() {
        let (stream, served) = served(stream::iter([1, 2]).chain(stream::pending()));
        let mut stream = pin!(stream);
        assert_eq!(stream.next().await.expect("an answer").expect("it is one"), 1);
        served.end(Status::unavailable("it drains"));
        let status = stream.next().await.expect("why").expect_err("no answer");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(stream.next().await.is_none());
        let (stream, served) = super::served(stream::pending::<u8>());
        drop(served);
        assert!(pin!(stream).next().await.is_none(), "without a status");
    }

    #[tokio::test]
    async fn the_task_hears_that_nobody_reads_and_that_there_is_no_more() {
        let (stream, served) = served(stream::pending::<u8>());
        drop(stream);
        served.left().await;
        let (stream, served) = super::served(stream::iter([1]));
        let read = tokio::spawn(stream.collect::<Vec<_>>());
        served.left().await;
        served.end(Status::aborted("another has this name"));
        let read = read.await.expect("it ends");
        assert_eq!((read.len(), read[1].as_ref().map_err(Status::code)), (2, Err(Code::Aborted)));
    }
}
